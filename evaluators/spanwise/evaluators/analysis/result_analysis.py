"""Analysis of experiments: leaderboards, problems, insights, compliance and trade-offs of their models, as data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from spanwise.collector.records import Experiment as Record
from spanwise.collector.stores import Store
from spanwise.evaluators.analysis.compliance import StandardCoverage, list_compliance
from spanwise.evaluators.analysis.insights import Insight, find_insights
from spanwise.evaluators.analysis.leaderboards import (
    BooleanLeaderboard,
    HeatmapLeaderboard,
    PromptHeatmap,
    Ranks,
    format_ranks,
    make_boolean_leaderboards,
    make_heatmap,
    make_prompt_heatmap,
)
from spanwise.evaluators.analysis.model_results import Cell, ModelResults
from spanwise.evaluators.analysis.problems import (
    Problem,
    UnusableThreshold,
    find_case_problems,
    find_problems,
    find_unusable_thresholds,
)
from spanwise.evaluators.experiments import Robustness, format_number


@dataclass(frozen=True, slots=True, kw_only=True)
class TradeOff:
    """Models by quality and by one measure of effort, "cost" (US dollars) or "latency" (seconds) per example.

    `front` are the models on the Pareto front: no other model is at least as good and at most as expensive, and better
    in one of the two.
    """

    key: str
    measure: str
    points: Mapping[str, tuple[float, float]]  # by model: effort, quality
    front: tuple[str, ...]


class AnalysisData:
    """Results of an analysis by model. Everything is computed when it is used, from scores alone."""

    def __init__(self, sides: Sequence[tuple[Store, Record]], models: Sequence[str] | None = None) -> None:
        self.results = ModelResults(sides, models)

    @property
    def records(self) -> list[Record]:
        """Return the records of the experiments."""
        return [record for _, record in self.results.sides]

    @property
    def models(self) -> list[str]:
        """Return the models in order of first occurrence."""
        return self.results.models

    @cached_property
    def leaderboard(self) -> HeatmapLeaderboard:
        """Return models × metrics with ranks (H2O's `llm-heatmap-leaderboard`)."""
        return make_heatmap(self.results)

    @cached_property
    def boolean_leaderboards(self) -> list[BooleanLeaderboard]:
        """Return the rates of each boolean evaluator by model (H2O's `llm-bool-leaderboard`)."""
        return make_boolean_leaderboards(self.results)

    def prompts(self, key: str) -> PromptHeatmap:
        """Return models × prompts for one key. Raises `ValueError` for a key without scores."""
        return make_prompt_heatmap(self.results, key)

    @cached_property
    def _case_problems(self) -> list[Problem]:
        return list(find_case_problems(self.results))

    @cached_property
    def problems(self) -> list[Problem]:
        """Return the problems, the severe ones first."""
        return find_problems(self.results, self._case_problems)

    @cached_property
    def unusable_thresholds(self) -> list[UnusableThreshold]:
        """Return thresholds that raise no problem, with the reason."""
        return find_unusable_thresholds(self.results)

    @cached_property
    def insights(self) -> list[Insight]:
        """Return the insights."""
        return find_insights(self.results, self._case_problems)

    @cached_property
    def robustness(self) -> dict[str, Robustness]:
        """Return by model the robustness against perturbations; {} without perturbed cases with scores that pass or fail."""
        by_model = self.results.robustness.items()
        return {model: Robustness(f"Robustness of {model}", by_kind) for model, by_kind in by_model if by_kind}

    @cached_property
    def compliance(self) -> list[StandardCoverage]:
        """Return the standards and the evaluators of these experiments that address them."""
        return list_compliance(self.results)

    @cached_property
    def trade_offs(self) -> list[TradeOff]:
        """Return quality against cost and latency, for the first primary key that all models have scores of."""
        keys = [
            key for key in self.results.primary_keys if all(self._mean(model, key) is not None for model in self.models)
        ]
        if not keys or len(self.models) < 2:
            return []
        found = []
        for measure in ("cost", "latency"):
            efforts = {model: self.results.measure(model, measure) for model in self.models}
            points = {
                model: (effort, mean)
                for model, effort in efforts.items()
                if effort is not None and (mean := self._mean(model, keys[0])) is not None
            }
            if len(points) > 1:
                rising = self.results.get_metric(keys[0]).higher_is_better
                front = tuple(model for model in points if _is_on_front(model, points, 1 if rising else -1))
                found.append(TradeOff(key=keys[0], measure=measure, points=points, front=front))
        return found

    def _mean(self, model: str, key: str) -> float | None:
        cell: Cell = self.results.cells[model, key]
        return cell.mean

    @property
    def headline(self) -> str:
        """Return in one or two sentences which model is best by the first metric, and how sure that is."""
        board = self.leaderboard
        if not board.keys or not board.models:
            return "No scores to analyze."
        best = next((each for each in self.insights if each.kind in ("best model", "most accurate model")), None)
        severe = sum(problem.severe for problem in self.problems)
        counts = f"{len(self.problems)} problems, {severe} of them severe."
        if best is None:
            cell = board.cells[board.models[0], board.keys[0]]
            return f"{cell.model}: {cell.key} {format_cell(cell)}. {counts}"
        reason = str(best.metadata.get("sentence", "")).removesuffix(".")
        compared = f" (the two of them, pair by pair: {reason})" if reason else ""
        return f"{best.text[0].upper()}{best.text[1:]}{compared}. {counts}"


def _is_on_front(model: str, points: Mapping[str, tuple[float, float]], sign: int) -> bool:
    effort, quality = points[model][0], sign * points[model][1]
    return not any(
        other_effort <= effort and sign * other >= quality and (other_effort < effort or sign * other > quality)
        for other_effort, other in points.values()
    )


def format_cell(cell: Cell, ranks: Ranks | None = None) -> str:
    """Return mean, interval, number of scores and ranks of a cell as text."""
    if cell.mean is None:
        return "–"
    interval = "" if cell.interval is None else " [{:.3g}, {:.3g}]".format(*cell.interval)
    return f"{format_number(cell.mean)}{interval} n={cell.n}" + ("" if ranks is None else f" #{format_ranks(ranks)}")
