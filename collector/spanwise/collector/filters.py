"""Trace filter: conditions, validation, and the grammar of query strings and command lines.

In a query string: `name=answer&feedback=concise<0.5&latency_ms>=200&tags=a&tags=b`. On a command line, one term each:
`name=answer 'feedback=concise<0.5' 'latency_ms>=200' metadata.tenant=t1 since=1h` and words to be found in inputs or
outputs. `since` and `until` take a duration (`90s`, `30m`, `1h`, `7d`, `2w`: so long ago) or an ISO date or time (in
the time zone of the machine that reads it, unless it says which).
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from datetime import datetime
from math import isfinite, isnan
from typing import Any, Literal, TypeAlias, cast, get_args

from spanwise.collector import filter_values
from spanwise.collector.errors import Refused
from spanwise.collector.filter_values import metadata_text
from spanwise.collector.records import JSON, Status

Operator = Literal["<", "<=", "=", "!=", ">=", ">"]
Comparison: TypeAlias = tuple[Operator, float]
FeedbackCondition: TypeAlias = tuple[str, Operator, float | str]
OPERATORS: tuple[Operator, ...] = ("<", "<=", "=", "!=", ">=", ">")


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter:
    """Conditions on traces; all that are given must hold.

    `name`, `kind` and `status` hold when the root run has them; `any_name` and `any_kind` when some run has.
    `latency_ms`, `tokens` and `cost` speak of the whole trace. `feedback` is a tuple of `(key, operator, value)` over
    the newest feedback of the trace and its spans; `missing` names keys for which there is no score.
    `failed` and `skipped` name keys whose newest outcome is an error or a skip, `untried` those with no outcome at all.

    Evaluators' own traces (the root run is of kind "evaluator", and belongs to no experiment) pass only a filter that
    asks for them, by `kind`, `any_kind="evaluator"` or `trace_ids`: no list, sum or chart has them otherwise, and what
    judges cost is in no total of the application. Deletion alone takes them with the others.
    """

    project: str | None = None
    environment: str | None = None
    since_ns: int | None = None  # trace starts at or after
    until_ns: int | None = None  # trace starts before
    name: str | None = None
    kind: str | None = None
    any_name: str | None = None
    any_kind: str | None = None
    status: str | None = None  # "error", "cancelled"; "ok": every other; "unset": those without a status
    error: str | None = None  # words of the error's text
    model: str | None = None  # some run used this model
    latency_ms: Comparison | None = None
    tokens: Comparison | None = None
    cost: Comparison | None = None
    tags: tuple[str, ...] = ()  # all of them
    metadata: Mapping[str, str] = field(default_factory=dict)  # key: value as text
    session: str | None = None
    user: str | None = None
    feedback: tuple[FeedbackCondition, ...] = ()
    missing: tuple[str, ...] = ()
    untried: tuple[str, ...] = ()
    failed: tuple[str, ...] = ()
    skipped: tuple[str, ...] = ()
    text: str | None = None  # words in inputs or outputs of any run
    experiment: str | None = None  # id; "" for traces of no experiment
    experiments: tuple[str, ...] | None = None  # any of these ids
    dataset: str | None = None  # name of the dataset of the trace's experiment
    example: str | None = None
    complete: bool | None = None  # what the summary says: a trace of which something was dropped is not
    trace_ids: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        if self.status is not None and self.status not in STATUSES:  # every trace without an error would pass
            raise ValueError(f"the status of a trace is one of {', '.join(STATUSES)}, not {self.status!r}")
        for name in LIMITED_CONDITIONS:
            value = getattr(self, name)
            most = MAX_SEARCH_TERMS if isinstance(value, str) else MAX_CONDITION_VALUES
            if (count := _count_members(value)) > most:
                raise ValueError(f"{name} names {count:,} things; at most {most} can be asked for at once")

    @property
    def leaves_out_judgements(self) -> bool:
        """Whether evaluators' own traces do not pass, as nothing asks for them."""
        asked = self.kind is not None or self.any_kind == EVALUATOR_KIND or self.trace_ids is not None
        return not (asked or self.experiment or self.experiments is not None)  # a trace of an experiment is none


EVALUATOR_KIND = "evaluator"  # the kind of run that is a judgement
STATUSES = get_args(Status)
CONDITION_ALIASES = {"tag": "tags"}  # read wherever names of conditions are
LIST_CONDITIONS = ("tags", "missing", "untried", "failed", "skipped", "trace_ids", "experiments")
LIMITED_CONDITIONS = ("tags", "metadata", "feedback", "missing", "untried", "failed", "skipped", "error", "text")
MAX_CONDITION_VALUES, MAX_SEARCH_TERMS = (
    450,
    100,
)  # conditions of one name, and words: each is a part of one question to the database
COMPARED_CONDITIONS = ("latency_ms", "tokens", "cost")


def _count_members(value: Any) -> int:
    if isinstance(value, str):
        return len(value.split())
    return len(value) if value else 0


def extend_filter(filter: Filter | None = None, conditions: Mapping[str, Any] | None = None) -> Filter:
    """A filter with further conditions by name, in the short forms that people write.

    A value is of the field's type, or the text that a query string has: `since="1h"`, `latency_ms=">200"`,
    `feedback="concise<0.5"`. One text stands for a list of one, one `(key, operator, value)` for a tuple of one, and a
    plain number for an equality. Raises `ValueError` for a name that is no condition, or a value that cannot be one.
    """
    given = dict(parse_condition(name, value) for name, value in (conditions or {}).items())
    whole = filter or Filter()
    return replace(whole, **given) if given else whole


def merge_filters(one: Filter, other: Filter) -> Filter:
    """The conditions of both; where both have the same, the other's."""
    given = {name: value for name in CONDITIONS if (value := getattr(other, name)) != _DEFAULTS[name]}
    return replace(one, **given) if given else one


def filter_to_dict(filter: Filter) -> dict[str, JSON]:
    """The conditions that a filter has, as plain values under their names, in order: `combined(None, …)` reads them."""
    given = {name: getattr(filter, name) for name in sorted(CONDITIONS)}
    return {name: _to_json(value) for name, value in given.items() if value != _DEFAULTS[name]}


def _to_json(value: Any) -> JSON:
    if isinstance(value, Mapping):
        return dict(sorted(value.items()))
    return [_to_json(member) for member in value] if isinstance(value, tuple) else value


def validate_filter(filter: Filter) -> Filter:
    """The same filter. Raises `Refused` for one that no trace can pass, whatever is stored, or that says nothing."""
    if None not in (filter.since_ns, filter.until_ns) and cast(int, filter.since_ns) >= cast(int, filter.until_ns):
        raise Refused("until is not after since, so that no trace starts between them; name a later one")
    for name in COMPARED_CONDITIONS:
        _check_amount(name, getattr(filter, name))
    for condition in filter.feedback:
        _check_feedback(*condition)
    for name in _NON_EMPTY_CONDITIONS:
        if getattr(filter, name) == "":
            raise Refused(f"{name} is empty, which it is of no trace; leave the condition out, or name one")
    for name in _NAME_LIST_CONDITIONS:
        if "" in (getattr(filter, name) or ()):
            raise Refused(f"{name} holds an empty name, which nothing has; leave it out")
    if filter.text is not None and not parse_search_terms(filter.text):
        raise Refused(f"text {filter.text!r} holds no word, so that every trace would pass; name one")
    if filter.error is not None and not filter.error.split():
        raise Refused(f"error {filter.error!r} holds no word, so that every trace with an error would pass; name one")
    return filter


def _check_amount(name: str, comparison: Comparison | None) -> None:
    if comparison is None:
        return
    operator, value = comparison
    if not isfinite(value):
        raise Refused(f"{name} is compared with a finite number, not {value!r}")
    below = (value < 0 and operator in ("<=", "=", "<")) or (value == 0 and operator == "<")
    if name != "cost" and below:
        raise Refused(f"{name}{operator}{value:g}: it is never below 0, so that no trace would pass")
    if name == "tokens" and operator == "=" and value % 1:
        raise Refused(f"tokens={value:g}: tokens are whole, so that no trace would pass")


def _check_feedback(key: str, operator: Operator, value: float | str) -> None:
    if isinstance(value, str) and not (value and operator in ("=", "!=")):
        raise Refused(f"feedback {key!r} {operator} {value!r}: give a number, or = with a label")
    if isinstance(value, float) and isnan(value):
        raise Refused(f"feedback {key!r} {operator} nan: nothing compares with it; give a number")


def validate_deletion_filter(filter: Filter) -> Filter:
    """As `askable`. Raises `Refused` for one that says nothing: what passes it is about to be deleted."""
    if filter == Filter():
        raise Refused("an empty filter would delete every trace; name at least one condition")
    return validate_filter(filter)


def validate_rule_filter(filter: Filter) -> Filter:
    """The same filter. Raises `Refused` for one that a trace may pass later though nothing was written meanwhile."""
    if filter.complete is not None:
        raise Refused(
            "`complete` changes with time alone, which nothing tells; rules wait for whole traces by themselves"
        )
    return filter


# What SQLite's unicode61 takes for one word; a few letters of New Tai Lue and Vedic it knows as marks between words.
_WORD_PATTERN = re.compile(r"([^\W_\u19b0-\u19c9\u1cf2]+)(\*?)")


def parse_search_terms(text: str) -> list[tuple[str, str]]:
    """The words that a text condition asks for, all of them, and `*` after one that stands for a beginning."""
    return _WORD_PATTERN.findall(unicodedata.normalize("NFC", text))


def unknown_condition_error(name: str) -> ValueError:
    """What to raise for a name that is no condition: the one that was meant, or all that there are."""
    from spanwise.tracer.suggestions import did_you_mean  # loads the tracer, which only a mistake should cost

    near = did_you_mean(name, (*NAMES, *CONDITIONS), form=": {}")
    return ValueError(f"{name!r} is no condition on traces{near or '; there are ' + ', '.join(NAMES)}")


def parse_condition(name: str, value: Any) -> tuple[str, Any]:
    """A field and its value there, of one condition: see `combined`. Raises `ValueError`."""
    field = FIELDS.get(name, name)
    if field not in CONDITIONS:
        raise unknown_condition_error(name)
    if value is None:
        return field, _DEFAULTS[field]
    reader: Callable[[str, Any], Any] = _READERS.get(field, _check_text)
    return field, reader(name, value)


def _check_text(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{name} is a text, not {value!r}")
    return value


def _parse_moment(name: str, value: Any) -> int:
    if isinstance(value, datetime):
        return filter_values.datetime_to_ns(value)
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if isinstance(value, str):
        return (filter_values.parse_time_or_ns if name.endswith("_ns") else filter_values.parse_time)(value)
    raise ValueError(f"{name} is a time, such as '1h', '2026-01-31' or nanoseconds since 1970, not {value!r}")


def _parse_texts(name: str, value: Any) -> tuple[str, ...]:
    members = (value,) if isinstance(value, str) else tuple(value)
    return tuple(_check_text(name, member) for member in members)


def _parse_truth(name: str, value: Any) -> bool:
    if isinstance(value, str):
        return filter_values.parse_bool(value)
    if value not in (True, False):
        raise ValueError(f"{name} is True or False, not {value!r}")
    return bool(value)


def _parse_metadata_condition(name: str, value: Any) -> Mapping[str, Any]:
    if isinstance(value, str):
        return filter_values.parse_metadata(value)
    if not isinstance(value, Mapping):
        raise ValueError(f"{name} is a mapping, or a text such as 'tenant=t1', not {value!r}")
    return value


def _parse_comparison_condition(name: str, value: Any) -> Comparison:
    if isinstance(value, str):
        operator, number = filter_values.parse_comparison(name, value)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        operator, number = filter_values.equality_comparison(name, value)
    else:
        operator, number = _parse_comparison_pair(name, value)
    return _check_operator(name, operator), number


def _parse_comparison_pair(name: str, value: Any) -> tuple[str, float]:
    try:
        operator, number = value
        return operator, float(number)
    except (TypeError, ValueError, OverflowError):
        raise ValueError(f"{name} is compared: {name}='>=200', or ('>=', 200), not {value!r}") from None


def _parse_feedback_conditions(name: str, value: Any) -> tuple[FeedbackCondition, ...]:
    if isinstance(value, str):
        return (_parse_feedback_condition(value),)
    members = tuple(value)
    parts = not any(isinstance(member, tuple | list) for member in members)
    if parts and members and (members[1:2] in _OPERATOR_TUPLES or not all(map(_is_comparison_text, members))):
        return (_parse_feedback_condition(members),)
    return tuple(map(_parse_feedback_condition, members))


def _is_comparison_text(member: Any) -> bool:
    return isinstance(member, str) and filter_values.COMPARISON_PATTERN.fullmatch(member) is not None


def _parse_feedback_condition(condition: Any) -> FeedbackCondition:
    if isinstance(condition, str):
        condition = filter_values.parse_feedback(condition)
    try:
        key, operator, value = condition
        bound = value if isinstance(value, str) else float(value)
    except (TypeError, ValueError):
        raise ValueError(
            f"a condition on feedback is (key, operator, value), or 'concise<0.5', not {condition!r}"
        ) from None
    return key, _check_operator(key, operator), bound


def _check_operator(name: str, operator: str) -> Operator:
    if operator not in OPERATORS:
        raise ValueError(f"{name!r}: {operator!r} is not one of {', '.join(OPERATORS)}")
    return operator


_OPERATOR_TUPLES = [(operator,) for operator in OPERATORS]
CONDITIONS = tuple(condition.name for condition in fields(Filter))
NAMES = tuple(name.removesuffix("_ns") for name in CONDITIONS)  # as people write them
FIELDS = dict(zip(NAMES, CONDITIONS, strict=True)) | CONDITION_ALIASES  # by these names
_DEFAULTS = {name: getattr(Filter(), name) for name in CONDITIONS}
_NON_EMPTY_CONDITIONS = ("session", "user", "dataset", "example")  # none of them is kept as an empty text
_NAME_LIST_CONDITIONS = ("missing", "untried", "failed", "skipped", "trace_ids")  # of feedback's keys, and of ids
_READERS: Mapping[str, Callable[[str, Any], Any]] = {  # of all fields that are no text
    **dict.fromkeys(LIST_CONDITIONS, _parse_texts),
    **dict.fromkeys(COMPARED_CONDITIONS, _parse_comparison_condition),
    **dict.fromkeys(("since_ns", "until_ns"), _parse_moment),
    "feedback": _parse_feedback_conditions,
    "metadata": _parse_metadata_condition,
    "complete": _parse_truth,
}


Condition: TypeAlias = tuple[str, Any]  # a field of `Filter`, and its value there: a list of one, where it is a list

TERM_PATTERN = re.compile(
    rf"(?P<name>[a-z_]+)(?:\.(?P<key>[^<>=!]+))?(?P<operator>{filter_values.OPERATOR_ALTERNATIVES})(?P<value>.*)",
    re.DOTALL,
)
OPERATOR_PATTERN = re.compile(r"[<>=!.]")
CUMULATIVE_CONDITIONS = (*LIST_CONDITIONS, "feedback", "metadata")  # fields whose conditions add up


def filter_from_items(items: Iterable[tuple[str, str]]) -> Filter:
    """The filter that pairs of a name and a text say. Raises `ValueError`, naming the pair."""
    return join_conditions(parse_item(name, text) for name, text in items)


def parse(terms: Iterable[str]) -> Filter:
    """The filter that terms of a command line say. Raises `ValueError`, naming the term."""
    terms = list(terms)
    words = [word for word in terms if not TERM_PATTERN.fullmatch(word)]
    conditions = [parse_term(text) for text in terms if TERM_PATTERN.fullmatch(text)]
    return join_conditions([*conditions, ("text", " ".join(words))] if words else conditions)


def join_conditions(conditions: Iterable[Condition]) -> Filter:
    """The filter in which all of them hold: lists and metadata add up, of anything else the last counts.

    Raises `ValueError` for a name that is no condition.
    """
    together: dict[str, Any] = {}
    for name, value in conditions:
        if name in CUMULATIVE_CONDITIONS and name in together:
            value = together[name] | value if name == "metadata" else together[name] + value
        together[name] = value
    return extend_filter(None, together)


def parse_item(name: str, text: str) -> Condition:
    """What one pair of a query string says. Raises `ValueError`, naming the pair."""
    if OPERATOR_PATTERN.search(name):  # `latency_ms>=5` splits at its "="
        return parse_term(name if not text and TERM_PATTERN.fullmatch(name) else f"{name}={text}")
    return parse_condition(name, text)


def parse_term(text: str) -> Condition:
    """What one term of a command line says. Raises `ValueError`, naming the term."""
    match = TERM_PATTERN.fullmatch(text)
    if not match:
        raise ValueError(f"{text!r} is no condition, such as name=answer or latency_ms>200")
    name, key, operator, value = match.groups()
    if operator != "=" and name not in COMPARED_CONDITIONS and not (key and name == "feedback"):
        raise ValueError(f"{text!r}: {name!r} can only be compared with =")
    if key is None:
        return parse_item(name, value if operator == "=" else operator + value)
    return (name, {key: value}) if name == "metadata" else parse_item(name, f"{key}{operator}{value}")


def filter_to_items(filter: Filter) -> list[tuple[str, str]]:
    """The pairs that say a filter: `to_filter` of them is the filter again.

    What the grammar cannot say does not survive: a comparison within a key of feedback or metadata, a label of
    feedback that reads as a number, and an empty list of `experiments`.
    """
    return [(name, text) for field in CONDITIONS for name, text in _condition_items(field, getattr(filter, field))]


def _condition_items(field: str, value: Any) -> Iterator[tuple[str, str]]:
    if value is None:
        return
    if field in LIST_CONDITIONS:
        yield from ((field, text) for text in value)
    elif field == "feedback":
        yield from ((field, f"{key}{operator}{bound}") for key, operator, bound in value)
    elif field == "metadata":
        for key, text in value.items():
            said = f"{key}:{metadata_text(text)}"
            plain = filter_values.parse_metadata(said) == {key: text}
            yield (field, said) if plain else (f"metadata.{key}", metadata_text(text))
    elif field in COMPARED_CONDITIONS:
        yield field, f"{value[0]}{value[1]!r}"
    elif field in ("since_ns", "until_ns"):  # few digits are a date
        yield field.removesuffix("_ns") if value >= 10**8 else field, str(value)
    else:
        yield field, str(value).lower() if isinstance(value, bool) else str(value)


def condition_field(name: str) -> str | None:
    """The field of `Filter` that the name of a pair speaks of; None for a name that is no condition."""
    first = OPERATOR_PATTERN.split(name, maxsplit=1)[0]
    field = FIELDS.get(first, first)
    return field if field in CONDITIONS else None
