"""Lists of feedback, scores, sessions and distinct values; pages of traces and sessions sorted by a number; counts."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, TypeAlias

from spanwise.collector import filters
from spanwise.collector.errors import Refused
from spanwise.collector.filters import Filter, SortOrder
from spanwise.collector.records import Feedback, Page, RunScores, SessionSummary, Source, Target
from spanwise.collector.stores.backends import RuleScore, ScoreQuery
from spanwise.collector.stores.clickhouse.connection import Connection, QueryParameters
from spanwise.collector.stores.clickhouse.feedback_rows import FEEDBACK_COLUMNS, decode_feedback
from spanwise.collector.stores.clickhouse.filter_sql import (
    ALL_VERSIONS,
    ARRAYS,
    SLOT_COLUMNS,
    TRACES,
    VISIBLE_SQL,
    compile_filter,
    current_rows,
    newest_feedback,
)
from spanwise.collector.stores.queries import list_pages
from spanwise.collector.stores.table_rows import cut_page, parse_text_cursor
from spanwise.collector.stores.weighted_sums import METADATA_PREFIX, check_grouping

# Traces in an order, page by page

Place: TypeAlias = tuple[Any, str]  # value by which a list is sorted, and trace id; unique in a list
_SPARE = (1, 4, 16)  # places checked at once, for each trace that is missing
_MAX_CHECKED = 5_000


def find_places(
    ask: Callable[[str, QueryParameters, Place | None, int], Sequence[Place]], limit: int, last: Place | None
) -> list[Place]:
    """Return the places of the first `limit` traces of a list, after the place `last`.

    `ask(source, parameters, last, limit)` returns the places of the rows of a source that pass the list's filter.

    Reading all traces with `FINAL` takes several times as long as without. So the rows of all versions are read first,
    among them the current ones of all traces that pass. Then the current rows of the first traces are read by id. The
    other places found are of replaced rows.
    """
    found: list[Place] = []
    for spare in _SPARE:
        count = min(spare * (limit - len(found)), _MAX_CHECKED)
        rows = ask(ALL_VERSIONS, QueryParameters(is_loose=True), last, 2 * count)
        places = list(dict.fromkeys(rows))
        if places:
            parameters = QueryParameters()
            source = current_rows(parameters.limit_to({trace_id for _, trace_id in places[:count]}))
            current = set(ask(source, parameters, last, count))
            found += [place for place in places[:count] if place in current]
            last = places[:count][-1]
        if len(found) >= limit or (len(places) <= count and len(rows) < 2 * count):
            return found[:limit]
    return found + list(ask(TRACES, QueryParameters(), last, limit - len(found)))


def find_traces(
    db: Connection,
    filter: Filter,
    columns: str,
    limit: int,
    cursor: str | None,
    *,
    where: str = "1",
    judgements: bool = False,
) -> tuple[Sequence[Any], str | None]:
    """Return rows of the traces that pass, latest start first, and the cursor of the next page. With `judgements`,
    evaluators' own traces pass, too.

    `columns` are few, and begin with `t.trace_id, t.start_ns`. Raise `Refused` for an invalid cursor.
    """
    parameters = QueryParameters()
    condition = f"{compile_filter(filter, parameters, judgements=judgements)} AND {where}"
    if cursor is not None:
        condition += f" AND (t.start_ns, t.trace_id) < {parameters.position(cursor)}"
    order = f"ORDER BY t.start_ns DESC, t.trace_id DESC LIMIT {parameters.integer(limit + 1)}"
    found = db.query(f"SELECT {columns} FROM {TRACES} WHERE {condition} {order}", parameters)
    return cut_page(found, limit, time=1, key=0)


# Traces and sessions sorted by a number, page by page (see `list_pages`).


def _restrict(bounds: list_pages.SortedSet, filter: Filter, parameters: QueryParameters) -> str:
    """Return the condition of a filter, restricted to a set."""
    where = f"{compile_filter(filter, parameters)} AND t.number <= {parameters.bind(bounds.upto, 'UInt64')}"
    return where if bounds.since_ns is None else f"{where} AND t.start_ns >= {parameters.integer(bounds.since_ns)}"


def _find_set(db: Connection, filter: Filter, *, unlimited: bool = False) -> list_pages.SortedSet:
    """Return the set of the traces that pass now. `unlimited`: all of them can be sorted, and are not counted."""
    parameters, limit = QueryParameters(is_loose=True), filters.MAX_SORTED
    count = "0" if unlimited else f"(SELECT count() FROM {ALL_VERSIONS} WHERE {compile_filter(filter, parameters)})"
    [[upto, count]] = db.query(f"SELECT max(number), {count} FROM traces", parameters)
    if count > limit:
        parameters = QueryParameters()
        last_and_next = f"ORDER BY t.start_ns DESC LIMIT 2 OFFSET {parameters.integer(limit - 1)}"
        sql = f"SELECT t.start_ns FROM {TRACES} WHERE {compile_filter(filter, parameters)} {last_and_next}"
        if len(rows := db.query(sql, parameters)) == 2:
            return list_pages.SortedSet(upto, rows[0][0], limit)
    return list_pages.SortedSet(upto, None, count)


def _sort_page(
    db: Connection, rows: str, parameters: QueryParameters, order: SortOrder, last: Place | None, limit: int
) -> list[Any]:
    """Return the first `limit` rows after `last`, as (value, id). `rows` is a statement with the columns `v` and `id`."""
    after, sign = "1", "<" if order.is_descending else ">"
    if last:
        value, id = last[0], parameters.text(last[1])
        if value is None:
            after = f"v IS NULL AND id > {id}"
        else:
            bound = parameters.integer(value) if isinstance(value, int) else parameters.number(value)
            after = f"(v {sign} {bound} OR (v = {bound} AND id > {id}) OR v IS NULL)"
    by = f"v {order.sql} NULLS LAST, id LIMIT {parameters.integer(limit)}"
    return db.query(f"SELECT v, id FROM ({rows}) WHERE {after} ORDER BY {by}", parameters)


def list_sorted_traces(
    db: Connection, filter: Filter, sort: str, limit: int, cursor: str | None
) -> list_pages.SortedPage:
    """Return one page of trace ids. Raise `Refused` for an unknown order or another list's cursor."""

    def select(query: list_pages.SortedQuery, bounds: list_pages.SortedSet) -> list[Any]:
        order = query.order

        def ask(source: str, parameters: QueryParameters, last: Place | None, limit: int) -> list[Place]:
            where = _restrict(bounds, filter, parameters)
            if order.column == "feedback":
                scores = newest_feedback([order.key or ""], parameters)
                # of traces without feedback, the score is NULL, because the column is nullable
                source = f"(SELECT t.trace_id AS trace_id FROM {source} WHERE {where}) AS t LEFT JOIN ({scores}) AS f USING trace_id"
                rows = f"SELECT f.score AS v, t.trace_id AS id FROM {source}"
            else:
                value = list_pages.TRACE_VALUES[order.column]
                rows = f"SELECT {value} AS v, t.trace_id AS id FROM {source} WHERE {where}"
            return _sort_page(db, rows, parameters, order, last, limit)

        return [(id, value, id) for value, id in find_places(ask, query.limit + 1, query.place)]

    find_set = lambda order: _find_set(db, filter, unlimited=order.column == "start")  # noqa: E731
    return list_pages.list_sorted(sort, filter, limit, cursor, find_set, select)[0]


def _sort_sessions(db: Connection, query: list_pages.SortedQuery, bounds: list_pages.SortedSet) -> list[Any]:
    parameters = QueryParameters()
    rows = (
        f"SELECT {list_pages.SESSION_VALUES[query.order.column]} AS v, t.session_id AS id FROM {TRACES}"
        f" WHERE {_restrict(bounds, query.filter, parameters)} AND t.session_id IS NOT NULL GROUP BY t.session_id"
    )
    rows_after = _sort_page(db, rows, parameters, query.order, query.place, query.limit + 1)
    return [(id, value, id) for value, id in rows_after]


# Sessions

_SESSION_FIELDS = f"t.session_id AS id, argMax(t.project, t.start_ns), {list_pages.SESSION_SUMS}"


def list_sessions(
    db: Connection, filter: Filter, limit: int, cursor: str | None, sort: str | None = None
) -> Page[SessionSummary]:
    """Return one page of sessions, in the order of a number or latest first.

    All pages cover the traces that were stored when the first page was read, so a session that gets another trace
    keeps its position.
    """
    parameters = QueryParameters()
    if sort:
        select = partial(_sort_sessions, db)
        page, bounds = list_pages.list_sorted(
            sort, filter, limit, cursor, lambda _: _find_set(db, filter), select, sessions=True
        )
        where = f"{_restrict(bounds, filter, parameters)} AND t.session_id IN {parameters.texts(page.keys)}"
        rows = db.query(f"SELECT {_SESSION_FIELDS} FROM {TRACES} WHERE {where} GROUP BY t.session_id", parameters)
        by_id = {row[0]: row for row in rows}
        found = tuple(list_pages.make_session(by_id[id]) for id in page.keys if id in by_id)
        return Page(items=found, next=page.next, newest=page.newest)
    having = ""
    if cursor is None:
        [[upto]] = db.query("SELECT max(number) FROM traces")
    else:
        upto, rest = parse_text_cursor(cursor)
        upto = max(0, upto)  # whatever an invalid cursor has
        having = f" HAVING (latest, id) < {parameters.position(rest)}"
    where = _restrict(list_pages.SortedSet(upto), filter, parameters)
    fetched = db.query(
        f"SELECT {_SESSION_FIELDS} FROM {TRACES} WHERE {where} AND t.session_id IS NOT NULL GROUP BY t.session_id{having}"
        f" ORDER BY latest DESC, id DESC LIMIT {parameters.integer(limit + 1)}",
        parameters,
    )
    shown, next = cut_page(fetched, limit, time=10, key=0)
    return Page(items=tuple(map(list_pages.make_session, shown)), next=next and f"{upto}.{next}")


# Distinct values of a field, for filter menus

NEWEST_TRACES = 1000  # newest traces of a project, and of all projects for metadata, from which values are read

_FEEDBACK_FIELD = "feedback"
# Values of a trace
_VALUES = {
    **{name: f"t.{name}" for name in ("project", "environment", "name")},
    **{name: f"arrayJoin({values})" for name, values in ARRAYS.items()},
    "session": "t.session_id",
    "user": "t.user_id",
}
_FIELDS = (*_VALUES, _FEEDBACK_FIELD)
# An empty prompt or version means none
_IS_VALUE = {"prompt": "v <> ''", "prompt_version": "v <> ''"}
_SHOWN_FIELDS = ("environment", "name", "model")  # not those that only evaluators' own traces have


def list_values(db: Connection, field: str, limit: int, project: str | None) -> list[str]:
    """Return the values of a field in order, at most `limit`. Raise `Refused` for an unknown field."""
    parameters = QueryParameters()
    name, _, key = field.partition(".")
    if name == list_pages.METADATA_FIELD:
        value = f"t.metadata[{parameters.text(key)}]" if key else "arrayJoin(mapKeys(t.metadata))"
        where = f"mapContains(t.metadata, {parameters.text(key)})" if key else "1"
        values = f"{value} AS v FROM {_newest_traces(project, parameters)} WHERE {where}"
        return _list_distinct(db, values, "1" if key else "v <> ''", limit, parameters)
    list_pages.check_field(field, _FIELDS)
    if project is not None and field == "project":
        return [project]
    source = TRACES if project is None else _newest_traces(project, parameters)
    if field == _FEEDBACK_FIELD:
        of_traces = "" if project is None else f" AND trace_id IN (SELECT t.trace_id FROM {source})"
        keys = f"key AS v FROM feedback FINAL WHERE trace_id <> '' AND document IS NULL{of_traces}"
        return _list_distinct(db, keys, "1", limit, parameters)
    where = f" AND {VISIBLE_SQL}" if field in _SHOWN_FIELDS else ""
    values = f"{_VALUES[field]} AS v FROM {source} WHERE t.span_count > 0{where}"
    return _list_distinct(db, values, _IS_VALUE.get(field, "v IS NOT NULL"), limit, parameters)


def _newest_traces(project: str | None, parameters: QueryParameters) -> str:
    where = VISIBLE_SQL if project is None else f"{VISIBLE_SQL} AND t.project = {parameters.text(project)}"
    return f"(SELECT * FROM {TRACES} WHERE {where} ORDER BY t.start_ns DESC LIMIT {NEWEST_TRACES}) AS t"


def _list_distinct(db: Connection, values: str, where: str, limit: int, parameters: QueryParameters) -> list[str]:
    sql = f"SELECT DISTINCT v FROM (SELECT {values}) WHERE {where} ORDER BY v LIMIT {parameters.integer(limit)}"
    return [value for (value,) in db.query(sql, parameters)]


# Feedback


def list_feedback(
    db: Connection,
    filter: Filter,
    key: str | None,
    source: Source | None,
    target: Target | None,
    limit: int,
    cursor: str | None,
) -> Page[Feedback]:
    """Return one page of feedback, newest first."""
    parameters, where = QueryParameters(), ["1"]
    if filter != Filter():
        where.append(f"trace_id IN (SELECT t.trace_id FROM {TRACES} WHERE {compile_filter(filter, parameters)})")
    if key is not None:
        where.append(f"key = {parameters.text(key)}")
    if source is not None:
        where.append(f"source = {parameters.text(source)}")
    if target is not None:
        where += _target_conditions(target, parameters)
    return select_feedback(db, where, parameters, limit, cursor)


def read_feedback(db: Connection, rest: str, trace_ids: Collection[str]) -> Iterator[tuple[str, Feedback]]:
    """Yield trace id and feedback on traces. `rest` is the SQL after the condition on the trace."""
    sql = f"SELECT {FEEDBACK_COLUMNS} FROM feedback FINAL WHERE trace_id IN {{ids:Array(String)}} {rest}"
    for row in db.query(sql, {"ids": list(trace_ids)}):
        yield row[1], decode_feedback(row)


def select_feedback(
    db: Connection, where: list[str], parameters: QueryParameters, limit: int, cursor: str | None
) -> Page[Feedback]:
    """Return one page of the feedback that meets SQL conditions, newest first. Raise `Refused` for an invalid cursor."""
    if cursor is not None:
        created_ns, id = parse_text_cursor(cursor)
        number, _, id = id.partition(".")
        if not number.isdecimal():
            raise Refused(f"invalid cursor {cursor!r}; use `next` of the previous page")
        bounds = f"{parameters.integer(created_ns)}, {parameters.bind(int(number), 'UInt64')}, {parameters.text(id)}"
        where = [*where, f"(created_ns, number, id) < ({bounds})"]
    rows = db.query(
        f"SELECT created_ns, number, id, {FEEDBACK_COLUMNS} FROM feedback FINAL WHERE {' AND '.join(where)}"
        f" ORDER BY created_ns DESC, number DESC, id DESC LIMIT {parameters.integer(limit + 1)}",
        parameters,
    )
    next = ".".join(map(str, rows[limit - 1][:3])) if len(rows) > limit else None
    return Page(items=tuple(decode_feedback(row[3:]) for row in rows[:limit]), next=next)


def _target_conditions(target: Target, parameters: QueryParameters) -> list[str]:
    """Return conditions that select this target; a session without a project in any project."""
    found = [
        f"{name} = {parameters.text(getattr(target, name) or '')}"
        for name in ("trace_id", "session_id", "experiment_id")
    ]
    for name, type in (("span_id", "String"), ("document", "Int64")):
        value = getattr(target, name)
        found.append(f"{name} IS NULL" if value is None else f"{name} = {parameters.bind(value, type)}")
    if target.project is not None:
        found.append(f"project = {parameters.text(target.project)}")
    return found


def list_experiment_scores(db: Connection, experiment_id: str, limit: int, cursor: str | None) -> Page[RunScores]:
    """Return one page of an experiment's runs with their scores, earliest start first."""
    parameters = QueryParameters()
    where = f"t.span_count > 0 AND t.experiment_id = {parameters.text(experiment_id)}"
    if cursor is not None:
        where += f" AND (t.start_ns, t.trace_id) > {parameters.position(cursor)}"
    columns = f"{list_pages.EXPERIMENT_COLUMNS}, t.tags, mapKeys(t.models)"
    order = f"ORDER BY t.start_ns, t.trace_id LIMIT {parameters.integer(limit + 1)}"
    fetched = db.query(f"SELECT {columns} FROM {TRACES} WHERE {where} {order}", parameters)
    rows, next = cut_page(fetched, limit, time=4, key=0)
    scores = _read_counted_scores(db, [row[0] for row in rows])
    items = (list_pages.make_run_scores(row[:9], row[9], row[10], scores.get(row[0], {})) for row in rows)
    return Page(items=tuple(items), next=next)


def _read_counted_scores(db: Connection, trace_ids: Sequence[str]) -> dict[str, dict[str, float | str | None]]:
    """Return the newest score (else label) by trace and key. A judge's score counts before a person's feedback on it."""
    sql = (
        "SELECT trace_id, key, newest.1, newest.2 FROM (SELECT trace_id, key,"
        " argMax(tuple(score, label), tuple(created_ns, number)) AS newest"
        " FROM (SELECT *, max(source = 'model') OVER (PARTITION BY trace_id, key) AS has_judge FROM feedback FINAL"
        " WHERE trace_id IN {ids:Array(String)}) WHERE document IS NULL"
        " AND NOT (has_judge AND source = 'human') GROUP BY trace_id, key) ORDER BY key"
    )
    return list_pages.group_scores(db.query(sql, {"ids": list(trace_ids)}) if trace_ids else ())


# Scores of rules


def current_feedback(columns: str, where: str) -> str:
    """Return a statement with the newest feedback of each slot (see `SLOT_COLUMNS`) that meets an SQL condition."""
    return (
        f"SELECT {columns} FROM feedback FINAL WHERE {where}"
        f" ORDER BY created_ns DESC, number DESC LIMIT 1 BY {SLOT_COLUMNS}"
    )


def list_rule_scores(db: Connection, query: ScoreQuery) -> Page[RuleScore]:
    """Return one page of a rule's scores, errors and skips, ordered by start of the trace, latest first."""
    parameters = QueryParameters()
    project = parameters.text(query.project)
    where = f"rule = {parameters.text(query.rule)}"
    if query.key is not None:
        where += f" AND key = {parameters.text(query.key)}"
    is_shown = "outcome <> 'score' OR score IS NOT NULL" + (" OR label IS NOT NULL" if query.labelled else "")
    bounds = [f"({is_shown})"]
    if query.since_ns is not None:
        bounds.append(f"start >= {parameters.integer(query.since_ns)}")
    if query.until_ns is not None:
        bounds.append(f"start < {parameters.integer(query.until_ns)}")
    if query.cursor is not None:
        bounds.append(f"(start, id) < {parameters.position(query.cursor)}")
    of_traces = (
        "SELECT f.*, t.session_id AS session, t.start_ns AS start"
        f" FROM ({current_feedback('*', where)}) AS f"
        f" INNER JOIN (SELECT trace_id, session_id, start_ns FROM {TRACES} WHERE t.project = {project}) AS t USING trace_id"
    )
    sessions = "SELECT session_id, toNullable(min(start_ns)) AS first FROM traces FINAL WHERE session_id IS NOT NULL GROUP BY session_id"
    of_sessions = (
        "SELECT f.*, toNullable(f.session_id) AS session, ifNull(s.first, f.created_ns) AS start"
        f" FROM ({current_feedback('*', where)}) AS f LEFT JOIN ({sessions}) AS s ON s.session_id = f.session_id"
        f" WHERE f.trace_id = '' AND f.session_id <> '' AND ifNull(f.project, {project}) = {project}"
    )
    sql = (
        f"SELECT start, id, session, {FEEDBACK_COLUMNS} FROM ({of_traces} UNION ALL {of_sessions})"
        f" WHERE {' AND '.join(bounds)} ORDER BY start DESC, id DESC LIMIT {parameters.integer(query.limit + 1)}"
    )
    rows, next = cut_page(db.query(sql, parameters), query.limit, time=0, key=1)
    scores = [RuleScore(decode_feedback(row[3:]), row[2], row[0]) for row in rows]
    if query.by is not None:
        scores = _add_groups(db, query.by, query.project, scores)
    return Page(items=tuple(scores), next=next)


# Values of the fields by which sums can be grouped, as an array for each trace
GROUP_VALUES = {
    **{name: ARRAYS[name] for name in ("tag", "model", "agent")},
    **{name: f"[t.{name}]" for name in ("environment", "name")},
    "prompt_version": f"arrayFilter(version -> version <> '', {ARRAYS['prompt_version']})",
    "user": "if(t.user_id IS NULL, [], [assumeNotNull(t.user_id)])",
}


def group_values(by: str, parameters: QueryParameters) -> str:
    """Return the SQL of the values of a field of a trace. Raise `Refused` for an unknown field."""
    if check_grouping(by) in GROUP_VALUES:
        return f"arrayDistinct({GROUP_VALUES[by]})"
    key = parameters.text(by.removeprefix(METADATA_PREFIX))
    return f"if(mapContains(t.metadata, {key}), [t.metadata[{key}]], [])"


def _add_groups(db: Connection, by: str, project: str, scores: Sequence[RuleScore]) -> list[RuleScore]:
    """Return the scores with the values of a field of their traces, or of all traces of their sessions."""
    parameters = QueryParameters()
    targets = [score.feedback.target for score in scores]
    values = group_values(by, parameters)
    traces = parameters.texts({target.trace_id for target in targets if target.trace_id})
    sessions = parameters.texts({target.session_id for target in targets if not target.trace_id and target.session_id})
    of_project = f"t.span_count > 0 AND t.project = {parameters.text(project)}"
    sql = (
        f"SELECT t.trace_id, {values} FROM {TRACES} WHERE t.trace_id IN {traces}"
        f" UNION ALL SELECT assumeNotNull(t.session_id), groupUniqArrayArray({values}) FROM {TRACES}"
        f" WHERE t.session_id IN {sessions} AND {of_project} GROUP BY t.session_id"
    )
    groups = dict(db.query(sql, parameters))
    return [
        score._replace(groups=tuple(sorted(groups.get(target.trace_id or target.session_id, ()))))
        for score, target in zip(scores, targets, strict=True)
    ]


# Counts, and existence of traces and sessions


def count_rows(db: Connection) -> dict[str, int]:
    """Return the numbers of spans, traces and feedback records."""
    [[spans, traces]] = db.query("SELECT sum(span_count), count() FROM traces FINAL WHERE span_count > 0")
    [[feedbacks]] = db.query("SELECT count() FROM feedback FINAL")
    return {"spans": spans, "traces": traces, "feedbacks": feedbacks}


def find_stored_traces(db: Connection, trace_ids: Collection[str]) -> set[str]:
    """Return those of the traces that are stored with at least one run."""
    return _find_stored(db, "t.trace_id", trace_ids)


def find_stored_sessions(db: Connection, sessions: Collection[str]) -> set[str]:
    """Return those of the sessions that have at least one stored trace."""
    return _find_stored(db, "t.session_id", sessions)


def _find_stored(db: Connection, column: str, values: Iterable[str]) -> set[str]:
    parameters = QueryParameters()
    where = f"t.span_count > 0 AND {column} IN {parameters.texts(values)}"
    return {value for (value,) in db.query(f"SELECT DISTINCT {column} FROM {TRACES} WHERE {where}", parameters)}
