"""`spanwise traces`: list, aggregate, show as a tree, follow, reconcile with started spans, delete."""

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
    print_line,
    print_note,
    print_table,
    resolve_trace_id,
)
from spanwise.cli.commands.feedback import format_value
from spanwise.collector import formatting, stores
from spanwise.collector.diagnostics.trace_completeness import describe_open_runs, find_gaps
from spanwise.collector.errors import NotFound, Refused
from spanwise.collector.filters import Filter, extend_filter, parse_duration, parse_time
from spanwise.collector.records import (
    MAX_UNINDEXED,
    Feedback,
    OpenRun,
    Process,
    ProcessReport,
    Run,
    Trace,
    TraceSummary,
)
from spanwise.collector.stores import Store, derived_fields
from spanwise.collector.terminal_escaping import escape_line, escape_text, truncate_text
from spanwise.tracer import attribute_names as names
from spanwise.tracer.export import disk_spool

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


def balance_spans(process: Process, spooled: int | None, open_runs: int, now_ns: int | None = None) -> SpanBalance:
    """Compare the spans that a process started with those that were found. `open_runs` is its number of open runs in
    the store.
    """
    report, now = process.report, time.time_ns() if now_ns is None else now_ns
    on_disk = spooled or 0
    unaccounted = None
    if report is None:
        still_open = f", {_format_run_count(open_runs)} open" if open_runs else ""
        reason = "it ended before its first report, or its SDK sends no reports"
        facts = [f"unknown: {reason}", f"{process.stored:,} stored{still_open}"]
    else:
        # The store's clock decides whether the process is alive, because that of the process may be wrong. Pending
        # spans of a process that stopped reporting are unaccounted for, unless they have arrived.
        is_live = now - process.seen_ns < LIVE_PROCESS_NS
        dropped = sum(report.dropped.values())
        accounted = process.stored + on_disk + dropped + report.open + (report.pending if is_live else 0)
        unaccounted = max(0, report.started - accounted)
        seen = "" if is_live else formatting.ago(process.seen_ns)
        facts = [_describe_unaccounted(report, unaccounted, on_disk, seen) if unaccounted else "all accounted for"]
        if dropped:
            facts.append(f"{dropped:,} dropped by the process")
        if on_disk:
            facts.append(f"{on_disk:,} are in the spool of this machine")
        if report.open:
            state = f", {seen}: still running, or ended with the process; its later spans are unknown" if seen else ""
            facts.append(f"{_format_run_count(report.open)} open at its last report{state}")
        if process.stored + on_disk > report.started:
            facts.append("more spans have arrived since its last report")
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
        open=report.open if report else open_runs,
        unaccounted=unaccounted,
        verdict="; ".join(facts),
    )


def _describe_unaccounted(report: ProcessReport, unaccounted: int, on_disk: int, seen: str) -> str:
    """Return the number of unaccounted spans with the known reasons. `seen` is empty if the process is alive."""
    reasons = []
    if report.pending and seen:
        reasons.append(f"{report.pending:,} were in its memory {seen}; the process may have been killed")
    if report.spilled > on_disk:
        more = f"{report.spilled - on_disk:,} more were in the spool of its machine"
        reasons.append(f"{more} than are in the spool of this one")
    return f"{unaccounted:,} unaccounted for" + (f" ({', and '.join(reasons)})" if reasons else "")


def _format_run_count(count: int) -> str:
    return "1 run" if count == 1 else f"{count:,} runs"


def count_spooled() -> Counter[str] | None:
    """Return the number of spans spooled on this machine by process; None if there is no spool or it is unreadable."""
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest as Request

    directory = disk_spool.get_spool_directory()
    if directory is None or (directory.exists() and not os.access(directory, os.R_OK | os.X_OK)):
        return None
    counts = Counter[str]()
    for folder in disk_spool.list_spool_folders(directory):
        for body in disk_spool.read_spooled_spans(folder.folder):
            for group in Request.FromString(body).resource_spans:
                attributes = {pair.key: pair.value.string_value for pair in group.resource.attributes}
                counts[attributes.get(names.INSTANCE, "")] += sum(len(scope.spans) for scope in group.scope_spans)
    return counts


TEXT_CHARACTERS, DOCUMENT_CHARACTERS = 400, 120  # maximum characters of a text, and of a document
STATUS_STYLES = {"error": "bold red", "cancelled": "bold yellow", "ok": "bold", "unset": "bold"}


def render_trace(trace: Trace, *, whole: bool = False) -> Tree:
    """Return the trace as a tree. Texts are truncated unless `whole`, and never interpreted as markup."""
    limit = 10**9 if whole else TEXT_CHARACTERS
    top = Tree(_join_styled((_trace_title(trace.root) + ("" if trace.complete else "  (not complete)"), "dim")))
    for gap in find_gaps(trace):
        top.add(_join_styled((gap, "yellow")))
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
        parent_branch, run = waiting.pop()
        if run.span_id in placed:
            continue
        placed.add(run.span_id)
        branch = parent_branch.add(_run_heading(run))
        _add_details(branch, run, limit)
        _add_feedback(
            branch, (feedback for feedback in trace.feedback if feedback.target.span_id == run.span_id), limit
        )
        waiting += [(branch, child) for child in reversed(trace.children(run.span_id))]


def _run_heading(run: Run) -> Text:
    duration = formatting.duration(run.duration_ns)
    head = _join_styled(
        (escape_line(run.name) or "(no name)", STATUS_STYLES[run.status]), f"  {escape_line(run.kind)}  {duration}"
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
    labels = (
        ("prompt", formatting.prompt(run.prompt_name, run.prompt_version)),
        ("agent", run.agent_name or ""),
        ("finish reason", ", ".join(run.finish_reasons)),
        ("first token", formatting.milliseconds(run.time_to_first_token_ms) if run.time_to_first_token_ms else ""),
    )
    for name, value in labels:
        if value:
            branch.add(_join_styled((f"{name}: ", "dim"), truncate_text(value, limit)))
    derived = derived_fields(run)
    for name, key, value in (("in", "inputs", run.inputs), ("out", "outputs", run.outputs)):
        if value is not None:
            mark = " (derived)" if key in derived else ""
            text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
            branch.add(_join_styled((f"{name}{mark}: ", "dim"), truncate_text(text, limit)))
    for position, document in enumerate(run.documents):
        score = "" if document.score is None else f" {document.score:.3f}"
        content = truncate_text(document.content, DOCUMENT_CHARACTERS if limit == TEXT_CHARACTERS else limit)
        branch.add(_join_styled((f"[{position}] {escape_line(document.id or '')}{score}  ", "green"), content))


def _add_feedback(branch: Tree, feedbacks: Iterable[Feedback], limit: int) -> None:
    for feedback in feedbacks:
        if feedback.outcome == "error":
            value = feedback.error or ""
        elif feedback.outcome == "skip":
            value = "skipped"
        else:
            value = format_value(feedback)
        author = feedback.author or feedback.evaluator or feedback.source
        styled = (f"★ {escape_line(feedback.key)} = {truncate_text(value, limit)}", "yellow")
        branch.add(_join_styled(styled, f"  {escape_line(author)}  {truncate_text(feedback.comment or '', limit)}"))


def _join_styled(*parts: str | tuple[str, str]) -> Text:
    """Concatenate texts, some of them with a style. Control characters are escaped, so trace contents cannot control the
    terminal.
    """
    return Text.assemble(
        *(escape_text(part) if isinstance(part, str) else (escape_text(part[0]), part[1]) for part in parts)
    )


app = typer.Typer(
    help="List, aggregate, show, follow, reconcile and delete traces.",
    no_args_is_help=True,
    epilog="Example: `spanwise traces list --where name=answer --since 1d`",
)

Id = Annotated[str, typer.Argument(help="Id of a trace, or the first characters of a recent one.")]
Ids = Annotated[list[str] | None, typer.Argument(help="Ids of traces.")]
Limit = Annotated[int, typer.Option(min=1, max=10_000)]
Every = Annotated[float, typer.Option(min=0.1, help="Seconds between updates.")]
Since = Annotated[str | None, typer.Option(help="Only traces since then: 2h, 7d, or a date.")]
SearchText = Annotated[
    str | None, typer.Option(help='Search inputs and outputs for these words, beginnings of words and "phrases".')
]
Sort = Annotated[
    str | None,
    typer.Option(
        help="start, latency_ms, time_to_first_token_ms, cost, tokens, errors, runs or feedback.KEY;"
        " with - for descending order: --sort=-cost."
    ),
]
GroupBy = Annotated[
    str | None, typer.Option("--by", help="Group by this field, such as prompt_version, agent, model or user.")
]
Width = Annotated[str | None, typer.Option("--every", help="Width of time buckets: 15m, 1h, 1d.")]
DEFAULT_NEWEST = 10_000
Newest = Annotated[int, typer.Option(min=1, max=100_000, help="Number of traces to read where rollups do not apply.")]
Whole = Annotated[bool, typer.Option("--whole", help="Do not cut long texts.")]
ActiveSince = Annotated[
    str | None, typer.Option("--since", help="Only processes that sent data since then: 2h, 7d, or a date.")
]
BALANCE_COLUMNS = ("started", "stored", "on disk", "dropped", "in memory", "open", "unaccounted")
LABEL_COLUMNS = ("prompt", "agent", "finish reason", "first token")
TRACE_COLUMNS = ("trace", "start", "name", "status", "latency", "spans", "tokens", "inputs", "feedback")


@app.command("list")
def list_(
    where: WhereOption = None,
    since: Since = None,
    text: SearchText = None,
    sort: Sort = None,
    limit: Limit = 20,
    at: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """List the latest traces, or the first ones in another order.

    Example: `spanwise traces list --where name=answer --where 'feedback=concise<0.5' --since 1d --sort=-latency_ms`
    """
    with open_store(at) as store:
        page = store.traces(build_filter(where, since=since, text=text), sort=sort, limit=limit)
    _print_traces(page.items, as_json)
    if page.newest:
        print_note(f"sorted: the newest {page.newest:,} matching traces; add --since to sort all of a shorter time")
    if page.unindexed:
        more = " or more" if page.unindexed >= MAX_UNINDEXED else ""
        print_note(f"{page.unindexed:,}{more} traces are not in the search index yet, and may be missing")
    if page.next and not as_json:
        print_note(f"there are more: --limit {limit * 5}")


@app.command()
def aggregate(
    by: GroupBy = None,
    every: Width = None,
    where: WhereOption = None,
    since: Since = None,
    text: SearchText = None,
    newest: Newest = DEFAULT_NEWEST,
    at: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show counts, errors, latency, tokens, cost and feedback of traces, in groups and over time.

    Example: `spanwise traces aggregate --by prompt_version --where prompt=greet --every 1d --since 7d`
    """
    with open_store(at) as store:
        buckets = store.aggregate(
            build_filter(where, since=since, text=text),
            bucket_ns=None if every is None else parse_duration(every),
            group_by=by,
            newest=newest,
        )
    if as_json:
        emit(msgspec.to_builtins(bucket) for bucket in buckets)
        return
    rows = [
        (
            formatting.date_and_time(bucket.start_ns),
            bucket.group or "none",
            f"{bucket.traces:,}",
            formatting.percent(bucket.errors, bucket.traces),
            formatting.milliseconds(bucket.p50_ms),
            formatting.milliseconds(bucket.p95_ms),
            f"{bucket.input_tokens + bucket.output_tokens:,}",
            formatting.cost(bucket.cost),
            " ".join(f"{stats.key}={formatting.number(stats.mean)} (n {stats.n:,})" for stats in bucket.feedback),
        )
        for bucket in buckets
    ]
    names = ("start", by or "group", "traces", "errors", "p50", "p95", "tokens", "cost", "feedback")
    shown = [at for at in range(len(names)) if (every or at != 0) and (by or at != 1)]
    print_table([names[at] for at in shown], [[row[at] for at in shown] for row in rows])
    if any(bucket.newest for bucket in buckets):
        print_note(f"these are the newest {newest:,} traces: --newest counts more")


@app.command()
def show(trace_id: Id, whole: Whole = False, at: StoreOption = None, as_json: JsonOption = False) -> None:
    """Show a trace as a tree: times, inputs, outputs, documents, feedback, and missing data.

    Example: `spanwise traces show 0af7651916cd43dd8448eb211c80319c`
    """
    with open_store(at) as store:
        trace_id = resolve_trace_id(store, trace_id)
        try:
            trace = store.trace(trace_id)
        except NotFound:
            open_runs = store.running(trace_id=trace_id)
            if not open_runs:
                raise
            if as_json:
                emit(map(_open_run_to_dict, open_runs))
            else:
                console.print(render_open_runs(open_runs), soft_wrap=True)
            return
    if as_json:
        emit([msgspec.to_builtins(trace)])
    else:
        console.print(render_trace(trace, whole=whole), soft_wrap=True)


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
        stored = store.traces(wanted, limit=1000)
        if stored.next:  # ignore older traces, which `seen` does not contain
            wanted = extend_filter(wanted, {"since_ns": stored.items[-1].start_ns + 1})
        seen = {trace.trace_id for trace in stored}
        were_running = set[str]()
        while True:
            running = {run.trace_id: run for run in stores.list_open_traces(store, wanted)}
            _print_open_runs([run for run in running.values() if run.trace_id not in were_running], as_json)
            ended = tuple(were_running - running.keys())
            new = _list_new_traces(store, wanted, seen | running.keys())
            seen.update(trace.trace_id for trace in new)
            new += store.traces(extend_filter(wanted, {"trace_ids": ended}), limit=1000).items if ended else ()
            _print_traces(list({trace.trace_id: trace for trace in new[::-1]}.values()), as_json, head=False)
            were_running = set(running)
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
        print_line("  ".join(map(escape_line, cells)))


def _open_run_to_dict(run: OpenRun) -> dict[str, Any]:
    return {"running": True, **msgspec.to_builtins(run)}


def _list_new_traces(store: Store, wanted: Filter, seen: set[str]) -> list[TraceSummary]:
    """Return matching traces that are not in `seen`, latest first. It reads pages until a page has no new trace."""
    new: list[TraceSummary] = []
    cursor: str | None = None
    while True:
        page = store.traces(wanted, limit=1000, cursor=cursor)
        new_in_page = [trace for trace in page if trace.trace_id not in seen]
        new += new_in_page
        cursor = page.next
        if not new_in_page or cursor is None:
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
        open_runs = Counter(run.instance for run in store.running(limit=10_000))
    balances = [
        balance_spans(process, None if spooled is None else spooled[process.instance], open_runs[process.instance])
        for process in processes
    ]
    if as_json:
        emit(map(asdict, balances))
    elif balances:
        print_table(("process", "service", "reported", *BALANCE_COLUMNS, "verdict"), map(_balance_cells, balances))
    source = (
        "the spool of this machine is empty or not readable"
        if spooled is None
        else f"spool: {disk_spool.get_spool_directory()}"
    )
    print_note(source)
    missing = sum(balance.unaccounted or 0 for balance in balances)
    started = sum(balance.started or 0 for balance in balances)
    print_note(f"{len(balances)} processes, {started:,} spans started, {missing:,} unaccounted for")
    if missing:
        raise typer.Exit(1)


def _balance_cells(balance: SpanBalance) -> tuple[str, ...]:
    reported = "none" if balance.reported_ns is None else formatting.ago(balance.reported_ns)
    dropped = ", ".join(f"{count:,} {reason}" for reason, count in balance.dropped.items()) or "0"
    service = f"{balance.service or '?'} {balance.pid or ''}".strip()
    found = ("?" if number is None else f"{number:,}" for number in (balance.started, balance.stored, balance.spooled))
    others = (balance.pending, balance.open, balance.unaccounted)
    missing = ("?" if number is None else f"{number:,}" for number in others)
    return balance.instance[:8], service, reported, *found, dropped, *missing, balance.verdict


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
        rows = [_trace_cells(trace) for trace in traces]
        names = (*TRACE_COLUMNS, *LABEL_COLUMNS)
        shown = [at for at, name in enumerate(names) if name in TRACE_COLUMNS or any(row[at] for row in rows)]
        print_table([names[at] for at in shown], [[row[at] for at in shown] for row in rows])
    else:
        for trace in traces:
            print_line("  ".join(map(escape_line, _trace_cells(trace)[: len(TRACE_COLUMNS)])))


def _trace_cells(trace: TraceSummary) -> tuple[str, ...]:
    """Return the cells of `TRACE_COLUMNS` and `LABEL_COLUMNS`. Dropped and running spans are shown next to the number
    of stored spans.
    """
    counts = ((trace.dropped, "dropped"), (trace.running, "running"))
    first_ms = trace.time_to_first_token_ms
    return (
        trace.trace_id,
        formatting.date_and_time(trace.start_ns),
        trace.name,
        trace.status,
        formatting.duration(trace.duration_ns),
        ", ".join([str(trace.span_count), *(f"{count} {state}" for count, state in counts if count)]),
        str(trace.input_tokens + trace.output_tokens),
        trace.inputs[:60],
        " ".join(f"{key}={_format_outcome(trace, key, value)}" for key, value in trace.feedback.items()),
        *(", ".join(texts)[:100] for texts in (formatting.prompts(trace.prompts), trace.agents, trace.finish_reasons)),
        "" if first_ms is None else formatting.milliseconds(first_ms),
    )


def _format_outcome(trace: TraceSummary, key: str, value: float | str | None) -> str:
    if key in trace.failed:
        return "failed"
    if key in trace.skipped:
        return "skipped"
    return value if isinstance(value, str) else formatting.number(value)
