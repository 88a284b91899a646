"""File importer: idempotent import of OTLP and JSON Lines in batches.

Importing a file twice changes nothing. Lines or items that cannot be imported are counted and reported; the others
are imported. Each batch is durable once it is written. After a crash, import the whole file again.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, BinaryIO, TypeVar

import msgspec

from spanwise.collector import record_encoding
from spanwise.collector.dialects import Amendment
from spanwise.collector.errors import Closed, Refused, SpanwiseError, Unavailable
from spanwise.collector.former_names import present_feedback, present_run
from spanwise.collector.import_export import otlp_json
from spanwise.collector.ingest.request_decoder import decode
from spanwise.collector.records import Dataset, Example, Experiment, Feedback, QueueItem, Retention, Rule, Run
from spanwise.collector.stores import Store

T = TypeVar("T")
MAX_LINE_BYTES = 512 * 1024 * 1024  # maximum length of a line
BATCH_ITEMS = 500  # items per write
BATCH_BYTES = 8_000_000  # a batch is written when its lines exceed about this size
MAX_REASONS = 20  # maximum number of reasons in the result
MAX_ATTEMPTS = 60  # maximum attempts to write while the store is unavailable


@dataclass(slots=True)
class ImportResult:
    """Result of an import: number of imported items and of intentionally skipped items by kind, and number of invalid
    items.
    """

    kept: Counter[str] = field(default_factory=Counter)
    left_out: Counter[str] = field(default_factory=Counter)
    bad: int = 0
    reasons: list[str] = field(default_factory=list)  # the first `MAX_REASONS`

    def refuse(self, line: int, reason: str, count: int = 1) -> None:
        """Count invalid items of a line."""
        self.bad += count
        if len(self.reasons) < MAX_REASONS:
            self.reasons.append(f"line {line}: {reason[:500]}")


class DatasetVersion(msgspec.Struct):
    """Version of a dataset, as changes from the previous one."""

    dataset: Dataset
    examples: list[Example] = []
    removed: list[str] = []


RECORD_TYPES: Mapping[str, Any] = {
    "run": Run,
    "feedback": Feedback,
    "dataset": DatasetVersion,
    "experiment": Experiment,
    "rule": Rule,
    "retention": Retention,
    "queue item": QueueItem,
}
SIGNAL_FIELDS = frozenset(("resourceSpans", "resourceLogs", "resourceMetrics"))
SKIPPED_RECORDS = frozenset(("decision",))  # a decision refers to leases and the change feed of its original store


def import_file(store: Store, file: BinaryIO) -> ImportResult:
    """Import a file. Raises `Unavailable` if the store stays unavailable."""
    return _FileImporter(store).run(file)


class _FileImporter:
    """Import of one file, with the runs and the feedback of the batch that is not yet written."""

    def __init__(self, store: Store) -> None:
        self._store, self._result = store, ImportResult()
        self._runs: list[tuple[int, Run]] = []  # with their line numbers
        self._feedback: list[tuple[int, Feedback]] = []
        self._batch_bytes = 0

    def run(self, file: BinaryIO) -> ImportResult:
        for number, line in enumerate(_read_lines(file), 1):
            if line is None:
                self._result.refuse(number, f"longer than {MAX_LINE_BYTES:,} bytes")
            elif line.strip():
                self._import_line(number, line)
                self._batch_bytes += len(line)
            if max(len(self._runs), len(self._feedback)) >= BATCH_ITEMS or self._batch_bytes > BATCH_BYTES:
                self._flush()
        self._flush()
        return self._result

    def _import_line(self, number: int, line: bytes) -> None:
        try:
            fields = record_encoding.decode(dict[str, msgspec.Raw], line)
            if "record" in fields:
                kind = record_encoding.decode(str, bytes(fields["record"]))
                self._import_record(number, kind, bytes(fields.get("value", msgspec.Raw(b""))))
                return
            if fields.keys().isdisjoint(SIGNAL_FIELDS):
                self._result.refuse(number, "neither an OTLP request nor a Spanwise record")
            if "resourceSpans" in fields:
                self._import_spans(number, line)
            if "resourceLogs" in fields:
                self._import_logs(number, line)
            if "resourceMetrics" in fields:
                self._result.left_out["metrics"] += 1
        except (Unavailable, Closed):
            raise
        except (SpanwiseError, ValueError, TypeError, RecursionError) as error:
            self._result.refuse(number, str(error))

    def _import_record(self, number: int, kind: str, value: bytes) -> None:
        if kind in SKIPPED_RECORDS:
            self._result.left_out[kind] += 1
            return
        if kind not in RECORD_TYPES:
            raise Refused(f"unknown record {kind!r}; expected one of: {', '.join(RECORD_TYPES)}")
        record = record_encoding.decode(RECORD_TYPES[kind], value)
        if kind == "run":
            self._runs.append((number, present_run(record)))
        elif kind == "feedback":
            self._feedback.append((number, present_feedback(record)))
        else:
            _write_with_retries(lambda: _RECORD_WRITERS[kind](self._store, record))
            self._result.kept[kind] += 1

    def _import_spans(self, number: int, line: bytes) -> None:
        decoded = decode(otlp_json.SPAN_CODEC, line, otlp_json.FILE_LIMITS)
        self._runs += ((number, run) for run in decoded.items)
        if decoded.refused:
            self._result.refuse(number, decoded.reason, decoded.refused_count)

    def _import_logs(self, number: int, line: bytes) -> None:
        decoded = decode(otlp_json.EVENT_CODEC, line, otlp_json.FILE_LIMITS)
        for item in decoded.items:
            if isinstance(item, Feedback):
                self._feedback.append((number, item))
            elif isinstance(item, Amendment):
                self._flush()  # the amended run may be in the batch that is not yet written
                _write_with_retries(partial(self._store.add_amendments, [item]))
                self._result.kept["amendment"] += 1
            else:
                self._result.left_out["log record"] += 1
        if decoded.ignored:
            self._result.left_out["log record"] += decoded.ignored
        if decoded.refused:
            self._result.refuse(number, decoded.reason, decoded.refused_count)

    def _flush(self) -> None:
        runs, feedback, self._runs, self._feedback, self._batch_bytes = self._runs, self._feedback, [], [], 0
        self._write("run", runs, self._store.append)
        self._write("feedback", feedback, self._store.add_feedback)

    def _write(self, kind: str, items: Sequence[tuple[int, T]], write: Callable[[list[T]], object]) -> None:
        """Write items. If the store refuses them, split them repeatedly to find the invalid ones."""
        if not items:
            return
        try:
            _write_with_retries(lambda: write([item for _, item in items]))
            self._result.kept[kind] += len(items)
        except Closed:
            raise
        except (Refused, ValueError, TypeError, OverflowError) as error:
            if len(items) == 1:
                self._result.refuse(items[0][0], str(error))
                return
            half = len(items) // 2
            self._write(kind, items[:half], write)
            self._write(kind, items[half:], write)


def _write_with_retries(write: Callable[[], object]) -> None:
    """Call `write` again while the store is unavailable, up to `MAX_ATTEMPTS` times."""
    for remaining in reversed(range(MAX_ATTEMPTS)):
        try:
            write()
            return
        except Unavailable as error:
            if not remaining:
                raise
            time.sleep(min(error.retry_after, 5.0))


def _read_lines(file: BinaryIO) -> Iterator[bytes | None]:
    """Yield lines; None for one that is too long."""
    while line := file.readline(MAX_LINE_BYTES + 1):
        if len(line) <= MAX_LINE_BYTES:
            yield line
            continue
        while line and not line.endswith(b"\n"):
            line = file.readline(MAX_LINE_BYTES)
        yield None


def _save_version(store: Store, version: DatasetVersion) -> None:
    """Save a version of a dataset, unless the store already has this version or a later one."""
    dataset = version.dataset
    stored = next((one.version for one in store.datasets() if one.name == dataset.name), 0)
    if stored >= dataset.version:
        return
    options = {
        "kind": dataset.kind,
        "schema": dataset.schema,
        "description": dataset.description,
        "metadata": dataset.metadata,
    }
    store.save_examples(dataset.name, version.examples, remove=version.removed, **options)  # type: ignore[arg-type]


_RECORD_WRITERS: Mapping[str, Callable[[Store, Any], object]] = {
    "dataset": _save_version,
    "experiment": lambda store, experiment: store.save_experiment(experiment),
    "rule": lambda store, rule: store.save_rule(rule),
    "retention": lambda store, rule: store.set_retention(rule),
    "queue item": lambda store, item: store.enqueue([item]),
}
