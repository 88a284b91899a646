"""Corrections of incoming records: impossible timestamps, and names from before the product was renamed."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Final, NamedTuple

from spanwise.collector.records import JSON, Feedback, OpenRun, Run

# Clock skew correction: replaces impossible timestamps of incoming spans and feedback.
#
# The store keeps the corrected time. The attribute `spanwise.sent.<field>` keeps the time that was sent. A time in
# the future is moved back by whole hours into the last 60 minutes, so that it neither appears first in lists nor
# stretches charts. This corrects a clock that is set to a wrong time zone. Spans that arrived together keep their
# order and duration.

HOUR_NS, DAY_NS = 3_600_000_000_000, 86_400_000_000_000
MAX_CLOCK_SKEW_NS = 300_000_000_000  # a sender's clock may be ahead of the server's by this much
INT_MAX = 2**63 - 1
SENT_PREFIX = "spanwise.sent."


class CorrectedTimes(NamedTuple):
    """Corrected start and end, and in `sent` the original values of those that changed."""

    start_ns: int
    end_ns: int
    sent: dict[str, JSON]


def correct_span_times(start_ns: int, end_ns: int) -> CorrectedTimes | None:
    """Return the corrected start and end of a span; None if both are plausible as they are."""
    now = time.time_ns()
    latest = now + MAX_CLOCK_SKEW_NS
    if 0 <= start_ns <= latest and 0 <= end_ns <= latest:
        return None
    excess = _excess_ns(start_ns, now)
    start = max(0, start_ns - excess)
    end = max(0, end_ns - excess)
    end = max(start, now) if end > latest else end
    sent = {"start_ns": (start_ns, start), "end_ns": (end_ns, end)}
    return CorrectedTimes(
        start, end, {SENT_PREFIX + name: was for name, (was, corrected) in sent.items() if was != corrected}
    )


def correct_time(time_ns: int) -> int:
    """Return the time, corrected if it is negative or in the future."""
    return max(0, time_ns - _excess_ns(time_ns, time.time_ns()))


def _excess_ns(time_ns: int, now_ns: int) -> int:
    """Return the nanoseconds to subtract from a future time: whole hours, or 0 if the time is plausible."""
    return 0 if time_ns <= now_ns + MAX_CLOCK_SKEW_NS else -((now_ns - time_ns) // HOUR_NS) * HOUR_NS


def correct_run_times(run: Run) -> Run:
    """Return the run with corrected times; the same object if they are plausible."""
    found = correct_span_times(run.start_ns, run.end_ns)
    if found is None:
        return run
    return replace(run, start_ns=found.start_ns, end_ns=found.end_ns, attributes={**run.attributes, **found.sent})


def correct_feedback_time(feedback: Feedback) -> Feedback:
    """Return the feedback with a corrected time; the same object if it is plausible.

    Feedback from the future would prevail over all later feedback on the same key.
    """
    corrected = correct_time(feedback.created_ns)
    if corrected == feedback.created_ns:
        return feedback
    sent = {SENT_PREFIX + "created_ns": feedback.created_ns}
    return replace(feedback, created_ns=corrected, metadata={**feedback.metadata, **sent})


def correct_open_run_time(run: OpenRun) -> OpenRun:
    """Return the open run with a corrected start; the same object if it is plausible."""
    corrected = correct_time(run.start_ns)
    return run if corrected == run.start_ns else replace(run, start_ns=corrected)


# Conversion of names from before the product was renamed from Assay to Spanwise.
#
# Databases, spools, exports and caches from before the renaming contain the former names. Spanwise translates the
# names when it converts or reads such a file, and writes only the present names. Hashes of rules and of scored cases
# are still computed over the former names. The hashes therefore stay the same, and nothing is scored again.

FORMER: Final = "assay"
PRESENT: Final = "spanwise"
# Suffixes of attribute names and log event names; other names with the product's prefix belong to users.
_SUFFIXES = (
    "attempt awaits calls.sent cancelled cost cost.unknown derived documents exact example example.id experiment.id"
    " feedback.author feedback.boolean feedback.document feedback.error feedback.evaluator feedback.id"
    " feedback.metadata feedback.outcome feedback.rule feedback.scope feedback.source feedback.version feedback.via"
    " foreign.span_id foreign.trace_id local_root monitor partial process.delivered process.dropped process.open"
    " process.pending process.report process.spilled process.started repetition sample_rate sent.created_ns"
    " sent.end_ns sent.start_ns span.name span.parent span.started spans.dropped spans.open spans.started"
    " stream.closed usage.estimated via"
).split()
ATTRIBUTES: Final = {f"{FORMER}.{suffix}": f"{PRESENT}.{suffix}" for suffix in _SUFFIXES}
# The two keys that the collector itself writes into feedback metadata; all others belong to users.
METADATA: Final = {name: ATTRIBUTES[name] for name in (f"{FORMER}.sent.created_ns", f"{FORMER}.via")}
_BACK = {present: former for former, present in ATTRIBUTES.items()}
_IN_SOURCE = re.compile(
    rf"\b{PRESENT}(?=\.(?:(?:tracer|collector|evaluators|cli)\b|(?:{'|'.join(map(re.escape, _SUFFIXES))})[\"']))"
    rf"|(?<=\bfrom ){PRESENT}(?= import\b)"
    rf"|(?<=\bimport ){PRESENT}\b"
)


def present_names(attributes: Mapping[str, JSON], names: Mapping[str, str] = ATTRIBUTES) -> Mapping[str, JSON]:
    """Return attributes under the present names; the same object if there is nothing to rename."""
    if names.keys().isdisjoint(attributes):
        return attributes
    # if both names are present, the former one is kept
    return {
        name if (other := names.get(name)) is None or other in attributes else other: value
        for name, value in attributes.items()
    }


def former_names(attributes: Mapping[str, JSON]) -> Mapping[str, JSON]:
    """Return attributes under the former names, which hashes are computed over."""
    return present_names(attributes, _BACK)


def present_run(run: Run) -> Run:
    """Return a run with the present names in its attributes and in its resource's attributes."""
    attributes, resource = present_names(run.attributes), present_names(run.resource)
    if attributes is run.attributes and resource is run.resource:
        return run
    return replace(run, attributes=attributes, resource=resource)


def present_feedback(feedback: Feedback) -> Feedback:
    """Return feedback with the present names in its metadata."""
    metadata = present_names(feedback.metadata, METADATA)
    return feedback if metadata is feedback.metadata else replace(feedback, metadata=metadata)


def former_source(text: str) -> str:
    """Return the source text of a user's code with the former names in its imports and attribute names."""
    return _IN_SOURCE.sub(FORMER, text) if PRESENT in text else text


def former_identifiers(names: tuple[str, ...]) -> tuple[str, ...]:
    """Return identifiers of compiled code, such as `spanwise` and `spanwise.tracer`, under the former names."""
    return tuple(FORMER + name[len(PRESENT) :] if name == PRESENT else former_source(name) for name in names)


def is_own_scope(scope: str) -> bool:
    """Return whether an instrumentation scope is that of Spanwise's tracer, under the present or the former name."""
    return scope.partition(".")[0] in (PRESENT, FORMER)
