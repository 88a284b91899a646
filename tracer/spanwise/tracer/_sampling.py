"""Head sampling: OpenTelemetry's consistent probability sampling, and its member `ot` of the W3C tracestate.

A trace is sampled if its randomness is at or above a threshold; both are integers of 56 bits, so that whoever knows
them decides alike. `th` is the threshold (hex digits without trailing zeros), hence the probability; `rv` is a
randomness that takes the place of the trace id's.

Source: https://opentelemetry.io/docs/specs/otel/trace/tracestate-probability-sampling/
"""

from __future__ import annotations

import re

KEY = "ot"
ALWAYS = "th:0"  # probability 1
_NEVER = 1 << 56
_LONGEST = 128  # characters: the member travels in our own entry of the tracestate, too, and that holds 256
_TH, _RV = re.compile(r"th:([0-9a-f]{1,14})"), re.compile(r"rv:([0-9a-f]{14})")


def threshold(rate: float) -> int:
    """The threshold of a probability between 0 and 1."""
    return _NEVER - round(rate * _NEVER)


def decided(limit: int, trace_id: int, ot: str = "") -> tuple[bool, str]:
    """Whether a new trace is sampled, and its member `ot`; `ot` is the one that came along, of another trace."""
    sampled = randomness(trace_id, ot) >= limit
    return sampled, member(limit if sampled else None, ot)


def inherited(sampled: bool, trace_id: int, ot: str) -> str:
    """The member `ot` of a trace that another process began: without a threshold that cannot have led to this."""
    limit = _threshold_of(ot) if sampled else None
    possible = limit is not None and randomness(trace_id, ot) >= limit
    return member(limit if possible else None, ot)


def kept(ot: str) -> str:
    """The member of a trace that was kept for another reason, whatever its randomness."""
    return member(0, ot)


def member(limit: int | None, ot: str = "") -> str:
    """The member `ot` with such a threshold, and what else stood in `ot`."""
    own = [] if limit is None else ["th:" + (f"{limit:014x}".rstrip("0") or "0")]
    return ";".join([*own, *_others(ot)])


def _others(ot: str) -> list[str]:
    """What is no threshold, and can be; in a text that is too long, the randomness alone."""
    parts = [part for part in ot.split(";") if part and not part.startswith("th:")]
    return [part for part in parts if _RV.fullmatch(part) or (len(ot) <= _LONGEST and not part.startswith("rv:"))]


def randomness(trace_id: int, ot: str = "") -> int:
    """What a threshold is set against."""
    explicit = _value(ot, _RV) if ot else None
    return trace_id & (_NEVER - 1) if explicit is None else int(explicit, 16)


def _threshold_of(ot: str) -> int | None:
    digits = _value(ot, _TH)
    return None if digits is None else int(digits.ljust(14, "0"), 16)


def _value(ot: str, form: re.Pattern[str]) -> str | None:
    return next((found[1] for part in ot.split(";") if (found := form.fullmatch(part))), None)
