"""Lists of traces, and traces themselves."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from spanwise.collector.errors import NotFound
from spanwise.collector.filters import Filter
from spanwise.collector.records import JSON, Feedback, OpenRun, Page, Run, Trace, TraceSummary
from spanwise.collector.stores.derived_values import complete_root, derivable
from spanwise.collector.stores.sqlite import _feedback, _lists, _running, _sql
from spanwise.collector.stores.sqlite._plan import plan
from spanwise.collector.stores.sqlite._reader import Reader
from spanwise.collector.stores.sqlite._sql import find_many, position
from spanwise.collector.stores.sqlite._values import dumps, loads
from spanwise.collector.stores.sqlite._where import complete_sql
from spanwise.collector.stores.sqlite.root_values import values_of_roots

PREVIEW = 300  # characters of inputs and outputs in a summary

_SUMMARY = (
    "t.id, t.trace_id, t.name, t.kind, t.start_ns, t.end_ns, t.status, t.error, t.project, t.environment, t.span_count,"
    " t.error_count, t.input_tokens, t.output_tokens, t.cost, t.session_id, t.user_id, t.tags, t.experiment_id,"
    f" t.example_id, t.repetition, t.root, {complete_sql()}, t.dropped,"
    " t.calls_sent, t.running"
)


def page(reader: Reader, filter: Filter, limit: int, cursor: str | None) -> Page[TraceSummary]:
    """One page, latest start first."""
    chosen = plan(reader.db, filter)
    if cursor is not None:
        chosen = chosen.after(*position(cursor))
    sql = f"SELECT {_SUMMARY} FROM {chosen.source} WHERE {chosen.where} ORDER BY t.start_ns DESC, t.id DESC LIMIT ?"
    fetched = reader.db.execute(sql, (*chosen.values, limit + 1)).fetchall()
    rows, next = _sql.page(fetched, limit, time=4, key=0)
    return Page(items=_summaries(reader, rows), next=next)


def _summaries(reader: Reader, rows: Sequence[Any]) -> tuple[TraceSummary, ...]:
    roots = _roots(reader, rows)
    ids = [row[0] for row in rows]
    latest, unscored = _lists.newest_scores(reader.db, ids), _without_score(reader.db, ids)
    return tuple(
        _summary(row, *roots.get(row[21], ("", "", ())), latest.get(row[0], {}), unscored.get(row[0], {}))
        for row in rows
    )


def _roots(reader: Reader, rows: Sequence[Any]) -> dict[int, tuple[str, str, tuple[str, ...]]]:
    """Return the previews of inputs and outputs of each root, by its row, and which of them are derived."""
    traces = {row[21]: row for row in rows}
    previews: dict[int, tuple[str, str]] = {}
    wanted: dict[int, tuple[int, tuple[str, ...]]] = {}
    for root, payload in reader.payloads(list(traces)):
        inputs, outputs, of_trace = payload.get("inputs"), payload.get("outputs"), traces[root]
        previews[root] = preview(inputs), preview(outputs)
        attributes, documents = payload.get("attributes", {}), payload.get("documents")
        fields = derivable(inputs, outputs, attributes, documents=documents, status=of_trace[6], runs=of_trace[10])
        if fields:
            wanted[of_trace[0]] = root, fields
    sql = "SELECT id, span_id FROM spans WHERE id IN (%s)"
    span_ids = dict(find_many(reader.db, sql, [root for root, _ in wanted.values()]))
    derived = values_of_roots(reader, {trace: (span_ids[root], fields) for trace, (root, fields) in wanted.items()})
    found = {}
    for root, (inputs, outputs) in previews.items():
        values = derived.get(traces[root][0], {})
        shown = {field: preview(value) for field, value in values.items()}
        found[root] = shown.get("inputs", inputs), shown.get("outputs", outputs), tuple(values)
    return found


_WITHOUT_SCORE = (
    "SELECT trace, outcome, key FROM feedback WHERE standing = 2 AND outcome <> 'score' AND trace IN (%s) ORDER BY key"
)


def _without_score(db: sqlite3.Connection, ids: Sequence[int]) -> dict[int, dict[str, list[str]]]:
    """Per trace (its integer key) the keys whose newest outcome is an error, and those where it is a skip."""
    found: dict[int, dict[str, list[str]]] = {}
    for trace, outcome, key in find_many(db, _WITHOUT_SCORE, ids):
        found.setdefault(trace, {}).setdefault(outcome, []).append(key)
    return found


def _summary(
    row: Sequence[Any],
    inputs: str,
    outputs: str,
    derived: tuple[str, ...],
    latest: dict[str, float | str | None],
    unscored: Mapping[str, Sequence[str]],
) -> TraceSummary:
    return TraceSummary(
        trace_id=row[1],
        name=row[2],
        kind=row[3],
        start_ns=row[4],
        duration_ns=max(0, row[5] - row[4]),
        status=row[6],
        error=row[7],
        project=row[8],
        environment=row[9],
        span_count=row[10],
        error_count=row[11],
        input_tokens=row[12],
        output_tokens=row[13],
        cost=row[14],
        session_id=row[15],
        user_id=row[16],
        tags=tuple(loads(row[17])) if row[17] else (),
        experiment_id=row[18],
        example_id=row[19],
        repetition=row[20],
        complete=bool(row[22]),
        dropped=row[23],
        calls_sent=row[24],
        running=row[25],
        inputs=inputs,
        outputs=outputs,
        derived=derived,
        feedback=latest,
        failed=tuple(unscored.get("error", ())),
        skipped=tuple(unscored.get("skip", ())),
    )


def preview(value: JSON) -> str:
    """The beginning of a value, for display: text as it is, a single text argument without its name, else JSON."""
    if isinstance(value, dict) and len(value) == 1 and isinstance(only := next(iter(value.values())), str):
        value = only
    text = "" if value is None else value if isinstance(value, str) else dumps(value)
    return text if len(text) <= PREVIEW else text[: PREVIEW - 1] + "…"


def one(reader: Reader, trace_id: str) -> Trace:
    """One trace. Raises `NotFound`."""
    traces = many(reader, [trace_id])
    if not traces:
        raise NotFound(f"there is no trace {trace_id!r} in this store")
    return traces[0]


def many(reader: Reader, trace_ids: Sequence[str]) -> list[Trace]:
    """Several traces in the order asked."""
    return whole(reader, beside_runs(reader, trace_ids))


def whole(reader: Reader, around: Mapping[str, Around]) -> list[Trace]:
    """Traces with their runs."""
    runs = reader.runs_of({one.key: trace_id for trace_id, one in around.items()})
    return [_trace(one, runs[one.key]) for one in around.values()]


def _trace(around: Around, runs: list[Run]) -> Trace:
    at = next(position for position, run in enumerate(runs) if run.span_id == around.root)
    runs[at] = complete_root(runs[at], runs)
    return Trace(runs[at], tuple(runs), *around.rest)


class Around(NamedTuple):
    """What there is of a trace beside its runs: its key, its root's id, bytes of all payloads before compression, and
    what follows the runs in a `Trace`.
    """

    key: int
    root: str
    size: int
    rest: tuple[tuple[Feedback, ...], bool, int, int, tuple[OpenRun, ...]]


def beside_runs(reader: Reader, trace_ids: Sequence[str]) -> dict[str, Around]:
    """Of those traces that are there, in the order asked."""
    columns = f"t.trace_id, t.id, t.root, t.size, {complete_sql()}, t.dropped, t.calls_sent"
    sql = f"SELECT {columns} FROM traces t WHERE span_count > 0 AND t.trace_id IN (%s)"
    asked = dict.fromkeys(trace_ids)
    rows = {row[0]: row[1:] for row in find_many(reader.db, sql, asked)}
    roots = dict(find_many(reader.db, "SELECT id, span_id FROM spans WHERE id IN (%s)", [r[1] for r in rows.values()]))
    feedback = _feedback_of(reader, [row[0] for row in rows.values()])
    running = _running.of_traces(reader.db, rows)
    found = {}
    for trace_id in (one for one in asked if one in rows):
        key, root, size, complete, dropped, calls_sent = rows[trace_id]
        rest = tuple(feedback.get(key, ())), bool(complete), dropped, calls_sent, tuple(running.get(trace_id, ()))
        found[trace_id] = Around(key, roots[root], size, rest)
    return found


def _feedback_of(reader: Reader, keys: Sequence[int]) -> dict[int, list[Feedback]]:
    by_trace: dict[int, list[Feedback]] = {}
    sql = _feedback.SELECT + " WHERE f.trace IN (%s) ORDER BY f.created_ns, f.rowid"
    for trace, outcome in _feedback.read_all(find_many(reader.db, sql, keys)):
        by_trace.setdefault(trace, []).append(outcome)
    return by_trace
