"""Tools over experiments and datasets."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Annotated, Any

from pydantic import Field

from spanwise.cli.mcp import shown
from spanwise.cli.mcp.reading import Limit
from spanwise.cli.mcp.shown import RESPONSE, TEXT
from spanwise.collector import format
from spanwise.collector.records import Example, Experiment, RunScores, paged
from spanwise.collector.stores import Store

OfDataset = Annotated[str | None, Field(description="Only over this dataset.")]
Id = Annotated[str, Field(description="An id, the beginning of one, or a name (the newest of it).")]
OneKey = Annotated[str | None, Field(description="Only runs that have a score under this key, the lowest first.")]
Name = Annotated[str, Field(description="The dataset's name.")]
Version = Annotated[int | None, Field(ge=1, description="None: the newest.")]
From = Annotated[int, Field(ge=0, description="The first example to show; `next_first` of the page before.")]
MaxChars = Annotated[int, Field(ge=0, le=RESPONSE, description="Characters of each value.")]
RUNS = 10_000  # of an experiment, that are sorted


def list_experiments(store: Store, dataset: OfDataset = None, limit: Limit = 20) -> dict[str, Any]:
    """Experiments, newest first."""
    return shown.answer(experiments=shown.within(map(experiment, store.experiments(dataset=dataset, limit=limit))))


def read_experiment(store: Store, experiment_id: Id, key: OneKey = None, limit: Limit = 20) -> dict[str, Any]:
    """How an experiment came out per key, and its worst runs: those that failed, then the lowest scores under a key."""
    record = store.experiment(experiment_id)
    buckets = store.aggregate(experiment=record.id, newest="all")
    runs = _first(paged(lambda cursor: store.scores(record.id, limit=1000, cursor=cursor)))
    worst = sorted((one for one in runs if key is None or key in one.scores), key=lambda one: _badness(one, key))
    stats = buckets[0].feedback if buckets else ()
    return shown.answer(
        experiment=experiment(record),
        runs=len(runs),
        failed=sum(one.status == "error" for one in runs),
        scores=[
            {"n": one.n, "mean": one.mean, "failed": one.failed, "skipped": one.skipped}
            | {"untrusted": {"key": shown.name(one.key)}}
            for one in stats[:100]
        ],
        worst=shown.within(map(_run, worst[:limit])),
    )


def _first(runs: Iterable[RunScores]) -> list[RunScores]:
    found = []
    for one in runs:
        found.append(one)
        if len(found) == RUNS:
            break
    return found


def _badness(one: RunScores, key: str | None) -> tuple[bool, float]:
    """Failed ones first; then by the score under the key, or by the mean of all."""
    numbers = [float(value) for value in one.scores.values() if isinstance(value, float | int)]
    given = one.scores.get(key) if key is not None else (sum(numbers) / len(numbers) if numbers else None)
    return one.status != "error", float(given) if isinstance(given, float | int) else float("inf")


def _run(one: RunScores) -> dict[str, Any]:
    return {
        "trace_id": shown.id_(one.trace_id),
        "status": one.status,
        "repetition": one.repetition,
        "untrusted": {
            "example_id": shown.name(one.example_id),
            "scores": {
                shown.name(key): shown.name(value) if isinstance(value, str) else value
                for key, value in list(one.scores.items())[: shown.NAMES]
            },
        },
    }


def experiment(one: Experiment) -> dict[str, Any]:
    """An experiment in a list."""
    return {
        "id": shown.id_(one.id),
        "status": one.status,
        "started": format.utc(one.started_ns),
        "dataset_version": one.dataset_version,
        "examples": one.example_count,
        "untrusted": {
            **shown.odd_id(one.id),
            "name": shown.name(one.name),
            "dataset": shown.name(one.dataset),
            "evaluators": [shown.name(str(evaluator.get("key"))) for evaluator in one.evaluators[: shown.NAMES]],
            "metadata": shown.content(dict(one.metadata), None, shown.NAME * 2),
        },
    }


def list_datasets(store: Store) -> dict[str, Any]:
    """All datasets at their newest version."""
    found = [
        {
            "version": one.version,
            "kind": one.kind,
            "examples": one.example_count,
            "untrusted": {"name": shown.name(one.name), "description": shown.name(one.description)},
        }
        for one in store.datasets()[:200]
    ]
    return shown.answer(datasets=shown.within(found))


def read_dataset(
    store: Store,
    name: Name,
    version: Version = None,
    first: From = 0,
    limit: Limit = 20,
    max_chars: MaxChars = TEXT,
) -> dict[str, Any]:
    """Examples of a dataset in their order, as many as there is room for."""
    record = store.dataset(name, version)
    examples: list[dict[str, Any]] = []
    left = RESPONSE
    for one in store.examples(name, record.version, limit=limit, offset=first):
        made = _example(one, max_chars)
        left -= len(json.dumps(made))
        if examples and left < 0:
            break
        examples.append(made)
    upto = first + len(examples)
    return shown.answer(
        version=record.version,
        example_count=record.example_count,
        next_first=upto if examples and upto < record.example_count else None,
        examples=examples,
    )


def _example(one: Example, most: int) -> dict[str, Any]:
    said = {"inputs": one.inputs, "reference_outputs": one.reference_outputs, "metadata": dict(one.metadata) or None}
    contents = {field: shown.content(value, None, most) for field, value in said.items() if value is not None}
    return {"untrusted": {"id": shown.name(one.id), "split": shown.name(one.split), **contents}}


LISTS: Sequence[Any] = (list_experiments, read_experiment, list_datasets, read_dataset)
