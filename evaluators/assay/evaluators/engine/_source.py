"""What `evaluate` is given as a dataset, as examples one after the other, and what is known about it beforehand."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from assay.collector.errors import NotFound
from assay.collector.filters import Filter
from assay.collector.records import Dataset, Example, Trace, TraceSummary
from assay.collector.stores import Store
from assay.evaluators import datasets
from assay.evaluators.engine._plan import Item

PAGE = 500
LARGEST_KEPT_FILE = 64 * 2**20  # bytes; a larger file is streamed, and not kept as a dataset in the store


@dataclass(frozen=True, slots=True)
class Source:
    """Where examples come from. `count` is None when nobody knows before the end; `examples` starts from the front.

    `listed` holds those that are in memory anyway; `keep` says that nobody else keeps them, so that the runs have to.
    """

    name: str
    version: int | None
    kind: str
    count: int | None
    examples: Callable[[], Iterable[tuple[Example, Trace | None]]]
    listed: Sequence[Example] | None = None
    keep: bool = False


def source_of(given: Any, store: Store, default_name: str, split: str | None) -> Source:
    """Find out what a dataset is: a name in the store (also `name@3`), a file, a DataFrame, a list, traces, a filter.

    What fits into memory is kept in the store as a version of a dataset, so that experiments over it can be compared
    and resumed; generators and very large files are streamed. Raises `NotFound`, `BadRow`.
    """
    if isinstance(given, Filter):
        return _traces(default_name, lambda: datasets.stored_traces(store, filter=given, limit=10**9))
    if _are_traces(given):
        listed = list(given)
        return _traces(default_name, lambda: _whole(listed, store), len(listed))
    if isinstance(given, str) and not datasets.is_file(given):
        return _stored(store, *_named(given), split)
    if datasets.is_file(given) and Path(given).exists() and Path(given).stat().st_size > LARGEST_KEPT_FILE:
        return _streamed(Path(given).stem, given, split)
    if isinstance(given, Iterator):
        return _streamed(default_name, given, split)
    examples = datasets.read(given)
    name = Path(given).stem if datasets.is_file(given) else _by_content(examples)
    return _listed(datasets.save(store, name, examples, replace=True), examples, split)


def items_of(
    source: Source, *, repetitions: int = 1, limit: int | None = None, seed: int | None = None
) -> tuple[Iterator[Item], int | None]:
    """The runs to do, in order, and how many there are if that is known.

    `limit` takes the first examples, or with a seed a random sample in the dataset's order.
    """
    chosen = _chosen(source, limit, seed)
    count = source.count if limit is None or source.count is None else min(limit, source.count)
    return _items(chosen, repetitions), None if count is None else count * repetitions


def _items(chosen: Iterable[tuple[Example, Trace | None]], repetitions: int) -> Iterator[Item]:
    for position, (example, trace) in enumerate(chosen):
        for repetition in range(repetitions):
            yield Item(position * repetitions + repetition, example, repetition, trace)


def _chosen(source: Source, limit: int | None, seed: int | None) -> Iterator[tuple[Example, Trace | None]]:
    if limit is None or (source.count is not None and limit >= source.count):
        yield from source.examples()
        return
    if seed is None or source.count is None:
        wanted = set(range(limit))
    else:
        everything = random.Random(seed).sample(range(source.count), source.count)
        wanted = set(everything[:limit])  # so that a larger limit takes these and more
    for position, pair in enumerate(source.examples()):
        if position in wanted:
            wanted.remove(position)
            yield pair
        if not wanted:
            return


def _stored(store: Store, name: str, version: int | None, split: str | None) -> Source:
    dataset: Dataset = store.dataset(name, version)
    count = dataset.example_count if split is None else sum(1 for _ in _pages(store, dataset, split))
    if not count:
        where = f"split {split!r} of dataset {name!r}" if split else f"dataset {name!r}"
        raise NotFound(f"{where} (version {dataset.version}) has no examples")
    return Source(name, dataset.version, dataset.kind, count, lambda: _pages(store, dataset, split))


def _by_content(examples: Sequence[Example]) -> str:
    """A name for examples that have none: the same for the same examples, so that experiments over them meet."""
    digest = hashlib.sha256("".join(example.id for example in examples).encode())
    return f"examples-{digest.hexdigest()[:8]}"


def _listed(dataset: Dataset, examples: Sequence[Example], split: str | None) -> Source:
    """A dataset that is in memory already, so that it need not be read back."""
    chosen = [example for example in examples if split is None or example.split == split]

    def pairs() -> Iterator[tuple[Example, Trace | None]]:
        return ((example, None) for example in chosen)

    return Source(dataset.name, dataset.version, dataset.kind, len(chosen), pairs, listed=chosen)


def _pages(store: Store, dataset: Dataset, split: str | None) -> Iterator[tuple[Example, Trace | None]]:
    offset = 0
    while page := store.examples(dataset.name, dataset.version, split=split, limit=PAGE, offset=offset):
        yield from ((example, None) for example in page)
        offset += len(page)


def _streamed(name: str, given: Any, split: str | None) -> Source:
    def examples() -> Iterator[tuple[Example, Trace | None]]:
        for example in datasets.iterate(given):
            if split is None or example.split == split:
                yield example, None

    return Source(name, None, "kv", None, examples, keep=True)


def _traces(name: str, traces: Callable[[], Iterable[Trace]], count: int | None = None) -> Source:
    def examples() -> Iterator[tuple[Example, Trace | None]]:
        return ((datasets.example_of_trace(trace), trace) for trace in traces())

    return Source(name, None, "kv", count, examples)


def _whole(given: Sequence[Trace | TraceSummary], store: Store) -> Iterator[Trace]:
    for start in range(0, len(given), PAGE):
        page = given[start : start + PAGE]
        named = [member.trace_id for member in page if isinstance(member, TraceSummary)]
        stored = {trace.trace_id: trace for trace in store.many(named)}
        for member in page:
            trace = member if isinstance(member, Trace) else stored.get(member.trace_id)
            if trace is not None:
                yield trace


def _are_traces(given: Any) -> bool:
    if isinstance(given, str | Path | Iterator) or not isinstance(given, Iterable) or hasattr(given, "columns"):
        return False
    first = next(iter(given), None)
    return isinstance(first, Trace | TraceSummary)


def _named(given: str) -> tuple[str, int | None]:
    name, at, version = given.rpartition("@")
    return (name, int(version)) if at and version.isdigit() else (given, None)
