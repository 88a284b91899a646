"""Experiments side by side: per key with differences, and the examples on which they differ most."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from starlette.requests import Request
from starlette.responses import Response

from assay.collector.errors import Refused
from assay.collector.filters import Filter
from assay.collector.pages import _experiments
from assay.collector.pages.kit import chips, render
from assay.collector.records import JSON, Bucket, Example, Experiment, FeedbackStats, TraceSummary
from assay.collector.statistics import Paired, paired
from assay.collector.stores import Store

_MOST_SIDES, _SHOWN = 5, 50


@dataclass(frozen=True, slots=True)
class Side:
    """One of the experiments: its results, and its traces by example."""

    experiment: Experiment
    result: Bucket | None
    rows: Mapping[str, Sequence[_experiments.Row]]

    def stats(self, key: str) -> FeedbackStats | None:
        """This side's aggregate of one key."""
        return next((stats for stats in self.result.feedback if stats.key == key), None) if self.result else None


@dataclass(frozen=True, slots=True)
class Change:
    """How a side stands to the first one under a key, over the examples that both have scored."""

    difference: float | None
    higher: int = 0
    lower: int = 0
    same: int = 0
    test: Paired | None = None  # whether the difference is more than chance


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
    rows = differences(sides, [wanted] if wanted in keys else keys)
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
        rising=rising(sides),
        settings=settings(sides),
        changes={key: [change(sides[0], side, key) for side in sides[1:]] for key in keys},
        chips=chips.by_trace(store, traces),
        choices=[] if len(sides) > 1 else store.experiments(limit=100),
    )


def load(store: Store, asked: Sequence[str]) -> list[Side]:
    """The experiments named (by id, beginning of an id, or name), with results and traces. Raises `Refused`."""
    names = [name.strip() for part in asked for name in part.split(",") if name.strip()]
    if len(names) > _MOST_SIDES:
        raise Refused(f"at most {_MOST_SIDES} experiments fit side by side, not {len(names)}")
    found = [store.experiment(name) for name in dict.fromkeys(names)]
    results = _experiments.aggregates(store, found)
    return [Side(experiment, results.get(experiment.id), _by_example(store, experiment)) for experiment in found]


def _by_example(store: Store, experiment: Experiment) -> dict[str, list[_experiments.Row]]:
    rows: dict[str, list[_experiments.Row]] = defaultdict(list)
    for row in _experiments.load(store, experiment, Filter(experiment=experiment.id)):
        rows[row.trace.example_id or row.trace.trace_id].append(row)
    return dict(rows)


def mean_score(rows: Sequence[_experiments.Row], key: str) -> float | None:
    """The mean over an example's repetitions; None without any score."""
    found = [row.trace.feedback.get(key) for row in rows]
    scores = [float(value) for value in found if isinstance(value, (int, float))]
    return sum(scores) / len(scores) if scores else None


def pairs(first: Side, other: Side, key: str) -> dict[str, float]:
    """Per example that both have scored under the key: the other's score minus the first's."""
    found = {}
    for example_id in first.rows.keys() & other.rows.keys():
        before, after = mean_score(first.rows[example_id], key), mean_score(other.rows[example_id], key)
        if before is not None and after is not None:
            found[example_id] = after - before
    return found


def change(first: Side, other: Side, key: str) -> Change:
    """The mean of the pairs' differences, and how many went up, down, or stayed."""
    found = sorted(pairs(first, other, key).values())
    if not found:
        return Change(None)
    up, down = sum(value > 1e-9 for value in found), sum(value < -1e-9 for value in found)
    return Change(sum(found) / len(found), up, down, len(found) - up - down, paired(found))


def rising(sides: Sequence[Side]) -> dict[str, bool]:
    """Per key whether a higher score is the better one, as far as the experiments' evaluators have said."""
    said = [evaluator.get("metrics") for side in sides for evaluator in side.experiment.evaluators]
    metrics = [metric for found in said if isinstance(found, list) for metric in found if isinstance(metric, dict)]
    return {str(metric["key"]): metric.get("higher_is_better") is not False for metric in metrics if "key" in metric}


def settings(sides: Sequence[Side]) -> dict[str, list[JSON]]:
    """The plain settings in the experiments' metadata that are not the same everywhere, one value per side."""
    names = dict.fromkeys(name for side in sides for name in side.experiment.metadata)
    values = {name: [side.experiment.metadata.get(name) for side in sides] for name in names}
    plain = {name: found for name, found in values.items() if not any(isinstance(one, dict | list) for one in found)}
    return {name: found for name, found in plain.items() if any(one != found[0] for one in found)}


def differences(sides: Sequence[Side], keys: Sequence[str]) -> list[Difference]:
    """The examples whose scores differ between the first and the last side, most different first."""
    if len(sides) < 2:
        return []
    first, last = sides[0], sides[-1]
    changed: dict[str, dict[str, float]] = defaultdict(dict)
    for key in keys:
        for example_id, value in pairs(first, last, key).items():
            if abs(value) > 1e-9:
                changed[example_id][key] = value
    ranges = {key: _range(sides, key) for key in keys}
    found = [_difference(sides, example_id, values, ranges) for example_id, values in changed.items()]
    return sorted(found, key=lambda row: (-row.size, row.example_id))


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
