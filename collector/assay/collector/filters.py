"""The one structured filter for traces, used alike by stores, API, client, command line and pages."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal, TypeAlias, get_args

from assay.collector.errors import Refused
from assay.collector.records import JSON, Status

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
    status: str | None = None  # "error"; "ok" holds for every other, "unset" for those of them that say nothing
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

    @property
    def leaves_out_judgements(self) -> bool:
        """Whether evaluators' own traces do not pass, as nothing asks for them."""
        asked = self.kind is not None or self.any_kind == EVALUATOR or self.trace_ids is not None
        return not (asked or self.experiment or self.experiments is not None)  # a trace of an experiment is none


EVALUATOR = "evaluator"  # the kind of run that is a judgement
STATUSES = get_args(Status)
LISTS = ("tags", "missing", "untried", "failed", "skipped", "trace_ids", "experiments")
COMPARISONS = ("latency_ms", "tokens", "cost")


def combined(filter: Filter | None = None, conditions: Mapping[str, Any] | None = None) -> Filter:
    """A filter with further conditions by name, in the short forms that people write.

    One text stands for a list of one, one `(key, operator, value)` for a tuple of one, and a plain number for an
    equality. Raises `ValueError` for a name that is no condition, or a value that cannot be one.
    """
    given = {name: _normal(name, value) for name, value in (conditions or {}).items()}
    whole = filter or Filter()
    return replace(whole, **given) if given else whole


def normal_form(filter: Filter) -> dict[str, JSON]:
    """The conditions that a filter has, as plain values under their names, in order: `combined(None, …)` reads them."""
    given = {name: getattr(filter, name) for name in sorted(CONDITIONS)}
    return {name: _plain(value) for name, value in given.items() if value != _DEFAULTS[name]}


def _plain(value: Any) -> JSON:
    if isinstance(value, Mapping):
        return dict(sorted(value.items()))
    return [_plain(member) for member in value] if isinstance(value, tuple) else value


def deletable(filter: Filter) -> Filter:
    """The same filter. Raises `Refused` for one that says nothing: what passes it is about to be deleted."""
    if filter == Filter():
        raise Refused("an empty filter would delete every trace; name at least one condition")
    if filter.text is not None and not words(filter.text):
        raise Refused(f"text {filter.text!r} holds no word, so that every trace would pass; name one")
    if filter.error is not None and not filter.error.split():
        raise Refused(f"error {filter.error!r} holds no word, so that every trace with an error would pass; name one")
    return filter


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


def _normal(name: str, value: Any) -> Any:
    if name not in CONDITIONS:
        from assay.tracer.hints import did_you_mean  # loads the tracer, which only a mistake should cost

        raise ValueError(f"{name!r} is no condition on traces{did_you_mean(name, CONDITIONS, form=': {}')}")
    if value is None:
        return _DEFAULTS.get(name)
    if name in LISTS:
        return (value,) if isinstance(value, str) else tuple(value)
    if name == "feedback":
        conditions = (value,) if value and isinstance(value[0], str) else value
        return tuple(_feedback(condition) for condition in conditions)
    return _comparison(name, value) if name in COMPARISONS else value


def _comparison(name: str, value: Any) -> Comparison:
    operator, bound = ("=", value) if isinstance(value, int | float) else value
    return _operator(name, operator), float(bound)


def _feedback(condition: Any) -> FeedbackCondition:
    try:
        key, operator, value = condition
    except (TypeError, ValueError):
        raise ValueError(f"a condition on feedback is (key, operator, value), not {condition!r}") from None
    return key, _operator(key, operator), value if isinstance(value, str) else float(value)


def _operator(name: str, operator: str) -> Operator:
    if operator not in OPERATORS:
        raise ValueError(f"{name!r}: {operator!r} is not one of {', '.join(OPERATORS)}")
    return operator


CONDITIONS = tuple(condition.name for condition in fields(Filter))
_DEFAULTS = {name: getattr(Filter(), name) for name in CONDITIONS}
