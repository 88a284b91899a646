"""`assay traces`: list, show, follow and delete traces."""

from __future__ import annotations

import time
from typing import Annotated, Any

import msgspec
import typer

from assay.cli._common import (
    JsonOption,
    StoreOption,
    WhereOption,
    conditions,
    console,
    emit,
    notes,
    opened,
    table,
    whole_id,
)
from assay.cli._tree import tree
from assay.cli._when import length, shown
from assay.collector.errors import Refused
from assay.collector.filters import Filter, combined
from assay.collector.records import TraceSummary
from assay.collector.stores import Store

app = typer.Typer(
    help="List, show, follow and delete traces.",
    no_args_is_help=True,
    epilog="Example: `assay traces list --where name=answer --since 1d`",
)

Since = Annotated[str | None, typer.Option(help="Traces from then on: 2h, 7d, or a date.")]
Text = Annotated[str | None, typer.Option(help="Words in inputs or outputs.")]
HEAD = ("trace", "start", "name", "status", "latency", "spans", "tokens", "inputs", "feedback")


@app.command("list")
def list_(
    where: WhereOption = None,
    since: Since = None,
    text: Text = None,
    limit: Annotated[int, typer.Option(min=1, max=10_000)] = 20,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """The latest traces.

    Example: `assay traces list --where name=answer --where 'feedback=concise<0.5' --since 1d`
    """
    with opened(store) as opened_store:
        page = opened_store.traces(conditions(where, since=since, text=text), limit=limit)
    _print(page.items, as_json)
    if page.next and not as_json:
        notes.print(f"there are more: --limit {limit * 5}", markup=False)


@app.command()
def show(
    trace_id: Annotated[str, typer.Argument(help="A trace's id, or the beginning of a recent one's.")],
    whole: Annotated[bool, typer.Option("--whole", help="Do not cut long texts.")] = False,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """One trace as a tree: times, inputs, outputs, documents, feedback.

    Example: `assay traces show 0af7651916cd43dd8448eb211c80319c`
    """
    with opened(store) as opened_store:
        trace = opened_store.trace(whole_id(opened_store, trace_id))
    if as_json:
        emit([msgspec.to_builtins(trace)])
    else:
        console.print(tree(trace, whole=whole), soft_wrap=True)


@app.command()
def tail(
    where: WhereOption = None,
    text: Text = None,
    store: StoreOption = None,
    as_json: JsonOption = False,
    every: Annotated[float, typer.Option(min=0.1, help="Seconds between two looks.")] = 1.0,
) -> None:
    """New traces as they arrive, until Ctrl-C.

    Example: `assay traces tail --where status=error --json`
    """
    # A trace shows up when its first span has been stored, which may be a while after it started
    wanted = combined(conditions(where, text=text), {"since_ns": time.time_ns() - 3600 * 10**9})
    with opened(store) as opened_store:
        there = opened_store.traces(wanted, limit=1000)
        if there.next:  # what is older is not among `seen`
            wanted = combined(wanted, {"since_ns": there.items[-1].start_ns + 1})
        seen = {one.trace_id for one in there}
        while True:
            time.sleep(every)
            found = _new(opened_store, wanted, seen)
            _print(found[::-1], as_json, head=False)
            seen.update(one.trace_id for one in found)


def _new(store: Store, wanted: Filter, seen: set[str]) -> list[TraceSummary]:
    """Traces that pass and were not seen, latest first: pages up to the first without any."""
    found: list[TraceSummary] = []
    cursor: str | None = None
    while True:
        page = store.traces(wanted, limit=1000, cursor=cursor)
        new = [one for one in page if one.trace_id not in seen]
        found += new
        cursor = page.next
        if not new or cursor is None:
            return found


@app.command()
def delete(
    trace_ids: Annotated[list[str] | None, typer.Argument(help="Ids of traces.")] = None,
    where: WhereOption = None,
    since: Since = None,
    text: Text = None,
    store: StoreOption = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Delete traces with their spans, index, feedback and decisions: by id, or all that pass conditions.

    Example: `assay traces delete --where session=conversation-7 --yes`
    """
    wanted = conditions(where, since=since, text=text)
    if trace_ids:
        wanted = combined(wanted, {"trace_ids": trace_ids})
    if wanted == Filter():
        raise Refused("name the traces to delete, or conditions on them: --where project=old")
    if not yes:
        typer.confirm("Delete every trace that passes? This cannot be taken back", abort=True)
    with opened(store) as opened_store:
        deleted = opened_store.delete(wanted)
    if as_json:
        emit([{"deleted": deleted}])
    else:
        notes.print(f"deleted {deleted} traces")


def _print(summaries: Any, as_json: bool, *, head: bool = True) -> None:
    if as_json:
        emit(msgspec.to_builtins(one) for one in summaries)
    elif head:
        table(HEAD, (_row(one) for one in summaries))
    else:
        for one in summaries:
            console.print("  ".join(_row(one)), markup=False, highlight=False, soft_wrap=True)


def _row(one: TraceSummary) -> tuple[str, ...]:
    feedback = " ".join(f"{key}={value}" for key, value in one.feedback.items())
    return (
        one.trace_id,
        shown(one.start_ns),
        one.name,
        one.status,
        length(one.duration_ns),
        str(one.span_count),
        str(one.input_tokens + one.output_tokens),
        one.inputs[:60],
        feedback,
    )
