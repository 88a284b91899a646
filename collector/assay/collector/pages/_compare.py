"""Experiments side by side: per key with differences, and the examples on which they differ most."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from starlette.requests import Request
from starlette.responses import Response

from assay.collector import statistics
from assay.collector.errors import Refused
from assay.collector.filters import Filter
from assay.collector.pages import _experiments
from assay.collector.pages.kit import chips, render
from assay.collector.records import JSON, Bucket, Example, Experiment, FeedbackStats, TraceSummary
from assay.collector.stores import Store

_MOST_SIDES, _SHOWN = 5, 50


@dataclass(frozen=True, slots=True)
class Side:
    """One of the experiments: its results, its traces by example, and their mean scores by example and key."""

    experiment: Experiment
    result: Bucket | None
    rows: Mapping[str, Sequence[_experiments.Row]]
    scores: statistics.Scores

    def stats(self, key: str) -> FeedbackStats | None:
        """This side's aggregate of one key."""
        return next((stats for stats in self.result.feedback if stats.key == key), None) if self.result else None


@dataclass(frozen=True, slots=True)
class Difference:
    """One example on which the sides differ by `size` (a share of each key's range, summed over the keys)."""

    example_id: str
    example: Example | None
    size: float
    traces: Sequence[TraceSummary | None]  # one per side: its first repetition
    changed: Mapping[str, float] = field(default_factory=dict)  # per key: last side minus first


def compare(store: Store, request: Request) -> Response:
    """`GET /compare?ids=a,b&key=`: the first is what the others are measured against."""
    sides = load(store, request.query_params.getlist("ids"))
    keys = sorted({stats.key for side in sides if side.result for stats in side.result.feedback})
    wanted = request.query_params.get("key") or None
    contrasts = [statistics.compare(sides[0].scores, side.scores, rising(sides)) for side in sides[1:]]
    rows = differences(sides, contrasts[-1], [wanted] if wanted in keys else keys) if contrasts else []
    shown = rows[:_SHOWN]
    traces = [trace for row in shown for trace in row.traces if trace]
    return render.html(
        request,
        "compare.html",
        sides=sides,
        keys=keys,
        wanted=wanted if wanted in keys else None,
        rows=shown,
        differing=len(rows),
        examples=len({id for side in sides for id in side.rows}),
        settings=settings(sides),
        contrasts=contrasts,
        chips=chips.by_trace(store, traces),
        choices=[] if len(sides) > 1 else store.experiments(limit=100),
    )


def load(store: Store, asked: Sequence[str]) -> list[Side]:
    """The experiments named (by id, beginning of an id, or name), with results and traces. Raises `Refused`."""
    names = [name.strip() for part in asked for name in part.split(",") if name.strip()]
    if len(names) > _MOST_SIDES:
        raise Refused(f"at most {_MOST_SIDES} experiments fit side by side, not {len(names)}")
    experiments = [store.experiment(name) for name in dict.fromkeys(names)]
    results = _experiments.aggregates(store, experiments)
    return [_side(store, experiment, results.get(experiment.id)) for experiment in experiments]


def _side(store: Store, experiment: Experiment, result: Bucket | None) -> Side:
    rows: dict[str, list[_experiments.Row]] = defaultdict(list)
    for row in _experiments.load(store, experiment, Filter(experiment=experiment.id)):
        rows[row.trace.example_id or row.trace.trace_id].append(row)
    return Side(experiment, result, rows, statistics.by_example(_scores(rows)))


def _scores(rows: Mapping[str, Sequence[_experiments.Row]]) -> Iterator[tuple[str, str, float]]:
    for example_id, of_example in rows.items():
        for row in of_example:
            for key, value in row.trace.feedback.items():
                if isinstance(value, (int, float)):
                    yield example_id, key, float(value)


def rising(sides: Sequence[Side]) -> dict[str, bool]:
    """Per key whether a higher score is the better one, as far as the experiments' evaluators have said."""
    evaluators = [evaluator for side in sides for evaluator in side.experiment.evaluators]
    lists = [metrics for evaluator in evaluators if isinstance(metrics := evaluator.get("metrics"), list)]
    known = [metric for metrics in lists for metric in metrics if isinstance(metric, dict) and "key" in metric]
    return {str(metric["key"]): metric.get("higher_is_better") is not False for metric in known}


def settings(sides: Sequence[Side]) -> dict[str, list[JSON]]:
    """The plain settings in the experiments' metadata that are not the same everywhere, one value per side."""
    names = dict.fromkeys(name for side in sides for name in side.experiment.metadata)
    values = {name: [side.experiment.metadata.get(name) for side in sides] for name in names}
    plain = {name: row for name, row in values.items() if not any(isinstance(value, dict | list) for value in row)}
    return {name: row for name, row in plain.items() if any(value != row[0] for value in row)}


def differences(
    sides: Sequence[Side], contrasts: Mapping[str, statistics.Contrast], keys: Sequence[str]
) -> list[Difference]:
    """The examples whose scores differ between the first and the last side, most different first."""
    changed: dict[str, dict[str, float]] = defaultdict(dict)
    for key in keys:
        if key in contrasts:
            for example_id, difference in contrasts[key].differences.items():
                if statistics.direction(difference):
                    changed[example_id][key] = difference
    ranges = {key: _range(sides, key) for key in keys}
    rows = [_difference(sides, example_id, values, ranges) for example_id, values in changed.items()]
    return sorted(rows, key=lambda row: (-row.size, row.example_id))


def _range(sides: Sequence[Side], key: str) -> float:
    known = [stats for side in sides if (stats := side.stats(key)) and stats.n]
    ends = [end for stats in known for end in (stats.minimum, stats.maximum) if end is not None]
    return (max(ends) - min(ends)) or 1.0 if ends else 1.0


def _difference(
    sides: Sequence[Side], example_id: str, values: Mapping[str, float], ranges: Mapping[str, float]
) -> Difference:
    rows = [side.rows.get(example_id, ()) for side in sides]
    example = next((row.example for of_side in rows for row in of_side if row.example), None)
    size = sum(abs(value) / ranges[key] for key, value in values.items())
    return Difference(example_id, example, size, [of_side[0].trace if of_side else None for of_side in rows], values)
