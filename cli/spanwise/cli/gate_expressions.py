"""Expressions of `spanwise eval --fail-if`: grammar, quantities, and their evaluation on an experiment.

An expression is `KEY WORD`, a conclusion of the comparison with the baseline, or `KEY.QUANTITY OPERATOR NUMBER[UNIT]`.
`docs/gates.md` describes the grammar. `QUANTITIES` is the registry of quantities.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from math import fsum, inf, isclose, isfinite, isnan
from statistics import fmean
from typing import TYPE_CHECKING, Literal, TypeAlias

from spanwise.collector.errors import Refused
from spanwise.collector.formatting import first_line
from spanwise.collector.records import PERTURBATION_KINDS, FeedbackStats, RunScores
from spanwise.collector.statistics import (
    MEASURES,
    TASK_OK,
    Contrast,
    KeyRule,
    KeyScores,
    collect_scores,
    compare_scores,
    percentile,
    summarize_by_key,
)
from spanwise.collector.stores import StoredComparison
from spanwise.tracer.suggestions import did_you_mean

if TYPE_CHECKING:
    from spanwise.evaluators import Experiment
    from spanwise.evaluators.analysis import Comparison, Problem
    from spanwise.evaluators.experiments import KeySummary

Outcome: TypeAlias = Literal["passed", "failed", "undecided", "skipped"]

WORDS = ("worse", "better", "lower", "higher", "inconclusive", "equivalent", "non-inferior")
_TOLERANCE = 1e-9  # smaller differences from the number of a bound are rounding errors
_OPERATORS: Mapping[str, Callable[[float, float], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


@dataclass(frozen=True, slots=True)
class Expression:
    """Parsed expression: a conclusion (`word`), or a bound on a quantity (the fields after it)."""

    text: str
    key: str
    word: str = ""
    quantity: str = ""
    operator: str = ""
    number: float = 0.0
    unit: str = ""

    @property
    def option(self) -> str:
        """Return the option that sets the expression."""
        return "--fail-if"

    @property
    def name(self) -> str:
        """Return the expression with its option, for reports."""
        return f"--fail-if {self.text}"


@dataclass(frozen=True, slots=True)
class GateResult:
    """Result of one requirement of the gate. `name` is the option with its value; `reason` can be read on its own."""

    name: str
    outcome: Outcome
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Unknown:
    """Quantity that is not known exactly, with the reason. `least` is a lower bound on its value."""

    reason: str
    least: float = -inf


class MeasuredExperiment:
    """Experiment as expressions see it: its summary, its runs, and its comparison with the baseline if there is one."""

    def __init__(
        self, experiment: Experiment, comparison: Comparison | None = None, margin: Mapping[str, float] | None = None
    ) -> None:
        self.experiment = experiment
        self.comparison = comparison
        self._margin = margin or {}
        self.summary = experiment.summary()

    def is_reported(self, key: str) -> bool:
        """Return whether the experiment has feedback under a key, of any outcome; `task_ok` always counts."""
        return key == TASK_OK or key in self.summary or key in self.summary.overall

    def find_stats(self, key: str) -> KeySummary | FeedbackStats | None:
        """Return the statistics of a key, also of a set-level evaluator; None if there is no feedback."""
        overall = self.summary.overall.get(key)
        if overall is not None:
            return summarize_by_key([overall])[key]
        return self.summary.get(key)

    @cached_property
    def runs(self) -> list[RunScores]:
        """Return the runs that count, with duration, cost and tokens."""
        return StoredComparison([(self.experiment.store, self.experiment.record)]).runs[0]

    @cached_property
    def unpriced_runs(self) -> int:
        """Return the number of runs with a model call of unknown cost."""
        return sum(
            any((run.cost is None or not isfinite(run.cost)) and bool(run.model or run.usage) for run in row.trace.runs)
            for row in self.experiment.rows()
        )

    def find_contrast(self, key: str) -> Contrast | None:
        """Return the contrast of a key with the baseline; None if neither experiment has scores of it."""
        if self.comparison is None:
            return None
        contrasts = self.comparison.contrasts()
        if key in contrasts or key != TASK_OK:
            return contrasts.get(key)
        # comparisons leave `task_ok` out if no task has failed
        baseline = StoredComparison([(self.experiment.store, self.comparison.records[0])]).runs[0]
        scores = [{key: collect_scores(runs, tasks=True).get(key, KeyScores())} for runs in (baseline, self.runs)]
        rules = {key: KeyRule(rising=True, margin=self._margin.get(key))}
        return compare_scores(scores, [(0, 1)], rules, primary=[key])[0][key]


# --- quantities -------------------------------------------------------------------------------------------------------

Value: TypeAlias = float | Unknown | None  # None: the key has no such value


@dataclass(frozen=True, slots=True)
class Quantity:
    """Number of an experiment that expressions compare.

    `read` returns the number of a key. `units` maps the accepted units to their factors; "" means that the unit may
    be omitted. A number of runs (`is_count`) is compared as a share of all runs if the unit is %.
    """

    read: Callable[[MeasuredExperiment, str], Value]
    units: Mapping[str, float]
    is_count: bool = False


_SCORE_UNITS = {"": 1.0, "%": 0.01}
_TIME_UNITS = {"ms": 0.001, "s": 1.0, "min": 60.0}  # no default: seconds and milliseconds are easily confused
_MONEY_UNITS = {"": 1.0, "usd": 1.0, "$": 1.0}
_NO_UNITS = {"": 1.0}


def _read_statistic(name: str) -> Callable[[MeasuredExperiment, str], Value]:
    def read(measured: MeasuredExperiment, key: str) -> Value:
        value = getattr(measured.find_stats(key), name)
        return None if value is None else float(value)

    return read


def _read_end(index: int) -> Callable[[MeasuredExperiment, str], Value]:
    def read(measured: MeasuredExperiment, key: str) -> Value:
        interval: tuple[float, float] | None = getattr(measured.find_stats(key), "interval", None)
        return Unknown(f"the mean of {key} has no interval") if interval is None else interval[index]

    return read


def _read_latency(compute: Callable[[list[int]], float]) -> Callable[[MeasuredExperiment, str], Value]:
    def read(measured: MeasuredExperiment, key: str) -> Value:
        durations_ns = sorted(run.duration_ns for run in measured.runs if run.duration_ns >= 0)
        return compute(durations_ns) / 1e9 if durations_ns else Unknown("no run has a duration")

    return read


def _read_cost(compute: Callable[[float, int], float]) -> Callable[[MeasuredExperiment, str], Value]:
    def read(measured: MeasuredExperiment, key: str) -> Value:
        runs = measured.runs
        if not runs:
            return Unknown("there are no runs")
        known = [run.cost for run in runs if run.cost is not None and isfinite(run.cost)]
        value = compute(fsum(known), len(runs))
        if not known:
            return Unknown("the cost of no run is known; report it with set_usage(cost=…)", value)
        if unpriced := measured.unpriced_runs:
            return Unknown(f"the cost is not fully known: {unpriced} of {len(runs)} runs have unpriced calls", value)
        return value

    return read


def _read_tokens(compute: Callable[[float, int], float]) -> Callable[[MeasuredExperiment, str], Value]:
    def read(measured: MeasuredExperiment, key: str) -> Value:
        tokens = sum(run.input_tokens + run.output_tokens for run in measured.runs)
        return compute(tokens, len(measured.runs)) if tokens else Unknown("no run has recorded tokens")

    return read


def _take_sum(total: float, runs: int) -> float:
    return total


def _take_mean(total: float, runs: int) -> float:
    return total / runs


def _count_problems(is_counted: Callable[[Problem], bool]) -> Callable[[MeasuredExperiment, str], Value]:
    def read(measured: MeasuredExperiment, key: str) -> Value:
        return float(sum(map(is_counted, measured.experiment.analyze().problems)))

    return read


def _read_robustness(kind: str) -> Callable[[MeasuredExperiment, str], Value]:
    def read(measured: MeasuredExperiment, key: str) -> Value:
        robustness = measured.experiment.robustness()
        shares = [each.share for each in robustness.values() if each.kind == kind and each.share is not None]
        return min(shares) if shares else Unknown(f"no base case has a scored perturbation of the kind {kind!r}")

    return read


# By (key, name): the quantities that expressions can name. The key None stands for every feedback key. Other keys are
# measures of the runs; a feedback key of the same name takes precedence for the quantities that both have.
QUANTITIES: dict[tuple[str | None, str], Quantity] = {
    (None, "mean"): Quantity(_read_statistic("mean"), _SCORE_UNITS),
    (None, "passed"): Quantity(_read_statistic("passed"), _SCORE_UNITS),
    (None, "failed"): Quantity(_read_statistic("failed"), _SCORE_UNITS, is_count=True),
    (None, "skipped"): Quantity(_read_statistic("skipped"), _SCORE_UNITS, is_count=True),
    (None, "n"): Quantity(_read_statistic("n"), _SCORE_UNITS, is_count=True),
    (None, "low"): Quantity(_read_end(0), _SCORE_UNITS),
    (None, "high"): Quantity(_read_end(1), _SCORE_UNITS),
    (None, "min"): Quantity(_read_statistic("minimum"), _SCORE_UNITS),
    (None, "max"): Quantity(_read_statistic("maximum"), _SCORE_UNITS),
    ("latency", "mean"): Quantity(_read_latency(fmean), _TIME_UNITS),
    ("latency", "p50"): Quantity(_read_latency(lambda times: percentile(times, 50)), _TIME_UNITS),
    ("latency", "p95"): Quantity(_read_latency(lambda times: percentile(times, 95)), _TIME_UNITS),
    ("latency", "max"): Quantity(_read_latency(max), _TIME_UNITS),
    ("cost", "sum"): Quantity(_read_cost(_take_sum), _MONEY_UNITS),
    ("cost", "mean"): Quantity(_read_cost(_take_mean), _MONEY_UNITS),
    ("tokens", "sum"): Quantity(_read_tokens(_take_sum), _NO_UNITS),
    ("tokens", "mean"): Quantity(_read_tokens(_take_mean), _NO_UNITS),
    ("problems", "sum"): Quantity(_count_problems(lambda problem: True), _NO_UNITS),
    ("problems", "certain"): Quantity(_count_problems(lambda problem: problem.certain), _NO_UNITS),
    ("problems", "severe"): Quantity(_count_problems(lambda problem: problem.severe), _NO_UNITS),
    **{("robustness", kind): Quantity(_read_robustness(kind), _SCORE_UNITS) for kind in PERTURBATION_KINDS},
}


# --- grammar ----------------------------------------------------------------------------------------------------------

_KEY = r"""(?:'([^']+)'|"([^"]+)"|([^\s'"<>=]+))"""
_CONCLUSION = re.compile(rf"{_KEY}\s+([^\s.<>=]+)")
_BOUND = re.compile(rf"{_KEY}\s*\.\s*([^\s.'\"<>=]+)\s*([<>=!]+)\s*(.*)", re.DOTALL)
_NUMBER = re.compile(r"([+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)\s*(.*)", re.DOTALL)
_FORMS = "KEY WORD, such as 'correctness worse', or KEY.QUANTITY OPERATOR NUMBER, such as 'correctness.mean < 0.8'"


def parse_expression(text: str) -> Expression:
    """Parse an expression. Raises `Refused` with the reason and the remedy."""
    stripped = text.strip()
    if match := _BOUND.fullmatch(stripped):
        return _parse_bound(stripped, match)
    if match := _CONCLUSION.fullmatch(stripped):
        key, word = match[1] or match[2] or match[3], match[4]
        if word not in WORDS:
            hint = did_you_mean(word, WORDS, form=" ({})")
            raise _refuse(text, f"unknown word {word!r}{hint}; expected one of: {', '.join(WORDS)}")
        return Expression(stripped, key, word=word)
    raise _refuse(text, f"it must be {_FORMS}; keys with spaces must be quoted")


def _parse_bound(text: str, match: re.Match[str]) -> Expression:
    key, quantity, sign, right = match[1] or match[2] or match[3], *match.groups()[3:]
    if sign not in _OPERATORS:
        raise _refuse(text, f"unknown operator {sign!r}; expected one of: {' '.join(_OPERATORS)}")
    own, measured = QUANTITIES.get((None, quantity)), QUANTITIES.get((key, quantity))
    if own is None and measured is None:
        known = [name for of, name in QUANTITIES if of in (None, key)]
        hint = did_you_mean(quantity, known, form=" ({})")
        raise _refuse(
            text, f"unknown quantity {quantity!r}{hint}; quantities of {key!r}: {', '.join(sorted({*known}))}"
        )
    number = _NUMBER.fullmatch(right)
    if number is None or not isfinite(float(number[1])):
        raise _refuse(text, f"the right side must be a finite number such as 0.8, got {right!r}")
    unit = number[2].lower()
    units = {**(own.units if own else {}), **(measured.units if measured else {})}
    if unit and unit not in units:
        raise _refuse(text, f"unknown unit {number[2]!r}; {_list_units(units)}")
    return Expression(text, key, quantity=quantity, operator=sign, number=float(number[1]), unit=unit)


def _list_units(units: Collection[str]) -> str:
    named = " or ".join(filter(None, units))
    return f"expected {named}{', or none' if '' in units and named else ''}" if named else "it has no unit"


def _refuse(text: str, reason: str) -> Refused:
    return Refused(f"--fail-if {text.strip()!r}: {reason}")


def format_key(key: str) -> str:
    """Return a key as expressions write it, quoted if necessary."""
    if re.fullmatch(r"""[^\s'"<>=]+""", key):
        return key
    return f"'{key}'" if "'" not in key else f'"{key}"'


def is_measure(expression: Expression, reported: Collection[str]) -> bool:
    """Return whether an expression is about a measure of the runs, not about feedback. `reported` are feedback keys."""
    is_reported = expression.key in reported
    if expression.word:
        return expression.key in MEASURES and not is_reported
    is_own = is_reported and (None, expression.quantity) in QUANTITIES
    return (expression.key, expression.quantity) in QUANTITIES and not is_own


def check_unit(expression: Expression, reported: Collection[str]) -> None:
    """Raise `Refused` for a unit that does not fit, such as seconds for a feedback key named latency."""
    if expression.word:
        return
    quantity = _find_quantity(expression, reported)
    if quantity is None:
        raise _refuse(
            expression.text,
            f"{expression.key!r} is reported by an evaluator, and scores have no quantity {expression.quantity!r}",
        )
    if expression.unit in quantity.units:
        return
    if not expression.unit:
        raise _refuse(expression.text, f"the number {expression.number:g} has no unit; {_list_units(quantity.units)}")
    raise _refuse(
        expression.text,
        f"the unit {expression.unit!r} does not fit: {expression.key!r} is reported by an evaluator, and its scores "
        "have no unit; omit it",
    )


def _find_quantity(expression: Expression, reported: Collection[str]) -> Quantity | None:
    of = expression.key if is_measure(expression, reported) else None
    return QUANTITIES.get((of, expression.quantity))


# --- evaluation -------------------------------------------------------------------------------------------------------


def evaluate_expression(expression: Expression, measured: MeasuredExperiment) -> GateResult:
    """Return whether an experiment passes an expression. Numbers that are not known exactly may leave it undecided."""
    if measured.experiment.unstored is not None and (expression.word or expression.key in MEASURES):
        reason = f"cannot decide {expression.text!r}: {measured.experiment.unstored.runs} runs are not stored yet"
        return GateResult(expression.name, "undecided", reason)
    return _conclude(expression, measured) if expression.word else _compare(expression, measured)


def _compare(expression: Expression, measured: MeasuredExperiment) -> GateResult:
    key, name = expression.key, f"{format_key(expression.key)}.{expression.quantity}"
    reported = {key} if measured.is_reported(key) else set()
    quantity = _find_quantity(expression, reported)
    if not is_measure(expression, reported) and (missing := describe_missing_score(measured, key)) is not None:
        return GateResult(expression.name, "failed", f"{key} has no score{missing}")
    assert quantity is not None  # `check_unit` has refused the others
    value = quantity.read(measured, key)
    factor = quantity.units.get(expression.unit, 1.0)
    if quantity.is_count and expression.unit == "%" and isinstance(value, float):
        value = value / measured.summary.runs
    if value is None or (isinstance(value, float) and isnan(value)):
        return GateResult(expression.name, "failed", f"{key} has no {expression.quantity}")
    limit = expression.number * factor

    def fails(value: float) -> bool:
        is_equal = isclose(value, limit, rel_tol=_TOLERANCE, abs_tol=_TOLERANCE)
        return _OPERATORS[expression.operator](limit if is_equal else value, limit)

    bound = f"{expression.operator} {expression.number:g}{expression.unit}"
    if isinstance(value, float | int):
        shown = f"{name} is {value / factor:.6g}{expression.unit}"
        if fails(value):
            return GateResult(expression.name, "failed", f"{shown}, which is {bound}")
        return GateResult(expression.name, "passed", shown)
    if expression.operator in (">", ">=") and fails(value.least):
        reason = f"{name} is at least {value.least / factor:.6g}{expression.unit}, which is {bound}"
        return GateResult(expression.name, "failed", reason)
    if expression.operator in ("<", "<=") and not fails(value.least):
        reason = f"{name} is at least {value.least / factor:.6g}{expression.unit}"
        return GateResult(expression.name, "passed", reason)
    return GateResult(expression.name, "undecided", f"cannot decide {expression.text!r}: {value.reason}")


def describe_missing_score(measured: MeasuredExperiment, key: str) -> str | None:
    """Return why a key has no score, such as ": 20 failed, 1 skipped" or ""; None if it has a score."""
    stats, summary = measured.find_stats(key), measured.summary
    if stats is None:
        return did_you_mean(key, [*summary, *summary.overall])
    if stats.n:
        return None
    counts = {"failed": stats.failed, "skipped": stats.skipped, "labels without a score": stats.labelled}
    listed = ", ".join(f"{count} {name}" for name, count in counts.items() if count)
    lacking = summary.lacking.get(key)
    return (f": {listed}" if listed else "") + (f" ({first_line(lacking)})" if lacking else "")


def _conclude(expression: Expression, measured: MeasuredExperiment) -> GateResult:
    key, word = expression.key, expression.word
    stats = measured.find_stats(key)
    if key not in MEASURES and (stats is None or not (stats.n or stats.labelled)):
        return GateResult(expression.name, "failed", f"{key} has no score{describe_missing_score(measured, key)}")
    contrast = measured.find_contrast(key)
    if contrast is None:
        reason = f"cannot decide {expression.text!r}: neither experiment has a known {key}"
        return GateResult(expression.name, "undecided", reason)
    concluded = f"{key} is {contrast.word}. {contrast.sentence}"
    words = [contrast.word]
    if contrast.word in ("better", "worse") and contrast.rising is not None:
        words.append("higher" if (contrast.word == "better") == contrast.rising else "lower")
    if word in words:
        return GateResult(expression.name, "failed", concluded)
    if contrast.word == "inconclusive":
        return GateResult(expression.name, "undecided", f"cannot decide {expression.text!r}: {concluded}")
    if word in ("better", "worse") and contrast.word in ("higher", "lower"):
        reason = (
            f"the better direction of {key} is unknown; use '{format_key(key)} lower' or '{format_key(key)} higher'"
        )
        return GateResult(expression.name, "undecided", f"cannot decide {expression.text!r}: {reason}. {concluded}")
    return GateResult(expression.name, "passed", concluded)


def settle(result: GateResult, inconclusive: Outcome | None) -> GateResult:
    """Return the result with `--inconclusive` applied: an undecided one counts as passed or failed."""
    if result.outcome != "undecided" or inconclusive is None:
        return result
    return replace(result, outcome=inconclusive, reason=f"{result.reason} (--inconclusive: counted as {inconclusive})")
