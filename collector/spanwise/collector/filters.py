"""The one structured filter for traces, used alike by stores, API, client, command line and pages."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from datetime import datetime
from math import isfinite, isnan
from typing import Any, Literal, TypeAlias, cast, get_args

from spanwise.collector import readings
from spanwise.collector.errors import Refused
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
        for name in BOUNDED:
            value = getattr(self, name)
            most = MOST_WORDS if isinstance(value, str) else MOST
            if (count := _count(value)) > most:
                raise ValueError(f"{name} names {count:,} things; at most {most} can be asked for at once")

    @property
    def leaves_out_judgements(self) -> bool:
        """Whether evaluators' own traces do not pass, as nothing asks for them."""
        asked = self.kind is not None or self.any_kind == EVALUATOR or self.trace_ids is not None
        return not (asked or self.experiment or self.experiments is not None)  # a trace of an experiment is none


EVALUATOR = "evaluator"  # the kind of run that is a judgement
STATUSES = get_args(Status)
OLD_NAMES = {"tag": "tags"}  # read wherever names of conditions are
LISTS = ("tags", "missing", "untried", "failed", "skipped", "trace_ids", "experiments")
BOUNDED = ("tags", "metadata", "feedback", "missing", "untried", "failed", "skipped", "error", "text")
MOST, MOST_WORDS = 450, 100  # conditions of one name, and words: each is a part of one question to the database
COMPARISONS = ("latency_ms", "tokens", "cost")


def _count(value: Any) -> int:
    if isinstance(value, str):
        return len(value.split())
    return len(value) if value else 0


def combined(filter: Filter | None = None, conditions: Mapping[str, Any] | None = None) -> Filter:
    """A filter with further conditions by name, in the short forms that people write.

    A value is of the field's type, or the text that a query string has: `since="1h"`, `latency_ms=">200"`,
    `feedback="concise<0.5"`. One text stands for a list of one, one `(key, operator, value)` for a tuple of one, and a
    plain number for an equality. Raises `ValueError` for a name that is no condition, or a value that cannot be one.
    """
    given = dict(read(name, value) for name, value in (conditions or {}).items())
    whole = filter or Filter()
    return replace(whole, **given) if given else whole


def both(one: Filter, other: Filter) -> Filter:
    """The conditions of both; where both have the same, the other's."""
    given = {name: value for name in CONDITIONS if (value := getattr(other, name)) != _DEFAULTS[name]}
    return replace(one, **given) if given else one


def normal_form(filter: Filter) -> dict[str, JSON]:
    """The conditions that a filter has, as plain values under their names, in order: `combined(None, …)` reads them."""
    given = {name: getattr(filter, name) for name in sorted(CONDITIONS)}
    return {name: _plain(value) for name, value in given.items() if value != _DEFAULTS[name]}


def _plain(value: Any) -> JSON:
    if isinstance(value, Mapping):
        return dict(sorted(value.items()))
    return [_plain(member) for member in value] if isinstance(value, tuple) else value


def askable(filter: Filter) -> Filter:
    """The same filter. Raises `Refused` for one that no trace can pass, whatever is stored, or that says nothing."""
    if None not in (filter.since_ns, filter.until_ns) and cast(int, filter.since_ns) >= cast(int, filter.until_ns):
        raise Refused("until is not after since, so that no trace starts between them; name a later one")
    for name in COMPARISONS:
        _check_amount(name, getattr(filter, name))
    for condition in filter.feedback:
        _check_feedback(*condition)
    for name in _NEVER_EMPTY:
        if getattr(filter, name) == "":
            raise Refused(f"{name} is empty, which it is of no trace; leave the condition out, or name one")
    for name in _OF_NAMES:
        if "" in (getattr(filter, name) or ()):
            raise Refused(f"{name} holds an empty name, which nothing has; leave it out")
    if filter.text is not None and not words(filter.text):
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


def deletable(filter: Filter) -> Filter:
    """As `askable`. Raises `Refused` for one that says nothing: what passes it is about to be deleted."""
    if filter == Filter():
        raise Refused("an empty filter would delete every trace; name at least one condition")
    return askable(filter)


def timeless(filter: Filter) -> Filter:
    """The same filter. Raises `Refused` for one that a trace may pass later though nothing was written meanwhile."""
    if filter.complete is not None:
        raise Refused(
            "`complete` changes with time alone, which nothing tells; rules wait for whole traces by themselves"
        )
    return filter


# What SQLite's unicode61 takes for one word; a few letters of New Tai Lue and Vedic it knows as marks between words.
_WORD = re.compile(r"([^\W_\u19b0-\u19c9\u1cf2]+)(\*?)")


def words(text: str) -> list[tuple[str, str]]:
    """The words that a text condition asks for, all of them, and `*` after one that stands for a beginning."""
    return _WORD.findall(unicodedata.normalize("NFC", text))


def no_condition(name: str) -> ValueError:
    """What to raise for a name that is no condition: the one that was meant, or all that there are."""
    from spanwise.tracer.hints import did_you_mean  # loads the tracer, which only a mistake should cost

    near = did_you_mean(name, (*NAMES, *CONDITIONS), form=": {}")
    return ValueError(f"{name!r} is no condition on traces{near or '; there are ' + ', '.join(NAMES)}")


def read(name: str, value: Any) -> tuple[str, Any]:
    """A field and its value there, of one condition: see `combined`. Raises `ValueError`."""
    field = FIELDS.get(name, name)
    if field not in CONDITIONS:
        raise no_condition(name)
    if value is None:
        return field, _DEFAULTS[field]
    reader: Callable[[str, Any], Any] = _READERS.get(field, _text_of)
    return field, reader(name, value)


def _text_of(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{name} is a text, not {value!r}")
    return value


def _moment(name: str, value: Any) -> int:
    if isinstance(value, datetime):
        return readings.nanoseconds(value)
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if isinstance(value, str):
        return (readings.whole_moment if name.endswith("_ns") else readings.moment)(value)
    raise ValueError(f"{name} is a time, such as '1h', '2026-01-31' or nanoseconds since 1970, not {value!r}")


def _texts(name: str, value: Any) -> tuple[str, ...]:
    members = (value,) if isinstance(value, str) else tuple(value)
    return tuple(_text_of(name, member) for member in members)


def _truth(name: str, value: Any) -> bool:
    if isinstance(value, str):
        return readings.truth(value)
    if value not in (True, False):
        raise ValueError(f"{name} is True or False, not {value!r}")
    return bool(value)


def _metadata(name: str, value: Any) -> Mapping[str, Any]:
    if isinstance(value, str):
        return readings.metadata(value)
    if not isinstance(value, Mapping):
        raise ValueError(f"{name} is a mapping, or a text such as 'tenant=t1', not {value!r}")
    return value


def _comparison(name: str, value: Any) -> Comparison:
    if isinstance(value, str):
        operator, number = readings.comparison(name, value)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        operator, number = readings.exactly(name, value)
    else:
        operator, number = _compared(name, value)
    return _operator(name, operator), number


def _compared(name: str, value: Any) -> tuple[str, float]:
    try:
        operator, number = value
        return operator, float(number)
    except (TypeError, ValueError, OverflowError):
        raise ValueError(f"{name} is compared: {name}='>=200', or ('>=', 200), not {value!r}") from None


def _feedbacks(name: str, value: Any) -> tuple[FeedbackCondition, ...]:
    if isinstance(value, str):
        return (_feedback(value),)
    members = tuple(value)
    parts = not any(isinstance(member, tuple | list) for member in members)
    if parts and members and (members[1:2] in _OPERATORS or not all(map(_is_written, members))):
        return (_feedback(members),)
    return tuple(map(_feedback, members))


def _is_written(member: Any) -> bool:
    return isinstance(member, str) and readings.COMPARED.fullmatch(member) is not None


def _feedback(condition: Any) -> FeedbackCondition:
    if isinstance(condition, str):
        condition = readings.feedback(condition)
    try:
        key, operator, value = condition
        bound = value if isinstance(value, str) else float(value)
    except (TypeError, ValueError):
        raise ValueError(
            f"a condition on feedback is (key, operator, value), or 'concise<0.5', not {condition!r}"
        ) from None
    return key, _operator(key, operator), bound


def _operator(name: str, operator: str) -> Operator:
    if operator not in OPERATORS:
        raise ValueError(f"{name!r}: {operator!r} is not one of {', '.join(OPERATORS)}")
    return operator


_OPERATORS = [(operator,) for operator in OPERATORS]
CONDITIONS = tuple(condition.name for condition in fields(Filter))
NAMES = tuple(name.removesuffix("_ns") for name in CONDITIONS)  # as people write them
FIELDS = dict(zip(NAMES, CONDITIONS, strict=True)) | OLD_NAMES  # by these names
_DEFAULTS = {name: getattr(Filter(), name) for name in CONDITIONS}
_NEVER_EMPTY = ("session", "user", "dataset", "example")  # none of them is kept as an empty text
_OF_NAMES = ("missing", "untried", "failed", "skipped", "trace_ids")  # of feedback's keys, and of ids
_READERS: Mapping[str, Callable[[str, Any], Any]] = {  # of all fields that are no text
    **dict.fromkeys(LISTS, _texts),
    **dict.fromkeys(COMPARISONS, _comparison),
    **dict.fromkeys(("since_ns", "until_ns"), _moment),
    "feedback": _feedbacks,
    "metadata": _metadata,
    "complete": _truth,
}
