"""Datasets, their examples, and experiments over them."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from spanwise.collector.records._ids import id_of_inputs
from spanwise.collector.records._run import Document
from spanwise.collector.records._values import JSON, DatasetKind


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """One row of a dataset. An `id` left empty is derived from what is asked (see `example_id`).

    `outputs` and `documents` are what some application has answered and retrieved already: `evaluate()` without a task
    scores them as they are.
    """

    inputs: JSON
    reference_outputs: JSON = None
    expected_documents: tuple[Document, ...] | None = None
    conditions: JSON = None
    guidelines: JSON = None
    categories: tuple[str, ...] = ()
    history: JSON = None
    base_id: str | None = None  # the example that this one is a perturbation of
    metadata: Mapping[str, JSON] = field(default_factory=dict)
    split: str | None = None
    id: str = ""
    outputs: JSON = None
    documents: tuple[Document, ...] | None = None

    def __post_init__(self) -> None:
        if not self.id:
            object.__setattr__(self, "id", example_id(self))


def example_id(example: Example) -> str:
    """The id of an example that has none: of its inputs and the history that belongs to them, nothing else."""
    return id_of_inputs(example.inputs, example.history)


@dataclass(frozen=True, slots=True, kw_only=True)
class Dataset:
    """A named, versioned list of examples. Version 1 is the first; every change makes a new one."""

    name: str
    version: int = 1
    kind: DatasetKind = "kv"
    schema: Mapping[str, JSON] | None = None  # JSON Schemas under "inputs" and "reference_outputs"
    description: str = ""
    metadata: Mapping[str, JSON] = field(default_factory=dict)
    created_ns: int = field(default_factory=time.time_ns)
    example_count: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment:
    """One execution of a task over a dataset's version. Its runs are traces with `experiment_id == id`."""

    id: str
    name: str
    dataset: str
    dataset_version: int | None = None
    project: str = "default"
    status: Literal["running", "finished", "interrupted"] = "running"
    evaluators: tuple[Mapping[str, JSON], ...] = ()  # {"key", "version", "metrics", …} each
    metadata: Mapping[str, JSON] = field(default_factory=dict)
    started_ns: int = field(default_factory=time.time_ns)
    ended_ns: int | None = None
    example_count: int = 0
    seen_ns: int | None = None  # when whoever runs it last gave a sign of life
