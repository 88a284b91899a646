"""The store on one SQLite file: every read on a connection of its own, every write through the one writer."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

from assay.collector.filters import Filter, combined
from assay.collector.records import (
    JSON,
    Bucket,
    Dataset,
    Decision,
    Example,
    Experiment,
    Feedback,
    Key,
    Lease,
    Page,
    QueueItem,
    Retention,
    Rule,
    Run,
    SessionSummary,
    Target,
    Trace,
    TraceSummary,
)
from assay.collector.stores.sqlite import (
    _aggregate,
    _control,
    _datasets,
    _delete,
    _feedback,
    _lists,
    _maintenance,
    _traces,
    _words,
)
from assay.collector.stores.sqlite._append import Appender, Known
from assay.collector.stores.sqlite._behind import Behind, newest_dictionary
from assay.collector.stores.sqlite._checkpoint import Checkpointer
from assay.collector.stores.sqlite._codec import Batch, encode, facts
from assay.collector.stores.sqlite._lock import Lock
from assay.collector.stores.sqlite._open import explained, open_writable
from assay.collector.stores.sqlite._reader import Reader, Readers
from assay.collector.stores.sqlite._writer import Job, Writer


class SQLiteStore:
    """Implements `assay.collector.stores.Store` on the file at `path`, which it makes if there is none.

    Raises `Refused` when another process (or another store in this one) writes the file, when the file is damaged,
    newer than this Assay, or not Assay's.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = str(path)
        self._closed = threading.Lock()
        self._disturbed: set[int] = set()
        with ExitStack() as opened:  # closes what was opened if the rest cannot be
            self._lock = Lock(self.path)
            opened.callback(self._lock.undo)
            self._db = opened.enter_context(closing(open_writable(self.path)))
            self._readers = opened.enter_context(closing(Readers(self.path)))
            self._own = Reader(self._db)
            with explained(self.path):
                self._appender = Appender(self._db, self._load, self._before_replacing)
                self._appender.adopt(newest_dictionary(self._db))
            opened.pop_all()
        self._writer = Writer(self._db, self._appender.write, self._appender.forget)
        self._behind = Behind(
            self._readers,
            self._own,
            self._writer,
            self._disturbed,
            self._appender.adopt,
            self._prune_by_rules,
            Checkpointer(self.path, self._writer),
        )

    def __repr__(self) -> str:
        return f"SQLiteStore({self.path!r})"

    def __enter__(self) -> SQLiteStore:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def where(self) -> str:
        """The path of the file, as it was given."""
        return self.path

    def announce(self, url: str | None) -> None:
        """Say beside the file where this process can be reached; `connect()` in others reads it there."""
        self._lock.announce(url)

    # runs

    def write(self, batch: Batch) -> Future[None]:
        """Queue what `encode` made; the future resolves once it is durable. May raise `Unavailable`."""
        return self._writer.put(Job(weight=len(batch.facts), batch=batch))

    def append_async(self, runs: Sequence[Run]) -> Future[None]:
        """As `append`, without waiting. Raises `Unavailable` if too much waits."""
        return self.write(encode(runs))

    def append(self, runs: Sequence[Run]) -> None:
        """See `TraceStore.append`."""
        if runs:
            self.append_async(runs).result()

    def _load(self, trace_id: str, key: int) -> Known:
        """A trace as the file has it, read by the writer."""
        known = Known(key)
        for row, run in self._own.rows_in_order(key):
            known.facts[run.span_id] = facts(run)
            known.rows[run.span_id] = row
        return known

    def _before_replacing(self, key: int) -> None:
        _words.remove(self._own, [key])
        self._disturbed.add(key)

    # feedback

    def add_feedback(self, feedback: Sequence[Feedback]) -> None:
        """See `TraceStore.add_feedback`."""
        kept = list(feedback)
        if kept:
            self._writer.call(lambda db: _feedback.write(db, self._appender, kept))

    def feedback(
        self,
        target: str | Target,
        key: str,
        score: float | bool | None = None,
        *,
        label: str | None = None,
        comment: str | None = None,
        author: str | None = None,
        span_id: str | None = None,
    ) -> Feedback:
        """See `TraceStore.feedback`."""
        if isinstance(target, str):
            target = Target(trace_id=target, span_id=span_id)
        kept = Feedback(
            target=target, key=key, score=score, label=label, comment=comment, author=author, source="human"
        )
        self.add_feedback([kept])
        return kept

    def change_feedback(self, changes: Mapping[str, Mapping[str, JSON]]) -> list[Feedback]:
        """See `TraceStore.change_feedback`."""
        return self._writer.call(lambda db: _feedback.change(db, self._appender, changes))

    def delete_feedback(self, ids: Sequence[str]) -> int:
        """See `TraceStore.delete_feedback`."""
        return self._writer.call(lambda db: _feedback.delete(db, ids))

    # queries

    def traces(
        self, filter: Filter | None = None, *, limit: int = 50, cursor: str | None = None, **conditions: object
    ) -> Page[TraceSummary]:
        """See `TraceStore.traces`."""
        wanted = combined(filter, conditions)
        with self._readers.one() as reader:
            return _traces.page(reader, wanted, limit, cursor)

    def trace(self, trace_id: str) -> Trace:
        """See `TraceStore.trace`."""
        with self._readers.one() as reader:
            return _traces.one(reader, trace_id)

    def many(self, trace_ids: Sequence[str]) -> list[Trace]:
        """See `TraceStore.many`."""
        with self._readers.one() as reader:
            return _traces.many(reader, trace_ids)

    def feedbacks(
        self,
        filter: Filter | None = None,
        *,
        key: str | None = None,
        limit: int = 1000,
        cursor: str | None = None,
        target: Target | None = None,
        **conditions: object,
    ) -> Page[Feedback]:
        """See `TraceStore.feedbacks`."""
        wanted = combined(filter, conditions)
        with self._readers.one() as reader:
            return _lists.feedbacks(reader.db, wanted, key, target, limit, cursor)

    def sessions(
        self, filter: Filter | None = None, *, limit: int = 50, cursor: str | None = None, **conditions: object
    ) -> Page[SessionSummary]:
        """See `TraceStore.sessions`."""
        wanted = combined(filter, conditions)
        with self._readers.one() as reader:
            return _lists.sessions(reader.db, wanted, limit, cursor)

    def aggregate(
        self,
        filter: Filter | None = None,
        *,
        bucket_ns: int | None = None,
        group_by: str | None = None,
        **conditions: object,
    ) -> list[Bucket]:
        """See `TraceStore.aggregate`."""
        wanted = combined(filter, conditions)
        with self._readers.one() as reader:
            return _aggregate.buckets(reader.db, wanted, bucket_ns, group_by)

    def values(self, field: str, *, limit: int = 100) -> list[str]:
        """See `TraceStore.values`."""
        with self._readers.one() as reader:
            return _lists.values(reader.db, field, limit)

    def count(self) -> Mapping[str, int]:
        """See `TraceStore.count`."""
        with self._readers.one() as reader:
            return _lists.count(reader.db)

    def delete(self, filter: Filter | None = None, **conditions: object) -> int:
        """See `TraceStore.delete`."""
        wanted, total, tags = combined(filter, conditions), 0, set[str]()
        while True:
            gone = self._writer.call(lambda _: _delete.some(self._own, self._appender, wanted, self._disturbed, tags))
            total += gone
            if gone < _delete.CHUNK:
                break
        if tags:
            self._writer.call(lambda db: _delete.forget_tags(db, self._appender, tags))
        return total

    # looking after the file

    def stats(self) -> dict[str, Any]:
        """Sizes in bytes, counts of rows, and projects with their share of the file."""
        with self._readers.one() as reader:
            return _maintenance.stats(reader.db, self.path)

    def health(self) -> dict[str, float]:
        """Numbers for whoever watches: what waits, how fast it is written, how far the text index is behind."""
        with self._readers.one() as reader:
            waiting, since = reader.db.execute("SELECT count(*), min(since_ns) FROM unindexed").fetchone()
        return {
            "queued_spans": self._writer.depth,
            "commits": self._writer.commits,
            "last_commit_seconds": self._writer.last_commit_ns / 1e9,
            "writable": int(self._writer.writable),
            "text_index_waiting_traces": waiting,
            "text_index_lag_seconds": max(0.0, (time.time_ns() - since) / 1e9) if since else 0.0,
            "file_bytes": os.path.getsize(self.path),
        }

    def prune(self, rule: Retention) -> int:
        """See `TraceStore.prune`."""
        with self._readers.one() as reader:
            gone = _maintenance.too_old(reader.db, rule)
        if gone is None:
            return 0
        before = gone.until_ns or 0
        if rule.project is None:
            self._writer.call(lambda db: _delete.feedback_without_trace(db, before))
        return self.delete(gone)

    def set_retention(self, rule: Retention) -> None:
        """See `TraceStore.set_retention`."""
        self._writer.call(lambda db: _maintenance.set_retention(db, rule))

    def retention(self) -> list[Retention]:
        """See `TraceStore.retention`."""
        with self._readers.one() as reader:
            return _maintenance.retention(reader.db)

    def check(self, *, deep: bool = False) -> list[str]:
        """What is wrong with the file, in words; empty if it is sound. `deep` also reads every payload."""
        with self._readers.one() as reader:
            return _maintenance.check(reader, deep)

    def checkpoint(self) -> None:
        """Move what the write-ahead log holds into the file, and cut the log to nothing."""
        self._writer.alone(lambda db: db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall())

    def vacuum(self) -> int:
        """See `TraceStore.vacuum`. Also removes what nothing refers to any more."""
        self.checkpoint()
        before = os.path.getsize(self.path)
        self._writer.call(_maintenance.drop_unused)
        self._writer.alone(lambda db: db.execute("VACUUM"))
        self.checkpoint()
        return max(0, before - os.path.getsize(self.path))

    def _prune_by_rules(self) -> None:
        for rule in self.retention():
            self.prune(rule)

    # datasets and experiments

    def save_examples(
        self,
        dataset: str,
        examples: Sequence[Example],
        *,
        replace: bool = False,
        remove: Sequence[str] = (),
        kind: str | None = None,
        schema: Mapping[str, JSON] | None = None,
        description: str | None = None,
        metadata: Mapping[str, JSON] | None = None,
    ) -> Dataset:
        """See `ControlStore.save_examples`."""
        about = {"kind": kind, "schema": schema, "description": description, "metadata": metadata}
        return self._writer.call(
            lambda db: _datasets.save(db, dataset, examples, replace=replace, remove=remove, about=about)
        )

    def dataset(self, name: str, version: int | None = None) -> Dataset:
        """See `ControlStore.dataset`."""
        with self._readers.one() as reader:
            return _datasets.one(reader.db, name, version)

    def datasets(self) -> list[Dataset]:
        """See `ControlStore.datasets`."""
        with self._readers.one() as reader:
            return _datasets.newest(reader.db)

    def versions(self, name: str) -> list[Dataset]:
        """See `ControlStore.versions`."""
        with self._readers.one() as reader:
            return _datasets.versions(reader.db, name)

    def examples(
        self,
        dataset: str,
        version: int | None = None,
        *,
        split: str | None = None,
        limit: int | None = None,
        offset: int = 0,
    ) -> list[Example]:
        """See `ControlStore.examples`."""
        with self._readers.one() as reader:
            return _datasets.examples(reader.db, dataset, version, split, limit, offset)

    def delete_dataset(self, name: str) -> bool:
        """See `ControlStore.delete_dataset`."""
        return self._writer.call(lambda db: _datasets.delete(db, name))

    def save_experiment(self, *experiments: Experiment) -> None:
        """See `ControlStore.save_experiment`."""
        self._writer.call(lambda db: _control.save_experiments(db, experiments))

    def experiment(self, id_or_name: str) -> Experiment:
        """See `ControlStore.experiment`."""
        with self._readers.one() as reader:
            return _control.experiment(reader.db, id_or_name)

    def experiments(
        self, *, dataset: str | None = None, project: str | None = None, limit: int = 100
    ) -> list[Experiment]:
        """See `ControlStore.experiments`."""
        with self._readers.one() as reader:
            return _control.experiments(reader.db, dataset, project, limit)

    def change_experiment(self, id: str, **fields: JSON) -> Experiment:
        """See `ControlStore.change_experiment`."""
        return self._writer.call(lambda db: _control.change_experiment(db, id, fields))

    def delete_experiment(self, id: str) -> bool:
        """See `ControlStore.delete_experiment`."""
        self.delete(experiment=id)
        return self._writer.call(lambda db: _delete.experiment(db, id))

    # rules, decisions, leases, budgets, keys, queues

    def save_rule(self, *rules: Rule) -> None:
        """See `ControlStore.save_rule`."""
        self._writer.call(lambda db: _control.save_rules(db, rules))

    def rules(self, *, all_versions: bool = False) -> list[Rule]:
        """See `ControlStore.rules`."""
        with self._readers.one() as reader:
            return _control.rules(reader.db, all_versions)

    def change_rule(self, name: str, **fields: JSON) -> Rule:
        """See `ControlStore.change_rule`."""
        return self._writer.call(lambda db: _control.change_rule(db, name, fields))

    def delete_rule(self, name: str) -> bool:
        """See `ControlStore.delete_rule`."""
        return self._writer.call(lambda db: _control.delete_rule(db, name))

    def save_decisions(self, decisions: Sequence[Decision]) -> None:
        """See `ControlStore.save_decisions`."""
        self._writer.call(lambda db: _control.save_decisions(db, decisions))

    def decisions(
        self,
        *,
        trace_id: str | None = None,
        rule: str | None = None,
        verdict: str | None = None,
        limit: int = 1000,
        cursor: str | None = None,
    ) -> Page[Decision]:
        """See `ControlStore.decisions`."""
        with self._readers.one() as reader:
            return _control.decisions(reader.db, trace_id, rule, verdict, limit, cursor)

    def delete_decisions(self, *, trace_id: str | None = None, rule: str | None = None) -> int:
        """See `ControlStore.delete_decisions`."""
        return self._writer.call(lambda db: _control.delete_decisions(db, trace_id, rule))

    def acquire(self, name: str, holder: str, seconds: float) -> Lease | None:
        """See `ControlStore.acquire`."""
        return self._writer.call(lambda db: _control.acquire(db, name, holder, seconds))

    def release(self, name: str, holder: str) -> bool:
        """See `ControlStore.release`."""
        return self._writer.call(lambda db: _control.release(db, name, holder))

    def leases(self) -> list[Lease]:
        """See `ControlStore.leases`."""
        with self._readers.one() as reader:
            return _control.leases(reader.db)

    def delete_lease(self, name: str) -> bool:
        """See `ControlStore.delete_lease`."""
        return self._writer.call(lambda db: _control.delete_lease(db, name))

    def spend(self, budget: str, amount: float, limit: float, period_start_ns: int) -> float | None:
        """See `ControlStore.spend`."""
        return self._writer.call(lambda db: _control.spend(db, budget, amount, limit, period_start_ns))

    def spent(self, budget: str, period_start_ns: int) -> float:
        """See `ControlStore.spent`."""
        with self._readers.one() as reader:
            return _control.spent(reader.db, budget, period_start_ns)

    def delete_budget(self, budget: str, *, before_ns: int | None = None) -> int:
        """See `ControlStore.delete_budget`."""
        return self._writer.call(lambda db: _control.delete_budget(db, budget, before_ns))

    def save_key(self, key: Key) -> None:
        """See `ControlStore.save_key`."""
        self._writer.call(lambda db: _control.save_key(db, key))

    def keys(self) -> list[Key]:
        """See `ControlStore.keys`."""
        with self._readers.one() as reader:
            return _control.keys(reader.db)

    def delete_key(self, id: str) -> bool:
        """See `ControlStore.delete_key`."""
        return self._writer.call(lambda db: _control.delete_key(db, id))

    def enqueue(self, items: Sequence[QueueItem]) -> None:
        """See `ControlStore.enqueue`."""
        self._writer.call(lambda db: _control.enqueue(db, items))

    def queue(self, name: str, *, status: str | None = "waiting", limit: int = 100) -> list[QueueItem]:
        """See `ControlStore.queue`."""
        with self._readers.one() as reader:
            return _control.queue(reader.db, name, status, limit)

    def queues(self) -> Mapping[str, int]:
        """See `ControlStore.queues`."""
        with self._readers.one() as reader:
            return _control.queues(reader.db)

    def resolve(self, item_id: str, status: str, assignee: str | None = None) -> bool:
        """See `ControlStore.resolve`."""
        return self._writer.call(lambda db: _control.resolve(db, item_id, status, assignee))

    def close(self) -> None:
        """See `TraceStore.close`."""
        if not self._closed.acquire(blocking=False):
            return
        self._behind.close()
        self._writer.close()
        self._readers.close()
        self._db.close()
        self._lock.release()
