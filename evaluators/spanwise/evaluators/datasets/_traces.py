"""Examples from traces: what was asked, and what a person says should have been answered."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping
from typing import Any, cast

from spanwise.collector.filters import Filter
from spanwise.collector.records import JSON, Example, Trace, canonical
from spanwise.collector.stores import TraceStore
from spanwise.evaluators.protocol import Location, opened_store

PAGE = 200


def from_traces(
    store: TraceStore | Location,
    trace_ids: Iterable[str] | None = None,
    *,
    corrections: Mapping[str, JSON] | None = None,
    outputs_are_references: bool = False,
    limit: int = 1000,
    filter: Filter | None = None,
    **conditions: object,
) -> list[Example]:
    """Examples from stored traces: those named, or those that pass a filter, latest first.

    `corrections` maps trace ids to reference outputs; with `outputs_are_references` what was answered is the reference
    of the others. What was answered and retrieved is kept as the example's given outputs and documents. Traces with
    equal inputs become one example: that of the corrected trace, or of the first.

    `store` may be a path or URL. Raises `ValueError` for a correction of a trace that was not picked.
    """
    left = dict(corrections or {})
    with opened_store(cast(Location, store)) as found:
        traces = stored_traces(found, trace_ids, limit=limit, filter=filter, **conditions)
        examples = [example_of_trace(trace, left.pop(trace.trace_id, None), outputs_are_references) for trace in traces]
    if left:
        named = ", ".join(repr(id) for id in list(left)[:3])
        raise ValueError(
            f"{len(left)} corrections are of traces that were not picked, as {named}: name these traces, or let the "
            "filter and limit take them in"
        )
    return one_per_input(examples, corrections or {})


def one_per_input(examples: Iterable[Example], corrected: Container[str] = ()) -> list[Example]:
    """Return one example for each of the inputs: the first, or those whose trace ids are among the corrected ones.

    Corrections that contradict each other stay: one is wrong, and only a person knows which.
    """
    kept: dict[bytes, list[Example]] = {}
    for example in examples:
        same = kept.setdefault(canonical(example.inputs), [])
        if not same:
            same.append(example)
        elif example.id in corrected:
            others = [one for one in same if one.id in corrected]
            if all(one.reference_outputs != example.reference_outputs for one in others):
                same[:] = [*others, example]
    return [example for same in kept.values() for example in same]


def stored_traces(
    store: TraceStore,
    trace_ids: Iterable[str] | None = None,
    *,
    limit: int = 1000,
    filter: Filter | None = None,
    **conditions: object,
) -> Iterator[Trace]:
    """Whole traces, a page at a time: those named, in that order, or those that pass, latest first."""
    if trace_ids is not None:
        named = list(trace_ids)
        for start in range(0, len(named), PAGE):
            yield from store.many(named[start : start + PAGE])
        return
    cursor: str | None = None
    while limit > 0:
        page = store.traces(filter, limit=min(PAGE, limit), cursor=cursor, **conditions)
        yield from store.many([summary.trace_id for summary in page])
        limit, cursor = limit - len(page), page.next
        if cursor is None:
            return


def example_of_trace(trace: Trace, correction: JSON = None, outputs_are_references: bool = False) -> Example:
    """The example that a trace is; its id is the trace's."""
    root = trace.root
    reference = root.outputs if correction is None and outputs_are_references else correction
    details: dict[str, Any] = {"trace_id": trace.trace_id, "name": root.name, "project": root.project}
    return Example(
        id=trace.trace_id,
        inputs=root.inputs,
        reference_outputs=reference,
        outputs=root.outputs,
        documents=trace.documents or None,
        metadata={**root.metadata, **details},
    )
