"""Import of datasets and finished experiments in batches, with a report of what was left out.

Ids are derived from the ids in the source, so that importing twice changes nothing. An experiment has the status
`running` until all its runs are stored, and `interrupted` if the import ended before that.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Literal

from spanwise.collector.errors import NotFound
from spanwise.collector.filters import Filter
from spanwise.collector.records import JSON, Example, Experiment, Feedback, Run, Source, canonical_json
from spanwise.collector.stores import Store
from spanwise.evaluators.interface import Metric

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
