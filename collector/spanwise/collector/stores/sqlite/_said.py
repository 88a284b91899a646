"""What a span says of how it came to be kept, and by whom: head sampling, and a monitor's mark. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite
from typing import NamedTuple

from spanwise.collector.former_names import FORMER, PRESENT
from spanwise.collector.records import JSON
from spanwise.tracer import attributes as names

TRACE_STATE = "otel.trace_state"  # an attribute: the tracestate as it arrived
SAMPLE_RATE = "spanwise.sample_rate"  # what earlier versions of our tracer say in place of a threshold
# Of a probability that a sender states; below it counts as unknown, because one such trace would be the whole mean
LEAST_PROBABILITY = 1e-4
OF_MONITORS = 2  # bit of the flags in our tracestate entry, `trace id-span id-flags`, and `-ot` in a foreign trace


class Said(NamedTuple):
    """`probability` of having been kept, None where that is unknown or below `LEAST_PROBABILITY`; `partial` where
    only an error in it kept a trace;
    `judgement` where a monitor made it, or called who did.
    """

    probability: float | None
    partial: bool
    judgement: bool


OURS = Said(1.0, False, False)
_UNKNOWN = Said(None, False, False)
_NAMES = (SAMPLE_RATE, names.PARTIAL, names.MONITOR, TRACE_STATE)


def said(attributes: Mapping[str, JSON], resource: Mapping[str, JSON]) -> Said:
    """Of a span with these attributes and this resource."""
    ours = names.LOCAL_ROOT in attributes
    if names.MONITOR not in resource and attributes.keys().isdisjoint(_NAMES):  # looks these few up, not all of theirs
        return OURS if ours else _UNKNOWN
    state = attributes.get(TRACE_STATE)
    entries = _entries(state) if isinstance(state, str) else {}
    partial = attributes.get(names.PARTIAL) is True
    marked = resource.get(names.MONITOR) is True or attributes.get(names.MONITOR) is True or _bears_mark(entries)
    return Said(_probability(attributes, entries, 1.0 if ours else None), partial, marked)


def _probability(attributes: Mapping[str, JSON], entries: Mapping[str, str], otherwise: float | None) -> float | None:
    """The rate that our tracer states, else what follows from OpenTelemetry's threshold."""
    rate = attributes.get(SAMPLE_RATE)
    if isinstance(rate, (int, float)) and isfinite(rate) and 0 < rate <= 1:
        stated: float | None = float(rate)
    else:
        stated = _of_threshold(entries["ot"]) if "ot" in entries else otherwise
    return None if stated is not None and stated < LEAST_PROBABILITY else stated


def _of_threshold(entry: str) -> float | None:
    """1 − th/2⁵⁶ of `th:…`, hex digits without the zeros at their end; None if there is none (OTEP 235)."""
    fields = dict(field.partition(":")[::2] for field in entry.split(";"))
    try:
        threshold = int(fields["th"].ljust(14, "0"), 16)
    except (KeyError, ValueError):
        return None
    return 1 - threshold / 2**56 if 0 <= threshold < 2**56 else None


def _bears_mark(entries: Mapping[str, str]) -> bool:
    try:
        entry = entries.get(PRESENT) or entries.get(FORMER, "")
        return bool(int(entry.split("-", 3)[2], 16) & OF_MONITORS)
    except (IndexError, ValueError):
        return False


def _entries(state: str) -> dict[str, str]:
    """The members of a W3C tracestate."""
    members = (member.strip().partition("=") for member in state.split(","))
    return {key: value for key, _, value in members}
