"""`spanwise traces`: list, show as a tree, follow, reconcile with started spans, delete."""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Annotated, Any

import msgspec
import typer
from rich.text import Text
from rich.tree import Tree

from spanwise.cli.command_io import (
    JsonOption,
    StoreOption,
    WhereOption,
    YesOption,
    build_filter,
    console,
    emit,
    error_console,
    open_store,
    print_table,
    resolve_trace_id,
)
from spanwise.collector import formatting, stores
from spanwise.collector.diagnostics.trace_completeness import describe_open_runs, find_gaps
from spanwise.collector.errors import NotFound, Refused
from spanwise.collector.filter_values import parse_time
from spanwise.collector.filters import Filter, extend_filter
from spanwise.collector.records import JSON, Feedback, OpenRun, Process, ProcessReport, Run, Trace, TraceSummary
from spanwise.collector.stores import Store, derived_fields
from spanwise.collector.terminal_escaping import escape_line, escape_text, truncate_text
from spanwise.tracer import attribute_names as names
from spanwise.tracer import spool_management

LIVE_PROCESS_NS = 60 * 10**9  # nanoseconds without a report; an active process reports every ten seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class SpanBalance:
    """Comparison of the spans that one process started with those that are accounted for. Unknown values are None."""

    instance: str
    service: str | None
    project: str
    pid: int | None
    reported_ns: int | None
    started: int | None
    stored: int
    spooled: int | None  # number of spans spooled on this machine
    dropped: Mapping[str, int] = field(default_factory=dict)
    pending: int | None = None
    open: int
    unaccounted: int | None
    verdict: str


def balance_spans(process: Process, spooled: int | None, begun: int, now_ns: int | None = None) -> SpanBalance:
    """Compare the spans that a process started with those that were found. `begun` is its number of open runs in the
    store.
    """
    report, now = process.report, time.time_ns() if now_ns is None else now_ns
    return SpanBalance(
        instance=process.instance,
        service=process.service,
        project=process.project,
        pid=process.pid,
        reported_ns=report.reported_ns if report else None,
        started=report.started if report else None,
        stored=process.stored,
        spooled=spooled,
        dropped=report.dropped if report else {},
        pending=report.pending if report else None,
        open=report.open if report else begun,
        unaccounted=_count_unaccounted(process, report, spooled or 0, now) if report else None,
        verdict=_describe_balance(process, report, spooled or 0, begun, now),
    )


def _count_unaccounted(process: Process, report: ProcessReport, spooled: int, now: int) -> int:
    """Return the number of spans that are unaccounted for. If a process stopped reporting, its pending spans are among
    these, unless they have arrived.
    """
    pending = report.pending if _is_live(process, now) else 0
    accounted = process.stored + spooled + sum(report.dropped.values()) + report.open + pending
    return max(0, report.started - accounted)


def _is_live(process: Process, now: int) -> bool:
    """Return whether the process reported recently. The store's clock decides, because that of the process may be
    wrong.
    """
    return now - process.seen_ns < LIVE_PROCESS_NS


def _describe_balance(process: Process, report: ProcessReport | None, spooled: int, begun: int, now: int) -> str:
    if report is None:
        still = f", {_format_run_count(begun)} open" if begun else ""
        return (
            f"unknown: it ended before its first report, or its SDK sends no reports; {process.stored:,} stored{still}"
        )
    missing = _count_unaccounted(process, report, spooled, now)
    told = [_describe_missing(process, report, missing, spooled, now) if missing else "all accounted for"]
    if lost := sum(report.dropped.values()):
        told.append(f"{lost:,} dropped by the process")
    if spooled:
        told.append(f"{spooled:,} are in the spool of this machine")
    if report.open:
        told.append(f"{_format_run_count(report.open)} open at its last report{_describe_liveness(process, now)}")
    if process.stored + spooled > report.started:
        told.append("more spans have arrived since its last report")
    return "; ".join(told)


def _describe_missing(process: Process, report: ProcessReport, missing: int, spooled: int, now: int) -> str:
    reasons = []
    if report.pending and not _is_live(process, now):
        reasons.append(
            f"{report.pending:,} were in its memory {formatting.ago(process.seen_ns)}; the process may have been killed"
        )
    if report.spilled > spooled:
        reasons.append(
            f"{report.spilled - spooled:,} more were in the spool of its machine than are in the spool of this one"
        )
    return f"{missing:,} unaccounted for" + (f" ({', and '.join(reasons)})" if reasons else "")


def _describe_liveness(process: Process, now: int) -> str:
    if _is_live(process, now):
        return ""
    return (
        f", {formatting.ago(process.seen_ns)}: they run, or ended with the process; what it began since, nobody knows"
    )


def _format_run_count(count: int) -> str:
    return "1 run" if count == 1 else f"{count:,} runs"


def count_by_process(runs: Sequence[OpenRun]) -> Counter[str]:
    """Return the number of open runs by process."""
    return Counter(run.instance for run in runs if run.instance is not None)


def count_spooled() -> Counter[str] | None:
    """Return the number of spans spooled on this machine by process; None if there is no spool or it is unreadable."""
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest as Request

    place = spool_management.get_spool_directory()
    if place is None or (place.exists() and not os.access(place, os.R_OK | os.X_OK)):
        return None
    counts = Counter[str]()
    for folder in spool_management.list_spool_folders(place):
        for body in spool_management.read_spooled_spans(folder.folder):
            for group in Request.FromString(body).resource_spans:
                known = {pair.key: pair.value.string_value for pair in group.resource.attributes}
                counts[known.get(names.INSTANCE, "")] += sum(len(part.spans) for part in group.scope_spans)
    return counts


TEXT_CHARACTERS, DOCUMENT_CHARACTERS = 400, 120  # maximum characters of a text, and of a document
STATUS_STYLES = {"error": "bold red", "cancelled": "bold yellow", "ok": "bold", "unset": "bold"}


def render_trace(trace: Trace, *, whole: bool = False) -> Tree:
    """Return the trace as a tree. Texts are truncated unless `whole`, and never interpreted as markup."""
    limit = 10**9 if whole else TEXT_CHARACTERS
    top = Tree(_join_styled((_trace_title(trace.root) + ("" if trace.complete else "  (not complete)"), "dim")))
    for sentence in find_gaps(trace):
        top.add(_join_styled((sentence, "yellow")))
    _add_feedback(top, (feedback for feedback in trace.feedback if feedback.target.span_id is None), limit)
    placed: set[str] = set()
    # Runs without a stored parent are roots, and so are runs in a cycle of parents
    ids = {run.span_id for run in trace.runs}
    for run in [run for run in trace.runs if run.parent_id not in ids]:
        _add_runs(top, trace, run, limit, placed)
    for run in trace.runs:
        if run.span_id not in placed:
            _add_runs(top, trace, run, limit, placed)
    return top


def render_open_runs(runs: Sequence[OpenRun]) -> Tree:
    """Render a trace without ended runs as a tree of its open runs. There must be at least one."""
    first = min(runs, key=lambda run: run.start_ns)
    top = Tree(_join_styled((_trace_title(first), "dim")))
    for sentence in ("no run of it has ended yet", *describe_open_runs(runs)):
        top.add(_join_styled((sentence, "yellow")))
    return top


def _trace_title(run: Run | OpenRun) -> str:
    return f"trace {run.trace_id}  {escape_line(run.project)}  {formatting.date_and_time(run.start_ns)}"


def _add_runs(parent: Tree, trace: Trace, root: Run, limit: int, placed: set[str]) -> None:
    waiting = [(parent, root)]
    while waiting:
        above, run = waiting.pop()
        if run.span_id in placed:
            continue
        placed.add(run.span_id)
        branch = above.add(_run_heading(run))
        _add_details(branch, run, limit)
        _add_feedback(
            branch, (feedback for feedback in trace.feedback if feedback.target.span_id == run.span_id), limit
        )
        waiting += [(branch, child) for child in reversed(trace.children(run.span_id))]


def _run_heading(run: Run) -> Text:
    took = formatting.duration(run.duration_ns)
    head = _join_styled(
        (escape_line(run.name) or "(no name)", STATUS_STYLES[run.status]), f"  {escape_line(run.kind)}  {took}"
    )
    if run.model:
        head.append(escape_line(f"  {run.model}"), "cyan")
    if run.usage:
        head.append(f"  {run.usage.input_tokens} → {run.usage.output_tokens} tokens", "cyan")
    if run.cost is not None:
        head.append(f"  ${run.cost:.6f}", "cyan")
    return head


def _add_details(branch: Tree, run: Run, limit: int) -> None:
    if run.error:
        branch.add(_join_styled((truncate_text(run.error, limit), "red")))
    derived = derived_fields(run)
    for name, key, value in (("in", "inputs", run.inputs), ("out", "outputs", run.outputs)):
        if value is not None:
            mark = " (derived)" if key in derived else ""
            branch.add(_join_styled((f"{name}{mark}: ", "dim"), truncate_text(_value_text(value), limit)))
    for place, document in enumerate(run.documents):
        score = "" if document.score is None else f" {document.score:.3f}"
        content = truncate_text(document.content, DOCUMENT_CHARACTERS if limit == TEXT_CHARACTERS else limit)
        branch.add(_join_styled((f"[{place}] {escape_line(document.id or '')}{score}  ", "green"), content))


def _add_feedback(branch: Tree, feedbacks: Iterable[Feedback], limit: int) -> None:
    for feedback in feedbacks:
        who = feedback.author or feedback.evaluator or feedback.source
        value = (f"★ {escape_line(feedback.key)} = {truncate_text(_feedback_value(feedback), limit)}", "yellow")
        branch.add(_join_styled(value, f"  {escape_line(who)}  {truncate_text(feedback.comment or '', limit)}"))


def _feedback_value(feedback: Feedback) -> str:
    if feedback.outcome == "error":
        return feedback.error or ""
    if feedback.outcome == "skip":
        return "skipped"
    return (feedback.label or "") if feedback.score is None else formatting.number(feedback.score)


def _join_styled(*parts: str | tuple[str, str]) -> Text:
    """Concatenate texts, some of them with a style. Control characters are escaped, so trace contents cannot control the
    terminal.
    """
    return Text.assemble(
        *(escape_text(part) if isinstance(part, str) else (escape_text(part[0]), part[1]) for part in parts)
    )


def _value_text(value: JSON) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


app = typer.Typer(
    help="List, show, follow, reconcile and delete traces.",
    no_args_is_help=True,
    epilog="Example: `spanwise traces list --where name=answer --since 1d`",
)

Id = Annotated[str, typer.Argument(help="Id of a trace, or the first characters of a recent one.")]
Ids = Annotated[list[str] | None, typer.Argument(help="Ids of traces.")]
Limit = Annotated[int, typer.Option(min=1, max=10_000)]
Every = Annotated[float, typer.Option(min=0.1, help="Seconds between updates.")]
Since = Annotated[str | None, typer.Option(help="Only traces since then: 2h, 7d, or a date.")]
SearchText = Annotated[str | None, typer.Option(help="Search inputs and outputs for these words.")]
Whole = Annotated[bool, typer.Option("--whole", help="Do not cut long texts.")]
ActiveSince = Annotated[
    str | None, typer.Option("--since", help="Only processes that sent data since then: 2h, 7d, or a date.")
]
BALANCE_COLUMNS = ("started", "stored", "on disk", "dropped", "in memory", "open", "unaccounted")
TRACE_COLUMNS = ("trace", "start", "name", "status", "latency", "spans", "tokens", "inputs", "feedback")


@app.command("list")
def list_(
    where: WhereOption = None,
    since: Since = None,
    text: SearchText = None,
    limit: Limit = 20,
    at: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """List the latest traces.

    Example: `spanwise traces list --where name=answer --where 'feedback=concise<0.5' --since 1d`
    """
    with open_store(at) as store:
        page = store.traces(build_filter(where, since=since, text=text), limit=limit)
    _print_traces(page.items, as_json)
    if page.next and not as_json:
        error_console.print(f"there are more: --limit {limit * 5}", markup=False)


@app.command()
def show(trace_id: Id, whole: Whole = False, at: StoreOption = None, as_json: JsonOption = False) -> None:
    """Show a trace as a tree: times, inputs, outputs, documents, feedback, and missing data.

    Example: `spanwise traces show 0af7651916cd43dd8448eb211c80319c`
    """
    with open_store(at) as store:
        trace = _load_trace(store, resolve_trace_id(store, trace_id))
    if as_json:
        emit([msgspec.to_builtins(trace)] if isinstance(trace, Trace) else map(_open_run_to_dict, trace))
    else:
        console.print(
            render_trace(trace, whole=whole) if isinstance(trace, Trace) else render_open_runs(trace), soft_wrap=True
        )


def _load_trace(store: Store, trace_id: str) -> Trace | list[OpenRun]:
    """Return the trace, or its open runs if no run has ended. Raises `NotFound`."""
    try:
        return store.trace(trace_id)
    except NotFound:
        if runs := store.running(trace_id=trace_id):
            return runs
        raise


@app.command()
def tail(
    where: WhereOption = None,
    text: SearchText = None,
    at: StoreOption = None,
    as_json: JsonOption = False,
    every: Every = 1.0,
) -> None:
    """Show new traces as they arrive, and running ones once a run takes more than a second, until Ctrl-C.

    Example: `spanwise traces tail --where status=error --json`
    """
    # A trace appears when its first span is stored, which may be long after its start
    wanted = extend_filter(build_filter(where, text=text), {"since_ns": time.time_ns() - 3600 * 10**9})
    with open_store(at) as store:
        there = store.traces(wanted, limit=1000)
        if there.next:  # ignore older traces, which `seen` does not contain
            wanted = extend_filter(wanted, {"since_ns": there.items[-1].start_ns + 1})
        seen = {trace.trace_id for trace in there}
        begun = set[str]()
        while True:
            running = {run.trace_id: run for run in stores.list_open_traces(store, wanted)}
            _print_open_runs([run for run in running.values() if run.trace_id not in begun], as_json)
            ended = tuple(begun - running.keys())
            new = _list_new_traces(store, wanted, seen | running.keys())
            seen.update(trace.trace_id for trace in new)
            new += store.traces(extend_filter(wanted, {"trace_ids": ended}), limit=1000).items if ended else ()
            _print_traces(list({trace.trace_id: trace for trace in new[::-1]}.values()), as_json, head=False)
            begun = set(running)
            time.sleep(every)


def _print_open_runs(runs: Iterable[OpenRun], as_json: bool) -> None:
    if as_json:
        emit(map(_open_run_to_dict, runs))
        return
    for run in runs:
        cells = (
            run.trace_id,
            formatting.date_and_time(run.start_ns),
            run.name,
            "running",
            formatting.ago(run.start_ns),
        )
        console.print("  ".join(map(escape_line, cells)), markup=False, highlight=False, soft_wrap=True)


def _open_run_to_dict(run: OpenRun) -> dict[str, Any]:
    return {"running": True, **msgspec.to_builtins(run)}


def _list_new_traces(store: Store, wanted: Filter, seen: set[str]) -> list[TraceSummary]:
    """Return matching traces that are not in `seen`, latest first. It reads pages until a page has no new trace."""
    new: list[TraceSummary] = []
    cursor: str | None = None
    while True:
        page = store.traces(wanted, limit=1000, cursor=cursor)
        of_page = [trace for trace in page if trace.trace_id not in seen]
        new += of_page
        cursor = page.next
        if not of_page or cursor is None:
            return new


@app.command()
def reconcile(since: ActiveSince = None, at: StoreOption = None, as_json: JsonOption = False) -> None:
    """Check for lost spans: per process, spans started against stored, on disk, dropped, in memory and open.

    Processes report the number of started spans every few seconds and when they end. The disk is that of this
    machine. Exit status 1 if a span is unaccounted for.

    Example: `spanwise traces reconcile --since 1h`
    """
    spooled = count_spooled()
    with open_store(at) as store:
        processes = store.processes(since_ns=None if since is None else parse_time(since))
        begun = count_by_process(store.running(limit=10_000))
    found = [
        balance_spans(one, None if spooled is None else spooled[one.instance], begun[one.instance]) for one in processes
    ]
    if as_json:
        emit(map(asdict, found))
    elif found:
        print_table(("process", "service", "reported", *BALANCE_COLUMNS, "verdict"), map(_balance_cells, found))
    looked = (
        "the spool of this machine is empty or not readable"
        if spooled is None
        else f"spool: {spool_management.get_spool_directory()}"
    )
    error_console.print(looked, markup=False, highlight=False, soft_wrap=True)
    missing = sum(one.unaccounted or 0 for one in found)
    started = sum(one.started or 0 for one in found)
    error_console.print(f"{len(found)} processes, {started:,} spans started, {missing:,} unaccounted for", markup=False)
    if missing:
        raise typer.Exit(1)


def _balance_cells(one: SpanBalance) -> tuple[str, ...]:
    said = "none" if one.reported_ns is None else formatting.ago(one.reported_ns)
    dropped = ", ".join(f"{count:,} {reason}" for reason, count in one.dropped.items()) or "0"
    whose = f"{one.service or '?'} {one.pid or ''}".strip()
    numbers = (one.started, one.stored, one.spooled, dropped, one.pending, one.open, one.unaccounted)
    shown = ("?" if number is None else number if isinstance(number, str) else f"{number:,}" for number in numbers)
    return one.instance[:8], whose, said, *shown, one.verdict


@app.command()
def delete(
    trace_ids: Ids = None,
    where: WhereOption = None,
    since: Since = None,
    text: SearchText = None,
    at: StoreOption = None,
    yes: YesOption = False,
    as_json: JsonOption = False,
) -> None:
    """Delete traces with their spans, index, feedback and decisions: by id, or all that pass conditions.

    Example: `spanwise traces delete --where session=conversation-7 --yes`
    """
    wanted = build_filter(where, since=since, text=text)
    if trace_ids:
        wanted = extend_filter(wanted, {"trace_ids": trace_ids})
    if wanted == Filter():
        raise Refused("name the traces to delete, or select them with --where project=old")
    if not yes:
        typer.confirm("Delete all matching traces? This cannot be undone", abort=True)
    with open_store(at) as store:
        deleted = store.delete(wanted)
    if as_json:
        emit([{"deleted": deleted}])
    else:
        error_console.print(f"deleted {deleted} traces")


def _print_traces(traces: Iterable[TraceSummary], as_json: bool, *, head: bool = True) -> None:
    if as_json:
        emit(msgspec.to_builtins(trace) for trace in traces)
    elif head:
        print_table(TRACE_COLUMNS, map(_trace_cells, traces))
    else:
        for trace in traces:
            console.print(
                "  ".join(map(escape_line, _trace_cells(trace))), markup=False, highlight=False, soft_wrap=True
            )


def _trace_cells(trace: TraceSummary) -> tuple[str, ...]:
    return (
        trace.trace_id,
        formatting.date_and_time(trace.start_ns),
        trace.name,
        trace.status,
        formatting.duration(trace.duration_ns),
        _format_spans(trace),
        str(trace.input_tokens + trace.output_tokens),
        trace.inputs[:60],
        " ".join(f"{key}={_format_outcome(trace, key, value)}" for key, value in trace.feedback.items()),
    )


def _format_outcome(trace: TraceSummary, key: str, value: float | str | None) -> str:
    if key in trace.failed:
        return "failed"
    if key in trace.skipped:
        return "skipped"
    return value if isinstance(value, str) else formatting.number(value)


def _format_spans(trace: TraceSummary) -> str:
    """Return the number of stored spans, and the numbers of dropped and running ones."""
    others = ((trace.dropped, "dropped"), (trace.running, "running"))
    return ", ".join([str(trace.span_count), *(f"{count} {what}" for count, what in others if count)])
