"""A filter as rules read it, asked of single traces: by the compiler of all lists, but for two kinds of conditions.

Rules do not chain: conditions on feedback see only what no rule gave. And words are looked up for these traces alone;
of a trace that the text index has not reached it cannot be told whether it has them.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, TypeAlias

from spanwise.collector.filters import Filter
from spanwise.collector.stores.sqlite._values import dumps
from spanwise.collector.stores.sqlite._where import (
    COMPARED,
    OF_TRACE,
    SHOWN,
    WRITERS,
    Condition,
    Part,
    joined,
    matching,
    parts,
)

Writer: TypeAlias = Callable[[Any], list[Condition]]

APART = 2_000  # traces between two: it costs less to walk over them than to look twice
WAITS = "EXISTS (SELECT 1 FROM unindexed u WHERE u.trace = t.id)"  # for the text index
OF_NO_RULE = f"FROM feedback f {OF_TRACE} AND f.key = ? AND f.rule IS NULL"
# Of the trace and its spans, as `standing` 2 is of all feedback
NEWEST = f"(SELECT f.{{}} {OF_NO_RULE} AND f.document IS NULL ORDER BY f.created_ns DESC, f.rowid DESC LIMIT 1)"


class Answer(NamedTuple):
    """SQL over a row `t` that is 1, 0 or NULL (not yet told), with the values for its marks."""

    sql: str
    values: tuple[Any, ...]


def answer(filter: Filter, look_up: Writer | None = None) -> Answer:
    """Whether a trace passes; `look_up` finds words (see `among`), else that is done trace by trace."""
    found = list(of_rules(filter, look_up))
    others, values = joined([_shown(filter), *(c for part in found if part.name != "text" for c in part.conditions)])
    words, more = joined([condition for part in found if part.name == "text" for condition in part.conditions])
    then = f"CASE WHEN {WAITS} THEN NULL ELSE {words} END" if words else "1"
    return Answer(f"CASE WHEN {others} THEN {then} ELSE 0 END", (*values, *more))


def of_rules(filter: Filter, look_up: Writer | None = None) -> Iterator[Part]:
    """What the filter says, name by name."""
    return parts(filter, {**_WRITERS, "text": look_up or _text})


def among(db: sqlite3.Connection, ids: Iterable[int]) -> Writer:
    """Words, looked up for traces that are asked about together: at once for those that came at about the same time.
    Asked one by one each would walk through part of the list of all that have a frequent word.
    """
    wanted = sorted(ids)

    def look_up(text: str) -> list[Condition]:
        match = matching(text)
        sql = "t.id IN (SELECT value FROM json_each(?))"
        return [Condition(sql, (dumps(_having(db, match, wanted)),))] if match else []

    return look_up


def _having(db: sqlite3.Connection, match: str, wanted: Sequence[int]) -> list[int]:
    sql = "SELECT rowid FROM words WHERE words MATCH ? AND rowid BETWEEN ? AND ?"
    found = {row[0] for stretch in stretches(wanted) for row in db.execute(sql, (match, stretch[0], stretch[-1]))}
    return [id for id in wanted if id in found]


def stretches(ids: Sequence[int]) -> Iterator[Sequence[int]]:
    """Rising ids, cut where one is more than `APART` above the one before."""
    begin = 0
    for place in range(1, len(ids) + 1):
        if place == len(ids) or ids[place] - ids[place - 1] > APART:
            yield ids[begin:place]
            begin = place


def _shown(filter: Filter) -> Condition:
    return Condition(SHOWN.format("t") if filter.leaves_out_judgements else "t.span_count > 0")


def _feedback(wanted: Any) -> list[Condition]:
    return [
        Condition(
            f"{NEWEST.format('label' if isinstance(value, str) else 'score')} {COMPARED[operator]} ?", (key, value)
        )
        for key, operator, value in wanted
    ]


def _outcome(sql: str) -> Writer:
    return lambda keys: [Condition(f"{NEWEST.format('outcome')} {sql}", (key,)) for key in keys]


def _untried(keys: Any) -> list[Condition]:
    return [Condition(f"NOT EXISTS (SELECT 1 {OF_NO_RULE})", (key,)) for key in keys]


def _text(value: str) -> list[Condition]:
    match = matching(value)
    return [Condition("EXISTS (SELECT 1 FROM words WHERE words MATCH ? AND rowid = t.id)", (match,))] if match else []


_WRITERS: dict[str, Writer] = {
    **WRITERS,
    "feedback": _feedback,
    "missing": _outcome("IS NOT 'score'"),
    "untried": _untried,
    "failed": _outcome("IS 'error'"),
    "skipped": _outcome("IS 'skip'"),
}
