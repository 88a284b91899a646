"""Analysis of experiments: leaderboards, problems, insights, compliance and trade-offs of their models, as data."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from os import PathLike
from pathlib import Path

from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

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
from spanwise.evaluators.analysis.problems import Problem, UnusableThreshold, find_problems, find_unusable_thresholds
from spanwise.evaluators.experiments import Experiment, format_number, make_text_table, render_text
from spanwise.evaluators.interface import StoreLocation, resolve_store

SHOWN = 10  # problems and insights in the terminal
SHOWN_MODELS = 5  # models in the terminal, the best first


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


class Analysis:
    """Analysis of one or more experiments by model. Everything is computed when it is used, from scores alone."""

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
    def problems(self) -> list[Problem]:
        """Return the problems, the severe ones first."""
        return find_problems(self.results)

    @cached_property
    def unusable_thresholds(self) -> list[UnusableThreshold]:
        """Return thresholds that raise no problem, with the reason."""
        return find_unusable_thresholds(self.results)

    @cached_property
    def insights(self) -> list[Insight]:
        """Return the insights."""
        return find_insights(self.results)

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
            return f"{cell.model}: {cell.key} {_format_cell(cell)}. {counts}"
        return f"{best.text[0].upper()}{best.text[1:]}. {counts}"

    def report(self, path: str | PathLike[str]) -> Path:
        """Write the report to a path that ends in ".html" (one self-contained file) or ".zip" (all results).

        Return the path. Raises `ValueError` for another ending.
        """
        from spanwise.evaluators.analysis.analysis_report import write_report

        return write_report(self, Path(path))

    def __str__(self) -> str:
        return render_text(self)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield Text(self.headline)
        board = self.leaderboard
        shown = board.models[:SHOWN_MODELS]
        head = ["key", *shown]
        rows = [
            [key, *(_format_cell(board.cells[model, key], board.ranks[key].get(model)) for model in shown)]
            for key in board.keys
        ]
        more = len(board.models) - len(shown)
        title = "Leaderboard: mean with its 95 % interval, number of scores, ranks"
        yield make_text_table(f"{title}; {more} more models" if more else title, head, rows)
        for boolean in self.boolean_leaderboards:
            yield make_text_table(f"{boolean.key}: test cases that succeeded", *_boolean_cells(boolean))
        for trade_off in self.trade_offs:
            yield make_text_table(f"{trade_off.key} against {trade_off.measure}", *_trade_off_cells(trade_off))
        yield from _list_lines("Problems", [f"{'severe: ' * each.severe}{each.text}" for each in self.problems])
        yield from _list_lines(
            "Thresholds that raise no problem",
            [f"{each.key} {each.threshold:g}: {each.reason}" for each in self.unusable_thresholds],
        )
        yield from _list_lines("Insights", [each.text for each in self.insights])


def analyze(*experiments: Experiment | str, store: StoreLocation | None = None) -> Analysis:
    """Analyze one or more experiments by model; with a `store` they may also be given by id or name.

    Raises `ValueError` without experiments, or for names without a store.
    """
    if not experiments:
        raise ValueError("analyze() requires one or more experiments")
    opened = resolve_store(store) if store is not None else None

    def find(experiment: Experiment | str) -> tuple[Store, Record]:
        if isinstance(experiment, Experiment):
            return experiment.store, experiment.record
        if opened is None:
            raise ValueError(f"experiment {experiment!r} is a name: pass its store, analyze(…, store=…)")
        return opened, opened.experiment(experiment)

    return Analysis([find(experiment) for experiment in experiments])


def _is_on_front(model: str, points: Mapping[str, tuple[float, float]], sign: int) -> bool:
    effort, quality = points[model][0], sign * points[model][1]
    return not any(
        other_effort <= effort and sign * other >= quality and (other_effort < effort or sign * other > quality)
        for other_effort, other in points.values()
    )


def _format_cell(cell: Cell, ranks: Ranks | None = None) -> str:
    if cell.mean is None:
        return "–"
    interval = "" if cell.interval is None else " [{:.3g}, {:.3g}]".format(*cell.interval)
    return f"{format_number(cell.mean)}{interval} n={cell.n}" + ("" if ranks is None else f" #{format_ranks(ranks)}")


def _boolean_cells(board: BooleanLeaderboard) -> tuple[list[str], list[list[str]]]:
    names = ("passes", "failures", "retrieval_failures", "generation_failures", "parse_failures")
    head = ["model", "rank", "succeeded", "cases", *(name.replace("_", " ") for name in names)]
    rows = [
        [row.model, format_ranks(row.ranks), str(row.succeeded), str(row.cases)]
        + ["" if (value := getattr(row, name)) is None else f"{value:.1%}" for name in names]
        for row in board.rows
    ]
    return head, rows


def _trade_off_cells(trade_off: TradeOff) -> tuple[list[str], list[list[str]]]:
    rows = [
        [model, format_number(effort), format_number(quality), "yes" if model in trade_off.front else ""]
        for model, (effort, quality) in sorted(trade_off.points.items(), key=lambda point: point[1])
    ]
    return ["model", trade_off.measure, trade_off.key, "Pareto front"], rows


def _list_lines(title: str, lines: Sequence[str]) -> Iterator[Text]:
    if lines:
        yield Text(f"\n{title}")
        yield from (Text(f"  {line}") for line in lines[:SHOWN])
        if len(lines) > SHOWN:
            yield Text(f"  … and {len(lines) - SHOWN} more")
