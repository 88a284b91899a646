"""Copy of a whole store into another one: all records with their numbers, resumable, compared day by day at the end.

The phases of a copy, each of which may be repeated:

1. Traces with their runs, in the order of their numbers.
2. Feedback, in the order of writing.
3. After an interruption: traces and feedback that have changed or disappeared in the source since they were copied.
4. Positions of the traces in the change feed, as they are in the source: rules continue where they were.
5. Records of senders, then the control tables.
6. Comparison of counts and checksums per day, and per control table.

A file next to the source (or the target) records how far a copy is. It is removed when the comparison succeeds.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from datetime import date, timedelta
from hashlib import blake2b
from pathlib import Path
from typing import Any, Protocol, TypeVar, cast

import msgspec

from spanwise.collector.address_parsing import check_database_path, hide_password
from spanwise.collector.errors import Refused
from spanwise.collector.record_corrections import DAY_NS
from spanwise.collector.records import split_batches
from spanwise.collector.stores.backends import DeletedTraces, NumberedFeedback, TraceCopy, TracePosition
from spanwise.collector.stores.control.control_tables import CONTROL_TABLES, ControlTables, Row

T = TypeVar("T")
TRACES_PER_STEP, FEEDBACK_PER_STEP, ROWS_PER_STEP = 500, 1000, 1000
TRACES_PER_PAGE = 10_000  # in ClickHouse, a page of positions costs as much as reading all of them
_MASK = 2**64 - 1
# Control records with positions in the change feed: column by table
_CHANGE_COLUMNS = {"rules": ("active_from", "cursor"), "settings": ("from_change",), "backfills": ("cursor",)}

Report = Callable[[str, int], None]  # arguments: the records that are copied or compared, and their number so far


class CopyEnd(Protocol):
    """Store as source or target of a copy."""

    def trace_copy(self) -> TraceCopy:
        """Return the export and import of traces, feedback and records of senders."""

    def control_tables(self) -> ControlTables:
        """Return the tables of control records."""

    @property
    def where(self) -> str:
        """Return the location, for display."""

    def latest_change(self) -> int:
        """Return the highest change number so far."""

    def delete_traces(self, gone: Iterable[DeletedTraces]) -> int:
        """Delete traces with their feedback."""

    def delete_feedback(self, ids: Sequence[str]) -> int:
        """Delete feedback by id."""

    def close(self) -> None:
        """Close the store."""


@dataclass(slots=True)
class Totals:
    """Counts and order-independent checksum of the records of a day or table."""

    traces: int = 0
    runs: int = 0
    feedback: int = 0
    rows: int = 0
    checksum: int = 0

    def add(self, value: Any) -> None:
        """Add a record to the checksum."""
        self.checksum = (self.checksum + _hash(value)) & _MASK


@dataclass(slots=True)
class Contents:
    """Totals of a store: per day in UTC (of the start of traces, and of the creation of feedback), and per table."""

    days: dict[str, Totals] = field(default_factory=dict)
    tables: dict[str, Totals] = field(default_factory=dict)

    def find_differences(self, other: Contents) -> list[str]:
        """Return the days and tables whose counts or checksums differ."""
        days = [name for name in self.days.keys() | other.days.keys() if self.days.get(name) != other.days.get(name)]
        tables = [table for table in self.tables if self.tables[table] != other.tables.get(table)]
        return sorted(days) + tables


@dataclass(slots=True)
class CopyState:
    """Progress of a copy, in a file."""

    source: str
    target: str
    after: int = 0  # number of the last trace that was copied
    feedback: str | None = None  # cursor of the last feedback that was copied

    def save(self, path: Path) -> None:
        """Write the file so that a crash leaves either the old or the new content."""
        temporary = path.with_name(path.name + ".part")
        with temporary.open("w") as file:
            json.dump(asdict(self), file)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)


def copy_store(source: CopyEnd, target: CopyEnd, state_file: Path, report: Report) -> Contents:
    """Copy all records, and return what both stores hold. Continue the copy that `state_file` describes, if any.

    The target must be empty, or the target of that copy, and nothing else may use it meanwhile. Raise `Refused` for another
    target, and if the stores differ at the end.
    """
    state = _load_state(source, target, state_file)
    is_resumed = state is not None
    if state is None:
        if target.trace_copy().list_positions(0, 1) or any(
            target.control_tables().count(table) for table in ("rules", "decisions", "datasets", "experiments", "keys")
        ):
            raise Refused(f"{target.where!r} already holds records; copy into a new, empty store")
        state = CopyState(source.where, target.where)
        state.save(state_file)
    target.trace_copy().begin_import()
    count = 0
    for positions in _list_positions(source.trace_copy(), state.after):
        target.trace_copy().import_traces(positions, source.trace_copy().read_runs(positions))
        state.after = positions[-1].number
        state.save(state_file)
        count += len(positions)
        report("traces", count)
    _copy_feedback(source, target, state, state_file, report)
    if is_resumed:
        _repair_traces(source, target, report)
        _repair_feedback(source, target, report)
    for positions in _list_positions(source.trace_copy()):
        target.trace_copy().import_positions(positions)
    is_first = True
    for records in split_batches(source.trace_copy().list_side_records(), ROWS_PER_STEP):
        target.trace_copy().import_side_records(records, first=is_first)
        is_first = False
    if is_first:
        target.trace_copy().import_side_records([], first=True)
    latest = source.latest_change()
    for table in CONTROL_TABLES:
        latest = max(latest, _copy_table(source.control_tables(), target.control_tables(), table, report))
    target.control_tables().finish_import(source.control_tables().read_lease_number())
    target.trace_copy().finish_import(latest, source.trace_copy().read_identity())
    here, there = summarize(source, report), summarize(target, report)
    if differences := here.find_differences(there):
        raise Refused(
            f"the copy differs from the source on {', '.join(differences[:10])}; run the command again to copy again what"
            " differs"
        )
    state_file.unlink(missing_ok=True)
    return here


def summarize(end: CopyEnd, report: Report) -> Contents:
    """Return the totals of a store. This reads everything."""
    found, traces = Contents(), end.trace_copy()
    count = 0
    for positions in _list_positions(traces):
        for position in positions:
            numbers = [position.trace_id, position.number, position.change, position.runs_change]
            _day(found, position.start_ns, position.span_count).add(numbers)
            if position.span_count:
                _day(found, position.start_ns, 1).traces += 1
        starts = {position.trace_id: position.start_ns for position in positions}
        for batch in traces.read_runs(positions):
            for exported in batch:
                totals = _day(found, starts[exported.run.trace_id], 1)
                totals.runs += 1
                totals.add([exported.run, exported.amended])
        count += len(positions)
        report("compared traces", count)
    for rows in _list_feedback(traces, None):
        for row in rows:
            totals = _day(found, row.feedback.created_ns, 1)
            totals.feedback += 1
            totals.add(row.feedback)
    for table in CONTROL_TABLES:
        totals = found.tables[table] = Totals()
        columns = end.control_tables().columns(table)
        for batch_of_rows in _list_rows(end.control_tables(), table, columns):
            for values in batch_of_rows:
                totals.rows += 1
                totals.add(values)
    return found


def _day(contents: Contents, time_ns: int, spans: int) -> Totals:
    """Return the totals of a day; those of traces without runs have no day."""
    if not spans:
        return Totals()
    name = str(date(1970, 1, 1) + timedelta(time_ns // DAY_NS))
    return contents.days.setdefault(name, Totals())


_encoder = msgspec.json.Encoder(order="deterministic", enc_hook=repr)


def _hash(value: Any) -> int:
    return int.from_bytes(blake2b(_encoder.encode(value), digest_size=8).digest(), "big")


# Phases


def _copy_feedback(source: CopyEnd, target: CopyEnd, state: CopyState, file: Path, report: Report) -> None:
    count = 0
    cursor = state.feedback
    while True:
        rows, cursor = source.trace_copy().list_feedback(cursor, FEEDBACK_PER_STEP)
        if not rows:
            return
        target.trace_copy().import_feedback(rows)
        state.feedback = cursor
        state.save(file)
        count += len(rows)
        report("feedback", count)


def _repair_traces(source: CopyEnd, target: CopyEnd, report: Report) -> None:
    """Copy again the traces that differ, and delete those that the source no longer has."""
    days = _find_days(_digest_traces(source.trace_copy()), _digest_traces(target.trace_copy()))
    if not days:
        return
    wanted, found = (
        {position.trace_id: checksum for position, checksum in _each_trace(end.trace_copy(), days)}
        for end in (source, target)
    )
    wrong = [trace_id for trace_id, digest in found.items() if wanted.get(trace_id) != digest]
    for start in range(0, len(wrong), TRACES_PER_STEP):
        target.delete_traces([DeletedTraces(wrong[start : start + TRACES_PER_STEP])])
    target.trace_copy().import_side_records([], first=True)  # a deletion refuses later spans of the same traces
    for positions in _list_positions(source.trace_copy()):
        again = [one for one in positions if one.trace_id in wanted and found.get(one.trace_id) != wanted[one.trace_id]]
        if again:
            target.trace_copy().import_traces(again, source.trace_copy().read_runs(again))
            report("traces copied again", len(again))


def _repair_feedback(source: CopyEnd, target: CopyEnd, report: Report) -> None:
    """Copy again feedback that differs, and delete feedback that the source no longer has."""
    days = _find_days(_digest_feedback(source.trace_copy()), _digest_feedback(target.trace_copy()))
    if not days:
        return
    wanted, found = (
        {
            row.feedback.id: _hash(row.feedback)
            for batch in _list_feedback(end.trace_copy(), None)
            for row in batch
            if row.feedback.created_ns // DAY_NS in days
        }
        for end in (source, target)
    )
    if wrong := [id for id in found if id not in wanted]:
        target.delete_feedback(wrong)
    for rows in _list_feedback(source.trace_copy(), None):
        again = [
            row for row in rows if row.feedback.id in wanted and found.get(row.feedback.id) != wanted[row.feedback.id]
        ]
        if again:
            target.trace_copy().import_feedback(again)
            report("feedback copied again", len(again))


def _copy_table(source: ControlTables, target: ControlTables, table: str, report: Report) -> int:
    """Replace the rows of a table of the target, and return the highest change number in them."""
    columns, latest, count, first = source.columns(table), 0, 0, True
    changes = [columns.index(name) for name in _CHANGE_COLUMNS.get(table, ())]
    for rows in _list_rows(source, table, columns):
        target.import_rows(table, columns, rows, first=first)
        # A change column has a number, a cursor of the feed as text, or something else
        texts = [str(row[place]) for row in rows for place in changes]
        latest = max(latest, *(int(text) for text in texts if text.isascii() and text.isdigit()), 0)
        count, first = count + len(rows), False
    if first:
        target.import_rows(table, columns, [], first=True)
    if count:
        report(table.replace("_", " "), count)
    return latest


# Reading both ends


def _list_positions(traces: TraceCopy, after: int = 0) -> Iterator[list[TracePosition]]:
    """Yield the positions of traces in the order of their numbers, in steps of a copy."""
    while positions := traces.list_positions(after, TRACES_PER_PAGE):
        yield from split_batches(positions, TRACES_PER_STEP)
        after = positions[-1].number


def _list_feedback(traces: TraceCopy, cursor: str | None) -> Iterator[list[NumberedFeedback]]:
    while True:
        rows, cursor = traces.list_feedback(cursor, FEEDBACK_PER_STEP)
        if not rows:
            return
        yield rows


def _list_rows(tables: ControlTables, table: str, columns: Sequence[str]) -> Iterator[list[Row]]:
    after: Row | None = None
    while rows := tables.export_rows(table, columns, after, ROWS_PER_STEP):
        yield rows
        after = tables.get_key(table, columns, rows[-1])


def _each_trace(traces: TraceCopy, days: set[int] | None = None) -> Iterator[tuple[TracePosition, int]]:
    """Yield each trace, or those that started on some days, with the checksum of its number and its runs."""
    for listed in _list_positions(traces):
        positions = [one for one in listed if days is None or one.start_ns // DAY_NS in days]
        checksums = {one.trace_id: _hash(one.number) for one in positions}
        for batch in traces.read_runs(positions):
            for exported in batch:
                id = exported.run.trace_id
                checksums[id] = (checksums[id] + _hash([exported.run, exported.amended])) & _MASK
        yield from ((one, checksums[one.trace_id]) for one in positions)


def _digest_traces(traces: TraceCopy) -> dict[int, int]:
    days: dict[int, int] = {}
    for position, checksum in _each_trace(traces):
        day = position.start_ns // DAY_NS
        days[day] = (days.get(day, 0) + _hash([position.trace_id, checksum])) & _MASK
    return days


def _digest_feedback(traces: TraceCopy) -> dict[int, int]:
    days: dict[int, int] = {}
    for rows in _list_feedback(traces, None):
        for row in rows:
            day = row.feedback.created_ns // DAY_NS
            days[day] = (days.get(day, 0) + _hash(row.feedback)) & _MASK
    return days


def _find_days(one: Mapping[int, int], other: Mapping[int, int]) -> set[int]:
    return {day for day in one.keys() | other.keys() if one.get(day) != other.get(day)}


# Both ends, and the file with the progress


def _load_state(source: CopyEnd, target: CopyEnd, path: Path) -> CopyState | None:
    """Return the progress of an interrupted copy between these stores. Raise `Refused` if it is that of others."""
    if not path.exists():
        return None
    try:
        state = CopyState(**json.loads(path.read_text()))
    except (ValueError, TypeError) as error:
        raise Refused(
            f"{str(path)!r} does not describe a copy: {error}; delete it, and copy into an empty store"
        ) from error
    if (state.source, state.target) != (source.where, target.where):
        raise Refused(
            f"{str(path)!r} describes a copy from {state.source!r} to {state.target!r}; finish that one, or delete the file"
        )
    return state


def find_state_file(source: str, target: str) -> Path:
    """Return the path of the file with the progress: next to the source, else to the target, else in this folder."""
    place = next((each for each in (source, target) if "://" not in each), None)
    return Path("spanwise.copy" if place is None else f"{place}.copy")


@contextmanager
def open_source(location: str, control: str | None) -> Iterator[CopyEnd]:
    """Open the source of a copy: one snapshot of a SQLite file, even while it is served, or databases."""
    from spanwise.collector.stores import open_backends

    if "://" in location:
        source = cast(CopyEnd, open_backends(location, _require_control(location, control)))
    else:
        from spanwise.collector.stores.sqlite import open_snapshot

        if not Path(check_database_path(location)).exists():
            raise Refused(f"there is no file {location!r}; name the store to copy")
        source = cast(CopyEnd, open_snapshot(location))
    try:
        yield source
    finally:
        source.close()


@contextmanager
def open_target(location: str, control: str | None) -> Iterator[CopyEnd]:
    """Open the target of a copy: a SQLite file that no server serves, or databases that no collector uses."""
    from spanwise.collector.stores import CombinedStore, open_backends

    if "://" in location:
        target = cast(CopyEnd, open_backends(location, _require_control(location, control)))
    else:
        from spanwise.collector.stores.sqlite import DatabaseFile, SQLiteControl, SQLiteTraces

        file = DatabaseFile(check_database_path(location))
        # without the background thread of a store, which would index and sum up what is not complete yet
        target = cast(CopyEnd, CombinedStore(SQLiteTraces(file), SQLiteControl(file)))
    try:
        yield target
    finally:
        target.close()


def _require_control(location: str, control: str | None) -> str:
    if not control:
        raise Refused(
            f"{hide_password(location)!r} needs the URL of its control records: --control or --source-control"
        )
    return control
