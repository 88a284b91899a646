"""Tools that find traces and read one."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Annotated, Any

from pydantic import Field

from spanwise.cli._common import conditions, whole_id
from spanwise.cli.mcp import shown
from spanwise.collector import format
from spanwise.collector.errors import NotFound, Refused
from spanwise.collector.gaps import gaps
from spanwise.collector.records import JSON, Run, Trace
from spanwise.collector.stores import Store
from spanwise.collector.terminal import harmless

_GRAMMAR = (
    "Conditions that must all hold, one each, as on the command line: name=answer, status=error, 'latency_ms>=200',"
    " 'feedback=concise<0.5' (score under a key), 'feedback=verdict=bad' (label), missing=KEY, failed=KEY, skipped=KEY,"
    " tags=a, metadata.tenant=t1, session=ID, user=ID, model=M, any_kind=retriever, experiment=ID, complete=false."
)
Where = Annotated[list[str] | None, Field(description=_GRAMMAR)]
Since = Annotated[str | None, Field(description="Only from then on: 2h, 7d, or a date.")]
Words = Annotated[str | None, Field(description="Words in inputs or outputs.")]
Limit = Annotated[int, Field(ge=1, le=100, description="At most so many.")]
Cursor = Annotated[str | None, Field(description="`next` of the page before.")]
TraceId = Annotated[str, Field(description="A trace's id, or the beginning of a recent one's (8 digits are enough).")]
SpanId = Annotated[str, Field(description="A span's id, as read_trace gives it.")]
First = Annotated[int, Field(ge=0, description="The first run to show; `next_first` of the page before.")]
MaxChars = Annotated[
    int, Field(ge=0, le=10_000, description="Characters of each value; 0 shows the tree without contents.")
]
OfRun = Annotated[
    str, Field(description="inputs, outputs, error, metadata, attributes, events, resource, documents.N (from 0).")
]
Offset = Annotated[int, Field(ge=0, description="From which character on.")]
PIECE = 20_000  # characters of one answer of read_value
_FIELDS = ("inputs", "outputs", "error", "metadata", "attributes", "events", "resource")


def find_traces(
    store: Store,
    where: Where = None,
    since: Since = None,
    words: Words = None,
    limit: Limit = 20,
    cursor: Cursor = None,
) -> dict[str, Any]:
    """The latest traces that pass conditions, with their scores, and which evaluators failed or skipped.

    For the worst ones under a key ask list_feedback with order "lowest".
    """
    page = store.traces(conditions(where, since=since, text=words), limit=limit, cursor=cursor)
    return shown.answer(traces=shown.within(map(shown.summary, page)), next=page.next)


def read_trace(store: Store, trace_id: TraceId, first: First = 0, max_chars: MaxChars = shown.TEXT) -> dict[str, Any]:
    """One trace as a tree (`depth`, in order), with inputs, outputs, documents and what was said of it.

    An answer holds as many runs as there is room for; `next_first` says where to read on. A value that is cut has
    `read_on`, which read_value takes.
    """
    trace = trace_of(store, trace_id)
    rows = list(in_order(trace))
    if first and first >= len(rows):
        raise Refused(f"the trace has {len(rows)} runs; first is {first}")
    runs: list[dict[str, Any]] = []
    left = shown.RESPONSE
    for row, depth in rows[first:]:
        made = {"index": first + len(runs), **shown.run(row, depth, max_chars)}
        left -= len(json.dumps(made))
        if runs and left < 0:
            break
        runs.append(made)
    upto = first + len(runs)
    return shown.answer(
        trace_id=shown.id_(trace.trace_id),
        start=format.utc(trace.root.start_ns),
        complete=trace.complete,
        dropped_spans=trace.dropped or None,
        run_count=len(rows),
        next_first=upto if upto < len(rows) else None,
        runs=runs,
        **({} if first else {"feedback": shown.within(map(shown.feedback, trace.feedback[:50]))}),
        feedback_count=len(trace.feedback),
        untrusted={
            "project": shown.name(trace.root.project),
            "session": shown.name(trace.root.session_id),
            "tags": [shown.name(tag) for tag in trace.root.tags[: shown.NAMES]],
            "missing": [shown.said_by(sentence) for sentence in gaps(trace)],
        },
    )


def trace_of(store: Store, given: str) -> Trace:
    """The trace of an id, or of the beginning of one. Raises `NotFound`, and says so of one that has only begun."""
    id = whole_id(store, given.strip().lower())
    try:
        return store.trace(id)
    except NotFound:
        if begun := store.running(trace_id=id):
            raise NotFound(f"nothing of trace {id!r} has ended yet: {len(begun)} runs of it are open") from None
        raise


def in_order(trace: Trace) -> Iterator[tuple[Run, int]]:
    """Every run once, with its depth, parents before children; runs of a circle of parents stand at the top."""
    below: dict[str | None, list[Run]] = {}
    ids = {run.span_id for run in trace.runs}
    for run in trace.runs:
        below.setdefault(run.parent_id if run.parent_id in ids else None, []).append(run)
    placed = set[str]()
    for top in (*below.get(None, ()), *trace.runs):
        waiting = [(top, 0)]
        while waiting:
            run, depth = waiting.pop()
            if run.span_id not in placed:
                placed.add(run.span_id)
                yield run, depth
                waiting += [(child, depth + 1) for child in reversed(below.get(run.span_id, ()))]


def read_value(store: Store, trace_id: TraceId, span_id: SpanId, field: OfRun, offset: Offset = 0) -> dict[str, Any]:
    """A field of one run, whole: 20,000 characters of its text (JSON, if it is no text) from `offset` on."""
    trace = trace_of(store, trace_id)
    run = next((run for run in trace.runs if run.span_id == span_id.lower()), None)
    if run is None:
        raise NotFound(f"the trace has no span {span_id!r}")
    whole = shown.text(_field(run, field))
    if offset and offset >= len(whole):
        raise Refused(f"it has {len(whole)} characters; offset is {offset}")
    upto = offset + PIECE
    return shown.answer(
        characters=len(whole),
        next_offset=upto if upto < len(whole) else None,
        untrusted={"text": harmless(whole[offset:upto])},
    )


def _field(run: Run, field: str) -> JSON:
    name, _, place = field.partition(".")
    if name == "documents":
        return _document(run, place)
    if field not in _FIELDS:
        raise Refused(f"a run has no field {field!r}: there are {', '.join(_FIELDS)}, documents.0")
    value = getattr(run, field)
    if field == "events":
        return [{"name": event.name, "time_ns": event.time_ns, **event.attributes} for event in run.events]
    return value if isinstance(value, str | list | None) else dict(value) if hasattr(value, "keys") else value


def _document(run: Run, place: str) -> JSON:
    position, _, part = place.partition(".")
    if not position.isdecimal() or int(position) >= len(run.documents):
        raise Refused(f"the run has {len(run.documents)} documents: documents.0 is the first of them")
    document = run.documents[int(position)]
    return dict(document.metadata) if part == "metadata" else document.content


def overview(store: Store, since: Since = "7d") -> dict[str, Any]:
    """Where to begin: projects, how many traces, mean scores by key with how many failed or skipped, rules."""
    buckets = store.aggregate(conditions(None, since=since), newest="all")
    whole = buckets[0] if buckets else None
    keys = [
        {
            "n": one.n,
            "mean": one.mean,
            "minimum": one.minimum,
            "failed": one.failed,
            "skipped": one.skipped,
            "untrusted": {"key": shown.name(one.key), "labels": _few(one.labels)},
        }
        for one in (whole.feedback if whole else ())[:100]
    ]
    return shown.answer(
        since=since,
        traces=whole.traces if whole else 0,
        errors=whole.errors if whole else 0,
        p50_ms=whole.p50_ms if whole else None,
        p95_ms=whole.p95_ms if whole else None,
        latency_error=whole.latency_error if whole else 0.0,
        cost_usd=whole.cost if whole else None,
        feedback=shown.within(keys),
        rules=shown.within(map(_rule, store.status()[:100])),
        untrusted={
            field: [shown.name(value) for value in store.values(field, limit=50)] for field in ("project", "name")
        },
    )


def _few(labels: Any) -> dict[str | None, int]:
    return {shown.name(label): count for label, count in list(labels.items())[: shown.NAMES]}


def _rule(one: Any) -> dict[str, Any]:
    said = {"rule": one.rule.name, "project": one.rule.project}
    return {
        "counts": dict(one.counts),
        "rate": one.rate,
        "changes_behind": one.behind,
        "enabled": one.rule.enabled,
        "untrusted": {name: shown.name(value) for name, value in said.items()}
        | {"errors": [shown.said_by(error) for error in one.errors[:3]]},
    }


READING: Sequence[Any] = (overview, find_traces, read_trace, read_value)
