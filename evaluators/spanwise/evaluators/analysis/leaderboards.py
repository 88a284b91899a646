"""Leaderboards of models: heatmaps of means by metric and by prompt, and the rates of boolean evaluators."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import TypeAlias

from spanwise.collector.statistics import RATE_ENDINGS
from spanwise.evaluators.analysis.model_results import Cell, ModelResults
from spanwise.evaluators.interface import Metric

Ranks: TypeAlias = tuple[int, int]  # first and last rank that a model may have

MAX_PROMPTS = 200  # prompts of one heatmap, the worst first


@dataclass(frozen=True, slots=True, kw_only=True)
class HeatmapLeaderboard:
    """H2O's `llm-heatmap-leaderboard`: the cell of each model and metric, models with the best ranks first.

    `ranks` gives per key the first and last rank that a model may have. Models whose intervals overlap share a rank.
    `warmth` gives per model and key the position of the mean between the worst (0) and the best (1)
    value; None without a mean.
    """

    models: Sequence[str]
    keys: Sequence[str]
    cells: Mapping[tuple[str, str], Cell]
    ranks: Mapping[str, Mapping[str, Ranks]]
    warmth: Mapping[tuple[str, str], float | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptHeatmap:
    """Models × prompts for one metric: the mean score of each model on each example, the worst examples first."""

    key: str
    models: Sequence[str]
    example_ids: Sequence[str]
    scores: Mapping[tuple[str, str], float]  # by model and example id
    warmth: Mapping[tuple[str, str], float]
    left_out: int  # examples beyond `MAX_PROMPTS`


@dataclass(frozen=True, slots=True, kw_only=True)
class BooleanRow:
    """Row of a boolean leaderboard: numbers of test cases and their shares; a rate is None without scores."""

    model: str
    ranks: Ranks
    cases: int
    succeeded: int
    passes: float | None
    failures: float | None
    retrieval_failures: float | None
    generation_failures: float | None
    parse_failures: float | None
    interval: tuple[float, float] | None  # of `passes`


@dataclass(frozen=True, slots=True, kw_only=True)
class BooleanLeaderboard:
    """H2O's `llm-bool-leaderboard` of one boolean evaluator, ordered by the number of test cases that succeeded."""

    key: str
    rows: Sequence[BooleanRow]


def make_heatmap(results: ModelResults) -> HeatmapLeaderboard:
    """Return the leaderboard of all models and primary keys."""
    keys = results.primary_keys
    ranks = {
        key: rank_models([results.cells[model, key] for model in results.models], results.get_metric(key))
        for key in keys
    }

    def sum_of_ranks(model: str) -> tuple[float, int]:
        known = [sum(by_model[model]) for by_model in ranks.values() if model in by_model]
        return (sum(known) / len(known) if known else float("inf")), results.models.index(model)

    warmth: dict[tuple[str, str], float | None] = {}
    for key in keys:
        means = {model: results.cells[model, key].mean for model in results.models}
        scale = make_scale(results.get_metric(key), list(means.values()))
        warmth.update({(model, key): None if mean is None else scale(mean) for model, mean in means.items()})
    return HeatmapLeaderboard(
        models=sorted(results.models, key=sum_of_ranks),
        keys=keys,
        cells={(model, key): results.cells[model, key] for model in results.models for key in keys},
        ranks=ranks,
        warmth=warmth,
    )


def rank_models(cells: Sequence[Cell], metric: Metric) -> dict[str, Ranks]:
    """Return the ranks that each model with a mean may have: 1 for the best.

    A model is ranked behind those whose whole interval is better, and before those whose whole interval is worse. So
    models whose intervals overlap share a rank. A model without an interval has its mean in its place.
    """
    sign = 1 if metric.higher_is_better else -1
    spans = {
        cell.model: sorted(sign * end for end in cell.interval or (cell.mean, cell.mean))
        for cell in cells
        if cell.mean is not None
    }
    return {
        model: (
            1 + sum(other[0] > span[1] for other in spans.values()),
            len(spans) - sum(other[1] < span[0] for other in spans.values()),
        )
        for model, span in spans.items()
    }


def format_ranks(ranks: Ranks | None) -> str:
    """Return "2", or "1–3" for a model that may have one of several ranks."""
    if ranks is None:
        return ""
    return str(ranks[0]) if ranks[0] == ranks[1] else f"{ranks[0]}–{ranks[1]}"


def make_scale(metric: Metric, values: Sequence[float | None]) -> Callable[[float], float]:
    """Return a function that maps a value to 0 (worst) … 1 (best): over the metric's range, or over the values."""
    known = [value for value in values if value is not None]
    low, high = metric.range or (0.0, 0.0)
    if not (isfinite(low) and isfinite(high) and low < high):
        low, high = min(known, default=0.0), max(known, default=1.0)

    def scale(value: float) -> float:
        share = min(1.0, max(0.0, (value - low) / (high - low))) if high > low else 1.0
        return share if metric.higher_is_better else 1 - share

    return scale


def make_prompt_heatmap(results: ModelResults, key: str) -> PromptHeatmap:
    """Return models × prompts for one key. Raises `ValueError` for a key without scores."""
    if key not in results.keys:
        raise ValueError(f"no model has scores of {key!r}; known keys: {', '.join(results.keys)}")
    by_model = results.get_values(key)
    scale = make_scale(results.get_metric(key), [score for values in by_model.values() for score in values.values()])
    warmth: dict[str, list[float]] = {}  # by example
    for values in by_model.values():
        for example_id, score in values.items():
            warmth.setdefault(example_id, []).append(scale(score))
    order = sorted(warmth, key=lambda id: sum(warmth[id]) / len(warmth[id]))
    scores = {
        (model, example_id): values[example_id]
        for model, values in by_model.items()
        for example_id in order[:MAX_PROMPTS]
        if example_id in values
    }
    return PromptHeatmap(
        key=key,
        models=results.models,
        example_ids=order[:MAX_PROMPTS],
        scores=scores,
        warmth={place: scale(score) for place, score in scores.items()},
        left_out=max(0, len(order) - MAX_PROMPTS),
    )


def make_boolean_leaderboards(results: ModelResults) -> list[BooleanLeaderboard]:
    """Return one leaderboard for each boolean evaluator that has scores."""
    boards = []
    for evaluator in results.evaluators:
        primary = evaluator.primary
        if primary is None or not evaluator.is_boolean_family or primary.key not in results.keys:
            continue
        ranks = rank_models([results.cells[model, primary.key] for model in results.models], primary)
        rows = []
        for model in results.models:
            cell = results.cells[model, primary.key]
            rates = [
                rate.mean if (rate := results.cells.get((model, primary.key + ending))) is not None else None
                for ending in RATE_ENDINGS
            ]
            rows.append(
                BooleanRow(
                    model=model,
                    ranks=ranks.get(model, (1, len(results.models))),
                    cases=cell.n,
                    succeeded=round((cell.mean or 0.0) * cell.n),
                    passes=cell.mean,
                    failures=rates[0],
                    retrieval_failures=rates[1],
                    generation_failures=rates[2],
                    parse_failures=rates[3],
                    interval=cell.interval,
                )
            )
        boards.append(
            BooleanLeaderboard(key=primary.key, rows=sorted(rows, key=lambda row: (-row.succeeded, row.model)))
        )
    return boards
