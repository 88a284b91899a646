"""Filter form: page URL to filter and back, removable conditions, integer parameters.

A page's URL has the same conditions as any query string (see `filters`). The form has further fields:

- `traffic` selects live traces, all traces, or evaluators' own.
- `feedback_key`, `feedback_op` and `feedback_value` form one condition, because HTML forms cannot combine
  fields.
- `sort` is the order of the list (see `sorting`).
- `group_by` is the field by which the charts compare groups of traces.
- `range` is the former name of `since` in bookmarked URLs.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from urllib.parse import urlencode

from starlette.requests import Request

from spanwise.collector import filter_values, filters
from spanwise.collector.errors import Refused
from spanwise.collector.filters import (
    EVALUATOR_KIND,
    OPERATORS,
    Condition,
    Filter,
    unknown_condition_error,
    validate_filter,
)
from spanwise.collector.sorting import parse_sort


def read_integer(request: Request, name: str) -> int | None:
    """Return an integer from the query string, None if it is absent. Raises `Refused`."""
    text = request.query_params.get(name)
    if not text:
        return None
    if not text.isdecimal() or len(text) > 12:
        raise Refused(f"{name} must be a whole number, got {text!r}")
    return int(text)


RANGE_LABELS = {
    "": "any time",
    "15m": "last 15 minutes",
    "1h": "last hour",
    "6h": "last 6 hours",
    "24h": "last 24 hours",
    "7d": "last 7 days",
    "30d": "last 30 days",
}
TRAFFIC_LABELS = {"": "live", "all": "live and experiments", "judges": "judge calls"}
GROUP_LABELS = {
    "prompt_version": "prompt version",
    "prompt": "prompt",
    "agent": "agent",
    "finish_reason": "finish reason",
    "time_to_first_token_ms": "time to first token",
    "model": "model",
    "name": "name",
    "error": "error",
    "user": "user",
    "session": "session",
    "environment": "environment",
    "project": "project",
}
OUTCOME_LABELS = {"missing": "is missing", "untried": "was not tried", "failed": "failed", "skipped": "was skipped"}
OPERATOR_LABELS = {"<": "<", "<=": "≤", "=": "=", "!=": "≠", ">=": "≥", ">": ">", **OUTCOME_LABELS}

# fields that are not conditions themselves, but modify others
_MODIFIER_FIELDS = frozenset(("traffic", "cursor", "sort", "group_by", "feedback_op", "feedback_value"))
_FORM_FIELDS = _MODIFIER_FIELDS | {"range", "feedback_key"}
_BASIC_FIELDS = frozenset(("traffic", "text", "project", "environment", "status", "range", "cursor", "sort"))
_FEEDBACK_FIELDS = frozenset(("feedback_key", "feedback_op", "feedback_value"))
_HIDDEN_FIELDS = frozenset(("cursor", "feedback_op", "feedback_value"))
_FIELD_LABELS = {
    "range": "time",
    "group_by": "group by",
    "latency_ms": "latency",
    "feedback_key": "feedback",
    "prompt_version": "prompt version",
    "finish_reason": "finish reason",
    "time_to_first_token_ms": "first token",
}
_EXPERIMENT_FIELDS = frozenset(("experiment", "experiments", "dataset"))
# Hints for invalid values of the fields in `_FIELD_HINTS`. For other fields, the error message of the parser is
# shown.
_COMPARISON_HINT = "{name} must be a comparison such as > 500, got {text!r}"
_TIME_HINT = "{name} must be a date or time such as 2026-11-21T14:30, got {text!r}"
_FIELD_HINTS = {
    **dict.fromkeys(("latency_ms", "time_to_first_token_ms", "tokens", "cost"), _COMPARISON_HINT),
    **dict.fromkeys(("since", "until"), _TIME_HINT),
}


@dataclass(frozen=True, slots=True)
class FilterMark:
    """One active condition, and the URL of the page without this condition."""

    label: str
    value: str
    without: str


@dataclass(frozen=True)
class FilterQuery:
    """Parsed page URL: its pairs of name and text, the resulting filter, and descriptions of invalid pairs."""

    items: tuple[tuple[str, str], ...]
    filter: Filter
    problems: tuple[str, ...] = ()

    @cached_property
    def fields(self) -> Mapping[str, str]:
        """Return the text that the form shows in each field; of a repeated name, the last text."""
        return dict(self.items)

    def address(self, path: str = "/", **changes: str | None) -> str:
        """Return the page's URL with some fields changed; it points to the first page unless `cursor` is given."""
        unchanged = [(name, text) for name, text in self.items if name != "cursor" and name not in changes]
        return _build_address(path, [*unchanged, *((name, text) for name, text in changes.items() if text)])

    @property
    def detailed(self) -> bool:
        """Return whether there is a condition on a field that the form hides by default."""
        used = self.fields.keys() - ({"since"} if self.fields.get("since") in RANGE_LABELS else set())
        return not used <= _BASIC_FIELDS

    def marks(self) -> list[FilterMark]:
        """Return the active conditions with their labels."""
        shown = [(name, text) for name, text in self.items if name not in _HIDDEN_FIELDS]
        return [
            FilterMark(
                "time" if name == "since" and text in RANGE_LABELS else _FIELD_LABELS.get(name, name),
                self._format_value(name, text),
                self._address_without(name, text),
            )
            for name, text in shown
        ]

    def _format_value(self, name: str, text: str) -> str:
        if name == "feedback_key":
            operator = self.fields.get("feedback_op", ">=")
            return f"{text} {OPERATOR_LABELS.get(operator, operator)} {self.fields.get('feedback_value', '')}".strip()
        labels = {"range": RANGE_LABELS, "since": RANGE_LABELS, "traffic": TRAFFIC_LABELS, "group_by": GROUP_LABELS}
        return labels.get(name, {}).get(text, text)

    def _address_without(self, name: str, text: str) -> str:
        removed = {"cursor", *(_FEEDBACK_FIELDS if name == "feedback_key" else ())}
        items = [item for item in self.items if item != (name, text) and item[0] not in removed]
        return _build_address("/", items)


def _build_address(path: str, items: Sequence[tuple[str, str]]) -> str:
    return f"{path}?{urlencode(items, errors='replace')}" if items else path


def read_query(
    params: Iterable[tuple[str, str]], *, live: bool = True, now_ns: int | None = None, others: Collection[str] = ()
) -> FilterQuery:
    """Parse the pairs of a query string. Invalid pairs are left out of the filter and described in `problems`.

    The names in `others` belong to the page and are not conditions. With `live`, traces of experiments are excluded,
    unless the query has `traffic=all` or names an experiment. With `traffic=judges` the traces are evaluators' own,
    which are otherwise hidden.
    """
    params = list(params)
    items = _select_items(params)
    fields = dict(items)
    conditions: list[Condition] = []
    problems = [str(unknown_condition_error(name)) for name in dict(params) if not (name in others or _is_known(name))]
    for name, text in items:
        try:
            conditions += _parse_fields(name, text, fields, now_ns)
        except ValueError as error:
            problems.append(str(error))
    if live and fields.get("traffic") != "all" and not _EXPERIMENT_FIELDS & {field for field, _ in conditions}:
        conditions.append(("experiment", ""))
    if fields.get("traffic") == "judges":
        conditions.append(("kind", EVALUATOR_KIND))
    return FilterQuery(items, filters.join_conditions(conditions), tuple(problems))


def read_sort(query: FilterQuery, columns: Sequence[str], *, feedback: bool = False) -> tuple[str | None, FilterQuery]:
    """Return the sort order of a page's URL. An invalid one is None, and described in the problems of the query."""
    sort = query.fields.get("sort")
    try:
        if sort:
            parse_sort(sort, columns, feedback=feedback)
    except Refused as error:
        return None, replace(query, problems=(*query.problems, str(error)))
    return sort, query


def _is_known(name: str) -> bool:
    return name in _FORM_FIELDS or filters.condition_field(name) is not None


def _select_items(params: Iterable[tuple[str, str]]) -> tuple[tuple[str, str], ...]:
    """Return the pairs that are conditions.

    Pairs without a text are dropped. Of a repeated field, only the last pair is kept, unless its conditions
    accumulate.
    """
    stripped = [(name, text.strip()) for name, text in params if _is_known(name)]
    # the form has two fields for `since`, of which one may be empty
    stripped = [item for item in stripped if item != ("since", "")]
    last = dict(stripped)
    return tuple(
        (name, text)
        for name, text in dict.fromkeys(stripped)
        if (text or filters.TERM_PATTERN.fullmatch(name))  # the pair of `latency_ms>5` has this name and no text
        and (filters.condition_field(name) in filters.CUMULATIVE_CONDITIONS or last[name] == text)
    )


def _parse_fields(name: str, text: str, fields: Mapping[str, str], now_ns: int | None) -> list[Condition]:
    """Return the condition of one pair; [] for a field that only modifies another condition."""
    if name in _MODIFIER_FIELDS or (name == "range" and "since" in fields):
        return []
    try:
        field, value = _parse_field(name, text, fields, now_ns)
        validate_filter(Filter(**{field: value}))  # validate each condition alone, so that the error names this pair
    except Refused as error:
        raise ValueError(str(error)) from None
    except ValueError as error:
        hint = _FIELD_HINTS.get(name)
        raise ValueError(hint.format(name=_FIELD_LABELS.get(name, name), text=text) if hint else str(error)) from None
    return [(field, value)]


def _parse_field(name: str, text: str, fields: Mapping[str, str], now_ns: int | None) -> Condition:
    match name:
        case "range":
            if text not in RANGE_LABELS:
                raise ValueError(
                    f"unknown time range {text!r}; expected one of: {', '.join(filter(None, RANGE_LABELS))}"
                )
            return "since_ns", filter_values.parse_time(text, now_ns)
        case "since" | "until":
            return f"{name}_ns", filter_values.parse_time(text, now_ns)
        case "feedback_key":
            operator = fields.get("feedback_op", ">=")
            if operator in OUTCOME_LABELS:
                return operator, (text,)
            if operator not in OPERATORS:
                raise ValueError(
                    f"unknown feedback operator {operator!r}; expected one of: {', '.join(OPERATOR_LABELS)}"
                )
            return "feedback", ((text, operator, filter_values.parse_bound(fields.get("feedback_value", ""))),)
    return filters.parse_item(name, text)
