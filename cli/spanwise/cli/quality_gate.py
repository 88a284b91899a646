"""Quality gate of `spanwise eval`: allowed failures and bounds on means, for the exit status in CI."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from math import isfinite
from typing import TYPE_CHECKING

from spanwise.collector.errors import Refused
from spanwise.collector.formatting import first_line
from spanwise.collector.statistics import TASK_OK
from spanwise.tracer.suggestions import did_you_mean

if TYPE_CHECKING:
    from spanwise.evaluators import Evaluator, Experiment


MAX_SHOWN_RUNS = 5  # failed runs that are printed
_SHARE_OR_COUNT = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)%|([0-9]{1,9})")


@dataclass(frozen=True, slots=True)
class FailureAllowance:
    """Number or share of runs that may fail."""

    text: str
    count: int = 0
    share: Fraction | None = None

    def allows(self, failed: int, runs: int) -> bool:
        """Return whether this number of failed runs is allowed."""
        return failed <= (self.count if self.share is None else self.share * runs)


@dataclass(frozen=True, slots=True)
class MeanBound:
    """Bound on the mean of a key: an upper bound if `is_most` is set, otherwise a lower bound."""

    key: str
    limit: float
    is_most: bool = False

    @property
    def option(self) -> str:
        """Return the option that sets the bound."""
        return "--fail-over" if self.is_most else "--fail-under"

    @property
    def beyond(self) -> str:
        """Return the range in which the mean fails, such as "below 0.8"."""
        return f"{'above' if self.is_most else 'below'} {self.limit:.4g}"

    def fails(self, mean: float) -> bool:
        """Return whether a mean violates the bound."""
        return mean > self.limit if self.is_most else mean < self.limit


@dataclass(slots=True)
class FailureSummary:
    """Failures of an experiment: the runs that failed, and the number of failures by key. The key None means the
    task.
    """

    runs: dict[str, tuple[str, str]] = field(default_factory=dict)  # trace id → the example's id, and one error
    times: Counter[str | None] = field(default_factory=Counter)
    why: dict[str | None, str] = field(default_factory=dict)  # key → one of its errors
    of_the_set: list[str] = field(default_factory=list)  # keys of set-level evaluators


def parse_allowance(text: str) -> FailureAllowance:
    """Parse `--allow-failed`. Raises `Refused`."""
    match = _SHARE_OR_COUNT.fullmatch(text.strip())
    if match and match[2]:
        return FailureAllowance(text, count=int(match[2]))
    if match and (percent := Fraction(match[1])) <= 100:
        return FailureAllowance(text, share=percent / 100)
    raise Refused(f"--allow-failed must be a number of runs or a share, such as 2 or 5%, got {text!r}")


def parse_bounds(least: Iterable[str], most: Iterable[str] = ()) -> list[MeanBound]:
    """Parse all values of `--fail-under` and `--fail-over`. Raises `Refused`."""
    return [*(_parse_bound(text, False) for text in least), *(_parse_bound(text, True) for text in most)]


def _parse_bound(text: str, is_most: bool) -> MeanBound:
    key, _, number = text.rpartition("=")
    try:
        bound = MeanBound(key.strip(), float(number), is_most)
    except ValueError:
        bound = MeanBound("", 0.0, is_most)
    if not bound.key or not isfinite(bound.limit):  # a bound of NaN would never fail
        raise Refused(f"{bound.option} must be KEY=NUMBER, such as exact=0.8, got {text!r}")
    return bound


def check_bound_keys(wanted: Sequence[MeanBound], evaluators: Sequence[Evaluator], text: str, file: str) -> list[str]:
    """Raise `Refused` for bounds on keys that no evaluator gives, before the run. Return remarks on undeclared keys.

    Registered evaluators declare all their keys, whereas a user's function or the task may return any. An undeclared
    key is therefore rejected if it resembles a declared one, or if all evaluators declare theirs. It is accepted if
    the text of the evaluation file contains it.
    """
    _check_directions(wanted, evaluators)
    known = {TASK_OK, *(metric.key for evaluator in evaluators for metric in evaluator.metrics)}
    closed = all(evaluator.spec is not None or len(evaluator.metrics) > 1 for evaluator in evaluators)
    remarks = []
    for key, option in {bound.key: bound.option for bound in wanted if bound.key not in known}.items():
        hint = did_you_mean(key, known, form=" ({})")
        if (hint or closed) and not re.search(rf"(?<!\w){re.escape(key)}(?!\w)", text):
            raise Refused(
                f"{option} {key!r}: no evaluator reports this key{hint}; known keys: {', '.join(sorted(known))}. "
                f"A key that is only known at run time must occur in {file}, for example in a comment"
            )
        remarks.append(f"{option} {key!r}: no evaluator declares this key; it is checked after the runs")
    return remarks


def _check_directions(wanted: Sequence[MeanBound], evaluators: Sequence[Evaluator]) -> None:
    """Raise `Refused` for a bound that would fail good means, such as an upper bound where higher is better."""
    declared = [
        metric
        for evaluator in evaluators
        for metric in evaluator.metrics
        if evaluator.spec or not metric.higher_is_better
    ]
    rising = {TASK_OK: True, **{metric.key: metric.higher_is_better for metric in declared}}
    for bound in wanted:
        if rising.get(bound.key, not bound.is_most) == bound.is_most:
            better, other = ("higher", "--fail-under") if bound.is_most else ("lower", "--fail-over")
            raise Refused(
                f"{bound.option} {bound.key}={bound.limit:g}: {better} is better for this key, so this would fail good "
                f"runs; use {other} {bound.key}={bound.limit:g}"
            )


def collect_failures(experiment: Experiment) -> FailureSummary:
    """Return the runs whose task or evaluators failed. Rows are read only if there are failures."""
    failures, summary = FailureSummary(), experiment.summary()
    set_failed = any(feedback.error is not None for feedback in summary.overall.values())
    if not (summary.failed or set_failed or any(row.failed for row in summary.values())):
        return failures
    for failure in experiment.errors():
        failures.times[failure.key] += 1
        failures.why.setdefault(failure.key, first_line(failure.error))
        if failure.trace_id:
            failures.runs.setdefault(failure.trace_id, (failure.example_id, first_line(str(failure))))
        else:
            failures.of_the_set.append(str(failure.key))
    return failures


def list_complaints(
    experiment: Experiment, failed: FailureSummary, allow: FailureAllowance, wanted: Sequence[MeanBound]
) -> list[str]:
    """Return all failures of the quality gate, one line each. The last line can be understood on its own."""
    status = experiment.record.status
    complaints = [] if status == "finished" else [f"the evaluation is {status}, so some runs are missing"]
    complaints += [text for bound in wanted if (text := _bound_complaint(experiment, bound))]
    return complaints + _failure_complaint(experiment, failed, allow)


def _failure_complaint(experiment: Experiment, failed: FailureSummary, allow: FailureAllowance) -> list[str]:
    runs = experiment.summary().runs
    count = max(len(failed.runs), experiment.summary().failed, runs if failed.of_the_set else 0)
    if allow.allows(count, runs):
        return []
    share = f"all {runs}" if count == runs else f"{count} of {runs}"
    errors = "; ".join(
        f"{key or 'the task'}{'' if key in failed.of_the_set else f' {times} times'}, as with {failed.why[key]}"
        for key, times in failed.times.items()
    )
    return [f"{share} runs failed ({errors}); --allow-failed allows {allow.text}"]


def _bound_complaint(experiment: Experiment, bound: MeanBound) -> str:
    """Return the reason why the mean of a key violates its bound, or "". A key without any score violates every
    bound.
    """
    summary = experiment.summary()
    overall = summary.overall.get(bound.key)
    stats = summary.get(bound.key)
    mean = overall.score if overall is not None else stats.mean if stats is not None else None
    if mean is not None:
        return f"{bound.key} is {mean:.4g}, {bound.beyond}" if bound.fails(mean) else ""
    if stats is None:
        reason = did_you_mean(bound.key, [*summary, *summary.overall])
    else:
        counts = {"failed": stats.failed, "skipped": stats.skipped, "labels without a score": stats.labelled}
        lacking = summary.lacking.get(bound.key)
        reason = ": " + ", ".join(f"{count} {name}" for name, count in counts.items() if count)
        reason += f", as it {lacking}" if lacking else ""
    return f"{bound.key} has no mean, {bound.beyond}{reason}"


def list_partial_means(experiment: Experiment, wanted: Sequence[MeanBound]) -> list[str]:
    """Return remarks on bounds whose means cover only some of the runs."""
    summary = experiment.summary()
    partial = [stats for bound in wanted if (stats := summary.get(bound.key)) and stats.n and stats.skipped]
    return [
        f"{stats.key} is the mean over {stats.n} of {summary.runs} runs: {stats.skipped} skipped" for stats in partial
    ]
