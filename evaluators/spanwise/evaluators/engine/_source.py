"""What `evaluate` is given as a dataset, as examples one after the other, and what is known about it beforehand."""

from __future__ import annotations

import hashlib
import random
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spanwise.collector.errors import NotFound
from spanwise.collector.filters import EVALUATOR, Filter
from spanwise.collector.records import Dataset, Example, Trace, TraceSummary
from spanwise.collector.stores import Store
from spanwise.evaluators import datasets
from spanwise.evaluators.engine._plan import Item
from spanwise.evaluators.protocol import Wait

PAGE = 500
_END = object()
SHORTEST = 6  # characters of an id that may stand for all of it
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
    traces: bool = False  # they are traces that are there already


def source_of(
    given: Any,
    store: Store,
    default_name: str,
    splits: Sequence[str] | None,
    *,
    stored: bool = False,
    keep: bool = True,
    outputs_are_references: bool = False,
) -> Source:
    """Find out what a dataset is: a name in the store (also `name@3`), a file, a DataFrame, a list, traces, a filter.

    What fits into memory is kept in the store as a version of a dataset, so that experiments over it can be compared
    and resumed, unless it is not to `keep` it; generators and very large files are streamed. With `stored` traces are
    read anew from the store, where they have to be. `outputs_are_references`: see `datasets.read`. Raises `NotFound`,
    `BadRow`.
    """
    if isinstance(given, Filter):
        return _traces(default_name, lambda: datasets.stored_traces(store, filter=given, limit=10**9))
    if _are_traces(given, none=stored):
        listed = [member for member in given if not _is_judgement(member)]
        return _traces(default_name, lambda: _whole(listed, store, stored), len(listed))
    if isinstance(given, str) and not datasets.is_file(given):
        return _stored(store, *_named(given), splits)
    if datasets.is_file(given) and Path(given).exists() and Path(given).stat().st_size > LARGEST_KEPT_FILE:
        return _streamed(Path(given).stem, given, splits, outputs_are_references)
    if isinstance(given, Iterator) or (isinstance(given, Iterable) and not hasattr(given, "__len__")):
        return _streamed(default_name, given, splits, outputs_are_references)
    examples = datasets.read(
        given,
        split=splits if datasets.has_splits(given) else None,
        outputs_are_references=outputs_are_references,
    )
    name = Path(given).stem if datasets.is_file(given) else _by_content(examples)
    if not keep:
        return _listed(Dataset(name=name, version=0), examples, splits)
    return _listed(*datasets.keep(store, name, examples, replace=True), splits)


def from_loop(rows: AsyncIterable[Any], wait: Wait) -> Iterator[Any]:
    """What an async generator gives, for the threads that read examples; `wait` lets the loop get the next one."""
    ahead = aiter(rows)
    while (row := wait(_next_of(ahead))) is not _END:
        yield row


async def _next_of(rows: AsyncIterator[Any]) -> Any:
    return await anext(rows, _END)


def items_of(
    source: Source,
    *,
    repetitions: int = 1,
    limit: int | None = None,
    seed: int | None = None,
    only: Sequence[str] | None = None,
) -> tuple[Iterator[Item], int | None]:
    """The runs to do, in order, and how many there are if that is known.

    `limit` takes the first examples, or with a seed a random sample in the dataset's order; `only` those of them whose
    id is listed, or begins like one that is. Raises `NotFound` for ids that no example has.
    """
    chosen = _chosen(source, limit, seed)
    if only is not None:
        named = _named_only(chosen, only)
        return _items(named, repetitions), len(named) * repetitions
    count = source.count if limit is None or source.count is None else min(limit, source.count)
    return _items(chosen, repetitions), None if count is None else count * repetitions


def _items(chosen: Iterable[tuple[Example, Trace | None]], repetitions: int) -> Iterator[Item]:
    for position, (example, trace) in enumerate(chosen):
        for repetition in range(repetitions):
            yield Item(position * repetitions + repetition, example, repetition, trace)


def _named_only(
    chosen: Iterable[tuple[Example, Trace | None]], only: Sequence[str]
) -> list[tuple[Example, Trace | None]]:
    found: dict[str, list[tuple[Example, Trace | None]]] = {id: [] for id in only}
    for pair in chosen:
        for id in found:
            if pair[0].id == id or (len(id) >= SHORTEST and pair[0].id.startswith(id)):
                found[id].append(pair)
    if lacking := [id for id, pairs in found.items() if not pairs]:
        raise NotFound(f"no example has the id {lacking[0]!r}, nor one that begins so (only=…)")
    taken = {pair[0].id: pair for pairs in found.values() for pair in pairs}
    return list(taken.values())


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


def _stored(store: Store, name: str, version: int | None, splits: Sequence[str] | None) -> Source:
    dataset: Dataset = store.dataset(name, version)
    count = dataset.example_count if splits is None else sum(1 for _ in _pages(store, dataset, splits))
    if not count:
        where = f"split {' or '.join(map(repr, splits))} of dataset {name!r}" if splits else f"dataset {name!r}"
        raise NotFound(f"{where} (version {dataset.version}) has no examples")
    return Source(name, dataset.version, dataset.kind, count, lambda: _pages(store, dataset, splits))


def _by_content(examples: Sequence[Example]) -> str:
    """A name for examples that have none: the same for the same examples, so that experiments over them meet."""
    digest = hashlib.sha256("".join(example.id for example in examples).encode())
    return f"examples-{digest.hexdigest()[:8]}"


def _listed(dataset: Dataset, examples: Sequence[Example], splits: Sequence[str] | None) -> Source:
    """A dataset that is in memory already, so that it need not be read back."""
    chosen = [example for example in examples if datasets.in_split(example, splits)]

    def pairs() -> Iterator[tuple[Example, Trace | None]]:
        return ((example, None) for example in chosen)

    return Source(dataset.name, dataset.version, dataset.kind, len(chosen), pairs, listed=chosen)


def _pages(store: Store, dataset: Dataset, splits: Sequence[str] | None) -> Iterator[tuple[Example, Trace | None]]:
    """In the dataset's order. The store knows one split at a time: of several it is asked for all examples."""
    split = splits[0] if splits is not None and len(splits) == 1 else None
    stored = datasets.stored_examples(store, dataset.name, dataset.version, split=split, page=PAGE)
    return ((example, None) for example in stored if split is not None or datasets.in_split(example, splits))


def _streamed(name: str, given: Any, splits: Sequence[str] | None, outputs_are_references: bool) -> Source:
    def examples() -> Iterator[tuple[Example, Trace | None]]:
        for example in datasets.iterate(given, outputs_are_references=outputs_are_references):
            if datasets.in_split(example, splits):
                yield example, None

    return Source(name, None, "kv", None, examples, keep=True)


def _traces(name: str, traces: Callable[[], Iterable[Trace]], count: int | None = None) -> Source:
    def examples() -> Iterator[tuple[Example, Trace | None]]:
        return ((datasets.example_of_trace(trace), trace) for trace in traces() if not _is_judgement(trace))

    return Source(name, None, "kv", count, examples, traces=True)


def _is_judgement(given: Trace | TraceSummary) -> bool:
    """Whether it is an evaluator's own trace (see `Filter`), which nobody evaluates in turn."""
    root = given.root if isinstance(given, Trace) else given
    return root.kind == EVALUATOR and root.experiment_id is None


def _whole(given: Sequence[Trace | TraceSummary], store: Store, all_stored: bool) -> Iterator[Trace]:
    for start in range(0, len(given), PAGE):
        page = given[start : start + PAGE]
        named = [member.trace_id for member in page if all_stored or isinstance(member, TraceSummary)]
        stored = {trace.trace_id: trace for trace in store.many(named)}
        for member in page:
            trace = stored.get(member.trace_id, None if all_stored else member)
            if isinstance(trace, Trace):
                yield trace
            elif all_stored:
                raise NotFound(f"trace {member.trace_id} is not in the store, where feedback could be attached to it")


def _are_traces(given: Any, *, none: bool) -> bool:
    """Whether these are traces; `none` is what is said of an empty list."""
    if isinstance(given, str | Path | Iterator) or not isinstance(given, Iterable) or hasattr(given, "columns"):
        return False
    for first in given:
        return isinstance(first, Trace | TraceSummary)
    return none


def _named(given: str) -> tuple[str, int | None]:
    name, at, version = given.rpartition("@")
    return (name, int(version)) if at and version.isdigit() else (given, None)
