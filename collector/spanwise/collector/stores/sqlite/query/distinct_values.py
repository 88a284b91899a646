"""Distinct values of a field, for filter menus.

Without a project, a loose index scan takes one step per value, independent of the number of traces that share it.
With a project, the values come from its newest traces, because only the index by start time covers the traces of one
project. Names, environments and models that only evaluators' own traces have (of the newest of both) are left out. Metadata has
no index, and always comes from the newest traces.
"""

from __future__ import annotations

import sqlite3

from spanwise.collector.errors import Refused
from spanwise.collector.stores.sqlite.query.filter_sql import METADATA_TEXT_SQL, VISIBLE_SQL

NEWEST_TRACES = 1000  # newest traces of a project from which values are read; about 5 ms of CPU

_LOOSE_SCAN = """
WITH RECURSIVE v (x) AS (
  SELECT min({column}) FROM {table} INDEXED BY {index} WHERE {where}
  UNION ALL
  SELECT (SELECT min({column}) FROM {table} INDEXED BY {index} WHERE {where} AND {column} > v.x)
  FROM v WHERE v.x IS NOT NULL
)
SELECT x FROM v WHERE x IS NOT NULL
"""


def _loose_scan(column: str, table: str, index: str, where: str) -> str:
    return _LOOSE_SCAN.format(column=column, table=table, index=index, where=where)


_VISIBLE = VISIBLE_SQL.format("traces")
# The index excludes evaluators' own traces. Projects that have no other traces are found among the newest traces of
# evaluators
_INDEXED_PROJECTS = _loose_scan("project", "traces", "traces_shown_by_project", f"project IS NOT NULL AND {_VISIBLE}")
_PROJECTS = f"""
SELECT x FROM ({_INDEXED_PROJECTS} LIMIT ?1)
UNION
SELECT project FROM (
  SELECT project FROM traces INDEXED BY traces_of_evaluators WHERE kind = 'evaluator'
  ORDER BY start_ns DESC LIMIT {NEWEST_TRACES}
)
ORDER BY 1 LIMIT ?1
"""
_SELECT_KNOWN = "SELECT value FROM known WHERE field = '{}' ORDER BY value LIMIT ?1"
# Values that the newest traces of evaluators have are shown only if the newest other traces have them, too
_OF_NEWEST = (
    "SELECT {of_trace} FROM (SELECT name, environment, models FROM traces INDEXED BY {index}"
    f" WHERE {{condition}} ORDER BY start_ns DESC LIMIT {NEWEST_TRACES}) t{{join}} WHERE {{of_trace}} IS NOT NULL"
)


def _shown(values: str, of_trace: str, join: str = "") -> str:
    of_evaluators = _OF_NEWEST.format(
        of_trace=of_trace, join=join, index="traces_of_evaluators", condition="kind = 'evaluator'"
    )
    of_others = _OF_NEWEST.format(of_trace=of_trace, join=join, index="traces_shown", condition=_VISIBLE)
    return f"SELECT x FROM ({values}) WHERE x NOT IN ({of_evaluators}) OR x IN ({of_others}) ORDER BY x LIMIT ?1"


_ALL_KNOWN = "SELECT value AS x FROM known WHERE field = '{}'"
# One parameter: the limit
ALL_PROJECTS_SQL = {
    "project": _PROJECTS,
    "environment": _shown(_ALL_KNOWN.format("environment"), "t.environment"),
    "name": _shown(_loose_scan("name", "traces", "traces_by_name", "name IS NOT NULL"), "t.name"),
    "kind": _SELECT_KNOWN.format("kind"),
    "model": _shown(_ALL_KNOWN.format("model"), "m.key", " CROSS JOIN json_each(t.models) m"),
    **{field: _SELECT_KNOWN.format(field) for field in ("tag", "prompt", "prompt_version", "agent", "finish_reason")},
    "session": _loose_scan("session_id", "traces", "traces_by_session", "session_id IS NOT NULL") + "LIMIT ?1",
    "user": _loose_scan("user_id", "traces", "traces_by_user", "user_id IS NOT NULL") + "LIMIT ?1",
    "feedback": _loose_scan("key", "feedback", "feedback_by_score", "standing = 2") + "LIMIT ?1",
}

_NEWEST = (
    "(SELECT {} AS x FROM traces INDEXED BY traces_shown_by_project"
    f" WHERE project = ?2 AND {_VISIBLE} ORDER BY start_ns DESC LIMIT {NEWEST_TRACES}) t"
)


def _column(name: str) -> str:
    return f"SELECT DISTINCT x FROM {_NEWEST.format(name)} WHERE x IS NOT NULL ORDER BY x LIMIT ?1"


def _element(name: str, part: str) -> str:
    return f"SELECT DISTINCT j.{part} FROM {_NEWEST.format(name)}, json_each(t.x) j ORDER BY 1 LIMIT ?1"


# Two parameters: the limit and the project
ONE_PROJECT_SQL = {
    "environment": _column("environment"),
    "name": _column("name"),
    "kind": _element("kinds", "value"),
    "model": _element("models", "key"),
    "tag": _element("tags", "value"),
    "prompt": f"SELECT DISTINCT j.key FROM {_NEWEST.format('prompts')}, json_each(t.x) j WHERE j.key <> ''"
    " ORDER BY 1 LIMIT ?1",
    "prompt_version": f"SELECT DISTINCT v.value FROM {_NEWEST.format('prompts')}, json_each(t.x) j, json_each(j.value) v"
    " WHERE v.value IS NOT NULL ORDER BY 1 LIMIT ?1",
    "agent": _element("agents", "value"),
    "finish_reason": _element("finish_reasons", "value"),
    "session": _column("session_id"),
    "user": _column("user_id"),
    "feedback": f"SELECT DISTINCT f.key FROM {_NEWEST.format('id')} CROSS JOIN feedback f INDEXED BY feedback_by_trace"
    " ON f.trace = t.x WHERE f.standing = 2 ORDER BY 1 LIMIT ?1",
}

METADATA_FIELD = "metadata"
_METADATA = (
    "(SELECT metadata AS x FROM traces INDEXED BY {}"
    f" WHERE {{}} {_VISIBLE} ORDER BY start_ns DESC LIMIT {NEWEST_TRACES}) t, json_each(t.x) m"
)


def list_values(db: sqlite3.Connection, field: str, limit: int, project: str | None) -> list[str]:
    """Return the values of a field in order, at most `limit`. Raise `Refused` for an unknown field."""
    name, _, key = field.partition(".")
    if name == METADATA_FIELD:
        return list_metadata(db, key, limit, project)
    if field not in ALL_PROJECTS_SQL:
        raise Refused(f"unknown field {field!r}; expected one of: {', '.join((*ALL_PROJECTS_SQL, METADATA_FIELD))}")
    if project is None:
        rows = db.execute(ALL_PROJECTS_SQL[field], (limit,))
    elif field == "project":
        return [project]
    else:
        rows = db.execute(ONE_PROJECT_SQL[field], (limit, project))
    return [row[0] for row in rows]


def list_metadata(db: sqlite3.Connection, key: str, limit: int, project: str | None) -> list[str]:
    """Return the metadata keys of the newest traces, or the values of one key as filters compare them."""
    index, where = ("traces_by_start", "") if project is None else ("traces_shown_by_project", "project = ?3 AND")
    column = METADATA_TEXT_SQL if key else "m.key"
    sql = f"SELECT DISTINCT {column} FROM {_METADATA.format(index, where)} WHERE m.key <> '' AND ?2 IN ('', m.key) ORDER BY 1 LIMIT ?1"
    rows = db.execute(sql, (limit, key, project) if project is not None else (limit, key))
    return [row[0] for row in rows if row[0] is not None]
