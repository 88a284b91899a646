"""`assay evaluators`: what there is to judge with, and one of them by hand."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Annotated, Any

import orjson
import typer

from assay.cli._common import JsonOption, StoreOption, console, emit, notes, opened, short, table
from assay.evaluators import get, names, score
from assay.evaluators.protocol import Spec, spec, specs

app = typer.Typer(
    help="Evaluators: what there is, what they need, one by hand.",
    no_args_is_help=True,
    epilog="Example: `assay evaluators show document_recall`",
)


@app.command("list")
def list_(
    group: Annotated[str | None, typer.Option(help="Only this group: text, retrieval, privacy, …")] = None,
    needs: Annotated[str | None, typer.Option(help="Only those that need this: expected, context, judge, …")] = None,
    json: JsonOption = False,
) -> None:
    """All evaluators with what they need; needs in parentheses are used when they are there.

    Example: `assay evaluators list --group retrieval`
    """
    from assay.cli._evaluator_pages import compatible
    from assay.cli._evaluator_pages import needs as needs_of

    found = [
        one for one in _known() if group in (None, one.group) and (needs is None or one.needed.get(needs, "no") != "no")
    ]
    if json:
        emit(_plain(one) for one in found)
        return
    cells = [(one.id, one.group, needs_of(one), compatible(one), str(len(one.metrics))) for one in found]
    table(("id", "group", "needs", "for", "metrics"), cells)


@app.command()
def show(
    id: Annotated[str, typer.Argument(help="An evaluator's id, as `list` shows it.")], json: JsonOption = False
) -> None:
    """One evaluator: its definition, needs, parameters, metrics, and an example with what it gives.

    Example: `assay evaluators show ir_ndcg`
    """
    from rich.markdown import Markdown

    from assay.cli._evaluator_pages import page

    if json:
        emit([_plain(spec(id))])
    else:
        console.print(Markdown(page(id)))


@app.command("score")
def score_(
    id: Annotated[str, typer.Argument(help="An evaluator's id.")],
    trace: Annotated[str, typer.Argument(help="A stored trace's id.")],
    set: Annotated[list[str] | None, typer.Option(help="A parameter: name=value, the value as JSON or text.")] = None,
    save: Annotated[bool, typer.Option("--save", help="Keep the feedback on the trace.")] = False,
    store: StoreOption = None,
    json: JsonOption = False,
) -> None:
    """Let one evaluator look at a stored trace.

    Example: `assay evaluators score regex 4bf92f3577b34da6a3ce929d0e0e4736 --set 'pattern=[0-9]+' --save`
    """
    judge = get(id, **dict(map(_parameter, set or [])))
    with opened(store) as found:
        feedback = score(judge, found.trace(trace))
        if save:
            found.add_feedback(feedback)
            notes.print(f"kept {len(feedback)} feedbacks", highlight=False)
    if json:
        emit(asdict(one) for one in feedback)
    else:
        cells = [(one.key, one.outcome, _value(one), short(one.error or one.comment or "")) for one in feedback]
        table(("key", "outcome", "score", "comment"), cells)


def _known() -> Iterator[Spec]:
    """Our own, then other packages'; of one that cannot be loaded a note says why."""
    ours = specs()
    yield from ours
    for id in sorted(set(names()) - {one.id for one in ours}):
        try:
            yield spec(id)
        except (ValueError, TypeError) as error:
            notes.print(str(error), highlight=False, markup=False)


def _plain(one: Spec) -> dict[str, Any]:
    from assay.cli._evaluator_pages import parameters

    defaults = {name: None if isinstance(value, type) else value for name, value in parameters(one.id).items()}
    metrics = [metric.to_dict() for metric in one.metrics]
    return {**asdict(one), "metrics": metrics, "needed": one.needed, "parameters": defaults}


def _parameter(pair: str) -> tuple[str, Any]:
    name, mark, value = pair.partition("=")
    if not mark:
        raise ValueError(f"a parameter is name=value, not {pair!r}")
    try:
        return name, orjson.loads(value)
    except orjson.JSONDecodeError:
        return name, value


def _value(one: Any) -> str:
    return (
        one.label or "" if one.score is None else f"{one.score:.4g}" if isinstance(one.score, float) else str(one.score)
    )
