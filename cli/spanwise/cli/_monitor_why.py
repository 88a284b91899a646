"""`spanwise monitor why TRACE`: what each rule did with a trace, and for which reason."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Annotated

import typer
from rich.text import Text

from spanwise.cli._common import console, emit, notes, on_a_line, opened, whole_id
from spanwise.cli._options import JsonOption, StoreOption
from spanwise.collector import verdicts
from spanwise.collector.records import Condition, Decision, Why
from spanwise.collector.terminal import MESSAGE

Id = Annotated[str, typer.Argument(help="A trace's id, or the beginning of a recent one's.")]
STYLES = {"scored": "green", "failed": "bold red", "over_budget": "red", "filtered": "dim", "sampled_out": "dim"}


def why(trace_id: Id, at: StoreOption = None, as_json: JsonOption = False) -> None:
    """Why each rule did, or did not, evaluate a trace: the condition that failed, the sample, the budget, the error.

    Example: `spanwise monitor why 0af76519`
    """
    import msgspec

    with opened(at) as store:
        id = whole_id(store, trace_id)
        found = store.why(id)
        lack = "" if found else verdicts.without_rules(store.trace(id).root.project, store.rules())
    if as_json:
        emit(map(msgspec.to_builtins, found))
    elif lack:
        notes.print(on_a_line(lack), markup=False, highlight=False, soft_wrap=True)
    for one in found if not as_json else ():
        console.print(told(one, time.time_ns()), soft_wrap=True)


def told(one: Why, now_ns: int) -> Text:
    """One rule's answer: a line with the verdict and the reason, and what there is to know of it below."""
    text = Text.assemble(
        (on_a_line(one.rule.name), "bold"), "  ", (verdicts.WORDS[one.verdict], STYLES.get(one.verdict, "yellow"))
    )
    if reason := verdicts.reason(one):
        text.append(f"  {on_a_line(reason, MESSAGE)}")
    for line in _below(one, now_ns):
        text.append(f"\n    {on_a_line(line, MESSAGE)}")
    return text


def _below(one: Why, now_ns: int) -> Iterator[str]:
    yield from map(_condition, one.conditions)
    if sample := verdicts.sampling(one):
        yield f"sample: {sample}"
    for budget in verdicts.spending(one.rule, one.budget) if one.budget else ():
        yield f"budget: {budget}"
    for decision in one.decisions:
        yield from _decision(decision, now_ns)
    if command := verdicts.look_on(one):
        yield f"what its spans hold, and what nobody reads of them: {command}"


def _condition(one: Condition) -> str:
    mark = {True: "holds", False: "fails", None: "not told yet"}[one.passes]
    return f"{mark}: {verdicts.condition(one)}"


def _decision(one: Decision, now_ns: int) -> Iterator[str]:
    head = [verdicts.target(one), verdicts.WORDS[one.verdict], one.reason, *verdicts.facts(one, now_ns)]
    yield ", ".join(dict.fromkeys(filter(None, head)))
    for key, state, error in verdicts.states(one):
        yield f"  {key}: {state}" + (f", {error}" if error else "")
