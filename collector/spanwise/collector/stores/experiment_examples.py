"""Examples of a stored experiment: those of its dataset version, or those that its traces hold."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from spanwise.collector.errors import Forbidden, NotFound
from spanwise.collector.records import EXAMPLE_ATTRIBUTE, Example, Experiment, RunScores
from spanwise.collector.stores.control_store import Store

_EXAMPLE_PAGE = 1_000
_TRACE_PAGE = 200


def iterate_examples(store: Store, record: Experiment) -> Iterator[Example]:
    """Yield the examples of an experiment's dataset version, page by page and in their order.

    Yield nothing if the version is unknown or deleted, or if the reader may not see it.
    """
    if record.dataset_version is None:
        return
    offset = 0
    try:
        while page := store.examples(record.dataset, record.dataset_version, limit=_EXAMPLE_PAGE, offset=offset):
            yield from page
            offset += len(page)
    except (NotFound, Forbidden):  # experiments outlive their dataset: the user may have deleted it
        return


def read_run_examples(store: Store, record: Experiment, runs: Sequence[RunScores]) -> Iterator[Example]:
    """Yield the examples of an experiment's runs. Those of a dataset that was not stored are read from the traces.

    They have only id, inputs, base and categories.
    """
    yield from iterate_examples(store, record)
    trace_ids = [run.trace_id for run in runs if run.repetition == 0] if record.dataset_version is None else []
    for start in range(0, len(trace_ids), _TRACE_PAGE):
        for trace in store.many(trace_ids[start : start + _TRACE_PAGE]):
            row: Any = trace.root.attributes.get(EXAMPLE_ATTRIBUTE)
            if isinstance(row, Mapping) and trace.root.example_id is not None:
                yield Example(
                    id=trace.root.example_id,
                    inputs=row.get("inputs", trace.root.inputs),
                    base_id=row.get("base_id"),
                    categories=tuple(row.get("categories") or ()),
                )
