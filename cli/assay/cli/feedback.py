"""`assay feedback`: what people say of traces, beside what evaluators say."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

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
    short,
    table,
)
from assay.collector.records import Feedback, Target

app = typer.Typer(
    help="Feedback on traces: add, list, remove.",
    no_args_is_help=True,
    epilog="Example: `assay feedback list --key thumbs_up`",
)

TraceId = Annotated[str, typer.Argument(help="A trace's id.")]
WORDS = {"true": True, "yes": True, "false": False, "no": False}


@app.command()
def add(
    trace: TraceId,
    key: Annotated[str, typer.Argument(help="What it is about: correctness, thumbs_up, …")],
    value: Annotated[str, typer.Argument(help="A number, true or false, or any other text as a label.")],
    comment: Annotated[str | None, typer.Option(help="Why.")] = None,
    author: Annotated[str | None, typer.Option(help="Who says so; votes of different people are kept apart.")] = None,
    span: Annotated[str | None, typer.Option(help="Only this span of the trace.")] = None,
    store: StoreOption = None,
    json: JsonOption = False,
) -> None:
    """Say something of a trace; the same author's next word under the same key replaces it.

    Example: `assay feedback add 4bf92f3577b34da6a3ce929d0e0e4736 thumbs_up 1 --author ann --comment "just right"`
    """
    score, label = _parsed(value)
    with opened(store) as found:
        kept = found.feedback(trace, key, score, label=label, comment=comment, author=author, span_id=span)
        if not found.traces(trace_ids=(trace,), limit=1):
            notes.print(f"no trace {trace!r} is stored yet; this waits for it", markup=False, soft_wrap=True)
    if json:
        emit([asdict(kept)])
    else:
        console.print(
            f"{kept.key} = {value} on {trace} (feedback {kept.id})", markup=False, highlight=False, soft_wrap=True
        )


@app.command("list")
def list_(
    trace: Annotated[str | None, typer.Argument(help="Only on this trace.")] = None,
    key: Annotated[str | None, typer.Option(help="Only under this key.")] = None,
    where: WhereOption = None,
    limit: Annotated[int, typer.Option(help="At most so many, newest first.")] = 50,
    store: StoreOption = None,
    json: JsonOption = False,
) -> None:
    """Feedback of people and evaluators, newest first; with `--where`, that on traces that pass.

    Example: `assay feedback list --key thumbs_up --where user=u-42`
    """
    target = None if trace is None else Target(trace_id=trace)
    with opened(store) as found:
        rows = list(found.feedbacks(conditions(where), key=key, limit=limit, target=target))
    if json:
        emit(asdict(one) for one in rows)
    else:
        table(("trace", "key", "value", "by", "comment", "id"), map(_cells, rows))


@app.command()
def delete(
    ids: Annotated[list[str], typer.Argument(help="Feedback ids, as `list` shows them.")], store: StoreOption = None
) -> None:
    """Remove feedback by id.

    Example: `assay feedback delete 0c4e…`
    """
    with opened(store) as found:
        removed = found.delete_feedback(ids)
    console.print(f"removed {removed} feedbacks", markup=False)


def _parsed(value: str) -> tuple[float | bool | None, str | None]:
    if value.lower() in WORDS:
        return WORDS[value.lower()], None
    try:
        return float(value), None
    except ValueError:
        return None, value


def _cells(one: Feedback) -> tuple[str, ...]:
    value = one.outcome if one.outcome != "score" else one.label if one.score is None else f"{float(one.score):.4g}"
    who = one.author or one.evaluator or one.source
    about = one.target.trace_id or one.target.session_id or one.target.experiment_id or ""
    return about, one.key, value or "", who, short(one.error or one.comment or ""), one.id
