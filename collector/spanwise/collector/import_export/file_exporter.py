"""File exporter: all records of a store, or the traces that pass a filter, line by line."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any, TypeVar

from spanwise.collector import record_encoding
from spanwise.collector.errors import Refused
from spanwise.collector.filters import EVALUATOR_KIND, Filter
from spanwise.collector.import_export import otlp_json
from spanwise.collector.operations import MAX_LIST_SIZE
from spanwise.collector.records import Example, Feedback, Run, TraceSummary, iterate_pages
from spanwise.collector.stores import Store

T = TypeVar("T")
FORMATS = ("otlp", "jsonl")
RUNS_PER_LINE, TRACES_PER_BATCH = 500, 100  # spans per line, unless a single trace has more; traces per read
UNLIMITED = 1_000_000


def export_lines(store: Store, format: str, filter: Filter | None = None) -> Iterator[tuple[bytes, Counter[str]]]:
    """Yield lines without line ends, each with its number of records by kind.

    - The format `otlp` has runs and feedback. Records that it cannot represent count as "left out".
    - The format `jsonl` has every record: also datasets with their versions, experiments, rules in force, retention,
      queues and decisions.

    With a filter, the lines hold only the traces that pass and their feedback. Keys, leases and budgets are not
    exported, because they belong to one server.
    """
    if format not in FORMATS:
        raise Refused(f"unknown format {format!r}; expected one of: {', '.join(FORMATS)}")
    if filter == Filter():
        filter = None
    if format == "jsonl":
        records = _runs_and_feedback(store, filter)
        if filter is None:
            decisions = iterate_pages(partial(store.decisions, limit=RUNS_PER_LINE))
            records = chain(_control_records(store), records, (("decision", decision) for decision in decisions))
        for kind, record in records:
            yield record_encoding.encode({"record": kind, "value": record}), Counter({kind: 1})
        return
    for runs in _runs(store, filter):
        for batch in _split_batches(iter(runs), RUNS_PER_LINE):
            line, inexpressible = otlp_json.encode_runs(batch)
            yield line, Counter({"run": len(batch) - len(inexpressible), "left out": len(inexpressible)})
    for feedback in _split_batches(_feedback(store, filter), RUNS_PER_LINE):
        yield otlp_json.encode_feedback(feedback), Counter(feedback=len(feedback))


def write_file(lines: Iterable[tuple[bytes, Counter[str]]], path: Path) -> Counter[str]:
    """Write lines to a new file and return the number of records by kind.

    The file has a temporary name until it is complete. Raises `Refused` if `path` exists.
    """
    if path.exists():
        raise Refused(f"file {str(path)!r} already exists: choose another name")
    temporary = path.with_name(path.name + ".part")
    counts = Counter[str]()
    try:
        with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600), "wb") as file:
            for line, line_counts in lines:
                file.write(line + b"\n")
                counts += line_counts
            file.flush()
            os.fsync(file.fileno())
        temporary.rename(path)
    finally:
        temporary.unlink(missing_ok=True)
    return counts


def _control_records(store: Store) -> Iterator[tuple[str, Any]]:
    for dataset in store.datasets():
        # examples of the previous version; each version is written as changes from it, oldest first
        before: dict[str, Example] = {}
        for version in reversed(store.versions(dataset.name)):
            now = {example.id: example for example in store.examples(dataset.name, version.version)}
            changed = [example for id, example in now.items() if before.get(id) != example]
            removed = [id for id in before if id not in now]
            yield "dataset", {"dataset": version, "examples": changed, "removed": removed}
            before = now
    yield from (("experiment", experiment) for experiment in _list_all("experiments", store.experiments))
    yield from (("rule", rule) for rule in store.rules())
    yield from (("retention", rule) for rule in store.retention())
    for name in store.queues():
        items = _list_all(f"items in queue {name!r}", partial(store.queue, name, status=None))
        yield from (("queue item", item) for item in items)


def _list_all(what: str, ask: Callable[..., Sequence[Any]]) -> Sequence[Any]:
    """Return the complete result of an operation without pages. Raises `Refused` if the server limits its length."""
    try:
        return ask(limit=UNLIMITED)
    except Refused:
        found = ask(limit=MAX_LIST_SIZE)
    if len(found) == MAX_LIST_SIZE:
        raise Refused(
            f"the server returns at most {MAX_LIST_SIZE:,} {what}: export from its database file with --store"
        )
    return found


def _runs_and_feedback(store: Store, filter: Filter | None) -> Iterator[tuple[str, Any]]:
    for runs in _runs(store, filter):
        yield from (("run", run) for run in runs)
    yield from (("feedback", feedback) for feedback in _feedback(store, filter))


def _runs(store: Store, filter: Filter | None) -> Iterator[list[Run]]:
    """Yield the runs of all traces that pass, never splitting a trace. Without a filter, include evaluators' own
    traces.
    """
    summaries = store.each(filter)
    if filter is None:
        summaries = chain(summaries, store.each(kind=EVALUATOR_KIND))
    for batch in _split_trace_batches(summaries):
        traces = store.many([summary.trace_id for summary in batch])
        if runs := [run for trace in traces for run in trace.runs]:
            yield runs


def _split_trace_batches(summaries: Iterable[TraceSummary]) -> Iterator[list[TraceSummary]]:
    batch: list[TraceSummary] = []
    span_count = 0
    for summary in summaries:
        if batch and (span_count + summary.span_count > RUNS_PER_LINE or len(batch) == TRACES_PER_BATCH):
            yield batch
            batch, span_count = [], 0
        batch.append(summary)
        span_count += summary.span_count
    if batch:
        yield batch


def _feedback(store: Store, filter: Filter | None) -> Iterator[Feedback]:
    yield from iterate_pages(partial(store.feedbacks, filter, limit=RUNS_PER_LINE))


def _split_batches(items: Iterator[T], size: int) -> Iterator[list[T]]:
    while batch := list(islice(items, size)):
        yield batch
