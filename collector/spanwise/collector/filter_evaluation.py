"""Evaluation of filters on single traces: whether a trace passes, and the result of each condition.

Rules and `explain` use these functions with every store. The store supplies the values that the conditions compare
(`TraceValues`). Only lists of traces are filtered by the store itself. A property test ensures that both agree.

Rules do not chain: the feedback in `TraceValues` excludes feedback that a rule gave.
"""

from __future__ import annotations

import json
import operator
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from math import isnan
from operator import attrgetter, itemgetter
from typing import Any, NamedTuple, TypeAlias, TypedDict

from spanwise.collector.errors import Refused
from spanwise.collector.filters import (
    CONDITIONS,
    EVALUATOR_KIND,
    YES_AND_NO,
    FeedbackCondition,
    Filter,
    metadata_text,
    parse_search_terms,
    refuse_dataset,
)
from spanwise.collector.records import JSON, ConditionResult

MAX_SHOWN_VALUES = 20  # list elements in the result of a condition


class KeyFeedback(NamedTuple):
    """Feedback on a trace and its spans under one key, without that of rules.

    `outcome`, `score` and `label` are those of the newest feedback that is not about a document. `total` also counts
    feedback about documents.
    """

    outcome: str | None = None
    score: float | None = None
    label: str | None = None
    total: int = 0


class TraceValues(TypedDict, total=False):
    """Values of a trace that conditions compare. A store supplies at least those in `required_values`."""

    trace_id: str
    project: str | None
    environment: str | None
    experiment_id: str | None
    example_id: str | None
    session_id: str | None
    user_id: str | None
    name: str | None
    kind: str | None
    status: str | None
    start_ns: int
    end_ns: int
    input_tokens: int | None
    output_tokens: int | None
    cost: float | None
    complete: bool
    tags: Collection[str]
    metadata: Mapping[str, JSON]
    names: Collection[str]  # of all runs, as are the values up to `errors`
    kinds: Collection[str]
    models: Collection[str]
    prompts: Mapping[str, Collection[str | None]]  # versions by name
    agents: Collection[str]
    finish_reasons: Collection[str]
    version: str | None
    time_to_first_token_ms: float | None
    errors: Iterable[str]  # one text per run with an error; may be read from the store while it is iterated
    feedback: Mapping[str, KeyFeedback]  # by key
    texts: Collection[str] | None  # the text conditions that the trace meets; None until its text is indexed


class TraceCondition(NamedTuple):
    """One condition of a filter. `test` and `show` take the required value, or a tuple if several are required."""

    name: str
    wanted: JSON
    requires: tuple[str, ...]  # names of the values that the condition reads
    test: Callable[[Any], bool | None]  # whether the condition holds; None if that is not known yet
    show: Callable[[Any], JSON]  # the value to show in an explanation


def trace_conditions(filter: Filter) -> list[TraceCondition]:
    """Return the conditions of a filter, in the order of its fields.

    The first one, named "judgement", excludes evaluators' own traces, unless the filter asks for them.
    """
    found = [_EXCLUDE_JUDGEMENTS] if filter.leaves_out_judgements else []
    for name in CONDITIONS:
        value = getattr(filter, name)
        if value != getattr(_EMPTY_FILTER, name):
            compiler = _prompt_version(filter.prompt) if name == "prompt_version" else _COMPILERS[name]
            found += compiler(name, value)
    return found


def required_values(conditions: Iterable[TraceCondition]) -> set[str]:
    """Return the names of the values that the conditions read."""
    return {name for condition in conditions for name in condition.requires}


def evaluate(
    conditions: Iterable[TraceCondition], traces: Sequence[Any], keys: Mapping[str, int] | None = None
) -> list[bool | None]:
    """Return for each trace whether all conditions hold; None if that is not known yet.

    The traces are `TraceValues`, or rows of which `keys` has the position of each value.
    """
    results: list[bool | None] = [True] * len(traces)
    for _, _, requires, test, _ in sorted(conditions, key=lambda condition: _EVALUATED_LAST.get(condition.name, 0)):
        get = _getter(requires, keys)
        results = [held and test(get(values)) for held, values in zip(results, traces, strict=True)]
    return results


# Only a text condition can be unknown. It comes last, so that its result counts only if all other conditions hold.
# Few traces are evaluators' own. The other conditions come first, because they exclude more.
_EVALUATED_LAST = {"judgement": 1, "text": 2}


def explain(
    conditions: Iterable[TraceCondition], trace: Any, keys: Mapping[str, int] | None = None
) -> list[ConditionResult]:
    """Return the result of each condition for one trace, given as in `evaluate`.

    The implicit condition "judgement" appears only if it fails.
    """
    results = []
    for name, wanted, requires, test, show in conditions:
        value = _getter(requires, keys)(trace)
        held = test(value)
        if name != "judgement" or not held:
            results.append(ConditionResult(name=name, wanted=wanted, seen=show(value), passes=held))
    return results


def _getter(requires: Sequence[str], keys: Mapping[str, int] | None) -> Callable[[Any], Any]:
    return itemgetter(*(requires if keys is None else (keys[name] for name in requires)))


def _is_judgement(kind_and_experiment: tuple[str | None, str | None]) -> bool:
    return kind_and_experiment[0] == EVALUATOR_KIND and kind_and_experiment[1] is None


_EMPTY_FILTER = Filter()
_EXCLUDE_JUDGEMENTS = TraceCondition(
    "judgement", False, ("kind", "experiment_id"), lambda values: not _is_judgement(values), _is_judgement
)
_Compiler: TypeAlias = Callable[[str, Any], list[TraceCondition]]


def _identity(value: Any) -> Any:
    return value


def _condition(
    value_name: str, make_test: Callable[[Any], Callable[[Any], bool | None]], show: Callable[[Any], JSON] = _identity
) -> _Compiler:
    """Return a compiler of a condition that tests one value."""
    return lambda name, wanted: [TraceCondition(name, wanted, (value_name,), make_test(wanted), show)]


def _equals(value_name: str) -> _Compiler:
    return _condition(value_name, lambda wanted: partial(operator.eq, wanted))


def _contains(value_name: str) -> _Compiler:
    return _condition(
        value_name, lambda wanted: lambda seen: wanted in seen, lambda values: list(values)[:MAX_SHOWN_VALUES]
    )


def _prompt_version(prompt: str | None) -> _Compiler:
    """Return a compiler of the condition that a run used a version of one prompt, or of any if that is None."""

    def make_test(wanted: str) -> Callable[[Mapping[str, Collection[str | None]]], bool]:
        if prompt is not None:
            return lambda prompts: wanted in prompts.get(prompt, ())
        return lambda prompts: any(wanted in versions for versions in prompts.values())

    return _condition("prompts", make_test, lambda prompts: dict(list(prompts.items())[:MAX_SHOWN_VALUES]))


_OPERATORS: Mapping[str, Callable[[Any, Any], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    "=": operator.eq,
    "!=": operator.ne,
    ">=": operator.ge,
    ">": operator.gt,
}


def _comparison(see: Callable[[Any], float | str | None], sign: str, bound: float | str) -> Callable[[Any], bool]:
    """Return a test that is false for a missing value, and for every value if the bound is not a number."""
    if sign not in _OPERATORS:
        raise Refused(f"unknown operator {sign!r}; expected one of: {', '.join(_OPERATORS)}")
    if isinstance(bound, float) and isnan(bound):
        return lambda value: False
    compare = _OPERATORS[sign]
    return lambda value: (seen := see(value)) is not None and compare(seen, bound)


def _compares(requires: tuple[str, ...], see: Callable[[Any], float | None]) -> _Compiler:
    return lambda name, wanted: [TraceCondition(name, wanted, requires, _comparison(see, *wanted), see)]


def _has_status(wanted: str) -> Callable[[str], bool]:
    if wanted == "ok":
        return lambda seen: seen not in ("error", "cancelled")
    return partial(operator.eq, wanted)


def _contains_words(text: str) -> Callable[[Iterable[str]], bool]:
    """Return a test that one of several texts contains all words. As in SQL, only ASCII letters ignore case."""
    words = [word.encode(errors="surrogatepass").lower() for word in text.split()]

    def contains_all(seen: str) -> bool:
        lower = seen.encode(errors="surrogatepass").lower()
        return all(word in lower for word in words)

    return lambda texts: any(map(contains_all, texts))


def _metadata(name: str, wanted: Mapping[str, Any]) -> list[TraceCondition]:
    def compile_key(wanted: JSON, key: str, text: str) -> TraceCondition:
        def test(metadata: Mapping[str, JSON]) -> bool:
            value = metadata.get(key)
            return not isinstance(value, list | dict) and _stored_text(value) == text

        return TraceCondition(name, wanted, ("metadata",), test, lambda metadata: _stored_text(metadata.get(key)))

    return [compile_key({key: value}, str(key), metadata_text(value)) for key, value in wanted.items()]


def _stored_text(value: JSON) -> str | None:
    """Return the text of a metadata value. Numbers have the text that SQLite gives them: 15 significant digits."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, list | dict):
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    if isinstance(value, float) or not -(2**63) <= value < 2**63:
        mantissa, exponent, power = f"{float(value) + 0.0:.15g}".partition("e")  # -0.0 becomes 0.0
        return f"{mantissa if '.' in mantissa else mantissa + '.0'}{exponent}{power}"
    return metadata_text(value)


def metadata_as_texts(metadata: Mapping[str, JSON]) -> dict[str, str]:
    """Return the scalar values of metadata as the texts that conditions compare."""
    texts = {key: _stored_text(value) for key, value in metadata.items() if not isinstance(value, list | dict)}
    return {key: text for key, text in texts.items() if text is not None}


_NO_FEEDBACK = KeyFeedback()


def _see_feedback(key: str, attribute: str) -> Callable[[Mapping[str, KeyFeedback]], Any]:
    see = attrgetter(attribute)
    return lambda feedback: see(feedback.get(key, _NO_FEEDBACK))


def _see_yes_or_no(key: str) -> Callable[[Mapping[str, KeyFeedback]], str | None]:
    def see(feedback: Mapping[str, KeyFeedback]) -> str | None:
        found = feedback.get(key, _NO_FEEDBACK)
        if found.label is not None or found.score is None:
            return found.label
        return YES_AND_NO.get(float(found.score))

    return see


def _feedback(name: str, wanted: Iterable[FeedbackCondition]) -> list[TraceCondition]:
    found = []
    for condition in wanted:
        key, sign, bound = condition
        if bound in YES_AND_NO.values():
            see = _see_yes_or_no(key)
        else:
            see = _see_feedback(key, "label" if isinstance(bound, str) else "score")
        found.append(TraceCondition(name, condition, ("feedback",), _comparison(see, sign, bound), see))
    return found


def _each_key(attribute: str, test: Callable[[Any], bool]) -> _Compiler:
    """Return a compiler of one condition for each of several feedback keys."""

    def compile_key(name: str, key: str) -> TraceCondition:
        see = _see_feedback(key, attribute)
        return TraceCondition(name, key, ("feedback",), lambda feedback: test(see(feedback)), see)

    return lambda name, keys: [compile_key(name, key) for key in keys]


def _excluded(name: str, pairs: Iterable[tuple[str, str]]) -> list[TraceCondition]:
    def negate(condition: TraceCondition, pair: tuple[str, str]) -> TraceCondition:
        return condition._replace(name=name, wanted=pair, test=lambda seen: not condition.test(seen))

    return [
        negate(condition, (field, value))
        for field, value in pairs
        for condition in _COMPILERS[field](field, (value,) if field == "tags" else value)
    ]


def _refuse_document_feedback(name: str, wanted: Iterable[FeedbackCondition]) -> list[TraceCondition]:
    raise Refused(
        f"{name} {next(iter(wanted))!r} cannot be evaluated on a single trace; rules have no condition on feedback of "
        "documents, remove it"
    )


def _text(name: str, text: str) -> list[TraceCondition]:
    if not parse_search_terms(text):  # every trace contains all words of an empty text
        return []

    def test(texts: Collection[str] | None) -> bool | None:
        return None if texts is None else text in texts

    def show(texts: Collection[str] | None) -> JSON:
        return "not in the text index yet" if texts is None else None

    return [TraceCondition(name, text, ("texts",), test, show)]


_COMPILERS: Mapping[str, _Compiler] = {
    "project": _equals("project"),
    "environment": _equals("environment"),
    "since_ns": _condition("start_ns", lambda bound: lambda seen: seen >= bound),
    "until_ns": _condition("start_ns", lambda bound: lambda seen: seen < bound),
    "name": _equals("name"),
    "kind": _equals("kind"),
    "any_name": _contains("names"),
    "any_kind": _contains("kinds"),
    "status": _condition("status", _has_status),
    "error": _condition("errors", _contains_words, lambda errors: next(filter(None, errors), None)),
    "model": _contains("models"),
    "prompt": _contains("prompts"),
    "agent": _contains("agents"),
    "finish_reason": _contains("finish_reasons"),
    "version": _equals("version"),
    "time_to_first_token_ms": _compares(("time_to_first_token_ms",), _identity),
    "latency_ms": _compares(("start_ns", "end_ns"), lambda times: (times[1] - times[0]) / 1e6),
    "tokens": _compares(("input_tokens", "output_tokens"), lambda tokens: None if None in tokens else sum(tokens)),
    "cost": _compares(("cost",), _identity),
    "tags": lambda name, tags: [condition for tag in tags for condition in _contains("tags")(name, tag)],
    "metadata": _metadata,
    "session": _equals("session_id"),
    "user": _equals("user_id"),
    "feedback": _feedback,
    "document_feedback": _refuse_document_feedback,
    "missing": _each_key("outcome", lambda outcome: outcome != "score"),
    "untried": _each_key("total", operator.not_),
    "failed": _each_key("outcome", lambda outcome: outcome == "error"),
    "skipped": _each_key("outcome", lambda outcome: outcome == "skip"),
    "text": _text,
    "experiment": _condition("experiment_id", lambda id: partial(operator.eq, id or None)),
    "experiments": _condition("experiment_id", lambda ids: frozenset(ids).__contains__),
    "dataset": lambda name, dataset: refuse_dataset(dataset),
    "example": _equals("example_id"),
    "complete": _condition("complete", lambda wanted: partial(operator.eq, wanted), bool),
    "trace_ids": _condition("trace_id", lambda ids: frozenset(ids).__contains__),
    "excluded": _excluded,
}
