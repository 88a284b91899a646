"""Dataset source: stored datasets, files, lists and traces as examples, and lookup of stored examples."""

from __future__ import annotations

import hashlib
import random
from collections.abc import AsyncIterable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from spanwise.collector.errors import NotFound
from spanwise.collector.filters import EVALUATOR_KIND, Filter
from spanwise.collector.records import (
    EXAMPLE_ATTRIBUTE,
    JSON,
    Dataset,
    Example,
    Run,
    Trace,
    TraceSummary,
)
from spanwise.collector.stores import Store
from spanwise.evaluators import datasets
from spanwise.evaluators.datasets import to_example, to_row
from spanwise.evaluators.experiments.experiment_plan import PlannedRun
from spanwise.evaluators.interface import AwaitFunction

SOURCE_PAGE = 500
MAX_REMEMBERED = 5_000  # examples; a stored dataset of at most this size is read only once
_END = object()
MIN_ID_PREFIX = 6  # minimum length of an id prefix
MAX_STORED_FILE = 64 * 2**20  # bytes; larger files are streamed and not stored as datasets


@dataclass(frozen=True, slots=True)
class ExampleSource:
    """Source of the examples of an experiment.

    `count` is None if the number of examples is unknown until the end. Each call of `examples` starts from the
    first example. `in_memory` holds the examples if they are in memory. `is_unsaved` means that no stored dataset
    contains the examples, so that each run must store its own example.
    """

    name: str
    version: int | None
    kind: str
    count: int | None
    examples: Callable[[], Iterable[tuple[Example, Trace | None]]]
    in_memory: Sequence[Example] | None = None
    is_unsaved: bool = False
    has_traces: bool = False  # the examples were made from existing traces


def make_source(
    dataset: Any,
    store: Store,
    default_name: str,
    splits: Sequence[str] | None,
    *,
    reload_traces: bool = False,
    save: bool = True,
    outputs_are_references: bool = False,
) -> ExampleSource:
    """Return the source for a dataset argument.

    The argument is a name in the store (also `name@3`), an id of the Hugging Face hub (`hf://openai/gsm8k`), a file, a DataFrame, a list, traces or a filter.

    A dataset that fits into memory is stored as a version of a dataset, so that experiments over it can be compared
    and resumed. Nothing is stored if `save` is false. Generators, hub datasets and files larger than
    `MAX_STORED_FILE` are streamed. With `reload_traces`, traces are read from the store again; a trace that is missing there is an error. For
    `outputs_are_references` see `datasets.read`. Raises `NotFound` or `BadRow`.
    """
    if isinstance(dataset, Filter):
        return _make_trace_source(default_name, lambda: datasets.read_traces(store, filter=dataset, limit=10**9))
    if _is_trace_list(dataset, if_empty=reload_traces):
        traces = [trace for trace in dataset if not _is_judgement(trace)]
        return _make_trace_source(default_name, lambda: _load_traces(traces, store, reload_traces), len(traces))
    if datasets.is_hub_id(dataset):
        name = dataset.partition("://")[2]
        return _make_stream_source(name, datasets.open_hub_dataset(dataset), splits, outputs_are_references)
    if isinstance(dataset, str) and not datasets.is_file(dataset):
        name, separator, version = dataset.rpartition("@")
        if separator and version.isdigit():
            return _make_stored_source(store, name, int(version), splits)
        return _make_stored_source(store, dataset, None, splits)
    if datasets.is_file(dataset) and Path(dataset).exists() and Path(dataset).stat().st_size > MAX_STORED_FILE:
        return _make_stream_source(Path(dataset).stem, dataset, splits, outputs_are_references)
    if isinstance(dataset, Iterator) or (isinstance(dataset, Iterable) and not hasattr(dataset, "__len__")):
        return _make_stream_source(default_name, dataset, splits, outputs_are_references)
    examples = datasets.read(
        dataset,
        split=splits if datasets.has_splits(dataset) else None,
        outputs_are_references=outputs_are_references,
    )
    if datasets.is_file(dataset):
        name = Path(dataset).stem
    else:  # the name is derived from the example ids, so that the same examples get the same name
        digest = hashlib.sha256("".join(example.id for example in examples).encode())
        name = f"examples-{digest.hexdigest()[:8]}"
    if not save:
        return _make_list_source(Dataset(name=name, version=0), examples, splits)
    return _make_list_source(*datasets.store_examples(store, name, examples, replace=True), splits)


def iterate_async_rows(rows: AsyncIterable[Any], wait: AwaitFunction) -> Iterator[Any]:
    """Yield the rows of an async generator to a thread. The thread calls `wait`, which runs each fetch on the event
    loop.
    """
    iterator = aiter(rows)

    async def fetch() -> Any:
        return await anext(iterator, _END)

    while (row := wait(fetch())) is not _END:
        yield row


def plan_runs(
    source: ExampleSource,
    *,
    repetitions: int = 1,
    limit: int | None = None,
    seed: int | None = None,
    only: Sequence[str] | None = None,
) -> tuple[Iterator[PlannedRun], int | None]:
    """Return the planned runs in order, and their number if it is known.

    `limit` takes the first examples, or with a seed a random sample in the dataset's order. `only` keeps the
    examples whose id is listed, or begins with a listed prefix of at least 6 characters. Raises `NotFound` for
    ids that no example has.
    """
    selected = _select_examples(source, limit, seed)
    if only is not None:
        named = _select_by_id(selected, only)
        return _iterate_planned_runs(named, repetitions), len(named) * repetitions
    count = source.count if limit is None or source.count is None else min(limit, source.count)
    return _iterate_planned_runs(selected, repetitions), None if count is None else count * repetitions


def _iterate_planned_runs(selected: Iterable[tuple[Example, Trace | None]], repetitions: int) -> Iterator[PlannedRun]:
    for position, (example, trace) in enumerate(selected):
        for repetition in range(repetitions):
            yield PlannedRun(position * repetitions + repetition, example, repetition, trace)


def _select_by_id(
    selected: Iterable[tuple[Example, Trace | None]], only: Sequence[str]
) -> list[tuple[Example, Trace | None]]:
    matches: dict[str, list[tuple[Example, Trace | None]]] = {id: [] for id in only}
    for pair in selected:
        for id in matches:
            if pair[0].id == id or (len(id) >= MIN_ID_PREFIX and pair[0].id.startswith(id)):
                matches[id].append(pair)
    if missing := [id for id, pairs in matches.items() if not pairs]:
        raise NotFound(f"no example has the id {missing[0]!r}, or an id that begins with it (only=…)")
    unique = {pair[0].id: pair for pairs in matches.values() for pair in pairs}
    return list(unique.values())


def _select_examples(
    source: ExampleSource, limit: int | None, seed: int | None
) -> Iterator[tuple[Example, Trace | None]]:
    if limit is None or (source.count is not None and limit >= source.count):
        yield from source.examples()
        return
    if seed is None or source.count is None:
        positions = set(range(limit))
    else:
        shuffled = random.Random(seed).sample(range(source.count), source.count)
        positions = set(shuffled[:limit])  # with the same seed, the sample of a larger limit contains this one
    for position, pair in enumerate(source.examples()):
        if position in positions:
            positions.remove(position)
            yield pair
        if not positions:
            return


def _make_stored_source(store: Store, name: str, version: int | None, splits: Sequence[str] | None) -> ExampleSource:
    dataset: Dataset = store.dataset(name, version)
    count = (
        dataset.example_count if splits is None else sum(1 for _ in _iterate_stored_examples(store, dataset, splits))
    )
    if not count:
        where = f"split {' or '.join(map(repr, splits))} of dataset {name!r}" if splits else f"dataset {name!r}"
        raise NotFound(f"{where} (version {dataset.version}) has no examples")

    def read() -> Iterator[tuple[Example, Trace | None]]:
        return _iterate_stored_examples(store, dataset, splits)

    examples = _remember(read()) if count <= MAX_REMEMBERED else read
    return ExampleSource(name, dataset.version, dataset.kind, count, examples)


def _remember(pairs: Iterator[tuple[Example, Trace | None]]) -> Callable[[], Iterator[tuple[Example, Trace | None]]]:
    """Return a function that iterates over all pairs each time. Each pair is read once, when it is first needed."""
    read: list[tuple[Example, Trace | None]] = []

    def iterate() -> Iterator[tuple[Example, Trace | None]]:
        position = 0
        while True:
            if position == len(read):
                pair = next(pairs, None)
                if pair is None:
                    return
                read.append(pair)
            yield read[position]
            position += 1

    return iterate


def _make_list_source(dataset: Dataset, examples: Sequence[Example], splits: Sequence[str] | None) -> ExampleSource:
    """Return the source of a dataset from its examples in memory, without reading them from the store."""
    selected = [example for example in examples if datasets.in_split(example, splits)]

    def pairs() -> Iterator[tuple[Example, Trace | None]]:
        return ((example, None) for example in selected)

    return ExampleSource(dataset.name, dataset.version, dataset.kind, len(selected), pairs, in_memory=selected)


def _iterate_stored_examples(
    store: Store, dataset: Dataset, splits: Sequence[str] | None
) -> Iterator[tuple[Example, Trace | None]]:
    """Yield stored examples in the dataset's order.

    The store filters by one split; several splits are filtered here.
    """
    split = splits[0] if splits is not None and len(splits) == 1 else None
    stored = datasets.stored_examples(store, dataset.name, dataset.version, split=split, page=SOURCE_PAGE)
    return ((example, None) for example in stored if split is not None or datasets.in_split(example, splits))


def _make_stream_source(
    name: str, given: Any, splits: Sequence[str] | None, outputs_are_references: bool
) -> ExampleSource:
    def examples() -> Iterator[tuple[Example, Trace | None]]:
        chosen = splits if datasets.has_splits(given) else None
        for example in datasets.iterate(given, split=chosen, outputs_are_references=outputs_are_references):
            if datasets.in_split(example, splits):
                yield example, None

    return ExampleSource(name, None, "kv", None, examples, is_unsaved=True)


def _make_trace_source(name: str, traces: Callable[[], Iterable[Trace]], count: int | None = None) -> ExampleSource:
    def examples() -> Iterator[tuple[Example, Trace | None]]:
        return ((datasets.make_trace_example(trace), trace) for trace in traces() if not _is_judgement(trace))

    return ExampleSource(name, None, "kv", count, examples, has_traces=True)


def _is_judgement(trace: Trace | TraceSummary) -> bool:
    """Return whether a trace was recorded by an evaluator (see `Filter`). Such traces are never evaluated
    themselves.
    """
    root = trace.root if isinstance(trace, Trace) else trace
    return root.kind == EVALUATOR_KIND and root.experiment_id is None


def _load_traces(traces: Sequence[Trace | TraceSummary], store: Store, reload: bool) -> Iterator[Trace]:
    """Yield the traces, read from the store if only their summary is given. With `reload`, read all of them."""
    for start in range(0, len(traces), SOURCE_PAGE):
        page = traces[start : start + SOURCE_PAGE]
        ids = [entry.trace_id for entry in page if reload or isinstance(entry, TraceSummary)]
        stored = {trace.trace_id: trace for trace in store.many(ids)}
        for entry in page:
            trace = stored.get(entry.trace_id, None if reload else entry)
            if isinstance(trace, Trace):
                yield trace
            elif reload:
                raise NotFound(f"trace {entry.trace_id} is not in the store, so no feedback can be attached to it")


def _is_trace_list(dataset: Any, *, if_empty: bool) -> bool:
    """Return whether a dataset argument is a list of traces; `if_empty` is the result for an empty list."""
    if isinstance(dataset, str | Path | Iterator) or not isinstance(dataset, Iterable) or hasattr(dataset, "columns"):
        return False
    for first in dataset:
        return isinstance(first, Trace | TraceSummary)
    return if_empty


class ExampleLookup:
    """Lookup of examples by id, for callers that ask for them in roughly the dataset's order.

    Examples are read on demand. `forget` drops earlier examples from memory.
    """

    def __init__(self, read: Callable[[], Iterator[Example]]) -> None:
        self._restart = read
        self._examples = read()
        self._read: dict[str, Example] = {}  # examples by id, in the dataset's order
        self._forgets = True

    def get(self, id: str) -> Example | None:
        """Return the example, or None if no example has this id."""
        example = self._find(id)
        # `forget` may have dropped the example: read the examples again, and keep everything from now on
        if example is None and self._forgets:
            self._forgets = False
            self._examples = self._restart()
            example = self._find(id)
        return example

    def forget(self, before: str) -> None:
        """Drop from memory all examples that precede the example with the id `before`."""
        if self._forgets and before in self._read:
            while (first := next(iter(self._read))) != before:
                del self._read[first]

    def _find(self, id: str) -> Example | None:
        while id not in self._read:
            example = next(self._examples, None)
            if example is None:
                return None
            self._read[example.id] = example
        return self._read[id]


def make_example_attributes(example: Example, root: Run, inputs: JSON) -> Mapping[str, JSON]:
    """Return the attributes that store an example in its root run, for examples that no stored dataset contains.

    They hold all fields of the example except given outputs and documents. Inputs are included only if they differ
    from the root run's. The argument `inputs` holds the example's inputs in the form that the tracer exports:
    redacted, truncated, or None.
    """
    elsewhere = ("id", "inputs", "outputs", "documents")
    row = {name: value for name, value in to_row(example).items() if name not in elsewhere}
    return {EXAMPLE_ATTRIBUTE: row if root.inputs == inputs else {**row, "inputs": inputs}}


def attach_example(runs: Sequence[Run], root: Run, example: Example, inputs: JSON) -> tuple[tuple[Run, ...], Run]:
    """Return the runs of a trace and its root, with the example stored in the root's attributes. For `inputs` see
    `make_example_attributes`.
    """
    return add_root_attributes(runs, root, make_example_attributes(example, root, inputs))


def add_root_attributes(runs: Sequence[Run], root: Run, attributes: Mapping[str, JSON]) -> tuple[tuple[Run, ...], Run]:
    """Return the runs of a trace and its root, with more attributes on the root."""
    changed = replace(root, attributes={**root.attributes, **attributes})
    return tuple(changed if run is root else run for run in runs), changed


def read_attached_example(root: Run) -> Example | None:
    """Return the example stored in a root run's attributes, or None."""
    row = root.attributes.get(EXAMPLE_ATTRIBUTE)
    if not isinstance(row, Mapping) or root.example_id is None:
        return None
    return to_example({"inputs": root.inputs, **row, "id": root.example_id})
