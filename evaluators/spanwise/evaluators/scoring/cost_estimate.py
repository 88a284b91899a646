"""Cost estimate: calls, tokens and price of judges over cases, without calling them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from spanwise.collector.records import Case, Example, Feedback, Target, Trace
from spanwise.evaluators.interface import (
    DiscardedJudgements,
    Evaluator,
    as_evaluator,
    find_by_name,
    make_untraced_target,
    run_coroutine,
    use_judge_context,
)
from spanwise.evaluators.scoring.case_scoring import make_case, normalize_case

if TYPE_CHECKING:
    from spanwise.evaluators.judges import Judge
    from spanwise.evaluators.judges.llm_client.judge_call import DryRunCounts, JudgeDryRun


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """Estimated judge calls, tokens and price, per evaluator key and in total.

    `skipped` counts cases that lack a field that the evaluator needs. `errors` holds errors that an evaluator
    raises before its first call. `where` names the endpoints that would receive text. `str()` gives one line
    per evaluator and one for the total.
    """

    by_evaluator: Mapping[str, DryRunCounts]
    skipped: Mapping[str, int]
    errors: Mapping[str, str]
    where: tuple[str, ...]
    cases: int

    @property
    def total(self) -> DryRunCounts:
        """Return the counts of all evaluators together."""
        return _sum_counts(self.by_evaluator.values())

    def __str__(self) -> str:
        lines = [
            f"{key}: {_describe_counts(counted, self.skipped[key], self.errors.get(key))}"
            for key, counted in self.by_evaluator.items()
        ]
        destination = f", to {' and '.join(self.where)}" if self.where else ""
        return "\n".join([*lines, f"together, over {self.cases} cases: {_describe_counts(self.total)}{destination}"])


def estimate(evaluators: Any, cases: Iterable[Any], *, repetitions: int = 1) -> Estimate:
    """Estimate the judge calls and the price of `score` or `evaluate`. No judge is called, and nothing is stored.

    `cases` are cases, traces, dicts of a case's fields, or examples. As no task has run for an example, its
    reference outputs take the place of outputs. Evaluators without a judge cost nothing and are left out.
    Evaluators that ask several questions get made-up answers to each. Cached answers are counted separately.
    Raises `NoJudge` for an evaluator whose judge is not configured.
    """
    given = [evaluators] if isinstance(evaluators, str) or callable(evaluators) else list(evaluators)
    judged = {each.key: each for each in map(as_evaluator, given) if find_judges(each)}
    for each in judged.values():
        for judge in find_judges(each):
            if not judge.model:  # no API key is needed, as no judge is called
                judge.check()
    return run_coroutine(_estimate_evaluators(judged, [_to_case(case) for case in cases], repetitions))


def find_judges(evaluator: Evaluator) -> list[Judge]:
    """Return the judges that an evaluator holds, including those in lists."""
    from spanwise.evaluators.judges import Judge

    function = evaluator.function
    names = {name for kind in type(function).__mro__ for name in getattr(kind, "__slots__", ())}
    values = [getattr(function, name, None) for name in {*names, *getattr(function, "__dict__", {})}]
    flat = [each for value in values for each in (value if isinstance(value, list | tuple) else (value,))]
    return list({id(each): each for each in flat if isinstance(each, Judge)}.values())


async def _estimate_evaluators(evaluators: Mapping[str, Evaluator], cases: list[Case], repetitions: int) -> Estimate:
    counted, skipped, errors = {}, {}, {}
    for key, evaluator in evaluators.items():
        scored = [case for case in cases if _is_scored(case, evaluator)]
        of_cases = [
            await _estimate_case(evaluator, case, repetition) for repetition in range(repetitions) for case in scored
        ]
        counted[key] = _sum_counts(each for each, _ in of_cases)
        first_time = [feedback for _, feedback in of_cases[: len(scored)]]
        skipped[key] = sum(feedback is not None and feedback.outcome == "skip" for feedback in first_time)
        error = next(
            (feedback.error for feedback in first_time if feedback is not None and feedback.outcome == "error"), None
        )
        if error is not None:
            errors[key] = error
    where = {judge.where: None for evaluator in evaluators.values() for judge in find_judges(evaluator)}
    return Estimate(by_evaluator=counted, skipped=skipped, errors=errors, where=tuple(where), cases=len(cases))


def _is_scored(case: Case, evaluator: Evaluator) -> bool:
    """Return whether the evaluator scores a case: its example names it, or no evaluator."""
    names = case.example.evaluators if case.example is not None else ()
    return not names or any(find_by_name([evaluator], name) for name in names)


async def _estimate_case(evaluator: Evaluator, case: Case, repetition: int) -> tuple[DryRunCounts, Feedback | None]:
    """Return the maximum counts for one case, and the feedback if no judge would be called.

    The number of calls may depend on the answers, so the case is run with two sets of made-up answers.
    """
    from spanwise.evaluators.judges.llm_client.judge_call import JudgeDryRun

    outcomes = [await _rehearse_case(evaluator, case, repetition, JudgeDryRun(label)) for label in (0, -1)]
    return max(outcomes, key=lambda outcome: outcome[0].calls)


async def _rehearse_case(
    evaluator: Evaluator, case: Case, repetition: int, rehearsal: JudgeDryRun
) -> tuple[DryRunCounts, Feedback | None]:
    from spanwise.evaluators.judges.llm_client.judge_call import use_dry_run

    target = Target(trace_id=case.trace.trace_id) if case.trace else make_untraced_target()
    with use_dry_run(rehearsal), use_judge_context(judgements=DiscardedJudgements(), repetition=repetition):
        feedback: list[Feedback] = await evaluator.evaluate(case, target)
    has_questions = rehearsal.counted.calls or rehearsal.counted.cached
    return rehearsal.counted, None if has_questions or not feedback else feedback[0]


def _sum_counts(counts: Iterable[DryRunCounts]) -> DryRunCounts:
    from spanwise.evaluators.judges.llm_client.judge_call import DryRunCounts

    return sum(counts, DryRunCounts())


def _to_case(source: Any) -> Case:
    if isinstance(source, Case):
        return normalize_case(source)
    if isinstance(source, Trace):
        return normalize_case(make_case(source))
    if isinstance(source, Example):
        return normalize_case(make_case(None, source, outputs=source.reference_outputs))
    if isinstance(source, Mapping):
        return normalize_case(make_case(None, **source))
    raise TypeError(f"cases must be cases, traces, examples or dicts of a case's fields, got {source!r:.200}")


def _describe_counts(counted: DryRunCounts, skipped: int = 0, error: str | None = None) -> str:
    usd = "price unknown"
    if counted.usd is not None and counted.usd_at_most is not None:
        usd = f"about ${counted.usd:.4f}, ${counted.usd_at_most:.4f} at most"
    cached = f", {counted.cached} answers from the cache" if counted.cached else ""
    lacking = f", {skipped} cases skipped" if skipped else ""
    failed = f", error: {error}" if error is not None else ""
    return f"{counted.calls} calls, about {counted.input_tokens} tokens of input, {usd}{cached}{lacking}{failed}"
