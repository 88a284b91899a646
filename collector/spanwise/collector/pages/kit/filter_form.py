"""The filter form: from a page's address to the one `Filter`, and back to addresses and removable marks.

A page's address says conditions as every query string does (`querystring`). Read here is only what is the form's own:
`traffic`, and one condition on feedback in three fields (`feedback_key`, `feedback_op`, `feedback_value`), which a form
cannot put into one; and `range`, as `since` was called in addresses that people have kept.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from urllib.parse import urlencode

from spanwise.collector import querystring
from spanwise.collector.errors import Refused
from spanwise.collector.filters import EVALUATOR, OPERATORS, Filter, askable, no_condition
from spanwise.collector.querystring import Condition

RANGES = {
    "": "any time",
    "15m": "last 15 minutes",
    "1h": "last hour",
    "6h": "last 6 hours",
    "24h": "last 24 hours",
    "7d": "last 7 days",
    "30d": "last 30 days",
}
TRAFFIC = {"": "live", "all": "live and experiments", "judges": "judges' own"}
OUTCOMES = {"missing": "is missing", "untried": "was not tried", "failed": "failed", "skipped": "was skipped"}
VERBS = {"<": "<", "<=": "≤", "=": "=", "!=": "≠", ">=": "≥", ">": ">", **OUTCOMES}

_SILENT = frozenset(("traffic", "cursor", "feedback_op", "feedback_value"))  # they change how others are read
_OWN = _SILENT | {"range", "feedback_key"}
_UNFOLDED = frozenset(("traffic", "text", "project", "environment", "status", "range", "cursor"))
_FEEDBACK = frozenset(("feedback_key", "feedback_op", "feedback_value"))
_UNMARKED = frozenset(("cursor", "feedback_op", "feedback_value"))
_LABELS = {"range": "time", "latency_ms": "latency", "feedback_key": "feedback"}
_OF_EXPERIMENTS = frozenset(("experiment", "experiments", "dataset"))
# What a field that cannot be read should look like; of the others the grammar itself says it
_COMPARISON = "{name} {text!r} is no comparison; write it like > 500"
_MOMENT = "{name} {text!r} is no date or time; write it like 2026-11-21T14:30"
_HINTS = {**dict.fromkeys(("latency_ms", "tokens", "cost"), _COMPARISON), **dict.fromkeys(("since", "until"), _MOMENT)}


@dataclass(frozen=True, slots=True)
class Mark:
    """One condition that is in force, and the address of the page without it."""

    label: str
    value: str
    without: str


@dataclass(frozen=True)
class Query:
    """What an address said: its pairs of name and text, the filter they make, and what was wrong with them."""

    items: tuple[tuple[str, str], ...]
    filter: Filter
    problems: tuple[str, ...] = ()

    @cached_property
    def fields(self) -> Mapping[str, str]:
        """The pairs as the form shows them, one text per name."""
        return dict(self.items)

    def address(self, path: str = "/", **changes: str | None) -> str:
        """The page's address with some fields changed; paging starts anew unless `cursor` is given."""
        kept = [(name, text) for name, text in self.items if name != "cursor" and name not in changes]
        return _address(path, [*kept, *((name, text) for name, text in changes.items() if text)])

    @property
    def detailed(self) -> bool:
        """Whether a condition is in force that the form keeps folded."""
        named = self.fields.keys() - ({"since"} if self.fields.get("since") in RANGES else set())
        return not named <= _UNFOLDED

    def marks(self) -> list[Mark]:
        """The conditions in force, for people."""
        shown = [(name, text) for name, text in self.items if name not in _UNMARKED]
        return [
            Mark(self._label(name, text), self._shown(name, text), self._without(name, text)) for name, text in shown
        ]

    def _label(self, name: str, text: str) -> str:
        return "time" if name == "since" and text in RANGES else _LABELS.get(name, name)

    def _shown(self, name: str, text: str) -> str:
        if name == "feedback_key":
            verb = self.fields.get("feedback_op", ">=")
            return f"{text} {VERBS.get(verb, verb)} {self.fields.get('feedback_value', '')}".strip()
        return {"range": RANGES, "since": RANGES, "traffic": TRAFFIC}.get(name, {}).get(text, text)

    def _without(self, name: str, text: str) -> str:
        gone = _FEEDBACK if name == "feedback_key" else ()
        kept = [item for item in self.items if item != (name, text) and item[0] not in gone and item[0] != "cursor"]
        return _address("/", kept)


def _address(path: str, items: Sequence[tuple[str, str]]) -> str:
    return f"{path}?{urlencode(items, errors='replace')}" if items else path


def read(
    params: Iterable[tuple[str, str]], *, live: bool = True, now_ns: int | None = None, others: Collection[str] = ()
) -> Query:
    """Read the pairs of a query string. What makes no sense is left out of the filter and named in `problems`.

    `others` are names of the page's own, which are no conditions.
    `live`: leave the traces of experiments out, unless the query says `traffic=all` or names an experiment. With
    `traffic=judges` the traces are those of evaluators, which nothing else shows.
    """
    params = list(params)
    items = _relevant(params)
    fields = dict(items)
    conditions: list[Condition] = []
    problems = [str(no_condition(name)) for name in dict(params) if not (name in others or _is_known(name))]
    for name, text in items:
        try:
            conditions += _conditions(name, text, fields, now_ns)
        except ValueError as error:
            problems.append(str(error))
    if live and fields.get("traffic") != "all" and not _OF_EXPERIMENTS & {field for field, _ in conditions}:
        conditions.append(("experiment", ""))
    if fields.get("traffic") == "judges":
        conditions.append(("kind", EVALUATOR))
    return Query(items, querystring.gathered(conditions), tuple(problems))


def _is_known(name: str) -> bool:
    return name in _OWN or querystring.field_of(name) is not None


def _relevant(params: Iterable[tuple[str, str]]) -> tuple[tuple[str, str], ...]:
    """The pairs that are conditions: without empty ones, and of those that do not add up the last."""
    stripped = [(name, text.strip()) for name, text in params if _is_known(name)]
    stripped = [item for item in stripped if item != ("since", "")]  # of which the form has two fields
    last = dict(stripped)
    return tuple(
        (name, text)
        for name, text in dict.fromkeys(stripped)
        if (text or querystring.TERM.fullmatch(name))  # `latency_ms>5` is all name
        and (querystring.field_of(name) in querystring.JOINED or last[name] == text)
    )


def _conditions(name: str, text: str, fields: Mapping[str, str], now_ns: int | None) -> list[Condition]:
    """What one pair says: one condition, or none."""
    if name in _SILENT or (name == "range" and "since" in fields):
        return []
    try:
        field, value = _condition(name, text, fields, now_ns)
        askable(Filter(**{field: value}))  # what the filter itself refuses is a problem of this pair, too
    except Refused as error:
        raise ValueError(str(error)) from None
    except ValueError as error:
        hint = _HINTS.get(name)
        raise ValueError(hint.format(name=_LABELS.get(name, name), text=text) if hint else str(error)) from None
    return [(field, value)]


def _condition(name: str, text: str, fields: Mapping[str, str], now_ns: int | None) -> Condition:
    match name:
        case "range":
            return "since_ns", _since(text, now_ns)
        case "since" | "until":
            return f"{name}_ns", querystring.moment(text, now_ns)
        case "feedback_key":
            return _feedback(text, fields.get("feedback_op", ">="), fields.get("feedback_value", ""))
    return querystring.condition(name, text)


def _since(text: str, now_ns: int | None) -> int:
    if text not in RANGES:
        raise ValueError(f"time {text!r} is none of {', '.join(filter(None, RANGES))}")
    return querystring.moment(text, now_ns)


def _feedback(key: str, operator: str, text: str) -> Condition:
    if operator in OUTCOMES:
        return operator, (key,)
    if operator not in OPERATORS:
        raise ValueError(f"feedback operator {operator!r} is none of {', '.join(VERBS)}")
    return "feedback", ((key, operator, querystring.bound(text)),)
