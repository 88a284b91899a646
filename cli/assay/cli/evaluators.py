"""`assay evaluators`: what there is to judge with, and one of them by hand."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from assay.cli._common import console, emit, notes, opened, short, table, whole_id
from assay.cli._judges import judge, tell
from assay.cli._options import JsonOption, ParametersOption, StoreOption
from assay.cli.feedback import value_of
from assay.collector.errors import Refused

if TYPE_CHECKING:
    from assay.evaluators.protocol import Spec

app = typer.Typer(
    help="Evaluators: what there is, what they need, one by hand.",
    no_args_is_help=True,
    epilog="Example: `assay evaluators show document_recall`",
)

Id = Annotated[str, typer.Argument(help="An evaluator's id, as `list` shows it.")]
Named = Annotated[str, typer.Argument(help="An evaluator's id, or a function of a file: evals/mine.py:concise.")]
Group = Annotated[str | None, typer.Option(help="Only this group: text, retrieval, privacy, …")]
Needs = Annotated[str | None, typer.Option(help="Only those that need this: expected, context, judge, …")]
TraceId = Annotated[str | None, typer.Argument(help="A stored trace's id, or the beginning of a recent one's.")]
Session = Annotated[str | None, typer.Option(help="Instead of a trace: a session, all turns of it.")]
Save = Annotated[bool, typer.Option("--save", help="Keep the feedback on the trace.")]


@app.command("list")
def list_(group: Group = None, needs: Needs = None, as_json: JsonOption = False) -> None:
    """All evaluators with what they need; needs in parentheses are used when they are there.

    Example: `assay evaluators list --group retrieval`
    """
    chosen = [known for known in _known() if group in (None, known.group) and _needs(known, needs)]
    if as_json:
        emit(map(_described, chosen))
    else:
        table(("id", "group", "needs", "for", "metrics"), map(_cells, chosen))


@app.command()
def show(id: Id, as_json: JsonOption = False) -> None:
    """One evaluator: its definition, needs, parameters, metrics, and an example with what it gives.

    Example: `assay evaluators show ir_ndcg`
    """
    from rich.markdown import Markdown

    from assay.cli._evaluator_pages import page
    from assay.evaluators.protocol import spec

    if as_json:
        emit([_described(spec(id))])
    else:
        console.print(Markdown(page(id)))


@app.command("score")
def score_(
    id: Named,
    trace: TraceId = None,
    session: Session = None,
    parameters: ParametersOption = None,
    save: Save = False,
    at: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Let one evaluator, registered or of a file of your own, look at a stored trace or a session.

    Example: `assay evaluators score regex 4bf92f3577b34da6a3ce929d0e0e4736 --set 'pattern=[0-9]+' --save`
    """
    from assay.evaluators import score
    from assay.evaluators.protocol import Judgements, Untraced, judging

    if bool(trace) == bool(session):
        raise Refused("name a trace, or a session with --session: one of the two")
    evaluator = judge(id, parameters)
    tell([evaluator])
    judgements = Judgements() if save else Untraced()  # what nothing leads to is not kept
    with opened(at) as store, judging(judgements=judgements):
        if session:
            feedbacks = score(evaluator, session=session, store=store)
        else:
            feedbacks = score(evaluator, store.trace(whole_id(store, trace or "")))
        if save:
            store.append(judgements.take(), feedbacks)
            notes.print(f"kept {len(feedbacks)} feedbacks", highlight=False)
    if as_json:
        emit(map(asdict, feedbacks))
    else:
        cells = [(it.key, it.outcome, value_of(it), short(it.error or it.comment or "")) for it in feedbacks]
        table(("key", "outcome", "score", "comment"), cells)


def _known() -> Iterator[Spec]:
    """Our own, then other packages'; of one that cannot be loaded a note says why."""
    from assay.evaluators import names
    from assay.evaluators.protocol import spec, specs

    ours = specs()
    yield from ours
    for id in sorted(set(names()) - {known.id for known in ours}):
        try:
            yield spec(id)
        except (ValueError, TypeError) as error:
            notes.print(str(error), highlight=False, markup=False)


def _needs(known: Spec, need: str | None) -> bool:
    return need is None or known.needed.get(need, "no") != "no"


def _cells(known: Spec) -> tuple[str, ...]:
    from assay.cli._evaluator_pages import compatible, needs

    return known.id, known.group, needs(known), compatible(known), str(len(known.metrics))


def _described(known: Spec) -> dict[str, Any]:
    from assay.cli._evaluator_pages import parameters

    defaults = {name: None if isinstance(value, type) else value for name, value in parameters(known.id).items()}
    metrics = [metric.to_dict() for metric in known.metrics]
    return {**asdict(known), "metrics": metrics, "needed": known.needed, "parameters": defaults}
