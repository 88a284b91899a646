"""The examples of an experiment's runs: out of its dataset, a page at a time, or out of the runs themselves."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias

from spanwise.collector.errors import NotFound
from spanwise.collector.records import JSON, Example, Experiment, Run
from spanwise.collector.stores import Store
from spanwise.evaluators.datasets import to_example, to_row

PAGE = 500
KEPT = "spanwise.example"  # attribute of a root run: its example, where no dataset in the store has it

Pages: TypeAlias = Callable[[], Iterator[Sequence[Example]]]


def pages_of(store: Store, record: Experiment) -> Iterator[Sequence[Example]]:
    """The dataset that an experiment is pinned to, page by page; nothing if it has none, or it was deleted since."""
    if record.dataset_version is None:
        return
    offset = 0
    try:
        while page := store.examples(record.dataset, record.dataset_version, limit=PAGE, offset=offset):
            yield page
            offset += len(page)
    except NotFound:  # experiments stay
        return


class Lookup:
    """Examples by id, asked for in about their order: pages are read when needed, and what lies behind is let go."""

    def __init__(self, pages: Pages) -> None:
        self._restart = pages
        self._pages = pages()
        self._read: dict[str, Example] = {}  # in the dataset's order
        self._forgets = True

    def get(self, id: str) -> Example | None:
        """The example; None if there is none of this id."""
        example = self._find(id)
        if example is None and self._forgets:  # perhaps it was let go: from now on nothing is
            self._forgets = False
            self._pages = self._restart()
            example = self._find(id)
        return example

    def forget(self, before: str) -> None:
        """Let go of all examples before this one."""
        if self._forgets and before in self._read:
            while (first := next(iter(self._read))) != before:
                del self._read[first]

    def _find(self, id: str) -> Example | None:
        while id not in self._read:
            page = next(self._pages, None)
            if page is None:
                return None
            self._read.update((example.id, example) for example in page)
        return self._read[id]


def kept(example: Example, root: Run, inputs: JSON) -> Mapping[str, JSON]:
    """What a root run has to carry of an example that no dataset in the store has: all but given answers, and inputs
    where they are the root's. `inputs` are the example's as the tracer lets them leave: redacted, cut, or None.
    """
    elsewhere = ("id", "inputs", "outputs", "documents")
    row = {name: value for name, value in to_row(example).items() if name not in elsewhere}
    return {KEPT: row if root.inputs == inputs else {**row, "inputs": inputs}}


def with_example(runs: Sequence[Run], root: Run, example: Example, inputs: JSON) -> tuple[tuple[Run, ...], Run]:
    """The runs of a trace, and their root, which carries the example; `inputs` as in `kept`."""
    carrying = replace(root, attributes={**root.attributes, **kept(example, root, inputs)})
    return tuple(carrying if run is root else run for run in runs), carrying


def kept_in(root: Run) -> Example | None:
    """The example that a root run carries; None if it carries none."""
    row = root.attributes.get(KEPT)
    if not isinstance(row, Mapping) or root.example_id is None:
        return None
    return to_example({"inputs": root.inputs, **row, "id": root.example_id})
