"""`spanwise traces`: list, show, follow, reconcile and delete traces."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import asdict
from typing import Annotated, Any

import msgspec
import typer

from spanwise.cli._common import conditions, console, emit, notes, on_a_line, opened, table, whole_id
from spanwise.cli._options import JsonOption, StoreOption, WhereOption, YesOption
from spanwise.cli._reconcile import Balance, balance, by_process, spooled_by_process
from spanwise.cli._tree import tree, under_way
from spanwise.collector import format, stores
from spanwise.collector.errors import NotFound, Refused
from spanwise.collector.filters import Filter, combined
from spanwise.collector.querystring import moment
from spanwise.collector.records import OpenRun, Trace, TraceSummary
from spanwise.collector.stores import Store
from spanwise.tracer import spool

app = typer.Typer(
    help="List, show, follow, reconcile and delete traces.",
    no_args_is_help=True,
    epilog="Example: `spanwise traces list --where name=answer --since 1d`",
)

Id = Annotated[str, typer.Argument(help="A trace's id, or the beginning of a recent one's.")]
Ids = Annotated[list[str] | None, typer.Argument(help="Ids of traces.")]
Limit = Annotated[int, typer.Option(min=1, max=10_000)]
Every = Annotated[float, typer.Option(min=0.1, help="Seconds between two looks.")]
Since = Annotated[str | None, typer.Option(help="Traces from then on: 2h, 7d, or a date.")]
Text = Annotated[str | None, typer.Option(help="Words in inputs or outputs.")]
Whole = Annotated[bool, typer.Option("--whole", help="Do not cut long texts.")]
Active = Annotated[str | None, typer.Option("--since", help="Processes of which something came since: 2h, 7d, a date.")]
COUNTED = ("started", "stored", "on disk", "dropped", "in memory", "open", "unaccounted")
HEAD = ("trace", "start", "name", "status", "latency", "spans", "tokens", "inputs", "feedback")


@app.command("list")
def list_(
    where: WhereOption = None,
    since: Since = None,
    text: Text = None,
    limit: Limit = 20,
    at: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """The latest traces.

    Example: `spanwise traces list --where name=answer --where 'feedback=concise<0.5' --since 1d`
    """
    with opened(at) as store:
        page = store.traces(conditions(where, since=since, text=text), limit=limit)
    _print(page.items, as_json)
    if page.next and not as_json:
        notes.print(f"there are more: --limit {limit * 5}", markup=False)


@app.command()
def show(trace_id: Id, whole: Whole = False, at: StoreOption = None, as_json: JsonOption = False) -> None:
    """One trace as a tree: times, inputs, outputs, documents, feedback, and what is missing of it.

    Example: `spanwise traces show 0af7651916cd43dd8448eb211c80319c`
    """
    with opened(at) as store:
        trace = _asked(store, whole_id(store, trace_id))
    if as_json:
        emit([msgspec.to_builtins(trace)] if isinstance(trace, Trace) else map(_running, trace))
    else:
        console.print(tree(trace, whole=whole) if isinstance(trace, Trace) else under_way(trace), soft_wrap=True)


def _asked(store: Store, trace_id: str) -> Trace | list[OpenRun]:
    """The trace, or its open runs where nothing has ended. Raises `NotFound`."""
    try:
        return store.trace(trace_id)
    except NotFound:
        if runs := store.running(trace_id=trace_id):
            return runs
        raise


@app.command()
def tail(
    where: WhereOption = None,
    text: Text = None,
    at: StoreOption = None,
    as_json: JsonOption = False,
    every: Every = 1.0,
) -> None:
    """New traces as they arrive, and those under way once one of their runs takes more than a second, until Ctrl-C.

    Example: `spanwise traces tail --where status=error --json`
    """
    # A trace shows up when its first span has been stored, which may be a while after it started
    wanted = combined(conditions(where, text=text), {"since_ns": time.time_ns() - 3600 * 10**9})
    with opened(at) as store:
        there = store.traces(wanted, limit=1000)
        if there.next:  # what is older is not among `seen`
            wanted = combined(wanted, {"since_ns": there.items[-1].start_ns + 1})
        seen = {trace.trace_id for trace in there}
        begun = set[str]()
        while True:
            running = {run.trace_id: run for run in stores.under_way(store, wanted)}
            _print_running([run for run in running.values() if run.trace_id not in begun], as_json)
            ended = tuple(begun - running.keys())
            new = _new(store, wanted, seen | running.keys())
            seen.update(trace.trace_id for trace in new)
            new += store.traces(combined(wanted, {"trace_ids": ended}), limit=1000).items if ended else ()
            _print(list({trace.trace_id: trace for trace in new[::-1]}.values()), as_json, head=False)
            begun = set(running)
            time.sleep(every)


def _print_running(runs: Iterable[OpenRun], as_json: bool) -> None:
    if as_json:
        emit(map(_running, runs))
        return
    for run in runs:
        cells = (run.trace_id, format.to_the_second(run.start_ns), run.name, "running", format.ago(run.start_ns))
        console.print("  ".join(map(on_a_line, cells)), markup=False, highlight=False, soft_wrap=True)


def _running(run: OpenRun) -> dict[str, Any]:
    return {"running": True, **msgspec.to_builtins(run)}


def _new(store: Store, wanted: Filter, seen: set[str]) -> list[TraceSummary]:
    """Traces that pass and were not seen, latest first: pages up to the first without any."""
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
def reconcile(since: Active = None, at: StoreOption = None, as_json: JsonOption = False) -> None:
    """Whether anything was lost: per process, spans started against stored, on disk, dropped, in memory and open.

    Processes say themselves what they have started, every few seconds and when they end; the disk is this machine's.
    Exit status 1 if a span is unaccounted for.

    Example: `spanwise traces reconcile --since 1h`
    """
    spooled = spooled_by_process()
    with opened(at) as store:
        processes = store.processes(since_ns=None if since is None else moment(since))
        begun = by_process(store.running(limit=10_000))
    found = [balance(one, None if spooled is None else spooled[one.instance], begun[one.instance]) for one in processes]
    if as_json:
        emit(map(asdict, found))
    elif found:
        table(("process", "service", "reported", *COUNTED, "verdict"), map(_balance, found))
    looked = "nothing on this machine's disk is for us to read" if spooled is None else f"on disk: {spool.place()}"
    notes.print(looked, markup=False, highlight=False, soft_wrap=True)
    missing = sum(one.unaccounted or 0 for one in found)
    started = sum(one.started or 0 for one in found)
    notes.print(f"{len(found)} processes, {started:,} spans started, {missing:,} unaccounted for", markup=False)
    if missing:
        raise typer.Exit(1)


def _balance(one: Balance) -> tuple[str, ...]:
    said = "none" if one.reported_ns is None else format.ago(one.reported_ns)
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
    text: Text = None,
    at: StoreOption = None,
    yes: YesOption = False,
    as_json: JsonOption = False,
) -> None:
    """Delete traces with their spans, index, feedback and decisions: by id, or all that pass conditions.

    Example: `spanwise traces delete --where session=conversation-7 --yes`
    """
    wanted = conditions(where, since=since, text=text)
    if trace_ids:
        wanted = combined(wanted, {"trace_ids": trace_ids})
    if wanted == Filter():
        raise Refused("name the traces to delete, or conditions on them: --where project=old")
    if not yes:
        typer.confirm("Delete every trace that passes? This cannot be taken back", abort=True)
    with opened(at) as store:
        deleted = store.delete(wanted)
    if as_json:
        emit([{"deleted": deleted}])
    else:
        notes.print(f"deleted {deleted} traces")


def _print(traces: Iterable[TraceSummary], as_json: bool, *, head: bool = True) -> None:
    if as_json:
        emit(msgspec.to_builtins(trace) for trace in traces)
    elif head:
        table(HEAD, map(_cells, traces))
    else:
        for trace in traces:
            console.print("  ".join(map(on_a_line, _cells(trace))), markup=False, highlight=False, soft_wrap=True)


def _cells(trace: TraceSummary) -> tuple[str, ...]:
    return (
        trace.trace_id,
        format.to_the_second(trace.start_ns),
        trace.name,
        trace.status,
        format.duration(trace.duration_ns),
        _spans(trace),
        str(trace.input_tokens + trace.output_tokens),
        trace.inputs[:60],
        " ".join(f"{key}={_outcome(trace, key, value)}" for key, value in trace.feedback.items()),
    )


def _outcome(trace: TraceSummary, key: str, value: float | str | None) -> str:
    if key in trace.failed:
        return "failed"
    if key in trace.skipped:
        return "skipped"
    return value if isinstance(value, str) else format.number(value)


def _spans(trace: TraceSummary) -> str:
    """How many are here, and what is known of others."""
    others = ((trace.dropped, "dropped"), (trace.running, "running"))
    return ", ".join([str(trace.span_count), *(f"{count} {what}" for count, what in others if count)])
