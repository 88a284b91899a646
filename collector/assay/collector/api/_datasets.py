"""Datasets and experiments."""

from __future__ import annotations

from typing import Literal

import msgspec
from fastapi import APIRouter, Response

from assay.collector import _wire
from assay.collector.api._http import Body, Limit, Number, given, reply, wire
from assay.collector.errors import NotFound
from assay.collector.records import JSON, Dataset, DatasetKind, Example, Experiment
from assay.collector.stores import ControlStore


class ExamplesToSave(msgspec.Struct, omit_defaults=True):
    """What `save_examples` takes."""

    examples: list[Example] = []
    replace: bool = False
    remove: list[str] = []
    kind: DatasetKind | None = None
    schema: dict[str, JSON] | None = None
    description: str | None = None
    metadata: dict[str, JSON] | None = None


class DatasetChange(msgspec.Struct, forbid_unknown_fields=True):
    """What is said of a dataset beside its examples."""

    kind: DatasetKind | None = None
    schema: dict[str, JSON] | None = None
    description: str | None = None
    metadata: dict[str, JSON] | None = None


class ExperimentChange(msgspec.Struct, forbid_unknown_fields=True):
    """Fields of an experiment that may change."""

    name: str | msgspec.UnsetType = msgspec.UNSET
    status: Literal["running", "finished", "interrupted"] | msgspec.UnsetType = msgspec.UNSET
    metadata: dict[str, JSON] | msgspec.UnsetType = msgspec.UNSET
    ended_ns: int | msgspec.UnsetType | None = msgspec.UNSET
    example_count: int | msgspec.UnsetType = msgspec.UNSET


def datasets(store: ControlStore) -> APIRouter:
    """The routes of datasets. A name may hold slashes, so the longer paths come first."""
    routes = APIRouter(prefix="/api/datasets", tags=["datasets"])

    @routes.get("")
    @wire(returns=list[Dataset])
    def listed() -> Response:
        """All datasets at their newest version."""
        return reply(store.datasets())

    @routes.get("/{name:path}/versions")
    @wire(returns=list[Dataset])
    def versions(name: str) -> Response:
        """Every version of a dataset, newest first."""
        return reply(store.versions(name))

    @routes.get("/{name:path}/examples")
    @wire(returns=list[Example])
    def examples(
        name: str,
        version: Number | None = None,
        split: str | None = None,
        limit: Limit | None = None,
        offset: Number = 0,
    ) -> Response:
        """Examples of a version, in their order."""
        return reply(store.examples(name, version, split=split, limit=limit, offset=offset))

    @routes.post("/{name:path}/examples")
    @wire(takes=ExamplesToSave, returns=Dataset)
    def save(name: str, body: Body) -> Response:
        """Add, overwrite or remove examples; makes the dataset if it is new, and a new version if anything changed."""
        asked = _wire.decode(ExamplesToSave, body)
        return reply(
            store.save_examples(
                name,
                asked.examples,
                replace=asked.replace,
                remove=asked.remove,
                kind=asked.kind,
                schema=asked.schema,
                description=asked.description,
                metadata=asked.metadata,
            )
        )

    @routes.get("/{name:path}")
    @wire(returns=Dataset)
    def one(name: str, version: Number | None = None) -> Response:
        """One dataset at a version, or the newest."""
        return reply(store.dataset(name, version))

    @routes.patch("/{name:path}")
    @wire(takes=DatasetChange, returns=Dataset)
    def describe(name: str, body: Body) -> Response:
        """Say something else of a dataset; makes a new version if anything changed."""
        about = msgspec.structs.asdict(_wire.decode(DatasetChange, body))
        store.dataset(name)  # no dataset comes of a mistyped name
        return reply(store.save_examples(name, [], **about))

    @routes.delete("/{name:path}")
    @wire(returns=dict[str, int])
    def delete(name: str) -> Response:
        """Remove a dataset with all its versions."""
        return reply({"deleted": int(store.delete_dataset(name))})

    return routes


def experiments(store: ControlStore) -> APIRouter:
    """The routes of experiments."""
    routes = APIRouter(prefix="/api/experiments", tags=["experiments"])

    @routes.get("")
    @wire(returns=list[Experiment])
    def listed(dataset: str | None = None, project: str | None = None, limit: Limit = 100) -> Response:
        """Experiments, newest first."""
        return reply(store.experiments(dataset=dataset, project=project, limit=limit))

    @routes.post("")
    @wire(takes=Experiment | list[Experiment], returns=Experiment | list[Experiment])
    def save(body: Body) -> Response:
        """Create or overwrite, by id: one, or all of a list or none."""
        made: Experiment | list[Experiment] = _wire.decode(Experiment | list[Experiment], body)
        store.save_experiment(*(made if isinstance(made, list) else [made]))
        return reply(made)

    @routes.get("/{id_or_name:path}")
    @wire(returns=Experiment)
    def one(id_or_name: str) -> Response:
        """One experiment by id, by the beginning of its id, or the newest of a name."""
        return reply(store.experiment(id_or_name))

    @routes.patch("/{id:path}")
    @wire(takes=ExperimentChange, returns=Experiment)
    def change(id: str, body: Body) -> Response:
        """Change some fields."""
        return reply(store.change_experiment(id, **given(_wire.decode(ExperimentChange, body))))

    @routes.delete("/{id:path}")
    @wire(returns=dict[str, int])
    def delete(id: str) -> Response:
        """Remove an experiment with its traces and feedback."""
        if not store.delete_experiment(id):
            raise NotFound(f"there is no experiment {id!r}")
        return reply({"deleted": 1})

    return routes
