"""MCP tools on traces: find, read, feedback, rule decisions, filters and senders."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import islice
from typing import Annotated, Any, Literal

from pydantic import Field

from spanwise.cli.command_io import build_filter, resolve_trace_id
from spanwise.cli.commands.doctor import diagnose
from spanwise.cli.mcp import tool_results
from spanwise.collector import formatting
from spanwise.collector.diagnostics import rule_report
from spanwise.collector.diagnostics.doctor_report import Sender
from spanwise.collector.diagnostics.trace_completeness import find_gaps
from spanwise.collector.errors import NotFound, Refused
from spanwise.collector.records import (
    JSON,
    ConditionResult,
    Decision,
    DecisionExplanation,
    Feedback,
    Run,
    Target,
    Trace,
    iterate_pages,
)
from spanwise.collector.stores import Store
from spanwise.collector.terminal_escaping import escape_text

_GRAMMAR = (
    "Conditions that must all hold, one each, as on the command line: name=answer, status=error, 'latency_ms>=200',"
    " 'feedback=concise<0.5' (score under a key), 'feedback=verdict=bad' (label), missing=KEY, failed=KEY, skipped=KEY,"
    " tags=a, metadata.tenant=t1, session=ID, user=ID, model=M, any_kind=retriever, experiment=ID, complete=false."
)
Where = Annotated[list[str] | None, Field(description=_GRAMMAR)]
Since = Annotated[str | None, Field(description="Only from then on: 2h, 7d, or a date.")]
SearchWords = Annotated[str | None, Field(description="Words in inputs or outputs.")]
Limit = Annotated[int, Field(ge=1, le=100, description="At most so many.")]
Cursor = Annotated[str | None, Field(description="`next` of the page before.")]
TraceId = Annotated[str, Field(description="A trace's id, or the beginning of a recent one's (8 digits are enough).")]
SpanId = Annotated[str, Field(description="A span's id, as read_trace gives it.")]
First = Annotated[int, Field(ge=0, description="The first run to show; `next_first` of the page before.")]
MaxChars = Annotated[
    int, Field(ge=0, le=10_000, description="Characters of each value; 0 shows the tree without contents.")
]
RunField = Annotated[
    str, Field(description="inputs, outputs, error, metadata, attributes, events, resource, documents.N (from 0).")
]
Offset = Annotated[int, Field(ge=0, description="From which character on.")]
VALUE_CHARACTERS = 20_000  # characters per response of read_value
_RUN_FIELDS = ("inputs", "outputs", "error", "metadata", "attributes", "events", "resource")


def find_traces(
    store: Store,
    where: Where = None,
    since: Since = None,
    words: SearchWords = None,
    limit: Limit = 20,
    cursor: Cursor = None,
) -> dict[str, Any]:
    """Find the latest traces that pass conditions, with their scores, and the evaluators that failed or skipped.

    For the worst ones under a key, call list_feedback with order "lowest".
    """
    page = store.traces(build_filter(where, since=since, text=words), limit=limit, cursor=cursor)
    return tool_results.make_result(traces=tool_results.limit_rows(map(tool_results.trace_row, page)), next=page.next)


def read_trace(
    store: Store, trace_id: TraceId, first: First = 0, max_chars: MaxChars = tool_results.TEXT_CHARACTERS
) -> dict[str, Any]:
    """Read one trace as a tree (`depth`, in order), with inputs, outputs, documents and feedback.

    A response holds as many runs as fit; `next_first` is the index to continue from. A truncated value has `read_on`,
    the arguments for read_value.
    """
    trace = load_trace(store, trace_id)
    rows = list(iterate_runs(trace))
    if first and first >= len(rows):
        raise Refused(f"the trace has {len(rows)} runs; first is {first}")
    runs: list[dict[str, Any]] = []
    left = tool_results.RESPONSE_CHARACTERS
    for row, depth in rows[first:]:
        made = {"index": first + len(runs), **tool_results.run_row(row, depth, max_chars)}
        left -= len(json.dumps(made))
        if runs and left < 0:
            break
        runs.append(made)
    upto = first + len(runs)
    return tool_results.make_result(
        trace_id=tool_results.hex_id(trace.trace_id),
        start=formatting.utc(trace.root.start_ns),
        complete=trace.complete,
        dropped_spans=trace.dropped or None,
        run_count=len(rows),
        next_first=upto if upto < len(rows) else None,
        runs=runs,
        **({} if first else {"feedback": tool_results.limit_rows(map(tool_results.feedback_row, trace.feedback[:50]))}),
        feedback_count=len(trace.feedback),
        untrusted={
            "project": tool_results.shorten_name(trace.root.project),
            "session": tool_results.shorten_name(trace.root.session_id),
            "tags": [tool_results.shorten_name(tag) for tag in trace.root.tags[: tool_results.MAX_NAMES]],
            "missing": [tool_results.untrusted_text(sentence) for sentence in find_gaps(trace)],
        },
    )


def load_trace(store: Store, given: str) -> Trace:
    """Return the trace with an id, or with the beginning of one. Raises `NotFound`, also for a trace of which no run has
    ended.
    """
    id = resolve_trace_id(store, given.strip().lower())
    try:
        return store.trace(id)
    except NotFound:
        if begun := store.running(trace_id=id):
            raise NotFound(f"no run of trace {id!r} has ended yet; {len(begun)} runs are open") from None
        raise


def iterate_runs(trace: Trace) -> Iterator[tuple[Run, int]]:
    """Yield every run once, with its depth, parents before children. Runs in a cycle of parents are roots."""
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


def read_value(store: Store, trace_id: TraceId, span_id: SpanId, field: RunField, offset: Offset = 0) -> dict[str, Any]:
    """Read a field of one run: 20,000 characters of its text (JSON if it is no text), starting at `offset`."""
    trace = load_trace(store, trace_id)
    run = next((run for run in trace.runs if run.span_id == span_id.lower()), None)
    if run is None:
        raise NotFound(f"the trace has no span {span_id!r}")
    whole = tool_results.value_text(_read_field(run, field))
    if offset and offset >= len(whole):
        raise Refused(f"it has {len(whole)} characters; offset is {offset}")
    upto = offset + VALUE_CHARACTERS
    return tool_results.make_result(
        characters=len(whole),
        next_offset=upto if upto < len(whole) else None,
        untrusted={"text": escape_text(whole[offset:upto])},
    )


def _read_field(run: Run, field: str) -> JSON:
    name, _, place = field.partition(".")
    if name == "documents":
        return _read_document(run, place)
    if field not in _RUN_FIELDS:
        raise Refused(f"unknown field {field!r} of a run; expected one of: {', '.join(_RUN_FIELDS)}, documents.0")
    value = getattr(run, field)
    if field == "events":
        return [{"name": event.name, "time_ns": event.time_ns, **event.attributes} for event in run.events]
    return value if isinstance(value, str | list | None) else dict(value) if hasattr(value, "keys") else value


def _read_document(run: Run, place: str) -> JSON:
    position, _, part = place.partition(".")
    if not position.isdecimal() or int(position) >= len(run.documents):
        raise Refused(f"the run has {len(run.documents)} documents, starting with documents.0")
    document = run.documents[int(position)]
    return dict(document.metadata) if part == "metadata" else document.content


def overview(store: Store, since: Since = "7d") -> dict[str, Any]:
    """Summarize the store, as a starting point: projects, number of traces, mean scores, failures and skips by key,
    rules.
    """
    buckets = store.aggregate(build_filter(None, since=since), newest="all")
    whole = buckets[0] if buckets else None
    keys = [
        {
            "n": one.n,
            "mean": one.mean,
            "minimum": one.minimum,
            "failed": one.failed,
            "skipped": one.skipped,
            "untrusted": {"key": tool_results.shorten_name(one.key), "labels": _label_counts(one.labels)},
        }
        for one in (whole.feedback if whole else ())[:100]
    ]
    return tool_results.make_result(
        since=since,
        traces=whole.traces if whole else 0,
        errors=whole.errors if whole else 0,
        p50_ms=whole.p50_ms if whole else None,
        p95_ms=whole.p95_ms if whole else None,
        latency_error=whole.latency_error if whole else 0.0,
        cost_usd=whole.cost if whole else None,
        feedback=tool_results.limit_rows(keys),
        rules=tool_results.limit_rows(map(_rule_row, store.status()[:100])),
        untrusted={
            field: [tool_results.shorten_name(value) for value in store.values(field, limit=50)]
            for field in ("project", "name")
        },
    )


def _label_counts(labels: Any) -> dict[str | None, int]:
    return {tool_results.shorten_name(label): count for label, count in list(labels.items())[: tool_results.MAX_NAMES]}


def _rule_row(one: Any) -> dict[str, Any]:
    said = {"rule": one.rule.name, "project": one.rule.project}
    return {
        "counts": dict(one.counts),
        "rate": one.rate,
        "changes_behind": one.behind,
        "enabled": one.rule.enabled,
        "untrusted": {name: tool_results.shorten_name(value) for name, value in said.items()}
        | {"errors": [tool_results.untrusted_text(error) for error in one.errors[:3]]},
    }


TRACE_TOOLS: Sequence[Any] = (overview, find_traces, read_trace, read_value)


Key = Annotated[str | None, Field(description="Only under this key.")]
OnTrace = Annotated[str | None, Field(description="Only on this trace.")]
Order = Annotated[
    Literal["newest", "lowest", "highest"],
    Field(description="lowest and highest sort the newest 2,000 by score; newest reads on with `cursor`."),
]
Outcome = Annotated[
    Literal["score", "error", "skip"] | None, Field(description="Only scores, only errors, or only skips.")
]
MAX_SORTED_FEEDBACK = 2_000  # newest feedback records that are sorted
MAX_SENDER_SPANS = 2_000  # latest spans that the report on senders examines


def list_feedback(
    store: Store,
    key: Key = None,
    trace_id: OnTrace = None,
    where: Where = None,
    since: Since = None,
    outcome: Outcome = None,
    order: Order = "newest",
    limit: Limit = 20,
    cursor: Cursor = None,
) -> dict[str, Any]:
    """List feedback of evaluators and people, with reasons (`comment`), errors and skips.

    For the worst traces under a key, use order "lowest".
    """
    target = None if trace_id is None else Target(trace_id=resolve_trace_id(store, trace_id.lower()))
    ask = partial(store.feedbacks, build_filter(where, since=since), key=key, target=target)
    if order == "newest" and outcome is None:
        page = ask(limit=limit, cursor=cursor)
        return tool_results.make_result(
            feedback=tool_results.limit_rows(map(tool_results.feedback_row, page)), next=page.next
        )
    looked = list(islice(iterate_pages(partial(ask, limit=500)), MAX_SORTED_FEEDBACK))
    found = [one for one in looked if outcome in (None, one.outcome)]
    if order != "newest":
        found = sorted((one for one in found if one.score is not None), key=_score_value, reverse=order == "highest")
    return tool_results.make_result(
        looked_at=len(looked), feedback=tool_results.limit_rows(map(tool_results.feedback_row, found[:limit]))
    )


def _score_value(one: Feedback) -> float:
    return float(one.score or 0.0)


def why_scored(store: Store, trace_id: TraceId) -> dict[str, Any]:
    """Explain why each rule scored a trace or did not, and list the evaluators that failed or skipped, with the
    reasons.
    """
    trace = load_trace(store, trace_id)
    whole = trace.trace_id
    unscored = [tool_results.feedback_row(one) for one in trace.feedback if one.outcome != "score"]
    scored = [tool_results.feedback_row(one) for one in trace.feedback if one.outcome == "score"]
    found = store.why(whole)
    skipped = any(one.verdict == "skipped" for one in found) or any(one["outcome"] == "skip" for one in unscored)
    return tool_results.make_result(
        trace_id=tool_results.hex_id(whole),
        complete=trace.complete,
        rules=tool_results.limit_rows(map(_why_row, found[:100])),
        note=None
        if found
        else "the trace's project has no active rules; `spanwise monitor rules.py` runs the rules of a file",
        hint="diagnose_senders lists the fields of the sender's spans, and the unused ones" if skipped else None,
        scored=tool_results.limit_rows(scored[:50]),
        failed_or_skipped=tool_results.limit_rows(unscored[:50]),
    )


def _why_row(one: DecisionExplanation) -> dict[str, Any]:
    return {
        "verdict": one.verdict,
        "untrusted": {
            "rule": tool_results.shorten_name(one.rule.name),
            "reason": tool_results.untrusted_text(rule_report.reason(one)),
            "conditions": list(map(_condition_row, one.conditions)),
            "sample": rule_report.sampling(one) or None,
            "budget": [str(spent) for spent in rule_report.spending(one.rule, one.budget)] if one.budget else [],
            "decisions": [_decision_row(decision) for decision in one.decisions[:20]],
        },
    }


def _condition_row(one: ConditionResult) -> dict[str, Any]:
    return {"passes": one.passes, "condition": tool_results.untrusted_text(rule_report.describe_condition(one))}


def _decision_row(one: Decision) -> dict[str, Any]:
    return {
        "target": tool_results.shorten_name(rule_report.target(one)),
        "verdict": one.verdict,
        "reason": tool_results.untrusted_text(one.reason),
        "facts": [tool_results.untrusted_text(fact) for fact in rule_report.facts(one, time.time_ns())],
        "evaluators": [
            {
                "key": tool_results.shorten_name(key),
                "state": tool_results.shorten_name(state),
                "error": tool_results.untrusted_text(error),
            }
            for key, state, error in rule_report.states(one)[: tool_results.MAX_NAMES]
        ],
    }


def explain_filter(store: Store, trace_id: TraceId, where: Where = None) -> dict[str, Any]:
    """Explain for each condition, with the actual value, why a trace passes it or does not."""
    found = store.explain(load_trace(store, trace_id).trace_id, build_filter(where))
    return tool_results.make_result(
        passes=all(one.passes is not False for one in found),
        untrusted={"conditions": list(map(_condition_row, found))},
    )


def diagnose_senders(store: Store, where: Where = None, since: Since = None) -> dict[str, Any]:
    """Report per sender (service, instrumentation, SDK) how many of its latest spans have inputs, outputs, documents,
    model, tokens, session.

    The report also lists unread attributes, suggestions for the sender, and other problems, such as dropped spans or
    rules that no worker executes. It explains a skip such as "no documents".
    """
    found = diagnose(store, build_filter(where, since=since), MAX_SENDER_SPANS)
    return tool_results.make_result(
        looked_at=found.looked_at,
        senders=tool_results.limit_rows(map(_sender_row, found.seen.senders[:50])),
        untrusted={"troubles": [tool_results.untrusted_text(one) for one in found.wrong[:50]]},
    )


def _sender_row(one: Sender) -> dict[str, Any]:
    return {
        "spans": one.spans,
        "traces": one.traces,
        "kinds": dict(one.kinds),
        "shares": {name: share._asdict() for name, share in one.shares.items()},
        "untrusted": {
            **{name: tool_results.shorten_name(value) for name, value in one.who._asdict().items()},
            "unread_attributes": {tool_results.shorten_name(name): count for name, count in one.unread.items()},
            "hints": [tool_results.untrusted_text(hint) for hint in one.hints],
        },
    }


FEEDBACK_TOOLS: Sequence[Any] = (list_feedback, why_scored, explain_filter, diagnose_senders)


FeedbackKey = Annotated[
    str, Field(min_length=1, max_length=200, description="What it is about: correctness, root_cause, …")
]
Score = Annotated[bool | float | None, Field(description="A finite number, true or false; or give a label.")]
Label = Annotated[str | None, Field(max_length=200, description="A word instead of a score.")]
Comment = Annotated[str | None, Field(max_length=10_000, description="Why.")]
OnSpan = Annotated[str | None, Field(description="Only this span of the trace.")]
MCP_AUTHOR = "mcp"


def add_feedback(
    store: Store,
    trace_id: TraceId,
    key: FeedbackKey,
    score: Score = None,
    label: Label = None,
    comment: Comment = None,
    span_id: OnSpan = None,
) -> dict[str, Any]:
    """Add feedback to a trace or one of its spans. It replaces earlier feedback under the same key.

    It is stored with source "model" and author "mcp", so it does not count as human feedback.
    """
    if score is None and not label:
        raise Refused("give a score or a label")
    trace = load_trace(store, trace_id)
    span = None if span_id is None else span_id.lower()
    if span is not None and all(run.span_id != span for run in trace.runs):
        raise NotFound(f"the trace has no span {span_id!r}")
    target = Target(trace_id=trace.trace_id, span_id=span)
    said = Feedback(
        target=target, key=key, score=score, label=label, comment=comment, source="model", author=MCP_AUTHOR
    )
    store.add_feedback([said])
    return tool_results.make_result(kept=tool_results.feedback_row(said))
