"""Construction of evaluators: the `@evaluator` decorator, its options, shown parameters and metric keys."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Collection, Iterable, Mapping, MutableMapping, Sequence
from dataclasses import replace
from typing import Any, TypedDict, TypeGuard, Unpack, overload

from spanwise.collector.records import Feedback, Source, Target
from spanwise.collector.statistics import TASK_OK
from spanwise.evaluators.interface.argument_binding import bind, is_set_level
from spanwise.evaluators.interface.evaluator_execution import Evaluator, RetryOn, compile_retry_on
from spanwise.evaluators.interface.evaluator_spec import EvaluatorSpec, Metric
from spanwise.evaluators.interface.fingerprint import compute_version, is_secret
from spanwise.evaluators.interface.outcomes import FeedbackFactory, InvalidResult, to_plain
from spanwise.tracer.suggestions import did_you_mean


class EvaluatorOptions(TypedDict, total=False):
    """Options of `@evaluator`. An omitted option has the default of `Evaluator`, or is derived from the function."""

    key: str | None
    threshold: float | None
    higher_is_better: bool
    range: tuple[float, float] | None
    metrics: Sequence[Metric]
    summary: bool | None
    timeout: float | None  # seconds per attempt
    retries: int
    retry_on: RetryOn | None  # errors that are retried; None: transient ones (see `is_transient`)
    map: Mapping[str, Any] | None
    prepare_data: Callable[..., Mapping[str, Any]] | None
    source: Source
    version: str
    details: bool  # False: metadata of scores is dropped
    max_cases: int | None
    min_cases: int
    primary: bool  # whether its keys decide comparisons of experiments
    good_labels: Collection[str]  # labels that comparisons count as good


def _is_integer(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)


OPTION_RULES: Mapping[str, tuple[str, Callable[[Any], bool]]] = {
    "key": ("a non-empty string", lambda value: isinstance(value, str) and value != ""),
    "threshold": ("a number", lambda value: isinstance(value, int | float) and value == value),
    "timeout": ("a number of seconds > 0", lambda value: isinstance(value, int | float) and value > 0),
    "retries": ("an integer >= 0", lambda value: _is_integer(value) and value >= 0),
    "min_cases": ("an integer >= 0", lambda value: _is_integer(value) and value >= 0),
    "primary": ("True or False", lambda value: isinstance(value, bool)),
    "good_labels": (
        "a collection of labels",
        lambda value: (
            isinstance(value, Collection) and not isinstance(value, str) and all(isinstance(one, str) for one in value)
        ),
    ),
    "max_cases": ("an integer >= 1", lambda value: _is_integer(value) and value >= 1),
}


class RegistryOptions(EvaluatorOptions, total=False):
    """Options of `@evaluator`, and those that only the registry sets: the evaluator's name and further facts about
    it.
    """

    name: str
    origin: Mapping[str, Any]
    spec: EvaluatorSpec
    shares: bool  # True: the function does not change its arguments, so they need not be copied
    revision: str  # in a rule's version, replaces the hash of the source text: a number, or the evaluator's own version
    parameters: Mapping[str, Any]  # parameters set by the user that affect the scores
    document_threshold: bool  # True: every metric has the threshold of its source document


def make_evaluator(function: Callable[..., Any], **options: Unpack[RegistryOptions]) -> Evaluator:
    """Wrap a callable as an evaluator.

    Raises `BindingError` if it asks for a field that no case has, and `ValueError` for invalid options.
    """
    _check_options(options)
    function_name = options.get("name") or _get_function_name(function)
    key = options.get("key") or function_name
    renamed = _rename_keys(function_name, key, options.get("metrics", ()))
    metrics = _declare_metrics(key, renamed, options)
    # `map` and `prepare_data` determine the arguments of the function, so they are part of its version
    arguments = {name: value for name in ("map", "prepare_data") if (value := options.get(name)) is not None}
    parameters = {**options.get("parameters", {}), **arguments}
    version = options.get("version") or compute_version(
        options.get("name") or key, function=function, parameters=parameters
    )
    threshold: float | str | None = "document" if options.get("document_threshold") else options.get("threshold")
    summary, origin = options.get("summary"), options.get("origin")
    is_summary = is_set_level(function) if summary is None else summary
    if origin is None:
        module, name = getattr(function, "__module__", None), getattr(function, "__qualname__", "")
        is_importable = module and name and "<" not in name and module != "__main__"
        origin = {"type": f"{module}.{name}", "init_parameters": {}} if is_importable else {}
    return Evaluator(
        key=key,
        function=function,
        binding=bind(
            function,
            where=options.get("map"),
            prepare_data=options.get("prepare_data"),
            name=function_name,
            shares=options.get("shares", False),
            native=not is_summary,
        ),
        make=FeedbackFactory(
            key=key,
            keys=tuple(metric.key for metric in metrics),
            name=options.get("name") or key,
            version=version,
            source=options.get("source", "code"),
            renamed=renamed,
            details=options.get("details", True),
            parameters=format_parameters(parameters if threshold is None else {**parameters, "threshold": threshold}),
        ),
        version=version,
        revision=options.get("revision") or options.get("version") or "1",
        metrics=metrics,
        summary=is_summary,
        timeout=options.get("timeout"),
        retries=options.get("retries", 0),
        retry_on=compile_retry_on(options.get("retry_on")),
        max_cases=options.get("max_cases"),
        min_cases=options.get("min_cases") or 0,
        primary=options.get("primary", False),
        origin=origin,
        spec=options.get("spec"),
    )


@overload
def evaluator(function: Callable[..., Any], /, **options: Unpack[EvaluatorOptions]) -> Evaluator: ...
@overload
def evaluator(
    function: None = None, /, **options: Unpack[EvaluatorOptions]
) -> Callable[[Callable[..., Any]], Evaluator]: ...
def evaluator(function: Callable[..., Any] | None = None, /, **options: Unpack[EvaluatorOptions]) -> Any:
    """Make an evaluator from a function, with options: `@evaluator(key="concise", threshold=0.5,
    higher_is_better=True)`.

    - `metrics` describes several keys.
    - `summary=True` makes a set-level evaluator, which gets lists over all cases.
    - `timeout` (seconds) and `retries` apply to each call; `retry_on` selects the errors that are retried.
    - `map={"question": "inputs.question"}` gives the path of an argument.
    - `prepare_data` is a function of the same arguments that returns them as a dict.
    - `primary=True` makes its keys decide comparisons of experiments; other keys are then exploratory.
    - `good_labels={"good"}` names the labels that comparisons count as good.

    Raises `TypeError` for an unknown option.
    """
    known = EvaluatorOptions.__annotations__
    for name in options:
        if name not in known:
            hint = did_you_mean(name, known, form=" ({})")
            raise TypeError(f"@evaluator has no option {name!r}{hint}; it takes {', '.join(known)}")

    if function is not None:
        return make_evaluator(function, **options)
    return lambda function: make_evaluator(function, **options)


def _check_options(options: RegistryOptions) -> None:
    """Raise `ValueError` for options that would fail on every case or have no effect."""
    for name, (expected, is_valid) in OPTION_RULES.items():
        value = options.get(name)
        if value is not None and not is_valid(value):
            raise ValueError(f"{name} must be {expected}, got {value!r:.200}")
    if options.get("retry_on") is not None and not options.get("retries"):
        raise ValueError("retry_on has no effect because retries is 0: set retries to 1 or more")


def _declare_metrics(key: str, renamed: Mapping[str, str], options: RegistryOptions) -> tuple[Metric, ...]:
    """Return the metrics under their final keys. An evaluator's `threshold` is set on its primary metric, or on all if
    none is primary.
    """
    threshold, good_labels = options.get("threshold"), tuple(sorted(options.get("good_labels") or ()))
    declared = tuple(replace(metric, key=renamed.get(metric.key, metric.key)) for metric in options.get("metrics", ()))
    if not declared:
        rising = options.get("higher_is_better", True)
        metric = Metric(key, options.get("range"), rising, primary=True, good_labels=good_labels)
        return (metric if threshold is None else _set_threshold(threshold, metric),)
    has_primary = any(metric.primary for metric in declared)
    if good_labels:
        declared = tuple(
            replace(metric, good_labels=good_labels) if metric.primary or not has_primary else metric
            for metric in declared
        )
    if options.get("document_threshold"):
        return tuple(map(_set_document_threshold, declared))
    if threshold is None:
        return declared
    return tuple(
        _set_threshold(threshold, metric) if metric.primary or not has_primary else metric for metric in declared
    )


def _set_threshold(threshold: float, metric: Metric) -> Metric:
    """Return the metric with a threshold.

    Raises `ValueError` if the threshold is outside the range of scores.
    """
    low, high = metric.range or (-math.inf, math.inf)
    if isinstance(threshold, bool) or not low <= threshold <= high:
        raise ValueError(f"threshold of {metric.key!r} must be a number from {low:g} to {high:g}, got {threshold!r}")
    return replace(metric, threshold=threshold)


def _set_document_threshold(metric: Metric) -> Metric:
    """Return the metric with the threshold of its source document, even if no score can meet it.

    If the metric has no threshold because the document's belongs to another model, name that model.
    """
    document = metric.document
    if document is None:
        return metric
    threshold_model = document.model if metric.threshold is None else ""
    return replace(metric, threshold=document.threshold, threshold_model=threshold_model)


def _rename_keys(name: str, key: str, metrics: Sequence[Metric]) -> dict[str, str]:
    """Return the new keys of the evaluator's metrics if the user has chosen another key for the evaluator.

    For example, the metric `pii_fail` of `pii` becomes `mine_fail` with `key="mine"`.
    """
    if key == name:
        return {}
    return {
        metric.key: key + metric.key.removeprefix(name) if metric.key.startswith(name) else f"{key}_{metric.key}"
        for metric in metrics
    }


def _get_function_name(function: Callable[..., Any]) -> str:
    name = getattr(function, "key", None) or getattr(function, "__name__", None)
    if not isinstance(name, str):
        inner = getattr(function, "func", function)  # `functools.partial` holds the function as `func`
        name = getattr(inner, "__name__", None) or type(inner).__name__
    return str(name)


PARAMETERS_KEY = "evaluator_parameters"  # key in the metadata of feedback
MAX_VALUE_LENGTH = 500  # maximum characters of one value; longer values are truncated


def format_parameters(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return an evaluator's parameters as metadata for its feedback; {} without parameters."""
    shown = {name: _format_value(value) for name, value in parameters.items() if not is_secret(name)}
    return {PARAMETERS_KEY: shown} if shown else {}


def get_parameters(feedback: Feedback) -> Mapping[str, Any]:
    """Return the parameters of the evaluator that gave a feedback; {} if it has none."""
    parameters = feedback.metadata.get(PARAMETERS_KEY)
    return parameters if isinstance(parameters, Mapping) else {}


def _format_value(value: Any) -> Any:
    """Return a value as JSON. Functions and objects become their names; long values are truncated."""
    if isinstance(value, Mapping):
        plain: Any = {str(name): _format_value(member) for name, member in value.items() if not is_secret(str(name))}
    elif isinstance(value, list | tuple):
        plain = [_format_value(member) for member in value]
    elif value is None or isinstance(value, str | int | float):
        plain = to_plain(value)
    else:
        plain = getattr(value, "__qualname__", None) or type(value).__qualname__
    text = plain if isinstance(plain, str) else json.dumps(plain)  # not orjson, which rejects lone surrogates
    return plain if len(text) <= MAX_VALUE_LENGTH else f"{text[:MAX_VALUE_LENGTH]}… ({len(text)} characters)"


def check_keys(evaluators: Sequence[Evaluator], recorded: Iterable[Mapping[str, Any]] = ()) -> None:
    """Raise `ValueError` if two evaluators declare the same metric key.

    `recorded` holds the evaluators that the experiment has recorded already. A recorded evaluator is replaced by a new
    one with the same key.
    """
    owners: dict[str, str] = {}
    for evaluator in evaluators:
        for key in dict.fromkeys((evaluator.key, *evaluator.make.keys)):
            if key == TASK_OK:
                raise ValueError(f"the key {TASK_OK!r} is reserved: give the evaluator another one with key='…'")
            if key in owners:
                raise ValueError(_describe_collision(key, owners[key], evaluator.key))
            owners[key] = evaluator.key
    replaced = {evaluator.key for evaluator in evaluators}
    for record in recorded:
        for metric in record.get("metrics", ()):
            if record["key"] not in replaced and metric["key"] in owners:
                raise ValueError(_describe_collision(metric["key"], record["key"], owners[metric["key"]]))


def find_by_name(evaluators: Sequence[Evaluator], name: str) -> list[Evaluator]:
    """Return the evaluators that an example means by a name: those with this key, else those that report this key, else
    those with this registered id.
    """
    return (
        [each for each in evaluators if each.key == name]
        or [each for each in evaluators if name in each.make.keys]
        or [each for each in evaluators if each.make.name == name or (each.spec is not None and each.spec.id == name)]
    )


def claim_keys(
    owners: MutableMapping[str, str], evaluator: Evaluator, feedback: list[Feedback], target: Target
) -> list[Feedback]:
    """Return the feedback of an evaluator. If one of its keys belongs to another evaluator, return an error instead.

    `owners` maps keys to the evaluators that declare them or returned them first. New keys are added.
    """
    for each in feedback:
        owner = owners.setdefault(each.key, evaluator.key)
        if owner != evaluator.key:
            collision = f"{evaluator.key!r} returned the key {each.key!r}, which is a key of {owner!r}, too"
            return evaluator.make.failure(target, InvalidResult(f"{collision}; {_COLLISION_REMEDY}"))
    return feedback


def list_declared_keys(evaluators: Iterable[Evaluator]) -> dict[str, str]:
    """Return the declared metric keys, each with the key of its evaluator."""
    return {key: evaluator.key for evaluator in evaluators for key in (evaluator.key, *evaluator.make.keys)}


_COLLISION_REMEDY = "one would overwrite the other: give one of them another key with key='…'"


def _describe_collision(key: str, first: str, second: str) -> str:
    if first == second == key:
        return f"two evaluators have the key {key!r}: {_COLLISION_REMEDY}"
    return f"two evaluators, {first!r} and {second!r}, give the key {key!r}: {_COLLISION_REMEDY}"
