"""Dataset records: examples and their ids, datasets, experiments, evaluation cases."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from spanwise.collector.records.json_values import JSON, DatasetKind, hash_inputs
from spanwise.collector.records.trace_records import Document, Run, Trace


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
            object.__setattr__(self, "id", derive_example_id(self))


def derive_example_id(example: Example) -> str:
    """The id of an example that has none: of its inputs and the history that belongs to them, nothing else."""
    return hash_inputs(example.inputs, example.history)


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


def number_duplicates(examples: Iterable[Example]) -> list[Example]:
    """The same examples, each with an id of its own: the second that asks the same is `<id>-2`, the third `<id>-3`.

    Ids that were given come first, wherever they stand; of two that are equal the later one gets a number, too.
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
    """Gives examples ids that are not taken yet, one after the other, beside those that are `taken`."""

    def __init__(self, taken: Iterable[str] = ()) -> None:
        self._taken = set(taken)
        self._last: dict[str, int] = {}  # only of ids that came more than once

    def of(self, example: Example) -> Example:
        """The example, with a number after its id if that is taken."""
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
    """What an evaluator's arguments are taken from: one finished run of a task, one live trace, or a session.

    `spanwise.evaluators.make_case` makes them all, and says what each field holds.
    """

    example: Example | None = None
    trace: Trace | None = None
    inputs: JSON = None
    outputs: JSON = None
    reference_outputs: JSON = None
    documents: tuple[Document, ...] | None = None  # (): a retrieval found nothing; None: none ran
    expected_documents: tuple[Document, ...] | None = None
    conditions: JSON = None
    guidelines: JSON = None
    history: JSON = None
    metadata: Mapping[str, JSON] = field(default_factory=dict)

    @property
    def run(self) -> Run | None:
        """The root run of the trace, if there is a trace."""
        return self.trace.root if self.trace else None
