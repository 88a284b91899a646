"""Experiments side by side: per key with differences, and the examples on which they differ most."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from starlette.requests import Request
from starlette.responses import Response

from spanwise.collector import statistics
from spanwise.collector.errors import Refused
from spanwise.collector.pages import _experiments
from spanwise.collector.pages.kit import chips, metrics, render
from spanwise.collector.pages.kit.judges import of_experiment
from spanwise.collector.records import JSON, Bucket, Example, Experiment, FeedbackStats, TraceSummary, paged
from spanwise.collector.stores import Checks, Store

_MOST_SIDES, _SHOWN = 5, 50


@dataclass(frozen=True, slots=True)
class Side:
    """One of the experiments: its results, the first run of each example (trace ids), scores by example and key."""

    experiment: Experiment
    result: Bucket | None
    runs: Mapping[str, str]
    scores: statistics.Scores

    def stats(self, key: str) -> FeedbackStats | None:
        """This side's aggregate of one key; of `task_ok` the share of runs whose task ended without error."""
        if self.result is None:
            return None
        if key == statistics.TASK_OK:
            return metrics.task_ok(self.result)
        return next((stats for stats in self.result.feedback if stats.key == key), None)


@dataclass(frozen=True, slots=True)
class Difference:
    """One example on which the sides differ by `size` (a share of each key's range, summed over the keys)."""

    example_id: str
    size: float
    changed: Mapping[str, float]  # per key: last side minus first


@dataclass(frozen=True, slots=True)
class Shown:
    """A difference with what it shows: the example, unless its dataset is gone, and per side its first repetition."""

    example: Example | None
    traces: Sequence[TraceSummary | None]
    changed: Mapping[str, float]


def compare(store: Store, request: Request) -> Response:
    """`GET /compare?ids=a,b&key=`: the first is what the others are measured against."""
    sides = load(store, request.query_params.getlist("ids"))
    keys, others = keys_of(sides), len(sides) - 1
    known = metrics.known(side.experiment for side in sides)
    directions = {key: metric.rising for key, metric in known.items()}
    wanted = request.query_params.get("key") or None
    contrasts = [statistics.compare(sides[0].scores, side.scores, directions, others=others) for side in sides[1:]]
    differing = differences(sides, contrasts[-1], [wanted] if wanted in keys else keys) if contrasts else []
    rows = shown(store, sides, differing[:_SHOWN])
    checks = Checks(store)
    return render.html(
        request,
        "compare.html",
        sides=sides,
        labels=_experiments.labels([side.experiment for side in sides]),
        keys=keys,
        known=known,
        plain=metrics.Known(),
        wanted=wanted if wanted in keys else None,
        rows=rows,
        differing=len(differing),
        family=max((contrast.family for by_key in contrasts for contrast in by_key.values()), default=1),
        examples=len({id for side in sides for id in side.runs}),
        settings=settings(sides),
        contrasts=contrasts,
        trusts=[checks.said(of_experiment(side.experiment)) for side in sides],
        chips=chips.by_trace(store, [trace for row in rows for trace in row.traces if trace]),
        choices=[] if len(sides) > 1 else store.experiments(limit=100),
    )


def load(store: Store, asked: Sequence[str]) -> list[Side]:
    """The experiments named (by id, beginning of an id, or name), with results and traces. Raises `Refused`."""
    names = [name.strip() for part in asked for name in part.split(",") if name.strip()]
    if len(names) > _MOST_SIDES:
        raise Refused(f"at most {_MOST_SIDES} experiments fit side by side, not {len(names)}")
    experiments = [store.experiment(name) for name in dict.fromkeys(names)]
    results = _experiments.aggregates(store, experiments)
    tasks = any(result.errors for result in results.values())
    return [_side(store, experiment, results.get(experiment.id), tasks=tasks) for experiment in experiments]


def keys_of(sides: Sequence[Side]) -> list[str]:
    """All keys by name; before them `task_ok`, where a task has failed: scores of the rest are not the whole story."""
    known = {stats.key for side in sides if side.result for stats in side.result.feedback}
    failing = any(side.result and side.result.errors for side in sides)
    return [statistics.TASK_OK] * failing + sorted(known - {statistics.TASK_OK} if failing else known)


def _side(store: Store, experiment: Experiment, result: Bucket | None, *, tasks: bool) -> Side:
    runs = list(paged(partial(store.scores, experiment.id, limit=1000)))
    first: dict[str, str] = {}
    for run in runs:
        first.setdefault(run.example_id or run.trace_id, run.trace_id)
    return Side(experiment, result, first, statistics.by_example(statistics.scores_of(runs, tasks=tasks)))


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
    rows = [Difference(example_id, _size(values, ranges), values) for example_id, values in changed.items()]
    return sorted(rows, key=lambda row: (-row.size, row.example_id))


def shown(store: Store, sides: Sequence[Side], rows: Sequence[Difference]) -> list[Shown]:
    """What is shown of differences: their examples, and their runs on each side."""
    if not rows:
        return []
    ids = [side.runs.get(row.example_id, "") for row in rows for side in sides]
    traces = {trace.trace_id: trace for trace in store.traces(trace_ids=tuple(filter(None, ids)), limit=len(ids))}
    known: dict[str, tuple[Example, int]] = {}
    for experiment in {
        (side.experiment.dataset, side.experiment.dataset_version): side.experiment for side in sides
    }.values():
        known = {**_experiments.known_examples(store, experiment), **known}
    examples = {id: example for id, (example, _) in known.items()}
    return [
        Shown(
            examples.get(row.example_id),
            [traces.get(side.runs.get(row.example_id, "")) for side in sides],
            row.changed,
        )
        for row in rows
    ]


def _range(sides: Sequence[Side], key: str) -> float:
    known = [stats for side in sides if (stats := side.stats(key)) and stats.n]
    ends = [end for stats in known for end in (stats.minimum, stats.maximum) if end is not None]
    return (max(ends) - min(ends)) or 1.0 if ends else 1.0


def _size(values: Mapping[str, float], ranges: Mapping[str, float]) -> float:
    return sum(abs(value) / ranges[key] for key, value in values.items())
