"""`spanwise evaluators`: list, show, and score one trace or session."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from spanwise.cli.command_io import (
    JsonOption,
    ParametersOption,
    StoreOption,
    console,
    emit,
    error_console,
    open_store,
    print_note,
    print_table,
    resolve_trace_id,
    shorten,
)
from spanwise.cli.commands.feedback import format_value
from spanwise.cli.evaluation_files import is_evaluator_file, print_judge_endpoints, resolve_evaluator
from spanwise.collector.errors import Refused

if TYPE_CHECKING:
    from spanwise.evaluators import Evaluator
    from spanwise.evaluators.interface import EvaluatorSpec
    from spanwise.evaluators.judges import Prompt


app = typer.Typer(
    help="Evaluators: list them, describe one, run one by hand.",
    no_args_is_help=True,
    epilog="Example: `spanwise evaluators show document_recall`",
)

ListGrouping = Literal["standard"]  # grouping of the list of evaluators

Named = Annotated[
    str,
    typer.Argument(help="Id of an evaluator, function of a file (evals/mine.py:concise), or definition (polite.yaml)."),
]
Group = Annotated[str | None, typer.Option(help="Only evaluators of this group: text, retrieval, privacy, …")]
Needs = Annotated[str | None, typer.Option(help="Only evaluators that need this: expected, context, judge, …")]
By = Annotated[
    ListGrouping | None, typer.Option(help="Group the evaluators by compliance standard (NIST AI RMF, SR 11-7).")
]
TraceId = Annotated[str | None, typer.Argument(help="Id of a stored trace, or the first characters of a recent one.")]
Session = Annotated[str | None, typer.Option(help="Instead of a trace: a session with all its turns.")]
Save = Annotated[bool, typer.Option("--save", help="Store the feedback on the trace.")]


@app.command("list")
def list_(group: Group = None, needs: Needs = None, by: By = None, as_json: JsonOption = False) -> None:
    """List all evaluators with their needs. Needs in parentheses are optional.

    Example: `spanwise evaluators list --group retrieval`
    """
    from spanwise.cli.evaluator_docs import describe_compatibility, describe_metrics, describe_needs

    chosen = [
        spec
        for spec in _list_specs()
        if group in (None, spec.group) and (needs is None or spec.needed.get(needs, "no") != "no")
    ]
    if by == "standard":
        _print_standards(chosen, as_json=as_json)
        return
    if as_json:
        emit(map(_describe_spec, chosen))
        return
    rows = (
        (spec.id, spec.group, describe_needs(spec), describe_compatibility(spec), describe_metrics(spec))
        for spec in chosen
    )
    print_table(("id", "group", "needs", "for", "metrics"), rows)


@app.command()
def show(id: Named, as_json: JsonOption = False) -> None:
    """Show an evaluator: definition, needs, parameters, metrics, prompts, and an example with its result.

    For your own judge, in a Python file or a definition file, show its prompts and version.

    Example: `spanwise evaluators show evals/mine.py:polite`
    """
    from rich.markdown import Markdown

    from spanwise.cli.evaluator_docs import render_evaluator, render_page
    from spanwise.evaluators.interface import get_spec

    if is_evaluator_file(id):
        evaluator = resolve_evaluator(id)
        described, text = _describe_own_evaluator(evaluator), render_evaluator(evaluator)
    else:
        described, text = _describe_spec(get_spec(id)), "" if as_json else render_page(id)
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
    """Score a stored trace or a session with one evaluator, registered or from your own file.

    Example: `spanwise evaluators score regex 4bf92f3577b34da6a3ce929d0e0e4736 --set 'pattern=[0-9]+' --save`
    """
    from spanwise.evaluators import score
    from spanwise.evaluators.interface import DiscardedJudgements, JudgementBuffer, use_judge_context

    if bool(trace) == bool(session):
        raise Refused("name either a trace or, with --session, a session")
    evaluator = resolve_evaluator(id, parameters)
    print_judge_endpoints([evaluator])
    # without --save no feedback is stored, and nothing would lead to the judge traces
    judgements = JudgementBuffer() if save else DiscardedJudgements()
    with open_store(at) as store, use_judge_context(judgements=judgements):
        if session:
            feedbacks = score(evaluator, session=session, store=store)
        else:
            feedbacks = score(evaluator, store.trace(resolve_trace_id(store, trace or "")))
        if save:
            store.append(judgements.take(), feedbacks)
            error_console.print(f"stored {len(feedbacks)} feedbacks", highlight=False)
    if as_json:
        emit(map(asdict, feedbacks))
    else:
        rows = [
            (feedback.key, feedback.outcome, format_value(feedback), shorten(feedback.error or feedback.comment or ""))
            for feedback in feedbacks
        ]
        print_table(("key", "outcome", "score", "comment"), rows)


def _print_standards(specs: Iterable[EvaluatorSpec], *, as_json: bool) -> None:
    """Print the evaluators of each compliance standard, and whose assignment it is."""
    from spanwise.cli.evaluator_docs import STANDARDS_NOTE, describe_standard, group_by_standard

    groups = group_by_standard(specs)
    if as_json:
        emit({"standard": standard, "evaluators": ids} for standard, ids in groups.items())
    else:
        for standard, ids in groups.items():
            console.print(f"{standard}: {describe_standard(standard, ids)}", markup=False, highlight=False)
    print_note(STANDARDS_NOTE)


def _list_specs() -> Iterator[EvaluatorSpec]:
    """Yield the built-in evaluators, then those of other packages. If one cannot be loaded, print the reason."""
    from spanwise.evaluators import list_evaluators
    from spanwise.evaluators.interface import get_spec, list_specs

    builtin = list_specs()
    yield from builtin
    for id in sorted(set(list_evaluators()) - {spec.id for spec in builtin}):
        try:
            yield get_spec(id)
        except (ValueError, TypeError) as error:
            print_note(str(error))


def _describe_own_evaluator(evaluator: Evaluator) -> dict[str, Any]:
    """Describe a user's evaluator: metadata, prompts, and its definition if it can be serialized."""
    from spanwise.evaluators import as_evaluator

    metrics = [metric.to_dict() for metric in evaluator.metrics]
    facts = {"id": evaluator.key, "version": evaluator.version, "needs": list(evaluator.needs), "metrics": metrics}
    try:
        definition = as_evaluator(evaluator.function).to_dict() if evaluator.spec else evaluator.to_dict()
    except ValueError:  # functions without an importable name, such as lambdas, cannot be serialized
        definition = None
    return {**facts, "prompts": _describe_prompts(getattr(evaluator.function, "prompts", ())), "definition": definition}


def _describe_prompts(prompts: Iterable[Prompt]) -> list[dict[str, Any]]:
    return [{**asdict(prompt), "hash": prompt.hash} for prompt in prompts]


def _describe_spec(spec: EvaluatorSpec) -> dict[str, Any]:
    from spanwise.cli.evaluator_docs import default_parameters, default_prompts
    from spanwise.evaluators.interface import get_default_metrics

    return {
        **asdict(spec),
        "metrics": [metric.to_dict() for metric in get_default_metrics(spec)],
        "needed": spec.needed,
        "parameters": {
            name: None if isinstance(value, type) else value for name, value in default_parameters(spec.id).items()
        },
        "prompts": _describe_prompts(default_prompts(spec.id)),
    }
