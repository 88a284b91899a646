"""A filter as rules read it, asked of single traces: by the compiler of all lists, but for two kinds of conditions.

Rules do not chain: conditions on feedback see only what no rule gave. And words are looked up trace by trace; of a
trace that the text index has not reached it cannot be told whether it has them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from assay.collector.filters import Filter
from assay.collector.stores.sqlite._where import (
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

WAITS = "EXISTS (SELECT 1 FROM unindexed u WHERE u.trace = t.id)"  # for the text index
OF_NO_RULE = f"FROM feedback f {OF_TRACE} AND f.key = ? AND f.rule IS NULL"
# Of the trace and its spans, as `standing` 2 is of all feedback
NEWEST = f"(SELECT f.{{}} {OF_NO_RULE} AND f.document IS NULL ORDER BY f.created_ns DESC, f.rowid DESC LIMIT 1)"


class Answer(NamedTuple):
    """SQL over a row `t` that is 1, 0 or NULL (not yet told), with the values for its marks."""

    sql: str
    values: tuple[Any, ...]


def answer(filter: Filter) -> Answer:
    """Whether a trace passes."""
    found = list(of_rules(filter))
    others, values = joined([_shown(filter), *(c for part in found if part.name != "text" for c in part.conditions)])
    words = [condition for part in found if part.name == "text" for condition in part.conditions]
    text, more = joined(words) if words else ("1", ())
    then = f"CASE WHEN {WAITS} THEN NULL ELSE {text} END" if words else text
    return Answer(f"CASE WHEN {others} THEN {then} ELSE 0 END", (*values, *more))


def of_rules(filter: Filter) -> Iterator[Part]:
    """What the filter says, name by name."""
    return parts(filter, _WRITERS)


def _shown(filter: Filter) -> Condition:
    return Condition(SHOWN.format("t") if filter.leaves_out_judgements else "t.span_count > 0")


def _feedback(wanted: Any) -> list[Condition]:
    return [
        Condition(
            f"{NEWEST.format('label' if isinstance(value, str) else 'score')} {COMPARED[operator]} ?", (key, value)
        )
        for key, operator, value in wanted
    ]


def _outcome(sql: str) -> Callable[[Any], list[Condition]]:
    return lambda keys: [Condition(f"{NEWEST.format('outcome')} {sql}", (key,)) for key in keys]


def _untried(keys: Any) -> list[Condition]:
    return [Condition(f"NOT EXISTS (SELECT 1 {OF_NO_RULE})", (key,)) for key in keys]


def _text(value: str) -> list[Condition]:
    match = matching(value)
    return [Condition("EXISTS (SELECT 1 FROM words WHERE words MATCH ? AND rowid = t.id)", (match,))] if match else []


_WRITERS: dict[str, Callable[[Any], list[Condition]]] = {
    **WRITERS,
    "feedback": _feedback,
    "missing": _outcome("IS NOT 'score'"),
    "untried": _untried,
    "failed": _outcome("IS 'error'"),
    "skipped": _outcome("IS 'skip'"),
    "text": _text,
}
