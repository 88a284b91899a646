"""Import of datasets and finished experiments in batches, from large files in bounded memory.

Ids are derived from the ids in the source, so that importing twice changes nothing. An experiment has the status
`running` until all its runs are stored, and `interrupted` if the import ended before that.
"""

from __future__ import annotations

import codecs
import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import BinaryIO, Literal

from spanwise.collector.errors import NotFound
from spanwise.collector.filters import Filter
from spanwise.collector.records import JSON, Example, Experiment, Feedback, Run, Source, canonical_json
from spanwise.collector.stores import Store
from spanwise.evaluators.interface import Metric

# Streaming reader of large JSON and JSON Lines files, in bounded memory.
#
# Python's decoder needs a complete document. The reader here decodes one line, or one element of a list, at a time.
# Only values longer than `MAX_VALUE_CHARACTERS` are refused. NaN and infinities, which JSON does not have but Python
# writes, are read as null. Integers beyond 64 bits, which a store cannot hold, are read as texts.

CHUNK_CHARACTERS = 1 << 20
MAX_VALUE_CHARACTERS = 64 << 20
LINE_FORMATS = (".jsonl", ".ndjson")
_WHITE_SPACE = " \t\r\n"


_DECODER = json.JSONDecoder(
    parse_constant=lambda name: None,
    parse_int=lambda text: int(text) if len(text) < 19 or (len(text) < 21 and -(2**63) <= int(text) < 2**64) else text,
)


def decode_json(data: bytes, where: str) -> JSON:
    """Return one JSON value. Raises `ValueError` in one line, with `where` as the place."""
    try:
        return _DECODER.decode(data.decode("utf-8-sig"))
    except json.JSONDecodeError as error:
        raise ValueError(f"{where} is not JSON or is truncated: {error.msg} at character {error.pos + 1}") from None
    except RecursionError:
        raise ValueError(f"{where} is nested too deeply") from None
    except UnicodeDecodeError as error:
        raise ValueError(f"{where} is not UTF-8 text: {error.reason} at byte {error.start + 1}") from None


def iterate_file(path: Path, refuse: Callable[[str], None]) -> Iterator[JSON]:
    """Yield the objects of a file: the lines of JSON Lines, the elements of a list, the elements of `data` in a page of
    a list endpoint, or the one object of a JSON file.

    Lines that are not JSON are passed to `refuse` as a reason, and the others are read. Raises `ValueError` for any
    other file that is not JSON or is truncated, and `OSError`.
    """
    with path.open("rb") as file:
        if path.suffix.lower() in LINE_FORMATS:
            yield from _iterate_lines(file, path.name, refuse)
            return
        single: dict[str, JSON] = {}
        for key, value, is_element in iterate_members(file, path.name):
            if is_element and key in ("", "data"):
                yield value
            elif is_element:
                single.setdefault(key, []).append(value)
            else:
                single[key] = value
        if single and single.get("object") != "list":
            yield single


def _iterate_lines(file: BinaryIO, where: str, refuse: Callable[[str], None]) -> Iterator[JSON]:
    number = 0
    while line := file.readline(MAX_VALUE_CHARACTERS + 1):
        number += 1
        if len(line) > MAX_VALUE_CHARACTERS:
            refuse(f"line {number} of {where} is longer than {MAX_VALUE_CHARACTERS:,} bytes")
            while line and not line.endswith(b"\n"):
                line = file.readline(CHUNK_CHARACTERS)
        elif line.strip():
            try:
                yield decode_json(line, f"line {number} of {where}")
            except ValueError as error:
                refuse(str(error))


def iterate_members(file: BinaryIO, where: str) -> Iterator[tuple[str, JSON, bool]]:
    """Yield the members of a JSON object as (key, value, False). The elements of a member that is a list are yielded one
    by one, as (key, element, True). The elements of a top-level list have the key "".

    Raises `ValueError` in one line if the text is not JSON, is truncated, or has a value that is too long.
    """
    text = _JSONText(file, where)
    first = text.peek()
    if first == "[":
        yield from (("", element, True) for element in text.elements())
    elif first == "{":
        text.skip("{")
        while text.peek() != "}":
            key = text.value()
            if not isinstance(key, str):
                raise ValueError(f"{where} is not JSON: a key must be a text, got {key!r:.100}")
            text.skip(":")
            if text.peek() == "[":
                for element in text.elements():
                    yield key, element, True
            else:
                yield key, text.value(), False
            if text.peek() == ",":
                text.skip(",")
        text.skip("}")
    else:
        raise ValueError(f"{where} must be a JSON object or list, got {first!r}")
    if text.peek():
        raise ValueError(f"{where} has more than one JSON value; if it is JSON Lines, name it .jsonl")


class _JSONText:
    """Text of a file that is read forward, with the part in memory that is not yet decoded."""

    def __init__(self, file: BinaryIO, where: str) -> None:
        self._file = file
        self._decoder = codecs.getincrementaldecoder("utf-8-sig")()
        self._where = where
        self._text, self._position, self._is_complete = "", 0, False

    def peek(self) -> str:
        """Return the next character that is no white space, without consuming it; "" at the end."""
        while True:
            while self._position < len(self._text) and self._text[self._position] in _WHITE_SPACE:
                self._position += 1
            if self._position < len(self._text) or self._is_complete:
                return self._text[self._position : self._position + 1]
            self._read(CHUNK_CHARACTERS)

    def skip(self, expected: str) -> None:
        """Consume the next character. Raises `ValueError` for another one."""
        found = self.peek()
        if found != expected:
            raise ValueError(f"{self._where} is not JSON or is truncated: expected {expected!r}, got {found!r}")
        self._position += 1

    def elements(self) -> Iterator[JSON]:
        """Consume a list, and yield its elements."""
        self.skip("[")
        while self.peek() != "]":
            yield self.value()
            if self.peek() == ",":
                self.skip(",")
        self.skip("]")

    def value(self) -> JSON:
        """Consume the next value. The text in memory is doubled until it contains the complete value."""
        self.peek()
        while True:
            failure = "it is incomplete"
            try:
                value, end = _DECODER.raw_decode(self._text, self._position)
                if end < len(self._text) or self._is_complete:  # else a number may continue
                    self._position = end
                    return value
            except json.JSONDecodeError as error:
                failure = error.msg
            except RecursionError:
                raise ValueError(f"{self._where} is nested too deeply") from None
            pending = len(self._text) - self._position
            if self._is_complete:
                raise ValueError(f"{self._where} is not JSON or is truncated: {failure}")
            if pending > MAX_VALUE_CHARACTERS:
                raise ValueError(
                    f"{self._where} is not JSON, or has a value longer than {MAX_VALUE_CHARACTERS:,} characters: {failure}"
                )
            self._read(max(CHUNK_CHARACTERS, pending))

    def _read(self, size: int) -> None:
        data = self._file.read(size)
        self._is_complete = not data
        try:
            more = self._decoder.decode(data, final=self._is_complete)
        except UnicodeDecodeError as error:
            raise ValueError(f"{self._where} is not UTF-8 text: {error.reason}") from None
        self._text, self._position = self._text[self._position :] + more, 0


# Import of datasets and finished experiments in batches, with a report of what was left out.

MAX_REASONS = 20
BATCH_RUNS = 500
BATCH_EXAMPLES = 5_000
BATCH_BYTES = 32_000_000  # a batch is written when its values exceed about this size


@dataclass(slots=True)
class ImportReport:
    """Result of an import: numbers of imported and of left-out items by kind, and reasons why items were left out.

    `dataset` is the name of the dataset with its version, such as "capitals@1". `experiments` are ids.
    """

    imported: Counter[str] = field(default_factory=Counter)
    left_out: Counter[str] = field(default_factory=Counter)
    reasons: list[str] = field(default_factory=list)  # the first `MAX_REASONS`
    notes: list[str] = field(default_factory=list)
    dataset: str | None = None
    experiments: list[str] = field(default_factory=list)

    def leave_out(self, kind: str, reason: str, count: int = 1) -> None:
        """Count items that are not imported."""
        self.left_out[kind] += count
        if len(self.reasons) < MAX_REASONS:
            self.reasons.append(" ".join(reason.split())[:500])

    def to_dict(self) -> dict[str, JSON]:
        """Return the report as JSON."""
        return {
            "imported": dict(self.imported),
            "left_out": dict(self.left_out),
            "reasons": self.reasons,
            "notes": self.notes,
            "dataset": self.dataset,
            "experiments": self.experiments,
        }

    def __str__(self) -> str:
        counts = ", ".join(f"{count} {kind}" for kind, count in self.imported.items() if count) or "nothing"
        lines = [f"imported {counts}"]
        if self.left_out:
            omitted = ", ".join(f"{count} {kind}" for kind, count in self.left_out.items())
            lines.append(f"left out {omitted}")
        further = sum(self.left_out.values()) - len(self.reasons)
        lines += [f"- {reason}" for reason in self.reasons]
        if further > 0 and len(self.reasons) == MAX_REASONS:
            lines.append(f"- and {further} more")
        return "\n".join([*lines, *self.notes])


def derive_id(*parts: object, digits: int = 32) -> str:
    """Return hex digits that are derived from ids of the source."""
    return hashlib.sha256(repr(parts).encode("utf-8", "surrogatepass")).hexdigest()[:digits]


def describe_key(metric: Metric, version: str, source: Source = "code") -> Mapping[str, JSON]:
    """Return the description of an evaluator that ran in another product, as experiments record it."""
    return {
        "key": metric.key,
        "version": version,
        "source": source,
        "summary": False,
        "metrics": [metric.to_dict()],
        "origin": {},
        "code": {},
        "standards": [],
    }


def save_dataset(
    store: Store,
    name: str,
    examples: Iterable[Example],
    report: ImportReport,
    *,
    description: str | None = None,
    metadata: Mapping[str, JSON] | None = None,
) -> int | None:
    """Add examples with given ids to a dataset, in batches, and return its version. Return None without examples.

    Examples with the same id are saved once. An example that people have changed since an earlier import is
    overwritten.
    """
    version, seen = None, set[str]()
    for batch in _split_batches(examples):
        new = [example for example in {example.id: example for example in batch}.values() if example.id not in seen]
        seen.update(example.id for example in new)
        if new:
            version = store.save_examples(name, new, kind="kv", description=description, metadata=metadata).version
    if version is not None:
        report.imported["examples"] += len(seen)
        report.dataset = f"{name}@{version}"
    return version


def _split_batches(examples: Iterable[Example]) -> Iterator[list[Example]]:
    """Yield the examples in lists of up to `BATCH_EXAMPLES` and about `BATCH_BYTES`."""
    batch: list[Example] = []
    size = 0
    for example in examples:
        batch.append(example)
        size += len(canonical_json([example.inputs, example.reference_outputs, example.outputs]))
        if len(batch) == BATCH_EXAMPLES or size > BATCH_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


class ExperimentImport:
    """Import of one experiment: `add` runs with their feedback, inside `with importing.saved():`."""

    def __init__(self, store: Store, record: Experiment, report: ImportReport) -> None:
        self._store, self._report = store, report
        self._record = _merge_stored_record(store, record)
        self._runs: list[Run] = []
        self._feedback: list[Feedback] = []
        self._repetitions = Counter[str]()
        self._bytes = 0  # size of the values in `_runs`
        self._count = self._failed = self._scores = 0
        self._tokens = Counter[str]()
        self._models = set[str]()

    @contextmanager
    def saved(self) -> Iterator[None]:
        """Save the record before and after the block. If the block raises, the experiment is interrupted."""
        status: Literal["running", "finished", "interrupted"] = "interrupted"
        self._report.experiments.append(self._record.id)
        try:
            self._store.save_experiment(replace(self._record, status="running", ended_ns=None))
            yield
            self._flush()
            status = self._record.status
        finally:
            totals = {
                "runs": self._count,
                "failed": self._failed,
                "models": sorted(self._models),
                **self._tokens,
            }
            metadata = {**self._record.metadata, "totals": totals}
            record = replace(self._record, status=status, metadata=metadata, example_count=self._count)
            self._store.save_experiment(record)
        stored = self._store.aggregate(Filter(experiments=(self._record.id,)), group_by="experiment", newest="all")
        missing = self._count - sum(bucket.traces for bucket in stored)
        if missing > 0:  # deletions are remembered for eight days
            reason = (
                f"experiment {self._record.name!r}: {missing} runs were deleted from this store in the last eight days"
            )
            self._report.leave_out("runs", reason, missing)
        self._report.imported["experiments"] += 1
        self._report.imported["runs"] += self._count - max(0, missing)
        self._report.imported["scores"] += self._scores

    def next_repetition(self, example_id: str) -> int:
        """Return the number of earlier runs of an example."""
        self._repetitions[example_id] += 1
        return self._repetitions[example_id] - 1

    def add(self, runs: Sequence[Run], feedback: Sequence[Feedback]) -> None:
        """Add the runs of one trace, root first, and the feedback on it."""
        self._runs += runs
        self._feedback += feedback
        self._count += 1
        self._failed += runs[0].status == "error"
        self._scores += len(feedback)
        for run in runs:
            self._bytes += len(canonical_json([run.inputs, run.outputs]))
            if run.model:
                self._models.add(run.model)
            if run.usage is not None:
                self._tokens["input_tokens"] += run.usage.input_tokens
                self._tokens["output_tokens"] += run.usage.output_tokens
        if len(self._runs) >= BATCH_RUNS or self._bytes > BATCH_BYTES:
            self._flush()

    def _flush(self) -> None:
        if self._runs:
            self._store.append(self._runs, self._feedback)
        self._runs, self._feedback, self._bytes = [], [], 0


def _merge_stored_record(store: Store, record: Experiment) -> Experiment:
    """Return the record with what was changed since an earlier import: its name, and evaluators that were added."""
    try:
        earlier = store.experiment(record.id)
    except NotFound:
        return record
    keys = {evaluator["key"] for evaluator in record.evaluators}
    added = tuple(evaluator for evaluator in earlier.evaluators if evaluator["key"] not in keys)
    metadata = {**earlier.metadata, **record.metadata}
    return replace(record, name=earlier.name, evaluators=(*record.evaluators, *added), metadata=metadata)
