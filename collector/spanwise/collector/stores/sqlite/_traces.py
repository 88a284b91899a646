"""The trace half: runs, feedback, and questions about them. `TraceStore` says what each verb promises."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Literal

from spanwise.collector.errors import Unavailable
from spanwise.collector.filters import Filter, combined
from spanwise.collector.records import (
    JSON,
    Amendment,
    Branch,
    Bucket,
    Changes,
    Condition,
    Feedback,
    Head,
    OpenRun,
    Outlet,
    Page,
    Process,
    ProcessReport,
    Retention,
    Run,
    RunScores,
    SessionSummary,
    Source,
    Target,
    Trace,
    TraceSummary,
    checked_feedback,
    checked_target,
)
from spanwise.collector.stores import _amend
from spanwise.collector.stores._halves import Gone, Scored, ScoresOf, Verdicts
from spanwise.collector.stores._serving import Said
from spanwise.collector.stores._unread import Unread
from spanwise.collector.stores.sqlite import (
    _aggregate,
    _changes,
    _delete,
    _explain,
    _feedback,
    _large,
    _lists,
    _maintenance,
    _menus,
    _outlets,
    _parts,
    _processes,
    _running,
    _summaries,
    _verdicts,
)
from spanwise.collector.stores.sqlite._codec import Batch, encode
from spanwise.collector.stores.sqlite._half import Half, reads, writes
from spanwise.collector.stores.sqlite._sql import find_many
from spanwise.collector.stores.sqlite._waiting import Place, place_of
from spanwise.collector.stores.sqlite._writer import HEAVY_WEIGHT, Job


class SQLiteTraces(Half):
    """Implements `TraceStore` on a file, but for `delete` and `prune`, and what `Both` asks of such a half."""

    # runs

    def encoder(self) -> Callable[[Sequence[Run]], Batch]:
        return self._file.appender.encoder

    def write(self, batch: Batch, feedback: Sequence[Feedback] = ()) -> Future[None]:
        """Queue what an encoder made; the future resolves once it is durable. May raise `Unavailable`."""
        if feedback:
            batch = batch._replace(feedback=_feedback.rows(feedback))
        return self._file.put(Job(weight=len(batch.facts) + len(batch.feedback), batch=batch))

    def append_async(self, runs: Sequence[Run], feedback: Sequence[Feedback] = ()) -> Future[None]:
        """As `append`, without waiting. Raises `Unavailable` if too much waits."""
        return self.write(encode(runs), feedback)

    def append(self, runs: Sequence[Run], feedback: Sequence[Feedback] = ()) -> None:
        if runs or feedback:
            self.append_async(runs, list(map(checked_feedback, feedback))).result()

    def amend(self, trace_id: str, span_id: str, fields: Mapping[str, JSON]) -> bool:
        [here] = self.add_amendments([Amendment(trace_id, span_id, fields)])
        return here

    def add_amendments(self, amendments: Sequence[Amendment]) -> list[bool]:
        said: dict[Place, list[Mapping[str, JSON]]] = {}
        for amendment in amendments:
            said.setdefault(place_of(amendment), []).append(_amend.as_json(amendment.fields))
        whole = {place: _amend.together(*fields) for place, fields in said.items()}  # each run is read and written once
        here = self._file.write(lambda _: {place: self._file.appender.amend(place, whole[place]) for place in whole})
        return [here[place_of(amendment)] for amendment in amendments]

    # feedback

    def add_feedback(self, feedback: Sequence[Feedback]) -> None:
        feedback = list(map(checked_feedback, feedback))
        # All of it is taken or none, but much of it goes into several transactions, between which others have theirs
        parts = [feedback[start : start + HEAVY_WEIGHT] for start in range(0, len(feedback), HEAVY_WEIGHT)]
        nothing = encode(())
        jobs = [Job(weight=len(part), batch=nothing._replace(feedback=_feedback.rows(part))) for part in parts]
        # Each is waited for, whatever became of the others
        failed = [error for one in self._file.put_all(jobs) if (error := one.exception()) is not None]
        if failed:
            raise failed[0]

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
        aim = Target(trace_id=target, span_id=span_id) if isinstance(target, str) else target
        kept = Feedback(
            target=checked_target(aim),
            key=key,
            score=score,
            label=label,
            comment=comment,
            author=author,
            source="human",
        )
        self.add_feedback([kept])
        return kept

    @writes
    def change_feedback(self, db: sqlite3.Connection, /, changes: Mapping[str, Mapping[str, JSON]]) -> list[Feedback]:
        return _feedback.change(db, self._file.appender, changes)

    @writes
    def delete_feedback(self, db: sqlite3.Connection, /, ids: Sequence[str]) -> int:
        return _feedback.delete(db, self._file.appender, ids)

    @writes
    def put_verdicts(self, db: sqlite3.Connection, /, verdicts: Sequence[Verdicts]) -> list[bool]:
        return _verdicts.put(db, self._file.appender, verdicts)

    # questions

    def traces(
        self, filter: Filter | None = None, *, limit: int = 50, cursor: str | None = None, **conditions: object
    ) -> Page[TraceSummary]:
        with self._file.read() as reader:
            return _summaries.page(reader, combined(filter, conditions), limit, cursor)

    def trace(self, trace_id: str) -> Trace:
        with self._file.read() as reader:
            return _summaries.one(reader, trace_id)

    def many(self, trace_ids: Sequence[str]) -> list[Trace]:
        with self._file.read() as reader:
            return _summaries.many(reader, trace_ids)

    def tree(self, trace_id: str, *, limit: int = 1000, cursor: str | None = None) -> Page[Branch]:
        with self._file.read() as reader:
            return _parts.tree(reader, trace_id, limit, cursor)

    def runs(self, trace_id: str, *, limit: int = 1000, cursor: str | None = None) -> Page[Run]:
        with self._file.read() as reader:
            return _parts.runs(reader, trace_id, limit, cursor)

    def run(self, trace_id: str, span_id: str | None = None) -> Run:
        with self._file.read() as reader:
            return _parts.run(reader, trace_id, span_id)

    def unread(self, trace_ids: Sequence[str]) -> Sequence[Trace | Unread]:
        """As of `Streams`."""
        with self._file.read() as reader:
            return _large.unread(reader, trace_ids)

    @reads
    def feedbacks(
        self,
        db: sqlite3.Connection,
        /,
        filter: Filter | None = None,
        *,
        key: str | None = None,
        source: Source | None = None,
        limit: int = 1000,
        cursor: str | None = None,
        target: Target | None = None,
        **conditions: object,
    ) -> Page[Feedback]:
        return _lists.feedbacks(db, combined(filter, conditions), key, source, target, limit, cursor)

    @reads
    def scores(
        self, db: sqlite3.Connection, /, experiment_id: str, *, limit: int = 1000, cursor: str | None = None
    ) -> Page[RunScores]:
        return _lists.scores(db, experiment_id, limit, cursor)

    @reads
    def sessions(
        self,
        db: sqlite3.Connection,
        /,
        filter: Filter | None = None,
        *,
        limit: int = 50,
        cursor: str | None = None,
        **conditions: object,
    ) -> Page[SessionSummary]:
        return _lists.sessions(db, combined(filter, conditions), limit, cursor)

    @reads
    def aggregate(
        self,
        db: sqlite3.Connection,
        /,
        filter: Filter | None = None,
        *,
        bucket_ns: int | None = None,
        group_by: str | None = None,
        newest: int | Literal["all"] | None = None,
        **conditions: object,
    ) -> list[Bucket]:
        return _aggregate.buckets(db, combined(filter, conditions), bucket_ns, group_by, newest)

    @reads
    def values(
        self, db: sqlite3.Connection, /, field: str, *, limit: int = 100, project: str | None = None
    ) -> list[str]:
        return _menus.values(db, field, limit, project)

    def changes(self, after: str | None = None, *, limit: int = 1000, filters: Sequence[Filter] = ()) -> Changes:
        now_ns = self._file.clock.now()  # before it is read: what is not in it yet changes later
        with self._file.read() as reader:
            return _changes.changes(reader.db, after, limit, filters, now_ns)

    @reads
    def behind(self, db: sqlite3.Connection, /, after: str | None) -> tuple[int, int | None]:
        return _changes.behind(db, after)

    @reads
    def position(self, db: sqlite3.Connection, /) -> int:
        return _changes.latest(db)

    @reads
    def head(self, db: sqlite3.Connection, /, trace_id: str, filters: Sequence[Filter] = ()) -> Head:
        return _changes.one(db, trace_id, filters)

    @reads
    def is_after(self, db: sqlite3.Connection, /, change: str, cursor: str | None) -> bool:
        return _changes.position(db, change) > _changes.position(db, cursor)

    @reads
    def scored_by(self, db: sqlite3.Connection, /, asked: ScoresOf) -> Page[Scored]:
        return _lists.scored_by(db, asked)

    @reads
    def there(self, db: sqlite3.Connection, /, trace_ids: Collection[str]) -> set[str]:
        sql = "SELECT trace_id FROM traces WHERE span_count > 0 AND trace_id IN (%s)"
        return {row[0] for row in find_many(db, sql, trace_ids)}

    @reads
    def going_on(self, db: sqlite3.Connection, /, sessions: Collection[str]) -> set[str]:
        sql = "SELECT DISTINCT session_id FROM traces WHERE span_count > 0 AND session_id IN (%s)"
        return {row[0] for row in find_many(db, sql, sessions)}

    def explain(self, trace_id: str, filter: Filter) -> list[Condition]:
        with self._file.read() as reader:
            return _explain.explain(reader.db, trace_id, filter)

    @reads
    def count(self, db: sqlite3.Connection, /) -> Mapping[str, int]:
        return _lists.count(db)

    # what has not come, and who should know

    @writes
    def add_running(self, _: sqlite3.Connection, /, runs: Sequence[OpenRun]) -> None:
        self._file.appender.start(runs)

    @reads
    def running(
        self,
        db: sqlite3.Connection,
        /,
        *,
        trace_id: str | None = None,
        project: str | None = None,
        environment: str | None = None,
        limit: int = 1000,
    ) -> list[OpenRun]:
        return _running.stored(db, trace_id, project, environment, limit)

    @writes
    def add_reports(self, _: sqlite3.Connection, /, reports: Sequence[ProcessReport]) -> None:
        self._file.appender.processes.report(reports)

    @reads
    def processes(self, db: sqlite3.Connection, /, *, since_ns: int | None = None, limit: int = 1000) -> list[Process]:
        return _processes.stored(db, since_ns, limit)

    # sending on

    @reads
    def outlets(self, db: sqlite3.Connection, /) -> list[Outlet]:
        return _outlets.stored(db)

    @writes
    def open_outlet(self, db: sqlite3.Connection, /, name: str, url: str) -> Outlet:
        return _outlets.opened(db, self._file.clock, name, url)

    @writes
    def move_outlet(
        self, db: sqlite3.Connection, /, name: str, cursor: int, sent: int, dropped: int, error: str | None = None
    ) -> None:
        _outlets.moved(db, self._file.clock, name, cursor, sent, dropped, error)

    @reads
    def said_after(self, db: sqlite3.Connection, /, cursor: int, limit: int) -> Sequence[Said]:
        return _outlets.after(db, cursor, limit)

    @reads
    def waiting_after(self, db: sqlite3.Connection, /, cursor: int) -> int:
        return _outlets.waiting(db, cursor)

    @reads
    def identity(self, db: sqlite3.Connection, /) -> str:
        return _outlets.identity(db)

    @reads
    def feedback_there(self, db: sqlite3.Connection, /, ids: Collection[str]) -> set[str]:
        return _outlets.there(db, ids)

    # deletion

    @reads
    def newest(self, db: sqlite3.Connection, /) -> int:
        return int(db.execute("SELECT coalesce(max(id), 0) FROM traces").fetchone()[0])

    @reads
    def passing(
        self, db: sqlite3.Connection, /, filter: Filter, after: str | None = None, upto: int | None = None
    ) -> Gone | None:
        return _delete.passing(db, filter, after, upto)

    def remove(self, gone: Iterable[Gone]) -> int:
        total, tags, pace = 0, set[str](), _delete.Pace()
        for lot in gone:
            for piece in self._pieces(lot, pace):
                count, theirs = self._taken_out(piece, pace)
                total, tags = total + count, tags | theirs
        if tags:
            with self._file.read() as reader:
                unused = _delete.unused(reader.db, tags)
            self._file.write(lambda _: _delete.forget_tags(self._file.appender, unused))
        return total

    def _pieces(self, lot: Gone, pace: _delete.Pace) -> list[Gone]:
        with self._file.read() as reader:
            return [Gone(piece, lot.sessions) for piece in pace.pieces(reader.db, lot.traces)]

    def _taken_out(self, piece: Gone, pace: _delete.Pace) -> tuple[int, set[str]]:
        """How many traces of a piece, and their tags. On a full disk it goes in smaller ones."""
        try:
            return self._file.write(partial(_delete.remove, self._file.appender, piece, pace), patient=True)
        except Unavailable:
            if len(piece.traces) <= _delete.FEW or not self._file.is_full:
                raise
        total, tags = 0, set[str]()
        for start in range(0, len(piece.traces), _delete.FEW):
            few = Gone(piece.traces[start : start + _delete.FEW], piece.sessions)
            count, theirs = self._taken_out(few, pace)
            total, tags = total + count, tags | theirs
        return total, tags

    def expire(self, rule: Retention) -> list[Filter]:
        with self._file.read() as reader:
            expired, ahead = _maintenance.too_old(reader.db, rule), _maintenance.ahead(reader.db, rule)
        if expired is not None:
            before = expired.until_ns or 0
            self._file.write(lambda _: self._file.appender.running.expire(before, rule.project))
            self._file.write(lambda _: self._file.appender.waiting.expire(before, rule.project))
            if rule.project is None:
                self._remove_feedback_without_trace(before)
        return [filter for filter in (expired, ahead) if filter is not None]

    def _remove_feedback_without_trace(self, before_ns: int) -> None:
        with self._file.read() as reader:
            keys = _delete.without_trace(reader.db, before_ns)
        for start in range(0, len(keys), _delete.LOT):
            some = keys[start : start + _delete.LOT]
            self._file.write(partial(_delete.feedback_without_trace, keys=some, before_ns=before_ns), patient=True)

    def vacuum(self) -> int:
        return self._file.vacuum()
