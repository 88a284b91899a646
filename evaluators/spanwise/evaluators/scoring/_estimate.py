"""A dry run: how many calls judges would make over cases, and what they would cost, without a call."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from spanwise.collector.records import Case, Example, Feedback, Target, Trace
from spanwise.evaluators.protocol import Evaluator, Untraced, as_evaluator, finish, judging, no_trace
from spanwise.evaluators.scoring._cases import as_seen, case_of

if TYPE_CHECKING:  # judges are imported when there are some
    from spanwise.evaluators.judges import Judge
    from spanwise.evaluators.judges._rehearsal import Counted, Rehearsal


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """Of evaluators over cases, by evaluator's key and together; `skipped` are cases that lack what it needs, `errors`
    what an evaluator raises before it asks anything.

    `where` says to whom text would go. Printed, it is a line for each evaluator and one for all.
    """

    by_evaluator: Mapping[str, Counted]
    skipped: Mapping[str, int]
    errors: Mapping[str, str]
    where: tuple[str, ...]
    cases: int

    @property
    def total(self) -> Counted:
        """Of all evaluators."""
        return _sum(self.by_evaluator.values())

    def __str__(self) -> str:
        lines = [
            f"{key}: {_told(counted, self.skipped[key], self.errors.get(key))}"
            for key, counted in self.by_evaluator.items()
        ]
        to = f", to {' and '.join(self.where)}" if self.where else ""
        return "\n".join([*lines, f"together, over {self.cases} cases: {_told(self.total)}{to}"])


def estimate(evaluators: Any, cases: Iterable[Any], *, repetitions: int = 1) -> Estimate:
    """What `score` or `evaluate` would ask judges, and what it would cost; nobody is asked, and nothing is stored.

    `cases` are cases, traces, dicts of a case's fields, or examples, whose reference outputs stand for the outputs that
    no task has made yet. Evaluators without a judge cost nothing and are left out; those that ask several questions
    are led through them with made-up answers. Answers that the cache holds are counted as such.
    Raises `NoJudge` for an evaluator whose judge is not named.
    """
    given = [evaluators] if isinstance(evaluators, str) or callable(evaluators) else list(evaluators)
    judged = {each.key: each for each in map(as_evaluator, given) if judges_of(each)}
    for each in judged.values():
        for judge in judges_of(each):
            if not judge.model:  # a key is not asked for: nobody is asked
                judge.check()
    return finish(_estimated(judged, [_case(case) for case in cases], repetitions))


def judges_of(evaluator: Evaluator) -> list[Judge]:
    """The judges that an evaluator holds, also in lists of them."""
    from spanwise.evaluators.judges import Judge

    function = evaluator.function
    names = {name for kind in type(function).__mro__ for name in getattr(kind, "__slots__", ())}
    values = [getattr(function, name, None) for name in {*names, *getattr(function, "__dict__", {})}]
    flat = [each for value in values for each in (value if isinstance(value, list | tuple) else (value,))]
    return list({id(each): each for each in flat if isinstance(each, Judge)}.values())


async def _estimated(evaluators: Mapping[str, Evaluator], cases: list[Case], repetitions: int) -> Estimate:
    counted, skipped, errors = {}, {}, {}
    for key, evaluator in evaluators.items():
        of_cases = [await _rehearsed(evaluator, case, place) for place in range(repetitions) for case in cases]
        counted[key] = _sum(each for each, _ in of_cases)
        first_time = [said for _, said in of_cases[: len(cases)]]
        skipped[key] = sum(said is not None and said.outcome == "skip" for said in first_time)
        error = next((said.error for said in first_time if said is not None and said.outcome == "error"), None)
        if error is not None:
            errors[key] = error
    where = {judge.where: None for evaluator in evaluators.values() for judge in judges_of(evaluator)}
    return Estimate(by_evaluator=counted, skipped=skipped, errors=errors, where=tuple(where), cases=len(cases))


async def _rehearsed(evaluator: Evaluator, case: Case, repetition: int) -> tuple[Counted, Feedback | None]:
    """What one case takes at most, and what is said where nothing is asked."""
    from spanwise.evaluators.judges._rehearsal import Rehearsal

    outcomes = [await _once(evaluator, case, repetition, Rehearsal(label)) for label in (0, -1)]
    return max(outcomes, key=lambda outcome: outcome[0].calls)


async def _once(
    evaluator: Evaluator, case: Case, repetition: int, rehearsal: Rehearsal
) -> tuple[Counted, Feedback | None]:
    from spanwise.evaluators.judges._rehearsal import rehearsed

    target = Target(trace_id=case.trace.trace_id) if case.trace else no_trace()
    with rehearsed(rehearsal), judging(judgements=Untraced(), repetition=repetition):
        feedback: list[Feedback] = await evaluator.evaluate(case, target)
    asked = rehearsal.counted.calls or rehearsal.counted.cached
    return rehearsal.counted, None if asked or not feedback else feedback[0]


def _sum(several: Iterable[Counted]) -> Counted:
    from spanwise.evaluators.judges._rehearsal import Counted

    return sum(several, Counted())


def _case(given: Any) -> Case:
    if isinstance(given, Case):
        return as_seen(given)
    if isinstance(given, Trace):
        return as_seen(case_of(given))
    if isinstance(given, Example):
        return as_seen(case_of(None, given, outputs=given.reference_outputs))
    if isinstance(given, Mapping):
        return as_seen(case_of(None, **given))
    raise TypeError(f"cases are cases, traces, examples or dicts of a case's fields, not {given!r:.200}")


def _told(counted: Counted, skipped: int = 0, error: str | None = None) -> str:
    usd = "price unknown"
    if counted.usd is not None and counted.usd_at_most is not None:
        usd = f"about ${counted.usd:.4f}, ${counted.usd_at_most:.4f} at most"
    cached = f", {counted.cached} answers from the cache" if counted.cached else ""
    lacking = f", {skipped} cases skipped" if skipped else ""
    failed = f", error: {error}" if error is not None else ""
    return f"{counted.calls} calls, about {counted.input_tokens} tokens of input, {usd}{cached}{lacking}{failed}"
