"""What of a trace is scored: itself, its session, or some of its spans and documents. Pure."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import replace

from spanwise.collector.records import Case, Head, Rule, Run, Target, Trace
from spanwise.collector.statistics import u
from spanwise.evaluators.scoring import case_of

MOST = 100  # spans or documents of one trace


def target_of(rule: Rule, head: Head) -> Target:
    """The trace, or its session where that is the target."""
    if rule.target == "session" and head.session_id is not None:
        return Target(session_id=head.session_id)
    return Target(trace_id=head.trace_id)


def chosen(rule: Rule, trace: Trace, most: int = MOST) -> tuple[list[Target], float]:
    """The spans or documents of a trace that are targets, and the chance that each had of being among them.

    Where there are more, those count whose hashes are the lowest: the same ones whenever they are chosen.
    """
    targets = list(_candidates(rule, trace))
    if len(targets) <= most:
        return targets, 1.0
    return heapq.nsmallest(most, targets, key=_place), most / len(targets)


def case_at(target: Target, trace: Trace) -> Case | None:
    """What evaluators see of a target of a trace: of a span what is below it, of a document what was asked for and it
    alone. None where it is not there (any more).
    """
    if target.span_id is None:
        return case_of(trace)
    span = next((run for run in trace.runs if run.span_id == target.span_id), None)
    if span is None:
        return None
    part = case_of(replace(trace, root=span, runs=_below(span, trace.runs), feedback=()))
    if target.document is None:
        return part
    if target.document >= len(span.documents):
        return None
    return replace(part, documents=(span.documents[target.document],))


def _candidates(rule: Rule, trace: Trace) -> Iterator[Target]:
    for run in trace.runs:
        if rule.kind is not None and run.kind != rule.kind:
            continue
        of_span = Target(trace_id=run.trace_id, span_id=run.span_id)
        if rule.target == "span":
            yield of_span
        else:
            yield from (replace(of_span, document=place) for place in range(len(run.documents)))


def _place(target: Target) -> float:
    return u(f"{target.trace_id}/{target.span_id}/{target.document}")


def _below(span: Run, runs: Sequence[Run]) -> tuple[Run, ...]:
    """A span and what is below it, in their order."""
    of: dict[str | None, list[Run]] = {}
    for run in runs:
        of.setdefault(run.parent_id, []).append(run)
    found, waiting = {span.span_id}, [span.span_id]
    while waiting:
        for run in of.pop(waiting.pop(), ()):
            found.add(run.span_id)
            waiting.append(run.span_id)
    return tuple(run for run in runs if run.span_id in found)
