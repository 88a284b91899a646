"""An evaluator from a callable and what is known about it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypedDict, TypeGuard, Unpack, overload

from spanwise.collector.records import Source
from spanwise.evaluators.protocol._binding import bind, is_of_a_set
from spanwise.evaluators.protocol._evaluator import Evaluator
from spanwise.evaluators.protocol._metric import Metric
from spanwise.evaluators.protocol._outcomes import Maker
from spanwise.evaluators.protocol._passing import RetryOn, retries_on
from spanwise.evaluators.protocol._spec import Spec
from spanwise.evaluators.protocol.fingerprint import version_of
from spanwise.evaluators.protocol.shown_parameters import shown_parameters
from spanwise.tracer.hints import did_you_mean


class Options(TypedDict, total=False):
    """What people say of their own evaluators; what is left out has the default of `Evaluator`, or is read off it."""

    key: str | None
    threshold: float | None
    higher_is_better: bool
    range: tuple[float, float] | None
    metrics: Sequence[Metric]
    summary: bool | None
    timeout: float | None  # seconds per attempt
    retries: int
    retry_on: RetryOn | None  # which errors are tried again; None: those that may pass (see `may_pass`)
    map: Mapping[str, Any] | None
    prepare_data: Callable[..., Mapping[str, Any]] | None
    source: Source
    version: str
    details: bool  # False: metadata of scores is not kept
    max_cases: int | None
    min_cases: int


def _is_whole(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)


RULES: Mapping[str, tuple[str, Callable[[Any], bool]]] = {
    "key": ("a text that is not empty", lambda value: isinstance(value, str) and value != ""),
    "threshold": ("a number", lambda value: isinstance(value, int | float) and value == value),
    "timeout": ("seconds, more than 0", lambda value: isinstance(value, int | float) and value > 0),
    "retries": ("a whole number, 0 or more", lambda value: _is_whole(value) and value >= 0),
    "min_cases": ("a whole number, 0 or more", lambda value: _is_whole(value) and value >= 0),
    "max_cases": ("a whole number, 1 or more", lambda value: _is_whole(value) and value >= 1),
}


class Origin(Options, total=False):
    """What the registry adds: under which name it is found again, and what else is known."""

    name: str
    origin: Mapping[str, Any]
    spec: Spec
    shares: bool  # changes nothing of what it looks at, and so needs no copies
    revision: str  # what stands for the source text in a rule's version: a number, or a version of its own
    parameters: Mapping[str, Any]  # given ones that its scores depend on


def make(function: Callable[..., Any], **options: Unpack[Origin]) -> Evaluator:
    """Wrap a callable. Raises `BindingError` when it asks for something that no case has, `ValueError` for options."""
    _check(options)
    own = options.get("name") or _name_of(function)
    key = options.get("key") or own
    renamed = _renamed(own, key, options.get("metrics", ()))
    metrics = _metrics(key, renamed, options)
    revision = options.get("revision") or options.get("version") or "1"
    version = options.get("version") or _version(function, options.get("name") or key, options)
    summary, origin = options.get("summary"), options.get("origin")
    return Evaluator(
        key=key,
        function=function,
        binding=bind(
            function,
            where=options.get("map"),
            prepare_data=options.get("prepare_data"),
            name=own,
            shares=options.get("shares", False),
        ),
        make=Maker(
            key=key,
            keys=tuple(metric.key for metric in metrics),
            name=options.get("name") or key,
            version=version,
            source=options.get("source", "code"),
            renamed=renamed,
            details=options.get("details", True),
            parameters=shown_parameters(_shown(options)),
        ),
        version=version,
        revision=revision,
        metrics=metrics,
        summary=is_of_a_set(function) if summary is None else summary,
        timeout=options.get("timeout"),
        retries=options.get("retries", 0),
        retry_on=retries_on(options.get("retry_on")),
        max_cases=options.get("max_cases"),
        min_cases=options.get("min_cases") or 0,
        origin=_importable(function) if origin is None else origin,
        spec=options.get("spec"),
    )


@overload
def evaluator(function: Callable[..., Any], /, **options: Unpack[Options]) -> Evaluator: ...
@overload
def evaluator(function: None = None, /, **options: Unpack[Options]) -> Callable[[Callable[..., Any]], Evaluator]: ...
def evaluator(function: Callable[..., Any] | None = None, /, **options: Unpack[Options]) -> Any:
    """Say what is known about an evaluator: `@evaluator(key="concise", threshold=0.5, higher_is_better=True)`.

    `metrics` describes several keys; `summary=True` asks for lists over all cases; `timeout` (seconds) and `retries`
    hold per call; `retry_on` says which errors are tried again; `map={"question": "inputs.question"}` says where an
    argument is, `prepare_data` is a function of the same arguments that returns them as a dict. Raises `TypeError` for
    an option that there is not.
    """
    known = Options.__annotations__
    for name in options:
        if name not in known:
            hint = did_you_mean(name, known, form=" ({})")
            raise TypeError(f"@evaluator has no option {name!r}{hint}; it takes {', '.join(known)}")

    if function is not None:
        return make(function, **options)
    return lambda function: make(function, **options)


def _check(options: Origin) -> None:
    """What would fail on every case, or be ignored on all. Raises `ValueError`."""
    for name, (words, holds) in RULES.items():
        value = options.get(name)
        if value is not None and not holds(value):
            raise ValueError(f"{name} is {words}, not {value!r:.200}")
    if options.get("retry_on") is not None and not options.get("retries"):
        raise ValueError("retry_on says what is tried again, but retries, how often, is 0")


def _version(function: Callable[..., Any], name: str, options: Origin) -> str:
    """Return the version of a function: of its name, its source text, and what decides on its arguments."""
    return version_of(name, function=function, parameters={**options.get("parameters", {}), **_preparing(options)})


def _preparing(options: Origin) -> dict[str, Any]:
    """Return the options that decide on what a function is called with."""
    return {name: value for name in ("map", "prepare_data") if (value := options.get(name)) is not None}


def _shown(options: Origin) -> dict[str, Any]:
    """Return the parameters that feedback carries."""
    threshold = options.get("threshold")
    given = {**options.get("parameters", {}), **_preparing(options)}
    return given if threshold is None else {**given, "threshold": threshold}


def _metrics(key: str, renamed: Mapping[str, str], options: Origin) -> tuple[Metric, ...]:
    """The metrics under the keys that they get, with a threshold given for the whole evaluator where it belongs."""
    threshold = options.get("threshold")
    declared = tuple(replace(metric, key=renamed.get(metric.key, metric.key)) for metric in options.get("metrics", ()))
    if not declared:
        metric = Metric(key, options.get("range"), options.get("higher_is_better", True), primary=True)
        return (metric if threshold is None else _with(threshold, metric),)
    if threshold is None:
        return declared
    return tuple(_with(threshold, metric) if _takes(metric, declared) else metric for metric in declared)


def _with(threshold: float, metric: Metric) -> Metric:
    """The metric with a threshold. Raises `ValueError` for one that every score, or none, is on the good side of."""
    low, high = metric.range or (-math.inf, math.inf)
    if isinstance(threshold, bool) or not low <= threshold <= high:
        within = f"whose scores are {low:g} to {high:g}"
        raise ValueError(f"threshold of {metric.key!r}, {within}, is a number within that, not {threshold!r}")
    return replace(metric, threshold=threshold)


def _takes(metric: Metric, metrics: Sequence[Metric]) -> bool:
    """A threshold given for the whole evaluator is its primary metric's, or every metric's if none is primary."""
    return metric.primary or not any(other.primary for other in metrics)


def _renamed(own: str, key: str, metrics: Sequence[Metric]) -> dict[str, str]:
    """With another key an evaluator's further metrics follow: `pii_fail` of `pii` under "mine" is `mine_fail`."""
    if key == own:
        return {}
    return {
        metric.key: key + metric.key.removeprefix(own) if metric.key.startswith(own) else f"{key}_{metric.key}"
        for metric in metrics
    }


def _name_of(function: Callable[..., Any]) -> str:
    name = getattr(function, "key", None) or getattr(function, "__name__", None)
    if not isinstance(name, str):
        inner = getattr(function, "func", function)  # functools.partial
        name = getattr(inner, "__name__", None) or type(inner).__name__
    return str(name)


def _importable(function: Callable[..., Any]) -> dict[str, Any]:
    module, name = getattr(function, "__module__", None), getattr(function, "__qualname__", "")
    if not module or not name or "<" in name or module == "__main__":
        return {}
    return {"type": f"{module}.{name}", "init_parameters": {}}
