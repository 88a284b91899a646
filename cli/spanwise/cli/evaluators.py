"""`spanwise evaluators`: what there is to judge with, and one of them by hand."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from spanwise.cli._common import console, emit, notes, opened, short, table, whole_id
from spanwise.cli._judges import is_file, judge, tell
from spanwise.cli._options import JsonOption, ParametersOption, StoreOption
from spanwise.cli.feedback import value_of
from spanwise.collector.errors import Refused

if TYPE_CHECKING:
    from spanwise.evaluators import Evaluator
    from spanwise.evaluators.judges import Prompt
    from spanwise.evaluators.protocol import Spec

app = typer.Typer(
    help="Evaluators: what there is, what they need, one by hand.",
    no_args_is_help=True,
    epilog="Example: `spanwise evaluators show document_recall`",
)

Named = Annotated[
    str, typer.Argument(help="An evaluator's id, one of a file (evals/mine.py:concise), or a definition (polite.yaml).")
]
Group = Annotated[str | None, typer.Option(help="Only this group: text, retrieval, privacy, …")]
Needs = Annotated[str | None, typer.Option(help="Only those that need this: expected, context, judge, …")]
TraceId = Annotated[str | None, typer.Argument(help="A stored trace's id, or the beginning of a recent one's.")]
Session = Annotated[str | None, typer.Option(help="Instead of a trace: a session, all turns of it.")]
Save = Annotated[bool, typer.Option("--save", help="Keep the feedback on the trace.")]


@app.command("list")
def list_(group: Group = None, needs: Needs = None, as_json: JsonOption = False) -> None:
    """All evaluators with what they need; needs in parentheses are used when they are there.

    Example: `spanwise evaluators list --group retrieval`
    """
    chosen = [known for known in _known() if group in (None, known.group) and _needs(known, needs)]
    if as_json:
        emit(map(_described, chosen))
    else:
        table(("id", "group", "needs", "for", "metrics"), map(_cells, chosen))


@app.command()
def show(id: Named, as_json: JsonOption = False) -> None:
    """One evaluator: its definition, needs, parameters, metrics, prompts, and an example with what it gives.

    Of a judge of your own, in a Python file or as a definition, what it asks with, and its version.

    Example: `spanwise evaluators show evals/mine.py:polite`
    """
    from rich.markdown import Markdown

    from spanwise.cli._evaluator_pages import page, page_of
    from spanwise.evaluators.protocol import spec

    if is_file(id):
        evaluator = judge(id)
        described, text = _of_file(evaluator), page_of(evaluator)
    else:
        described, text = _described(spec(id)), "" if as_json else page(id)
    if as_json:
        emit([described])
    else:
        console.print(Markdown(text))


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

    Example: `spanwise evaluators score regex 4bf92f3577b34da6a3ce929d0e0e4736 --set 'pattern=[0-9]+' --save`
    """
    from spanwise.evaluators import score
    from spanwise.evaluators.protocol import Judgements, Untraced, judging

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
    from spanwise.evaluators import names
    from spanwise.evaluators.protocol import spec, specs

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
    from spanwise.cli._evaluator_pages import compatible, needs

    return known.id, known.group, needs(known), compatible(known), str(len(known.metrics))


def _of_file(evaluator: Evaluator) -> dict[str, Any]:
    """Somebody's own evaluator: what is known of it, its prompts, and its definition where that is data."""
    from spanwise.evaluators import as_evaluator

    metrics = [metric.to_dict() for metric in evaluator.metrics]
    known = {"id": evaluator.key, "version": evaluator.version, "needs": list(evaluator.needs), "metrics": metrics}
    try:
        definition = as_evaluator(evaluator.function).to_dict() if evaluator.spec else evaluator.to_dict()
    except ValueError:  # a function without a name, or a judge that is one
        definition = None
    return {**known, "prompts": _prompts(getattr(evaluator.function, "prompts", ())), "definition": definition}


def _prompts(prompts: Iterable[Prompt]) -> list[dict[str, Any]]:
    return [{**asdict(prompt), "hash": prompt.hash} for prompt in prompts]


def _described(known: Spec) -> dict[str, Any]:
    from spanwise.cli._evaluator_pages import parameters, prompts

    defaults = {name: None if isinstance(value, type) else value for name, value in parameters(known.id).items()}
    metrics = [metric.to_dict() for metric in known.metrics]
    more = {"metrics": metrics, "needed": known.needed, "parameters": defaults, "prompts": _prompts(prompts(known.id))}
    return {**asdict(known), **more}
