"""Head sampling: OpenTelemetry's consistent probability sampling and its `ot` tracestate member.

A trace is sampled if its randomness is at or above a threshold. Both are integers of 56 bits. Participants that use
the same values make the same decision. `th` is the threshold (hex digits without trailing zeros), which determines
the probability. `rv` is a randomness that replaces that of the trace id.

Source: https://opentelemetry.io/docs/specs/otel/trace/tracestate-probability-sampling/
"""

from __future__ import annotations

import re

TRACESTATE_KEY = "ot"
ALWAYS_MEMBER = "th:0"  # probability 1
_NEVER_THRESHOLD = 1 << 56
# maximum length of the member, because Spanwise's own tracestate entry (at most 256 characters) contains it, too
_MAX_MEMBER_LENGTH = 128
_THRESHOLD_PATTERN, _RANDOMNESS_PATTERN = re.compile(r"th:([0-9a-f]{1,14})"), re.compile(r"rv:([0-9a-f]{14})")


def compute_threshold(rate: float) -> int:
    """Return the threshold of a probability between 0 and 1."""
    return _NEVER_THRESHOLD - round(rate * _NEVER_THRESHOLD)


def sample_new_trace(limit: int, trace_id: int, ot: str = "") -> tuple[bool, str]:
    """Return whether a new trace is sampled, and its member `ot`.

    The argument `ot` is the member of the trace of another SDK within which the new trace starts.
    """
    sampled = get_randomness(trace_id, ot) >= limit
    return sampled, format_member(limit if sampled else None, ot)


def inherit_member(sampled: bool, trace_id: int, ot: str) -> str:
    """Return the member `ot` of a trace that another process began.

    A threshold that contradicts the sampling decision of that process is removed.
    """
    digits = _find_member_value(ot, _THRESHOLD_PATTERN) if sampled else None
    limit = None if digits is None else int(digits.ljust(14, "0"), 16)
    possible = limit is not None and get_randomness(trace_id, ot) >= limit
    return format_member(limit if possible else None, ot)


def make_kept_member(ot: str) -> str:
    """Return the member `ot` of a trace that is kept whatever its randomness. Its threshold states the probability 1."""
    return format_member(0, ot)


def format_member(limit: int | None, ot: str = "") -> str:
    """Return the member `ot` with this threshold and the other valid parts of `ot`.

    If `ot` is too long, only its randomness is kept.
    """
    own = [] if limit is None else ["th:" + (f"{limit:014x}".rstrip("0") or "0")]
    parts = [part for part in ot.split(";") if part and not part.startswith("th:")]
    others = [
        part
        for part in parts
        if _RANDOMNESS_PATTERN.fullmatch(part) or (len(ot) <= _MAX_MEMBER_LENGTH and not part.startswith("rv:"))
    ]
    return ";".join([*own, *others])


def get_randomness(trace_id: int, ot: str = "") -> int:
    """Return the randomness that is compared with a threshold."""
    explicit = _find_member_value(ot, _RANDOMNESS_PATTERN) if ot else None
    return trace_id & (_NEVER_THRESHOLD - 1) if explicit is None else int(explicit, 16)


def _find_member_value(ot: str, form: re.Pattern[str]) -> str | None:
    return next((found[1] for part in ot.split(";") if (found := form.fullmatch(part))), None)
