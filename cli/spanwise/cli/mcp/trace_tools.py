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
from spanwise.cli.mcp.tool_results import (
    MAX_NAMES,
    RESPONSE_CHARACTERS,
    TEXT_CHARACTERS,
    feedback_row,
    hex_id,
    limit_rows,
    make_result,
    run_row,
    shorten_name,
    trace_row,
    untrusted_text,
    value_text,
)
from spanwise.collector import formatting
from spanwise.collector.diagnostics import rule_report
from spanwise.collector.diagnostics.doctor_report import Sender
from spanwise.collector.diagnostics.trace_completeness import find_gaps
from spanwise.collector.errors import NotFound, Refused
from spanwise.collector.records import (
    JSON,
    Bucket,
    ConditionResult,
    Decision,
    DecisionExplanation,
    Feedback,
    RuleStatus,
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
Since = Annotated[str | None, Field(description="Only traces since then: 2h, 7d, or a date.")]
SearchWords = Annotated[str | None, Field(description="Search inputs and outputs for these words.")]
Limit = Annotated[int, Field(ge=1, le=100, description="Maximum number.")]
Cursor = Annotated[str | None, Field(description="`next` of the previous page.")]
TraceId = Annotated[
    str, Field(description="Id of a trace, or the first characters of a recent one (8 digits are enough).")
]
SpanId = Annotated[str, Field(description="Id of a span, as read_trace returns it.")]
First = Annotated[int, Field(ge=0, description="Index of the first run; `next_first` of the previous page.")]
MaxChars = Annotated[
    int, Field(ge=0, le=10_000, description="Maximum characters per value; 0 returns the tree without contents.")
]
RunField = Annotated[
    str, Field(description="inputs, outputs, error, metadata, attributes, events, resource, documents.N (from 0).")
]
Offset = Annotated[int, Field(ge=0, description="Index of the first character.")]
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
    return make_result(traces=limit_rows(map(trace_row, page)), next=page.next)


def read_trace(
    store: Store, trace_id: TraceId, first: First = 0, max_chars: MaxChars = TEXT_CHARACTERS
) -> dict[str, Any]:
    """Read one trace as a tree (`depth`, in order), with inputs, outputs, documents and feedback.

    A response holds as many runs as fit; `next_first` is the index to continue from. A truncated value has `read_on`,
    the arguments for read_value.
    """
    trace = load_trace(store, trace_id)
    rows = list(iterate_runs(trace))
    if first and first >= len(rows):
        raise Refused(f"first must be less than the number of runs, {len(rows)}, got {first}")
    runs: list[dict[str, Any]] = []
    left = RESPONSE_CHARACTERS
    for run, depth in rows[first:]:
        shown = {"index": first + len(runs), **run_row(run, depth, max_chars)}
        left -= len(json.dumps(shown))
        if runs and left < 0:
            break
        runs.append(shown)
    end = first + len(runs)
    return make_result(
        trace_id=hex_id(trace.trace_id),
        start=formatting.utc(trace.root.start_ns),
        complete=trace.complete,
        dropped_spans=trace.dropped or None,
        run_count=len(rows),
        next_first=end if end < len(rows) else None,
        runs=runs,
        **({} if first else {"feedback": limit_rows(map(feedback_row, trace.feedback[:50]))}),
        feedback_count=len(trace.feedback),
        untrusted={
            "project": shorten_name(trace.root.project),
            "session": shorten_name(trace.root.session_id),
            "tags": [shorten_name(tag) for tag in trace.root.tags[:MAX_NAMES]],
            "missing": [untrusted_text(sentence) for sentence in find_gaps(trace)],
        },
    )


def load_trace(store: Store, prefix: str) -> Trace:
    """Return the trace with an id, or with the beginning of one. Raises `NotFound`, also for a trace of which no run has
    ended.
    """
    id = resolve_trace_id(store, prefix.strip().lower())
    try:
        return store.trace(id)
    except NotFound:
        if open_runs := store.running(trace_id=id):
            raise NotFound(f"no run of trace {id!r} has ended yet; {len(open_runs)} runs are open") from None
        raise


def iterate_runs(trace: Trace) -> Iterator[tuple[Run, int]]:
    """Yield every run once, with its depth, parents before children. Runs in a cycle of parents are roots."""
    children: dict[str | None, list[Run]] = {}
    ids = {run.span_id for run in trace.runs}
    for run in trace.runs:
        children.setdefault(run.parent_id if run.parent_id in ids else None, []).append(run)
    placed = set[str]()
    for top in (*children.get(None, ()), *trace.runs):
        waiting = [(top, 0)]
        while waiting:
            run, depth = waiting.pop()
            if run.span_id not in placed:
                placed.add(run.span_id)
                yield run, depth
                waiting += [(child, depth + 1) for child in reversed(children.get(run.span_id, ()))]


def read_value(store: Store, trace_id: TraceId, span_id: SpanId, field: RunField, offset: Offset = 0) -> dict[str, Any]:
    """Read a field of one run: 20,000 characters of its text (JSON if it is not a string), starting at `offset`."""
    trace = load_trace(store, trace_id)
    run = next((run for run in trace.runs if run.span_id == span_id.lower()), None)
    if run is None:
        raise NotFound(f"the trace has no span {span_id!r}")
    text = value_text(_read_field(run, field))
    if offset and offset >= len(text):
        raise Refused(f"offset must be less than the length of the value, {len(text)}, got {offset}")
    end = offset + VALUE_CHARACTERS
    return make_result(
        characters=len(text),
        next_offset=end if end < len(text) else None,
        untrusted={"text": escape_text(text[offset:end])},
    )


def _read_field(run: Run, field: str) -> JSON:
    name, *path = field.split(".", 2)
    if name == "documents":
        position, part = (*path, "", "")[:2]
        if not position.isdecimal() or int(position) >= len(run.documents):
            raise Refused(f"the run has {len(run.documents)} documents, starting with documents.0")
        document = run.documents[int(position)]
        return dict(document.metadata) if part == "metadata" else document.content
    if field not in _RUN_FIELDS:
        raise Refused(f"unknown field {field!r} of a run; expected one of: {', '.join(_RUN_FIELDS)}, documents.0")
    value = getattr(run, field)
    if field == "events":
        return [{"name": event.name, "time_ns": event.time_ns, **event.attributes} for event in run.events]
    return value if isinstance(value, str | list | None) else dict(value) if hasattr(value, "keys") else value


def overview(store: Store, since: Since = "7d") -> dict[str, Any]:
    """Summarize the store, as a starting point: projects, number of traces, mean scores, failures and skips by key,
    rules.
    """
    buckets = store.aggregate(build_filter(None, since=since), newest="all")
    total = buckets[0] if buckets else Bucket(start_ns=0, width_ns=0)
    keys = [
        {
            "n": stats.n,
            "mean": stats.mean,
            "minimum": stats.minimum,
            "failed": stats.failed,
            "skipped": stats.skipped,
            "target": stats.target,
            "untrusted": {
                "key": shorten_name(stats.key),
                "labels": {shorten_name(label): count for label, count in list(stats.labels.items())[:MAX_NAMES]},
            },
        }
        for stats in total.feedback[:100]
    ]
    return make_result(
        since=since,
        traces=total.traces,
        errors=total.errors,
        p50_ms=total.p50_ms,
        p95_ms=total.p95_ms,
        latency_error=total.latency_error,
        cost_usd=total.cost if buckets else None,
        feedback=limit_rows(keys),
        rules=limit_rows(map(_rule_row, store.status()[:100])),
        untrusted={
            field: [shorten_name(value) for value in store.values(field, limit=50)] for field in ("project", "name")
        },
    )


def _rule_row(status: RuleStatus) -> dict[str, Any]:
    return {
        "counts": dict(status.counts),
        "rate": status.rate,
        "changes_behind": status.behind,
        "enabled": status.rule.enabled,
        "untrusted": {
            "rule": shorten_name(status.rule.name),
            "project": shorten_name(status.rule.project),
            "errors": [untrusted_text(error) for error in status.errors[:3]],
        },
    }


TRACE_TOOLS: Sequence[Any] = (overview, find_traces, read_trace, read_value)


Key = Annotated[str | None, Field(description="Only feedback with this key.")]
OnTrace = Annotated[str | None, Field(description="Only feedback on this trace.")]
Order = Annotated[
    Literal["newest", "lowest", "highest"],
    Field(description="lowest and highest sort the newest 2,000 by score; newest continues with `cursor`."),
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
    read = partial(store.feedbacks, build_filter(where, since=since), key=key, target=target)
    if order == "newest" and outcome is None:
        page = read(limit=limit, cursor=cursor)
        return make_result(feedback=limit_rows(map(feedback_row, page)), next=page.next)
    latest = list(islice(iterate_pages(partial(read, limit=500)), MAX_SORTED_FEEDBACK))
    matching = [feedback for feedback in latest if outcome in (None, feedback.outcome)]
    if order != "newest":
        scored = [feedback for feedback in matching if feedback.score is not None]
        matching = sorted(scored, key=lambda feedback: float(feedback.score or 0.0), reverse=order == "highest")
    return make_result(looked_at=len(latest), feedback=limit_rows(map(feedback_row, matching[:limit])))


def why_scored(store: Store, trace_id: TraceId) -> dict[str, Any]:
    """Explain why each rule scored a trace or did not, and list the evaluators that failed or skipped, with the
    reasons.
    """
    trace = load_trace(store, trace_id)
    scored = [feedback for feedback in trace.feedback if feedback.outcome == "score"]
    unscored = [feedback for feedback in trace.feedback if feedback.outcome != "score"]
    explanations = store.why(trace.trace_id)
    skipped = any(explanation.verdict == "skipped" for explanation in explanations)
    skipped = skipped or any(feedback.outcome == "skip" for feedback in unscored)
    return make_result(
        trace_id=hex_id(trace.trace_id),
        complete=trace.complete,
        rules=limit_rows(map(_why_row, explanations[:100])),
        note=None
        if explanations
        else "the trace's project has no active rules; `spanwise monitor rules.py` runs the rules of a file",
        hint="diagnose_senders lists the fields of the sender's spans, and the unused ones" if skipped else None,
        scored=limit_rows(map(feedback_row, scored[:50])),
        failed_or_skipped=limit_rows(map(feedback_row, unscored[:50])),
    )


def _why_row(explanation: DecisionExplanation) -> dict[str, Any]:
    return {
        "verdict": explanation.verdict,
        "untrusted": {
            "rule": shorten_name(explanation.rule.name),
            "reason": untrusted_text(rule_report.reason(explanation)),
            "conditions": list(map(_condition_row, explanation.conditions)),
            "sample": rule_report.sampling(explanation) or None,
            "budget": [str(spending) for spending in rule_report.spending(explanation.rule, explanation.budget)]
            if explanation.budget
            else [],
            "decisions": [_decision_row(decision) for decision in explanation.decisions[:20]],
        },
    }


def _condition_row(result: ConditionResult) -> dict[str, Any]:
    return {"passes": result.passes, "condition": untrusted_text(rule_report.describe_condition(result))}


def _decision_row(decision: Decision) -> dict[str, Any]:
    return {
        "target": shorten_name(rule_report.target(decision)),
        "verdict": decision.verdict,
        "reason": untrusted_text(decision.reason),
        "facts": [untrusted_text(fact) for fact in rule_report.facts(decision, time.time_ns())],
        "evaluators": [
            {
                "key": shorten_name(key),
                "state": shorten_name(state),
                "error": untrusted_text(error),
            }
            for key, state, error in rule_report.states(decision)[:MAX_NAMES]
        ],
    }


def explain_filter(store: Store, trace_id: TraceId, where: Where = None) -> dict[str, Any]:
    """Explain for each condition, with the actual value, why a trace passes it or does not."""
    results = store.explain(load_trace(store, trace_id).trace_id, build_filter(where))
    return make_result(
        passes=all(result.passes is not False for result in results),
        untrusted={"conditions": list(map(_condition_row, results))},
    )


def diagnose_senders(store: Store, where: Where = None, since: Since = None) -> dict[str, Any]:
    """Report per sender (service, instrumentation, SDK) how many of its latest spans have inputs, outputs, documents,
    model, tokens, session.

    The report also lists unread attributes, suggestions for the sender, and other problems, such as dropped spans or
    rules that no worker executes. It explains a skip such as "no documents".
    """
    diagnosis = diagnose(store, build_filter(where, since=since), MAX_SENDER_SPANS)
    return make_result(
        looked_at=diagnosis.examined,
        senders=limit_rows(map(_sender_row, diagnosis.report.senders[:50])),
        untrusted={"troubles": [untrusted_text(problem) for problem in diagnosis.problems[:50]]},
    )


def _sender_row(sender: Sender) -> dict[str, Any]:
    return {
        "spans": sender.spans,
        "traces": sender.traces,
        "kinds": dict(sender.kinds),
        "shares": {name: share._asdict() for name, share in sender.shares.items()},
        "untrusted": {
            **{name: shorten_name(value) for name, value in sender.who._asdict().items()},
            "unread_attributes": {shorten_name(name): count for name, count in sender.unread.items()},
            "hints": [untrusted_text(hint) for hint in sender.hints],
        },
    }


FEEDBACK_TOOLS: Sequence[Any] = (list_feedback, why_scored, explain_filter, diagnose_senders)


FeedbackKey = Annotated[
    str, Field(min_length=1, max_length=200, description="Feedback key: correctness, root_cause, …")
]
Score = Annotated[bool | float | None, Field(description="A finite number, true or false. Alternatively, set `label`.")]
Label = Annotated[str | None, Field(max_length=200, description="A label instead of a score.")]
Comment = Annotated[str | None, Field(max_length=10_000, description="Reason for the value.")]
OnSpan = Annotated[str | None, Field(description="Target this span of the trace.")]
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
        raise Refused("feedback needs a score or a label")
    trace = load_trace(store, trace_id)
    span = None if span_id is None else span_id.lower()
    if span is not None and all(run.span_id != span for run in trace.runs):
        raise NotFound(f"the trace has no span {span_id!r}")
    target = Target(trace_id=trace.trace_id, span_id=span)
    feedback = Feedback(
        target=target, key=key, score=score, label=label, comment=comment, source="model", author=MCP_AUTHOR
    )
    store.add_feedback([feedback])
    return make_result(kept=feedback_row(feedback))
