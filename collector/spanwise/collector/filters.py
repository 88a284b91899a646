"""Trace filter: conditions, parsing of their values, the grammar of query strings and command lines; sort orders.

A query string reads `name=answer&feedback=concise<0.5&latency_ms>=200&tags=a&tags=b`. On a command line, each
condition is an argument of its own: `name=answer 'feedback=concise<0.5' 'latency_ms>=200' metadata.tenant=t1
since=1h`. An argument that is not a condition is a word to search for in inputs and outputs. `since` and `until` take
a duration before now (`90s`, `30m`, `1h`, `7d`, `2w`) or an ISO date or time. A time without a zone is in the time
zone of the machine that parses it.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import time
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import datetime, tzinfo
from math import isfinite, isnan
from typing import Any, Literal, NamedTuple, NoReturn, TypeAlias, cast, get_args

from spanwise.collector.errors import Refused
from spanwise.collector.records import JSON, Status

# Parsing of single filter values: times, durations, comparisons, feedback and metadata conditions.

OPERATOR_ALTERNATIVES = "<=|>=|!=|<|>|="
COMPARISON_PATTERN = re.compile(rf"(?P<key>.*?)(?P<operator>{OPERATOR_ALTERNATIVES})(?P<value>.*)", re.DOTALL)
DURATION_PATTERN = re.compile(r"(\d+)\s*([smhdw])")
UNIT_SECONDS = {"s": 1, "m": 60, "h": 3_600, "d": 86_400, "w": 604_800}
BOOLEAN_WORDS = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}


def parse_time(text: str, now_ns: int | None = None, zone: tzinfo | None = None) -> int:
    """Return nanoseconds since the epoch from a number, a duration before now, or an ISO date or time.

    A number of nine or more digits is in nanoseconds. A time without a zone is in `zone`, by default that of the
    machine. Raises `ValueError` for any other text, and for times outside
    of 64-bit nanoseconds (after the year 2262).
    """
    if text.isdecimal() and len(text) > 8:  # eight digits are a date without dashes
        return _check_int64(int(text), text)
    if DURATION_PATTERN.fullmatch(text):
        return _check_int64((time.time_ns() if now_ns is None else now_ns) - parse_duration(text), text)
    try:
        moment = datetime.fromisoformat(text)
        return datetime_to_ns(moment.replace(tzinfo=zone) if moment.tzinfo is None else moment)
    except (ValueError, OverflowError, OSError):
        raise _invalid_time_error(text) from None


def datetime_to_ns(time: datetime) -> int:
    """Convert a `datetime` to nanoseconds, exact to the microsecond. One without a time zone is in local time.

    Raises `ValueError` for times outside of 64-bit nanoseconds.
    """
    return _check_int64(round(time.timestamp() * 1_000_000) * 1000, str(time))


def parse_time_or_ns(text: str) -> int:
    """Return nanoseconds since the epoch like `parse_time`, but read every whole number as nanoseconds.

    Raises `ValueError`.
    """
    return _check_int64(int(text), text) if text.removeprefix("-").isdecimal() else parse_time(text)


def parse_duration(text: str) -> int:
    """Return the nanoseconds of a duration such as `30d`. Raises `ValueError`."""
    match = DURATION_PATTERN.fullmatch(text)
    if not match:
        raise ValueError(f"invalid duration {text!r}; write it like 90s, 30m, 1h, 7d or 2w")
    return int(match[1]) * UNIT_SECONDS[match[2]] * 1_000_000_000


YES_AND_NO: Mapping[float, str] = {1.0: "yes", 0.0: "no"}  # names of scores that pages show, and conditions accept


def parse_bound(text: str) -> float | str:
    """Parse the right side of a feedback condition: a number, `true` and `false` as 1 and 0, any other text as a
    label. The labels "yes" and "no" are also compared with the scores 1 and 0.
    """
    if text.lower() in ("true", "false"):
        return float(text.lower() == "true")
    try:
        return float(text)
    except ValueError:
        return text


def parse_comparison(name: str, text: str) -> tuple[str, float]:
    """Parse a comparison such as `">=200"`. A number without an operator means equality.

    Raises `ValueError` for a malformed comparison, and for a time without an operator, because no measured time
    equals a number to the nanosecond.
    """
    bare = text[:1] not in "<>=!"
    _, operator, number = _split_comparison(name, "=" + text if bare else text)
    try:
        value = float(number)
    except ValueError:
        raise ValueError(f"{name}={number!r} is not a number") from None
    return equality_comparison(name, value) if bare else (operator, value)


def equality_comparison(name: str, value: float) -> tuple[str, float]:
    """Return the comparison for a number without an operator: equality. Raises `ValueError` for a measured time."""
    if name in ("latency_ms", "time_to_first_token_ms"):
        raise ValueError(f"no trace takes {value:g} ms to the nanosecond; write {name}>={value:g}, or <, or ==")
    return "=", float(value)


def parse_feedback(text: str) -> tuple[str, str, float | str]:
    """Parse a feedback condition such as `"concise<0.5"`. Raises `ValueError`."""
    key, operator, value = _split_comparison("feedback", text)
    return key, operator, parse_bound(value)


def parse_metadata(text: str) -> dict[str, str]:
    """Parse `"tenant=t1"` or `"tenant:t1"`; the first `=` or `:` ends the key. Raises `ValueError`."""
    match = re.fullmatch("([^:=]*)[:=](.*)", text, re.DOTALL)
    if not match:
        raise ValueError(f"metadata {text!r} is not a key with a value; write it like tenant=t1")
    return {match[1].strip(): match[2].strip()}


def parse_bool(text: str) -> bool:
    """Parse a boolean word such as `"true"` or `"no"`. Raises `ValueError`."""
    if text.lower() not in BOOLEAN_WORDS:
        raise ValueError(f"complete must be true or false, got {text!r}")
    return BOOLEAN_WORDS[text.lower()]


def metadata_text(value: Any) -> str:
    """Return a metadata value as the text that filter conditions compare; booleans become `true` and `false`, as in
    JSON.
    """
    return str(value).lower() if isinstance(value, bool) else str(value)


def _split_comparison(name: str, text: str) -> tuple[str, str, str]:
    match = COMPARISON_PATTERN.fullmatch(text)
    if not match or (name == "feedback" and not match["key"]):
        example = "concise<0.5" if name == "feedback" else ">=100"
        raise ValueError(f"{name}={text!r} is not a comparison; write it like {name}={example}")
    return match["key"], match["operator"], match["value"]


def _check_int64(time_ns: int, text: str) -> int:
    if not -(2**63) <= time_ns < 2**63:
        raise _invalid_time_error(text)
    return time_ns


def _invalid_time_error(text: str) -> ValueError:
    return ValueError(f"invalid time {text!r}; write it like 1h, 7d, 2026-01-31 or 2026-01-31T12:00")


# Trace filter: conditions, validation, and the grammar of query strings and command lines.

Operator = Literal["<", "<=", "=", "!=", ">=", ">"]
Comparison: TypeAlias = tuple[Operator, float]
FeedbackCondition: TypeAlias = tuple[str, Operator, float | str]
OPERATORS: tuple[Operator, ...] = ("<", "<=", "=", "!=", ">=", ">")


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter:
    """Conditions on traces; all given conditions must hold.

    The conditions `name`, `kind` and `status` apply to the root run; `any_name`, `any_kind`, `model`, `prompt`,
    `prompt_version`, `agent` and `finish_reason` to at least one run. The conditions `latency_ms`, `tokens` and
    `cost` apply to the whole trace, `time_to_first_token_ms` to the slowest of its runs. A condition of `feedback` is
    `(key, operator, value)`, compared with the newest feedback of the trace and its spans. Four conditions are
    lists of feedback keys:

    - `missing`: the trace has no score under the key.
    - `failed`: the newest outcome under the key is an error.
    - `skipped`: the newest outcome under the key is a skip.
    - `untried`: the trace has no outcome under the key at all.

    A condition of `document_feedback` has the form of `feedback`. It holds if the newest feedback on at least one
    document of the trace passes the comparison. `excluded` are pairs of a condition in `NEGATABLE_CONDITIONS` and its
    value, which must not hold: `(("name", "answer"),)`, written `name!=answer`.

    Evaluators' own traces (root run of kind "evaluator", not part of an experiment) pass only a filter that asks for
    them by `kind`, `any_kind="evaluator"` or `trace_ids`. Otherwise they appear in no list, total or chart, so that
    the cost of judges is not added to that of the application. Only deletion always includes them.
    """

    project: str | None = None
    environment: str | None = None
    since_ns: int | None = None  # traces that start at or after this
    until_ns: int | None = None  # traces that start before this
    name: str | None = None
    kind: str | None = None
    any_name: str | None = None
    any_kind: str | None = None
    status: str | None = None  # "error", "cancelled", "ok" (neither of these), or "unset" (no status)
    error: str | None = None  # words that the error text contains
    model: str | None = None  # at least one run used this model
    prompt: str | None = None  # at least one run used a prompt of this name
    prompt_version: str | None = None  # at least one run used this version (of `prompt`, if that is given)
    agent: str | None = None  # name of an agent; at least one run belongs to it
    finish_reason: str | None = None  # at least one run ended for this reason, as its sender names it
    version: str | None = None  # version of the service that sent the root run (`service.version` of its resource)
    latency_ms: Comparison | None = None
    time_to_first_token_ms: Comparison | None = None  # of the run that took longest
    tokens: Comparison | None = None
    cost: Comparison | None = None
    tags: tuple[str, ...] = ()  # the trace has all of these
    metadata: Mapping[str, str] = field(default_factory=dict)  # key: value as text
    session: str | None = None
    user: str | None = None
    feedback: tuple[FeedbackCondition, ...] = ()
    document_feedback: tuple[FeedbackCondition, ...] = ()
    missing: tuple[str, ...] = ()
    untried: tuple[str, ...] = ()
    failed: tuple[str, ...] = ()
    skipped: tuple[str, ...] = ()
    text: str | None = None  # words in inputs or outputs of any run
    experiment: str | None = None  # id of the experiment; "" for traces of no experiment
    experiments: tuple[str, ...] | None = None  # the trace belongs to one of these experiments (by id)
    dataset: str | None = None  # name of the dataset of the trace's experiment
    example: str | None = None
    complete: bool | None = None  # as in the trace summary: False if spans were dropped or are missing
    trace_ids: tuple[str, ...] | None = None
    excluded: tuple[tuple[str, str], ...] = ()

    def __post_init__(self) -> None:
        # an unknown status would match every trace without an error
        for status in (self.status, *(value for name, value in self.excluded if name == "status")):
            if status is not None and status not in STATUSES:
                raise ValueError(f"unknown status {status!r}; expected one of: {', '.join(STATUSES)}")
        if unknown := [name for name, _ in self.excluded if name not in NEGATABLE_CONDITIONS]:
            raise ValueError(
                f"condition {unknown[0]!r} cannot be negated; expected one of: {', '.join(NEGATABLE_CONDITIONS)}"
            )
        for name in LIMITED_CONDITIONS:
            value = getattr(self, name)
            limit = MAX_SEARCH_TERMS if isinstance(value, str) else MAX_CONDITION_VALUES
            if (count := (len(value.split()) if isinstance(value, str) else len(value) if value else 0)) > limit:
                raise ValueError(f"{name} has {count:,} values, more than the limit of {limit}")

    @property
    def leaves_out_judgements(self) -> bool:
        """Return whether evaluators' own traces are excluded because no condition asks for them."""
        is_requested = self.kind is not None or self.any_kind == EVALUATOR_KIND or self.trace_ids is not None
        # a filter by experiment never matches evaluators' own traces, so it needs no extra exclusion
        return not (is_requested or self.experiment or self.experiments is not None)


EVALUATOR_KIND = "evaluator"  # run kind of evaluators' own traces
STATUSES = get_args(Status)
CONDITION_ALIASES = {"tag": "tags"}  # accepted wherever condition names are parsed
LIST_CONDITIONS = ("tags", "missing", "untried", "failed", "skipped", "trace_ids", "experiments")
LIMITED_CONDITIONS = (
    *("tags", "metadata", "feedback", "document_feedback", "missing", "untried", "failed", "skipped", "error", "text"),
    "excluded",
)
# Conditions that `!=` negates. Each compares one text
NEGATABLE_CONDITIONS = (
    *("project", "environment", "name", "kind", "any_name", "any_kind", "status", "model", "tags", "session", "user"),
)
# Maximum number of values, and of words, in one condition: each adds a clause to the SQL query
MAX_CONDITION_VALUES, MAX_SEARCH_TERMS = 450, 100
COMPARED_CONDITIONS = ("latency_ms", "time_to_first_token_ms", "tokens", "cost")


def extend_filter(filter: Filter | None = None, conditions: Mapping[str, Any] | None = None) -> Filter:
    """Return a copy of a filter with further conditions, given by name.

    A value has the type of the field, or is written as in a query string: `since="1h"`, `latency_ms=">200"`,
    `feedback="concise<0.5"`. Short forms are accepted: a single text where a list is expected, a single feedback
    condition instead of a tuple of them, and a plain number for equality. Raises `ValueError` for an unknown
    condition or an invalid value.
    """
    parsed = dict(parse_condition(name, value) for name, value in (conditions or {}).items())
    base = filter or Filter()
    return replace(base, **parsed) if parsed else base


def merge_filters(base: Filter, override: Filter) -> Filter:
    """Return the conditions of both filters; `override` takes precedence."""
    changed = {name: value for name in CONDITIONS if (value := getattr(override, name)) != _DEFAULTS[name]}
    return replace(base, **changed) if changed else base


def filter_to_dict(filter: Filter) -> dict[str, JSON]:
    """Return the conditions that are set as plain values by name, sorted; `extend_filter(None, …)` restores the
    filter.
    """
    values = {name: getattr(filter, name) for name in sorted(CONDITIONS)}
    return {name: _to_json(value) for name, value in values.items() if value != _DEFAULTS[name]}


def _to_json(value: Any) -> JSON:
    if isinstance(value, Mapping):
        return dict(sorted(value.items()))
    return [_to_json(member) for member in value] if isinstance(value, tuple) else value


def validate_filter(filter: Filter) -> Filter:
    """Return the filter unchanged. Raises `Refused` if no trace can ever pass it, or if a condition is empty."""
    if None not in (filter.since_ns, filter.until_ns) and cast(int, filter.since_ns) >= cast(int, filter.until_ns):
        raise Refused("until must be later than since")
    for name in COMPARED_CONDITIONS:
        _check_amount(name, getattr(filter, name))
    for name, text in filter.excluded:
        if not text:
            raise Refused(f"{name}!= is empty; give the value that traces must not have, or remove the condition")
    for key, operator, value in (*filter.feedback, *filter.document_feedback):
        if isinstance(value, str) and not (value and operator in ("=", "!=")):
            raise Refused(f"feedback {key!r} {operator} {value!r}: compare with a number, or with = or != and a label")
        if isinstance(value, float) and isnan(value):
            raise Refused(f"feedback {key!r} {operator} nan: no value compares with nan; give a number")
    for name in _NON_EMPTY_CONDITIONS:
        if getattr(filter, name) == "":
            raise Refused(f"{name} is empty, which no trace matches; give a value or remove the condition")
    for name in _NAME_LIST_CONDITIONS:
        if "" in (getattr(filter, name) or ()):
            raise Refused(f"{name} contains an empty value; remove it")
    if filter.text is not None and not parse_search_terms(filter.text):
        raise Refused(f"text {filter.text!r} contains no word to search for, so every trace would pass")
    if filter.error is not None and not filter.error.split():
        raise Refused(f"error {filter.error!r} contains no word to search for, so every trace with an error would pass")
    return filter


def _check_amount(name: str, comparison: Comparison | None) -> None:
    if comparison is None:
        return
    operator, value = comparison
    if not isfinite(value):
        raise Refused(f"{name} must be compared with a finite number, got {value!r}")
    below = (value < 0 and operator in ("<=", "=", "<")) or (value == 0 and operator == "<")
    if name != "cost" and below:
        raise Refused(f"{name}{operator}{value:g}: no trace would pass, because {name} is never negative")
    if name == "tokens" and operator == "=" and value % 1:
        raise Refused(f"tokens={value:g}: no trace would pass, because numbers of tokens are whole")


def validate_deletion_filter(filter: Filter) -> Filter:
    """Validate a filter whose traces are about to be deleted.

    Raises `Refused` as `validate_filter`, and for an empty filter.
    """
    if filter == Filter():
        raise Refused("an empty filter would delete every trace; name at least one condition")
    return validate_filter(filter)


def validate_rule_filter(filter: Filter) -> Filter:
    """Return the filter of a rule unchanged.

    Raises `Refused` if it has the condition `complete`, because a trace can become complete without a write that the
    rule would notice.
    """
    if filter.complete is not None:
        raise Refused(
            "a rule's filter cannot have the condition `complete`, because it can change without a write; rules wait for "
            "complete traces anyway"
        )
    return filter


# Matches the word boundaries of SQLite's unicode61 tokenizer. It treats a few letters of New Tai Lue and Vedic as
# separators.
_WORD_PATTERN = re.compile(r"[^\W_\u19b0-\u19c9\u1cf2]+")
_TERM_PATTERN = re.compile(r'"([^"]*)"|[“”„]([^"“”„]*)[“”]|([^\s*]+)(\*?)')
# Scripts without spaces between words, and Korean, whose words carry suffixes: Hangul, kana and Han characters
CJK_CHARACTERS = "\u1100-\u11ff\u3005-\u3007\u3040-\u30ff\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\ua960-\ua97f" + (
    "\uac00-\ud7ff\uf900-\ufaff\uff66-\uff9d\U0001b000-\U0001b16f\U00020000-\U0003ffff"
)
_CJK_PATTERN = re.compile(f"[{CJK_CHARACTERS}]")
MAX_PREFIXES = 8  # maximum number of beginnings of words in a search
MIN_PREFIX_LETTERS = 3  # a shorter word without "*" matches only itself


class SearchTerm(NamedTuple):
    """Part of a text condition: adjacent words, of which the last may be the beginning of a word."""

    words: tuple[str, ...]
    is_prefix: bool


def parse_search_terms(text: str) -> list[SearchTerm]:
    """Return the distinct terms of a text condition, all of which must match.

    A term is a quoted phrase, or what stands between spaces: `e-mail` is the phrase "e mail". Without quotes, a word
    of three or more letters matches every word that begins with it, if the text has at most `MAX_PREFIXES` such
    terms. A `*` asks for a beginning explicitly.
    """
    found = _TERM_PATTERN.findall(unicodedata.normalize("NFC", text))
    expands = len({plain for *_, plain, _ in found if plain}) <= MAX_PREFIXES
    terms: dict[SearchTerm, None] = {}
    for quoted, curly, plain, star in found:
        words = tuple(_WORD_PATTERN.findall(quoted or curly or plain))
        if words:
            tail = _CJK_PATTERN.split(words[-1])[-1]
            is_long = not tail or len(tail) >= MIN_PREFIX_LETTERS
            terms[SearchTerm(words, bool(star) or bool(plain and expands and is_long))] = None
    return list(terms)


def unknown_condition_error(name: str) -> ValueError:
    """Return the error for an unknown condition name; it suggests a similar name, or lists all names."""
    from spanwise.tracer.suggestions import did_you_mean  # loads the tracer, so import it only for errors

    hint = did_you_mean(name, (*NAMES, *CONDITIONS), form=": {}")
    return ValueError(f"unknown condition {name!r}{hint or '; expected one of: ' + ', '.join(NAMES)}")


def refuse_dataset(dataset: str) -> NoReturn:
    """Raise `Refused` for a filter by dataset in a trace backend, which does not know experiments."""
    raise Refused(
        f"traces cannot be filtered by dataset {dataset!r} here; give `experiments`, the ids of its experiments"
    )


def parse_condition(name: str, value: Any) -> tuple[str, Any]:
    """Return the field of `Filter` and its value for one condition, in the forms of `extend_filter`.

    Raises `ValueError`.
    """
    field = FIELDS.get(name, name)
    if field not in CONDITIONS:
        raise unknown_condition_error(name)
    if value is None:
        return field, _DEFAULTS[field]
    reader: Callable[[str, Any], Any] = _READERS.get(field, _check_text)
    return field, reader(name, value)


def _check_text(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{name} must be a text, got {value!r}")
    return value


def _parse_moment(name: str, value: Any) -> int:
    if isinstance(value, datetime):
        return datetime_to_ns(value)
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if isinstance(value, str):
        return (parse_time_or_ns if name.endswith("_ns") else parse_time)(value)
    raise ValueError(f"{name} must be a time such as '1h', '2026-01-31' or nanoseconds since 1970, got {value!r}")


def _parse_texts(name: str, value: Any) -> tuple[str, ...]:
    members = (value,) if isinstance(value, str) else tuple(value)
    return tuple(_check_text(name, member) for member in members)


def _parse_truth(name: str, value: Any) -> bool:
    if isinstance(value, str):
        return parse_bool(value)
    if value not in (True, False):
        raise ValueError(f"{name} must be True or False, got {value!r}")
    return bool(value)


def _parse_metadata_condition(name: str, value: Any) -> Mapping[str, Any]:
    if isinstance(value, str):
        return parse_metadata(value)
    if not isinstance(value, Mapping):
        raise ValueError(f"{name} must be a mapping or a text such as 'tenant=t1', got {value!r}")
    return value


def _parse_comparison_condition(name: str, value: Any) -> Comparison:
    if isinstance(value, str):
        operator, number = parse_comparison(name, value)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        operator, number = equality_comparison(name, value)
    else:
        try:
            operator, number = value
            number = float(number)
        except (TypeError, ValueError, OverflowError):
            raise ValueError(f"{name} must be a comparison such as '>=200' or ('>=', 200), got {value!r}") from None
    return _check_operator(name, operator), number


def _parse_feedback_conditions(name: str, value: Any) -> tuple[FeedbackCondition, ...]:
    if isinstance(value, str):
        return (_parse_feedback_condition(value),)
    members = tuple(value)
    parts = not any(isinstance(member, tuple | list) for member in members)
    comparisons = all(isinstance(member, str) and COMPARISON_PATTERN.fullmatch(member) for member in members)
    if parts and members and (members[1:2] in _OPERATOR_TUPLES or not comparisons):
        return (_parse_feedback_condition(members),)
    return tuple(map(_parse_feedback_condition, members))


def _parse_feedback_condition(condition: Any) -> FeedbackCondition:
    if isinstance(condition, str):
        condition = parse_feedback(condition)
    try:
        key, operator, value = condition
        bound = value if isinstance(value, str) else float(value)
    except (TypeError, ValueError):
        raise ValueError(
            f"a condition on feedback must be (key, operator, value) or a text such as 'concise<0.5', got {condition!r}"
        ) from None
    return key, _check_operator(key, operator), bound


def _check_operator(name: str, operator: str) -> Operator:
    if operator not in OPERATORS:
        raise ValueError(f"{name!r}: unknown operator {operator!r}; expected one of: {', '.join(OPERATORS)}")
    return operator


_OPERATOR_TUPLES = [(operator,) for operator in OPERATORS]
CONDITIONS = tuple(condition.name for condition in fields(Filter))
NAMES = tuple(name.removesuffix("_ns") for name in CONDITIONS)  # names as users write them
FIELDS = dict(zip(NAMES, CONDITIONS, strict=True)) | CONDITION_ALIASES  # name as users write it → field of `Filter`
_DEFAULTS = {name: getattr(Filter(), name) for name in CONDITIONS}
# the store never has an empty text in these fields, so an empty condition could never match
_NON_EMPTY_CONDITIONS = (
    *("session", "user", "dataset", "example"),
    *("prompt", "prompt_version", "agent", "finish_reason", "version"),
)
# conditions that are lists of feedback keys or trace ids
_NAME_LIST_CONDITIONS = ("missing", "untried", "failed", "skipped", "trace_ids")
_READERS: Mapping[str, Callable[[str, Any], Any]] = {  # parsers of the fields that are not plain text
    **dict.fromkeys(LIST_CONDITIONS, _parse_texts),
    **dict.fromkeys(COMPARED_CONDITIONS, _parse_comparison_condition),
    **dict.fromkeys(("since_ns", "until_ns"), _parse_moment),
    "feedback": _parse_feedback_conditions,
    "document_feedback": _parse_feedback_conditions,
    "excluded": lambda name, pairs: tuple(
        (CONDITION_ALIASES.get(field, field), _check_text(name, text)) for field, text in pairs
    ),
    "metadata": _parse_metadata_condition,
    "complete": _parse_truth,
}


# name of a field of `Filter`, and its value; for a list field, a list with one element
Condition: TypeAlias = tuple[str, Any]

TERM_PATTERN = re.compile(
    rf"(?P<name>[a-z_]+)(?:\.(?P<key>[^<>=!]+))?(?P<operator>{OPERATOR_ALTERNATIVES})(?P<value>.*)",
    re.DOTALL,
)
FEEDBACK_CONDITIONS = ("feedback", "document_feedback")
OPERATOR_PATTERN = re.compile(r"[<>=!.]")
CUMULATIVE_CONDITIONS = (
    *LIST_CONDITIONS,
    "feedback",
    "document_feedback",
    "metadata",
    "excluded",
)  # fields whose repeated conditions accumulate


def filter_from_items(items: Iterable[tuple[str, str]]) -> Filter:
    """Parse a filter from pairs of a name and a text. Raises `ValueError` that names the pair."""
    return join_conditions(parse_item(name, text) for name, text in items)


def parse(terms: Iterable[str]) -> Filter:
    """Parse a filter from terms of a command line. Raises `ValueError` that names the term."""
    terms = list(terms)
    words = [word for word in terms if not TERM_PATTERN.fullmatch(word)]
    conditions = [parse_term(text) for text in terms if TERM_PATTERN.fullmatch(text)]
    return join_conditions([*conditions, ("text", " ".join(words))] if words else conditions)


def join_conditions(conditions: Iterable[Condition]) -> Filter:
    """Return the filter in which all conditions hold.

    Values of list conditions, feedback and metadata accumulate. Of any other condition, the last value applies.
    Raises `ValueError` for an unknown condition name.
    """
    joined: dict[str, Any] = {}
    for name, value in conditions:
        if name in CUMULATIVE_CONDITIONS and name in joined:
            value = joined[name] | value if name == "metadata" else joined[name] + value
        joined[name] = value
    return extend_filter(None, joined)


def parse_item(name: str, text: str) -> Condition:
    """Parse one pair of a query string. Raises `ValueError` that names the pair."""
    # a query string splits `latency_ms>=5` at its "=", so the operator ends up in the name
    if OPERATOR_PATTERN.search(name):
        return parse_term(name if not text and TERM_PATTERN.fullmatch(name) else f"{name}={text}")
    return parse_condition(name, text)


def parse_term(text: str) -> Condition:
    """Parse one term of a command line. Raises `ValueError` that names the term."""
    match = TERM_PATTERN.fullmatch(text)
    if not match:
        raise ValueError(f"invalid condition {text!r}; write it like name=answer or latency_ms>200")
    name, key, operator, value = match.groups()
    if operator == "!=" and key is None and FIELDS.get(name, name) in NEGATABLE_CONDITIONS:
        return "excluded", ((FIELDS.get(name, name), value),)
    if operator != "=" and name not in COMPARED_CONDITIONS and not (key and name in FEEDBACK_CONDITIONS):
        signs = "= or !=" if FIELDS.get(name, name) in NEGATABLE_CONDITIONS else "="
        raise ValueError(f"{text!r}: {name!r} can only be compared with {signs}")
    if key is None:
        return parse_item(name, value if operator == "=" else operator + value)
    return (name, {key: value}) if name == "metadata" else parse_item(name, f"{key}{operator}{value}")


def filter_to_items(filter: Filter) -> list[tuple[str, str]]:
    """Return the query string pairs of a filter; `filter_from_items` parses them back.

    The grammar cannot express three cases, which are not restored: a comparison sign in a key of feedback or
    metadata, a feedback label that reads as a number, and an empty list of `experiments`.
    """
    return [(name, text) for field in CONDITIONS for name, text in _condition_items(field, getattr(filter, field))]


def _condition_items(field: str, value: Any) -> Iterator[tuple[str, str]]:
    if value is None:
        return
    if field in LIST_CONDITIONS:
        yield from ((field, text) for text in value)
    elif field == "excluded":
        yield from ((f"{name}!", text) for name, text in value)
    elif field in FEEDBACK_CONDITIONS:
        yield from ((field, f"{key}{operator}{bound}") for key, operator, bound in value)
    elif field == "metadata":
        for key, text in value.items():
            pair = f"{key}:{metadata_text(text)}"
            is_plain = parse_metadata(pair) == {key: text}
            yield (field, pair) if is_plain else (f"metadata.{key}", metadata_text(text))
    elif field in COMPARED_CONDITIONS:
        yield field, f"{value[0]}{value[1]!r}"
    elif field in ("since_ns", "until_ns"):  # the name `since` would read a number of few digits as a date
        yield field.removesuffix("_ns") if value >= 10**8 else field, str(value)
    else:
        yield field, str(value).lower() if isinstance(value, bool) else str(value)


def condition_field(name: str) -> str | None:
    """Return the field of `Filter` that a pair's name refers to; None for an unknown condition."""
    first = OPERATOR_PATTERN.split(name, maxsplit=1)[0]
    field = FIELDS.get(first, first)
    return field if field in CONDITIONS else None


# Sort order of lists: names of columns, validation, and cursors that belong to one order and filter.
#
# A sort order is the name of a column, with `-` before it for descending order: `latency_ms`, `-cost`,
# `-feedback.groundedness`. `errors` lists items with the most failed runs first.

TRACE_COLUMNS = ("start", "latency_ms", "time_to_first_token_ms", "cost", "tokens", "errors", "runs")
SESSION_COLUMNS = ("start", "duration_ms", "traces", "errors", "tokens", "cost")
DATASET_COLUMNS = ("created", "version", "examples")
EXPERIMENT_COLUMNS = ("start", "duration_ms", "examples")
FEEDBACK_PREFIX = "feedback."
MAX_KEY_CHARACTERS = 1_000  # longest feedback key of a sort order
# traces that a store sorts by a number, the newest ones; SQLite takes less than a microsecond for each
MAX_SORTED = 100_000


class SortOrder(NamedTuple):
    """Column to sort by. For feedback, `column` is "feedback" and `key` the feedback key."""

    column: str
    is_descending: bool
    key: str = ""

    @property
    def sql(self) -> str:
        """Return the direction as SQL."""
        return "DESC" if self.is_descending else "ASC"


def parse_sort(text: str, columns: Sequence[str], *, feedback: bool = False) -> SortOrder:
    """Return the sort order that a text such as `-latency_ms` names. Raises `Refused` for any other text."""
    name = text.removeprefix("-")
    if name in columns:
        return SortOrder(name, text != name)
    if feedback and name.startswith(FEEDBACK_PREFIX) and len(FEEDBACK_PREFIX) < len(name) <= MAX_KEY_CHARACTERS:
        return SortOrder("feedback", text != name, name.removeprefix(FEEDBACK_PREFIX))
    expected = ", ".join((*columns, *(["feedback.KEY"] if feedback else ())))
    shown = text if len(text) <= 100 else f"{text[:99]}…"
    raise Refused(f"cannot sort by {shown!r}; expected one of: {expected}; a `-` before it sorts in descending order")


def fingerprint(sort: str, filter: Filter) -> str:
    """Return a short text that differs between sort orders and filters.

    The time range does not count, because `since=1h` is another time in each request. Neither do the experiments of a
    dataset, which may become more.
    """
    conditions = filter_to_dict(replace(filter, since_ns=None, until_ns=None, experiments=None))
    return hashlib.sha256(json.dumps([sort, conditions]).encode()).hexdigest()[:12]


def make_cursor(mark: str, position: Sequence[Any]) -> str:
    """Return a cursor: the fingerprint of the list, and a position in it as JSON values."""
    return f"{mark}.{base64.urlsafe_b64encode(json.dumps(position).encode()).decode().rstrip('=')}"


def read_cursor(cursor: str, mark: str, kinds: Sequence[Any]) -> list[Any]:
    """Return the position in a cursor, whose values must be of these types.

    Raises `Refused` for a cursor of another list, and for anything that is no cursor.
    """
    found, _, data = cursor.partition(".")
    if found != mark:
        shown = cursor if len(cursor) <= 100 else f"{cursor[:99]}…"
        raise Refused(f"the cursor {shown!r} is not of this filter and sort order; begin again without a cursor")
    try:
        position = json.loads(base64.urlsafe_b64decode(data + "=" * (-len(data) % 4)))
        # beyond these bounds SQLite raises an error
        in_range = all(abs(value) < 2**63 for value in position if isinstance(value, int))
    except (ValueError, TypeError, RecursionError):
        position, in_range = None, False
    if not (isinstance(position, list) and in_range and len(position) == len(kinds)) or not all(
        map(isinstance, position, kinds)
    ):
        raise Refused(f"invalid cursor {cursor[:100]!r}; use `next` of the previous page")
    return position
