"""Dataset records: examples and their ids, datasets, experiments, evaluation cases."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from spanwise.collector.records.json_values import JSON, DatasetKind, hash_inputs
from spanwise.collector.records.trace_records import Document, Run, Trace

# Kinds of perturbation, which are the categories of perturbed examples
PERTURBATION_KINDS = (
    "typos",
    "casing",
    "punctuation",
    "contractions",
    "word_order",
    "noise",
    "synonyms",
    "base64",
    "base16",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """Row of a dataset. An empty `id` is derived from the inputs and history (see `derive_example_id`).

    `outputs` and `documents` are existing answers and retrieved documents of some application. `evaluate()` without a
    task scores them unchanged. `evaluators` names the evaluators that score the example, by key or registered id; an
    example that names none is scored by all evaluators of the call.
    """

    inputs: JSON
    reference_outputs: JSON = None
    expected_documents: tuple[Document, ...] | None = None
    conditions: JSON = None
    guidelines: JSON = None
    categories: tuple[str, ...] = ()
    history: JSON = None
    base_id: str | None = None  # id of the example that this example is a perturbation of
    metadata: Mapping[str, JSON] = field(default_factory=dict)
    split: str | None = None
    id: str = ""
    outputs: JSON = None
    documents: tuple[Document, ...] | None = None
    evaluators: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.id:
            object.__setattr__(self, "id", derive_example_id(self))


# attribute of a root run that holds its example, if no stored dataset contains it
EXAMPLE_ATTRIBUTE = "spanwise.example"


def derive_example_id(example: Example) -> str:
    """Return the id of an example that has none: a hash of its inputs and history only."""
    return hash_inputs(example.inputs, example.history)


def is_perturbed(example: Example) -> bool:
    """Return whether an example is a perturbation: it has a base, and its last category is the kind of perturbation.

    A variation of an example, which has a reference of its own, has a base but no such category.
    """
    return example.base_id is not None and bool(example.categories)


def find_root_id(example: Example, examples: Mapping[str, Example]) -> str:
    """Return the id at the end of an example's chain of bases, whose examples are given by id.

    It is the last known id if a base was deleted, and the lowest id of a circle.
    """
    path = [example.id]
    while example.base_id is not None:
        if example.base_id in path:
            return min(path[path.index(example.base_id) :])
        path.append(example.base_id)
        if example.base_id not in examples:
            break
        example = examples[example.base_id]
    return path[-1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Dataset:
    """Named, versioned list of examples. Versions begin with 1, and every change creates a new version."""

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
    """Execution of a task on one version of a dataset. Its runs are traces with `experiment_id == id`."""

    id: str
    name: str
    dataset: str
    dataset_version: int | None = None
    project: str = "default"
    status: Literal["running", "finished", "interrupted"] = "running"
    evaluators: tuple[Mapping[str, JSON], ...] = ()  # each with "key", "version", "metrics", …
    metadata: Mapping[str, JSON] = field(default_factory=dict)
    started_ns: int = field(default_factory=time.time_ns)
    ended_ns: int | None = None
    example_count: int = 0
    seen_ns: int | None = None  # time of the last heartbeat of the process that runs it


def number_duplicates(examples: Iterable[Example]) -> list[Example]:
    """Return the examples with unique ids. The second with the same id becomes `<id>-2`, the third `<id>-3`.

    An explicit id takes precedence over an equal derived id, whichever comes first. If two explicit ids are equal,
    the later one gets the number.
    """
    listed = list(examples)
    if len({example.id for example in listed}) == len(listed):
        return listed
    derived = [example.id == derive_example_id(example) for example in listed]
    numbering, numbered = ExampleNumbering(), dict[int, Example]()
    for place in sorted(range(len(listed)), key=lambda place: (derived[place], place)):
        numbered[place] = numbering.of(listed[place])
    return [numbered[place] for place in range(len(listed))]


class ExampleNumbering:
    """Assigner of unique example ids. `taken` contains the ids that exist already."""

    def __init__(self, taken: Iterable[str] = ()) -> None:
        self._taken = set(taken)
        self._last: dict[str, int] = {}  # last number given, for ids that occur more than once

    def of(self, example: Example) -> Example:
        """Return the example. If its id is taken, append a number to it."""
        id = example.id
        if id not in self._taken:
            self._taken.add(id)
            return example
        number = self._last.get(id, 1) + 1
        while f"{id}-{number}" in self._taken:
            number += 1
        self._last[id] = number
        self._taken.add(f"{id}-{number}")
        return replace(example, id=f"{id}-{number}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """Source of an evaluator's arguments: one finished run of a task, one live trace, or a session.

    `spanwise.evaluators.make_case` creates cases and documents the fields.
    """

    example: Example | None = None
    trace: Trace | None = None
    inputs: JSON = None
    outputs: JSON = None
    reference_outputs: JSON = None
    documents: tuple[Document, ...] | None = None  # (): a retrieval found nothing; None: no retrieval ran
    expected_documents: tuple[Document, ...] | None = None
    conditions: JSON = None
    guidelines: JSON = None
    history: JSON = None
    metadata: Mapping[str, JSON] = field(default_factory=dict)
    # object that the task returned, such as a pydantic model; None for stored runs. `outputs` has its JSON form
    native_outputs: object = None

    @property
    def run(self) -> Run | None:
        """Return the root run of the trace, or None without a trace."""
        return self.trace.root if self.trace else None
