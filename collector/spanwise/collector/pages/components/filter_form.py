"""Filter form: page URL to filter and back, typed conditions with suggestions, and saved views.

A page's URL has the same conditions as any query string (see `filters`). The form has further fields:

- `traffic` selects live traces, all traces, or evaluators' own.
- `feedback_key`, `feedback_op` and `feedback_value` form one condition, because HTML forms cannot combine
  fields.
- `sort` is the order of the list (see `filters`), and `columns` are its columns (see `preferences`).
- `where` is a line of conditions. It is replaced by what it says.
- `group_by` is the field by which the charts compare groups of traces.
- `range` is the former name of `since` in bookmarked URLs.
- `since` may be `today` or `yesterday`, days in the reader's time zone. Times without a zone are in it, too.
  `since=A/B` means `since=A&until=B`; it is the choice of the form for the range that is set.
- `{condition}-is=not` negates the condition beside it: `name-is=not&name=answer` means `name!=answer`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta, tzinfo
from functools import cached_property
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from spanwise.collector import filters, formatting
from spanwise.collector.address_parsing import safe_redirect_path
from spanwise.collector.errors import Refused
from spanwise.collector.filters import (
    COMPARED_CONDITIONS,
    EVALUATOR_KIND,
    FEEDBACK_CONDITIONS,
    FEEDBACK_PREFIX,
    OPERATOR_PATTERN,
    OPERATORS,
    STATUSES,
    TERM_PATTERN,
    Condition,
    Filter,
    parse_sort,
    unknown_condition_error,
    validate_filter,
)
from spanwise.collector.pages.components.preferences import get_time_zone
from spanwise.collector.records import FeedbackStats
from spanwise.collector.stores import Store

# Filter line: conditions typed in the grammar of the command line, and suggestions while they are typed.
#
# `status=error feedback.concise<0.5 metadata.tenant=t1 "in depot"` has three conditions and a phrase to search for.
# Quotes keep spaces together: `name="support chat"`. A term in quotes is always searched for.

_TERM = re.compile(r'(?:"[^"]*"|[^\s"])+|"')  # text without spaces outside of quotes, or a quote that is not closed
_KEY = re.compile(r"([^<>=!]*)(<=|>=|!=|<|>|=|)(.*)", re.DOTALL)
MAX_SUGGESTIONS = 12
_MAX_READ = 1_000  # values that are read to find those that match
# Conditions that the line suggests, with what they mean
SUGGESTED_CONDITIONS: Mapping[str, str] = {
    "status=": "ok, error or cancelled",
    "name=": "name of the root",
    "user=": "user",
    "session=": "session",
    "tag=": "tag",
    "feedback.": "score or label, as in feedback.concise<0.5",
    "metadata.": "metadata, as in metadata.tenant=t1",
    "latency_ms>": "milliseconds of the whole trace",
    "tokens>": "tokens of all runs",
    "cost>": "US dollars",
    "model=": "model of a run",
    "error=": "words of the error",
    "environment=": "environment",
    "project=": "project",
    "kind=": "kind of the root",
    "prompt=": "prompt of a run",
    "prompt_version=": "version of a prompt",
    "agent=": "agent of a run",
    "finish_reason=": "finish reason of a run",
    "time_to_first_token_ms>": "milliseconds of the slowest run",
    "any_name=": "name of a run",
    "any_kind=": "kind of a run",
    "missing=": "key without a score",
    "failed=": "key whose evaluation failed",
    "skipped=": "key whose evaluation was skipped",
    "since=": "1h, 7d, today, yesterday or a date",
    "until=": "a date or time",
    "experiment=": "id of an experiment",
    "dataset=": "dataset of an experiment",
}
# Fields of the store with the values of a condition, if its name is another one
_VALUE_FIELDS = {
    "tags": "tag",
    "any_kind": "kind",
    **dict.fromkeys(("feedback", "missing", "untried", "failed", "skipped"), "feedback"),
}
_FIXED_VALUES: Mapping[str, Sequence[str]] = {
    "status": STATUSES,
    "since": ("1h", "24h", "7d", "30d", "today", "yesterday"),
}
_STORED = frozenset(
    (
        *("project", "environment", "name", "kind", "model", "tag", "session", "user"),
        *("prompt", "prompt_version", "agent", "finish_reason", "feedback"),
    )
)


@dataclass(frozen=True, slots=True)
class Suggestion:
    """Text that can replace the term that is being typed. A term that ends with an operator or dot is not complete."""

    text: str
    hint: str = ""


def parse_line(line: str) -> list[tuple[str, str]]:
    """Return the pairs of a query string for a line. Terms that are no conditions become one pair `text`."""
    pairs: list[tuple[str, str]] = []
    words = []
    for term in _TERM.findall(line):
        match = None if term.startswith('"') else TERM_PATTERN.fullmatch(term.replace('"', ""))
        if match is None:
            words.append(term)
            continue
        name, key, operator, value = match.groups()
        if name in FEEDBACK_CONDITIONS and key:
            pairs.append((name, f"{key}{operator}{value}"))
        elif name in COMPARED_CONDITIONS and operator != "=" and not key:
            pairs.append((name, f"{operator}{value}"))
        else:  # as a query string splits it
            name, _, value = match.group().partition("=")
            pairs.append((name, value))
    return pairs + ([("text", " ".join(words))] if words else [])


def suggest(store: Store, typed: str, project: str | None = None) -> list[Suggestion]:
    """Return what could complete a term: names of conditions, keys, or values that the store has."""
    at = OPERATOR_PATTERN.search(typed)
    if at is None:
        return [
            Suggestion(text, hint) for text, hint in SUGGESTED_CONDITIONS.items() if text.startswith(typed.lower())
        ][:MAX_SUGGESTIONS]
    name, rest = typed[: at.start()], typed[at.start() :]
    if rest[0] == "." and name in ("metadata", *FEEDBACK_CONDITIONS):
        key, operator, value = _KEY.fullmatch(rest[1:]).groups()  # type: ignore[union-attr]  # matches every text
        if not operator:
            field, ending = ("metadata", "=") if name == "metadata" else ("feedback", "<")
            return _complete(store.values(field, limit=_MAX_READ, project=project), key, f"{name}.", ending)
        if name == "metadata":
            return _complete(
                store.values(f"metadata.{key}", limit=_MAX_READ, project=project), value, f"{name}.{key}{operator}"
            )
        return []
    operator = rest[:2] if rest[:2] == "!=" else rest[0]
    field = _VALUE_FIELDS.get(name, name)
    values = _FIXED_VALUES.get(name, ())
    if field in _STORED and operator in ("=", "!="):
        values = store.values(field, limit=_MAX_READ, project=project)
    return _complete(values, rest.removeprefix(operator), name + operator, "<" if name == "feedback" else "")


def _complete(values: Sequence[str], typed: str, before: str, after: str = "") -> list[Suggestion]:
    """Return terms with the values that contain the typed text; those that begin with it are first."""
    wanted = typed.strip('"').lower()
    found = [value for value in values if wanted in value.lower() and '"' not in value]
    found.sort(key=lambda value: not value.lower().startswith(wanted))
    quoted = (f'"{value}"' if re.search(r"\s", value) else value for value in found[:MAX_SUGGESTIONS])
    return [Suggestion(before + value + after) for value in quoted]


# Filter form: page URL to filter and back, removable conditions, integer parameters.


def read_integer(request: Request, name: str) -> int | None:
    """Return an integer from the query string, None if it is absent. Raises `Refused`."""
    text = request.query_params.get(name)
    if not text:
        return None
    if not text.isdecimal() or len(text) > 12:
        raise Refused(f"{name} must be a whole number, got {text!r}")
    return int(text)


TRACE_LIST = "/traces"  # path of the trace list
MAX_ORIGIN_CHARACTERS = 1_500  # longest query of a list that the URLs of its traces contain
RANGE_LABELS = {
    "": "any time",
    "15m": "last 15 minutes",
    "1h": "last hour",
    "6h": "last 6 hours",
    "24h": "last 24 hours",
    "7d": "last 7 days",
    "30d": "last 30 days",
    "today": "today",
    "yesterday": "yesterday",
}
TRAFFIC_LABELS = {"": "live", "all": "live and experiments", "judges": "judge calls"}
_SCORED = "scored"  # operator that every score passes
OUTCOME_LABELS = {
    _SCORED: "has a score",
    "missing": "is missing",
    "untried": "was not tried",
    "failed": "failed",
    "skipped": "was skipped",
}
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
SORT_LABELS = {
    "": "latest first",
    "start": "earliest first",
    "-latency_ms": "slowest first",
    "latency_ms": "fastest first",
    "-cost": "most expensive first",
    "-tokens": "most tokens first",
    "-runs": "most spans first",
    "errors": "errors first",
}
SESSION_SORT_LABELS = {
    "": "latest first",
    "start": "earliest first",
    "-duration_ms": "longest first",
    "-traces": "most traces first",
    "errors": "errors first",
    "-tokens": "most tokens first",
    "-cost": "most expensive first",
}
OPERATOR_LABELS = {"<": "<", "<=": "≤", "=": "=", "!=": "≠", ">=": "≥", ">": ">", **OUTCOME_LABELS}

# fields that are not conditions themselves, but modify others
_MODIFIER_FIELDS = frozenset(("traffic", "cursor", "sort", "columns", "group_by", "feedback_op", "feedback_value"))
_FORM_FIELDS = _MODIFIER_FIELDS | {"range", "feedback_key"}
# fields of the filter form of the trace list, other than the line
_SHOWN_FIELDS = frozenset(
    (
        *(
            "text",
            "range",
            "since",
            "until",
            "project",
            "environment",
            "status",
            "name",
            "any_kind",
            "session",
            "user",
            "tag",
        ),
        *("metadata", "model", "prompt", "prompt_version", "agent", "finish_reason", "time_to_first_token_ms", "error"),
        *("latency_ms", "tokens", "cost", "dataset", "experiment", "traffic", "group_by", "sort"),
    )
)
_FEEDBACK_FIELDS = frozenset(("feedback_key", "feedback_op", "feedback_value"))
_HIDDEN_FIELDS = frozenset(("cursor", "columns", "feedback_op", "feedback_value"))
_FIELD_LABELS = {
    "any_kind": "contains a run of kind",
    "any_name": "contains a run named",
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
    name: str = ""  # name and text of the pair, and the other pairs, for a form that changes the condition
    text: str = ""
    negated: bool = False
    others: tuple[tuple[str, str], ...] = ()

    @property
    def may_negate(self) -> bool:
        """Return whether the condition can be negated."""
        return filters.condition_field(self.name) in filters.NEGATABLE_CONDITIONS


@dataclass(frozen=True)
class FilterQuery:
    """Parsed page URL: its pairs of name and text, the resulting filter, and descriptions of invalid pairs."""

    items: tuple[tuple[str, str], ...]
    filter: Filter
    problems: tuple[str, ...] = ()
    unknown: tuple[tuple[str, str], ...] = ()  # pairs of the line that are no conditions, to be corrected there

    @property
    def line(self) -> str:
        """Return the text of the filter line: the searched text, and typed terms that are no conditions."""
        terms = [f"{name}={text}" if text else name for name, text in self.unknown]
        return " ".join([*terms, *([self.fields["text"]] if "text" in self.fields else [])])

    @property
    def range(self) -> tuple[str, str]:
        """Return the choice for a time range that is not among `RANGE_LABELS`, and its label; ("", "") if it is."""
        since, until = self.fields.get("since", self.fields.get("range", "")), self.fields.get("until", "")
        if since in RANGE_LABELS and not until:
            return "", ""
        ends = [
            self._format_value("since", since) if since else "",
            self._format_value("until", until) if until else "",
        ]
        label = " – ".join(ends) if all(ends) else f"from {ends[0]}" if ends[0] else f"until {ends[1]}"
        return f"{since}/{until}", label

    @property
    def range_ends(self) -> tuple[str, str]:
        """Return the ends of the time range as fields of type `datetime-local` show them, "" where it is open."""
        ends = (self.filter.since_ns, self.filter.until_ns)
        iso = ("" if end is None else formatting.iso(end, get_time_zone())[:19].replace(" ", "T") for end in ends)
        return next(iso), next(iso)

    @cached_property
    def fields(self) -> Mapping[str, str]:
        """Return the text that the form shows in each field; of a repeated name, the last text."""
        return dict(self.items)

    def address(self, path: str = TRACE_LIST, **changes: str | None) -> str:
        """Return the page's URL with some fields changed; it points to the first page unless `cursor` is given."""
        unchanged = [(name, text) for name, text in self.items if name != "cursor" and name not in changes]
        return build_address(path, [*unchanged, *((name, text) for name, text in changes.items() if text)])

    def trace_address(self, trace_id: str) -> str:
        """Return the URL of a trace of this list. It contains the query of the list, unless that is very long, so that
        the page of the trace leads to its neighbours.
        """
        origin = urlencode(self.items, errors="replace")
        kept = "" if len(origin) > MAX_ORIGIN_CHARACTERS else f"?{urlencode({'from': origin})}"
        return f"{TRACE_LIST}/{quote(trace_id, safe='', errors='replace')}{kept}"

    def feedback_address(self, stats: FeedbackStats, comparison: str) -> str:
        """Return the URL of the traces whose feedback, or that of a document, passes a comparison such as `<0.5`."""
        condition = "document_feedback" if stats.target == "document" else "feedback"
        items = [item for item in self.items if item[0] != "cursor"]
        return build_address(TRACE_LIST, [*items, (condition, f"{stats.key}{comparison}")])

    def marks(self) -> list[FilterMark]:
        """Return the active conditions with their labels."""
        return [
            FilterMark(
                "time" if name == "since" and text in RANGE_LABELS else _FIELD_LABELS.get(name, name).removesuffix("!"),
                self._format_value(name, text),
                build_address(TRACE_LIST, self._items_without(name, text)),
                *self._editable(name, text),
                negated=name.endswith("!"),
                others=tuple(self._items_without(name, text)),
            )
            for name, text in self.items
            if name not in _HIDDEN_FIELDS
        ]

    def kept(self) -> list[tuple[str, str]]:
        """Return the pairs that the fields of the form do not show, so that it keeps them. The form's own condition on
        feedback is among them, because its fields add another one.
        """
        kept = [
            (name, text)
            for name, text in self.items
            if name not in _FEEDBACK_FIELDS | {"cursor"} and (name not in _SHOWN_FIELDS or self.fields[name] != text)
        ]
        return kept + (
            [self._editable("feedback_key", self.fields["feedback_key"])] if self.fields.get("feedback_key") else []
        )

    def _editable(self, name: str, text: str) -> tuple[str, str]:
        """Return a pair as a form edits it: the name of a condition, and a text in the grammar of query strings."""
        if name != "feedback_key":
            return ("since" if name == "range" else name.removesuffix("!")), text
        operator = self.fields.get("feedback_op", ">=") or ">="
        if operator == _SCORED:
            return "feedback", f"{text}>=-inf"
        if operator in OUTCOME_LABELS:
            return operator, text
        return "feedback", f"{text}{operator}{self.fields.get('feedback_value', '')}"

    def _format_value(self, name: str, text: str) -> str:
        if name == "feedback_key":
            operator = self.fields.get("feedback_op", ">=")
            value = "" if operator in OUTCOME_LABELS else self.fields.get("feedback_value", "")
            return f"{text} {OPERATOR_LABELS.get(operator, operator)} {value}".strip()
        if name in filters.FEEDBACK_CONDITIONS:
            return text.replace(">=-inf", f" {OUTCOME_LABELS[_SCORED]}")
        if name == "sort" and text not in SORT_LABELS:
            column = text.removeprefix("-").removeprefix(FEEDBACK_PREFIX)
            return f"{column}, {'highest' if text.startswith('-') else 'lowest'} first"
        if name in ("since", "until") and text not in RANGE_LABELS:
            ns = self.filter.since_ns if name == "since" else self.filter.until_ns
            is_duration = filters.DURATION_PATTERN.fullmatch(text)
            return text if ns is None or is_duration else formatting.when(ns, get_time_zone())
        labels = {"range": RANGE_LABELS, "since": RANGE_LABELS, "traffic": TRAFFIC_LABELS, "group_by": GROUP_LABELS}
        labels["sort"] = SORT_LABELS
        return labels.get(name, {}).get(text, text)

    def _items_without(self, name: str, text: str) -> list[tuple[str, str]]:
        removed = {"cursor", *(_FEEDBACK_FIELDS if name == "feedback_key" else ())}
        return [item for item in self.items if item != (name, text) and item[0] not in removed]


def build_address(path: str, items: Sequence[tuple[str, str]]) -> str:
    return f"{path}?{urlencode(items, errors='replace')}" if items else path


def read_query(
    params: Iterable[tuple[str, str]],
    *,
    live: bool = True,
    now_ns: int | None = None,
    others: Collection[str] = (),
    zone: tzinfo | None = None,
) -> FilterQuery:
    """Parse the pairs of a query string. Invalid pairs are left out of the filter and described in `problems`.

    The names in `others` belong to the page and are not conditions. With `live`, traces of experiments are excluded,
    unless the query has `traffic=all` or names an experiment. With `traffic=judges` the traces are evaluators' own,
    which are otherwise hidden. Days, and times without a zone, are in `zone`, by default that of this machine.
    """
    # the form's fields `{name}-is` are no conditions: `not` negates the pairs with that name
    ordered = sorted(params, key=lambda pair: pair[0] == "where")  # a typed line overrides the other fields of the form
    pairs = [pair for name, text in ordered for pair in expand_pair(name, text)]
    negatable = {f"{name}-is" for name in (*filters.NEGATABLE_CONDITIONS, "tag")}
    negated = {name.removesuffix("-is") for name, text in pairs if name in negatable and text == "not"}
    params = [(f"{name}!" if name in negated else name, text) for name, text in pairs if name not in negatable]
    items = _select_items(params)
    fields = dict(items)
    conditions: list[Condition] = []
    unknown = {name: text for name, text in params if not (name in others or _is_known(name))}
    problems = [str(unknown_condition_error(name)) for name in unknown]
    for name, text in items:
        try:
            conditions += _parse_fields(name, text, fields, now_ns, zone)
        except ValueError as error:
            problems.append(str(error))
    if live and fields.get("traffic") != "all" and not _EXPERIMENT_FIELDS & {field for field, _ in conditions}:
        conditions.append(("experiment", ""))
    if fields.get("traffic") == "judges":
        conditions.append(("kind", EVALUATOR_KIND))
    return FilterQuery(items, filters.join_conditions(conditions), tuple(problems), tuple(unknown.items()))


def expand_pair(name: str, text: str) -> list[tuple[str, str]]:
    """Return the pairs that a pair of the form means: those of a line, or the two ends of a time range."""
    if name == "where":
        return parse_line(text)
    if name == "since" and "/" in text:
        since, _, until = text.partition("/")
        return [("since", since), ("until", until)]
    return [(name, text)]


def read_sort(query: FilterQuery, columns: Sequence[str], *, feedback: bool = False) -> tuple[str | None, FilterQuery]:
    """Return the sort order of a page's URL. An invalid one is None, and described in the problems of the query."""
    sort = query.fields.get("sort")
    try:
        if sort:
            parse_sort(sort, columns, feedback=feedback)
    except Refused as error:
        return None, replace(query, problems=(*query.problems, str(error)))
    return sort, query


@dataclass(frozen=True, slots=True)
class SortLinks:
    """Links of column heads: the order of a list, and the function that returns the list's URL in another order."""

    order: str
    address: Callable[[str], str]

    def toggle(self, column: str) -> str:
        """Return the URL of the list sorted by a column: highest first, or reversed if that is its order."""
        return self.address(column if self.order == f"-{column}" else f"-{column}")

    def direction(self, column: str) -> str:
        """Return the direction in which the list is sorted by a column, "" if it is sorted by another one."""
        return {column: "ascending", f"-{column}": "descending"}.get(self.order, "")


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
        and (filters.condition_field(name) in filters.CUMULATIVE_CONDITIONS or name.endswith("!") or last[name] == text)
    )


def _parse_fields(
    name: str, text: str, fields: Mapping[str, str], now_ns: int | None, zone: tzinfo | None
) -> list[Condition]:
    """Return the conditions of one pair; [] for a field that only modifies another condition."""
    if name in _MODIFIER_FIELDS or (name == "range" and "since" in fields):
        return []
    if name in ("since", "range") and text in _DAYS:
        return _parse_day(text, fields, now_ns, zone)
    try:
        field, value = _parse_field(name, text, fields, now_ns, zone)
        validate_filter(Filter(**{field: value}))  # validate each condition alone, so that the error names this pair
    except Refused as error:
        raise ValueError(str(error)) from None
    except ValueError as error:
        hint = _FIELD_HINTS.get(name)
        raise ValueError(hint.format(name=_FIELD_LABELS.get(name, name), text=text) if hint else str(error)) from None
    return [(field, value)]


_DAYS = ("today", "yesterday")


def _parse_day(text: str, fields: Mapping[str, str], now_ns: int | None, zone: tzinfo | None) -> list[Condition]:
    """Return the conditions for a day: its beginning, and for a past day its end, unless `until` is given."""
    now = datetime.now(UTC) if now_ns is None else datetime.fromtimestamp(now_ns / 1e9, UTC)
    today = now.astimezone(zone).replace(hour=0, minute=0, second=0, microsecond=0, tzinfo=zone)
    if text == "today":
        return [("since_ns", filters.datetime_to_ns(today))]
    conditions: list[Condition] = [("since_ns", filters.datetime_to_ns(today - timedelta(days=1)))]
    if not fields.get("until"):
        conditions.append(("until_ns", filters.datetime_to_ns(today)))
    return conditions


def _parse_field(name: str, text: str, fields: Mapping[str, str], now_ns: int | None, zone: tzinfo | None) -> Condition:
    match name:
        case "range":
            if text not in RANGE_LABELS:
                raise ValueError(
                    f"unknown time range {text!r}; expected one of: {', '.join(filter(None, RANGE_LABELS))}"
                )
            return "since_ns", filters.parse_time(text, now_ns)
        case "since" | "until":
            return f"{name}_ns", filters.parse_time(text, now_ns, zone)
        case "feedback_key":
            operator = fields.get("feedback_op", ">=")
            if operator == _SCORED:
                return "feedback", ((text, ">=", float("-inf")),)
            if operator in OUTCOME_LABELS:
                return operator, (text,)
            if operator not in OPERATORS:
                raise ValueError(
                    f"unknown feedback operator {operator!r}; expected one of: {', '.join(OPERATOR_LABELS)}"
                )
            return "feedback", ((text, operator, filters.parse_bound(fields.get("feedback_value", ""))),)
    return filters.parse_item(name, text)


# Saved views of the trace list: names for filters, orders and columns, kept in a cookie of the browser.

VIEWS_COOKIE = "spanwise-views"
MAX_NAME = 60  # characters
MAX_COOKIE_BYTES = 3_800  # browsers drop a cookie of more than 4,096 bytes with its name and attributes
_COOKIE_SECONDS = 366 * 86_400
FIELDS = ("action", "name", "new_name", "address", "back")
ACTIONS = ("save", "rename", "delete")


def read_views(request: Request) -> dict[str, str]:
    """Return the URL of the trace list by the name of each view, in the order in which they were saved."""
    pairs = parse_qsl(unquote(request.cookies.get(VIEWS_COOKIE, ""))[: MAX_COOKIE_BYTES * 3], keep_blank_values=True)
    return {name[:MAX_NAME]: f"{TRACE_LIST}?{query}" for name, query in pairs if is_name(name)}


def change_views(_store: Store, request: Request, fields: Mapping[str, str]) -> Response:
    """Save, rename or delete a view: `POST /views`. Raises `Refused` for an invalid name and when there is no room.

    A view of an existing name is replaced. `address` is the URL of the list to save; only its query counts.
    """
    views = read_views(request)
    action, name = fields.get("action", ""), clean_name(fields.get("name", ""))
    back = safe_redirect_path(fields.get("back", ""))
    if action not in ACTIONS:
        raise Refused(f"unknown action {action[:100]!r}; expected one of: {', '.join(ACTIONS)}")
    if action == "save":
        back = views[name] = f"{TRACE_LIST}?{urlsplit(fields.get('address', '')).query}"
    elif name not in views:
        raise Refused(f"there is no view {name!r}; it may have been renamed or deleted in another tab")
    elif action == "rename":
        new_name = clean_name(fields.get("new_name", ""))
        views = {
            new_name if other == name else other: address
            for other, address in views.items()
            if other != new_name or other == name
        }
    else:
        del views[name]
    text = quote(urlencode([(each, urlsplit(address).query) for each, address in views.items()], errors="replace"))
    if len(text) > MAX_COOKIE_BYTES:
        raise Refused(
            "the views of this browser take more than 3.8 kB; delete one, or save a shorter filter: its address can also be "
            "kept as a bookmark"
        )
    response = RedirectResponse(back, 303)
    is_secure = request.url.scheme == "https"
    response.set_cookie(VIEWS_COOKIE, text, _COOKIE_SECONDS, httponly=True, samesite="lax", secure=is_secure)
    return response


def clean_name(text: str) -> str:
    """Return the name of a view on one line. Raises `Refused` for one that is too long or has no visible character."""
    name = " ".join(text.split())
    if not is_name(name):
        raise Refused(f"a view needs a name of 1 to {MAX_NAME} characters, got {name[:80]!r}")
    return name


def is_name(name: str) -> bool:
    """Return whether a text can be the name of a view."""
    return len(name) <= MAX_NAME and any(character.isprintable() and not character.isspace() for character in name)
