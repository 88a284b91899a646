"""The evaluators that have a name, ours and those that other packages offer, and whatever can be made one."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spanwise.evaluators.protocol import _foreign, _typed
from spanwise.evaluators.protocol._evaluator import Evaluator
from spanwise.evaluators.protocol._infinite import number_of
from spanwise.evaluators.protocol._make import make
from spanwise.evaluators.protocol._own import Entry, entry, entry_of
from spanwise.evaluators.protocol._spec import FIRST, Spec
from spanwise.evaluators.protocol._table import TABLE
from spanwise.evaluators.protocol.adapters import Adapted, adapted
from spanwise.evaluators.protocol.fingerprint import text_of, version_of
from spanwise.tracer.hints import did_you_mean

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

# Parameters that every registered evaluator takes, and what they are called when the evaluator is made.
OPTIONS = {
    "key": "key",
    "threshold": "threshold",
    "metric_threshold": "threshold",
    "timeout": "timeout",
    "retries": "retries",
    "retry_on": "retry_on",
    "map": "map",
    "prepare_data": "prepare_data",
    "save_llm_result": "details",
    "max_dataset_rows": "max_cases",
    "min_test_cases": "min_cases",
}

# Haystack's names, with its own defaults; not listed, since they are other names of what is.
ALIASES: Mapping[str, tuple[str, dict[str, Any]]] = {
    "AnswerExactMatch": ("exact", {}),
    "ContextRelevance": ("haystack_context_relevance", {}),
    "DocumentMAP": ("ir_map", {"by": "content"}),
    "DocumentMRR": ("ir_mrr", {"by": "content"}),
    "DocumentNDCG": ("ir_ndcg", {"by": "content"}),
    "DocumentRecall": ("document_recall", {"mode": "single_hit", "by": "content"}),
    "Faithfulness": ("haystack_faithfulness", {}),
    "SAS": ("sas", {"model": "paraphrase-multilingual-mpnet-base-v2"}),
}


def as_evaluator(judge: Any) -> Evaluator:
    """An `Evaluator` from an evaluator, a callable, the id of a registered one, the dict of `to_dict`, the `Path` of
    a JSON or YAML file with that, or a metric object of autoevals, deepeval, ragas or pydantic-evals.

    Raises `TypeError` for anything else, and what `get`, `from_dict` and `evaluator` raise.
    """
    if isinstance(judge, Evaluator):
        return judge
    if isinstance(judge, str):
        return get(judge)
    if isinstance(judge, Mapping):
        return from_dict(judge)
    if isinstance(judge, Path):
        return from_dict(definition(judge))
    if not isinstance(judge, type) and (metric := adapted(judge)):
        return _around(metric, judge)
    if isinstance(judge, type) or not callable(judge):
        raise TypeError(f"an evaluator is a callable or the id of one (see spanwise.evaluators.names()), not {judge!r}")
    return _of_instance(judge) or make(judge)


def names() -> list[str]:
    """The ids of all evaluators that `get` knows, in alphabetical order."""
    return sorted({*TABLE, *_foreign.points()})


def spec(id: str) -> Spec:
    """What is known of an evaluator. Raises `ValueError`, naming the closest ids."""
    if own := entry(id):
        return own.spec
    return _foreign.describe(_point(id))


def specs() -> list[Spec]:
    """What is known of all of our own, by id."""
    return [spec(id) for id in sorted(TABLE)]


def factory(id: str) -> Any:
    """The class behind an id: its docstring defines the evaluator, its fields are the parameters.

    Of another package's, what its entry point names: a class, a function, or an evaluator's function. Raises
    `ValueError`, naming the closest ids.
    """
    if own := entry(id):
        return own.factory
    offered = _foreign.load(_point(id))
    return offered.function if isinstance(offered, Evaluator) else offered


def get(id: str, **parameters: Any) -> Evaluator:
    """A registered evaluator by its id, with its parameters: `get("regex", pattern=r"\\d+", key="has_number")`.

    All take `key`, `threshold` (or `metric_threshold`), `timeout`, `retries`, `retry_on`, `map`,
    `prepare_data`, `max_dataset_rows`, `min_test_cases` and `save_llm_result`. Raises `ValueError` for an unknown id
    or parameter.
    """
    id, defaults = ALIASES.get(id, (id, {}))
    parameters = {**defaults, **parameters}
    registered = entry(id)
    if registered is not None:
        parameters = _typed.with_numbers(registered.factory, parameters)
    origin = {"type": id, "init_parameters": parameters}
    options = {OPTIONS[name]: _option(name, value) for name, value in parameters.items() if name in OPTIONS}
    also = _fields(registered.factory) if registered else ()
    own = {name: value for name, value in parameters.items() if name not in OPTIONS or name in also}
    if registered is None:
        return _foreign.made(_point(id), own, {**options, "origin": origin})
    _check(id, registered.factory, own)
    return _made(registered, registered.factory(**own), origin, options)


def _option(name: str, value: Any) -> Any:
    return number_of(value) if name in ("threshold", "metric_threshold") else value


def from_dict(data: Mapping[str, Any]) -> Evaluator:
    """An evaluator from what `to_dict` gave: an id with parameters, or the dotted name of a decorated function.

    Only functions under `@evaluator` are found by a dotted name, so that data cannot name any callable it likes.
    Raises `ValueError`.
    """
    name, parameters = str(data.get("type", "")), dict(data.get("init_parameters") or {})
    if "." not in name:
        return get(name, **parameters)
    module, _, attribute = name.rpartition(".")
    try:
        decorated = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"there is no evaluator {name!r}: {error}") from error
    if not isinstance(decorated, Evaluator):
        raise ValueError(f"{name!r} is no evaluator: put @evaluator above it")
    return decorated


def _around(metric: Adapted, given: object) -> Evaluator:
    """The evaluator around a metric object of another library. Its version has the object's parameters in it."""
    parameters = _constructed_with(given)
    return make(
        metric,
        name=metric.name,
        key=metric.name,
        threshold=metric.threshold,
        range=metric.range,
        higher_is_better=metric.higher_is_better,
        source=metric.source,
        version=metric.version
        if metric.versioned
        else f"{metric.version} {version_of(metric.name, number='', parameters=parameters)}",
        parameters=parameters,
        origin={},
    )


def _constructed_with(given: object) -> dict[str, Any]:
    """Return the plain attributes of an object that are named like parameters of its class."""
    values = {name: getattr(given, name, None) for name in inspect.signature(type(given)).parameters}
    return {name: value for name, value in values.items() if value is not None and text_of(value) is not None}


def definition(file: Path) -> Mapping[str, Any]:
    """What a JSON or YAML file says of an evaluator, as `from_dict` takes it. Raises `ValueError`, `OSError`."""
    import yaml  # of which JSON is a part

    try:
        told = yaml.safe_load(file.read_bytes())
    except yaml.YAMLError as error:
        raise ValueError(f"{str(file)!r} is neither JSON nor YAML: {error}") from error
    if not isinstance(told, Mapping) or not isinstance(told.get("type"), str):
        raise ValueError(f"{str(file)!r} is no definition of an evaluator, which is {{type: …, init_parameters: …}}")
    return told


def _of_instance(instance: object) -> Evaluator | None:
    """The evaluator around an instance of a registered class, such as `Exact()`; None for anything else."""
    known = entry_of(instance)
    if known is None:
        return None
    parameters = _parameters(instance)
    options = {OPTIONS[name]: value for name, value in parameters.items() if name in OPTIONS}
    return _made(known, instance, {"type": known.spec.id, "init_parameters": parameters}, options)


def _made(registered: Entry, instance: Any, origin: Mapping[str, Any], options: dict[str, Any]) -> Evaluator:
    spec = registered.spec
    parameters = _parameters(instance)
    instance = getattr(instance, "chosen", instance)  # some are made in several ways
    if exported := getattr(instance, "exported", None):  # what is kept of parameters that are no plain values
        origin = {**origin, "init_parameters": exported(origin["init_parameters"])}
        parameters = exported(parameters)
    own_version = getattr(instance, "version", None)
    return make(
        instance,
        name=getattr(instance, "named", None) or spec.id,
        version=_version(spec, own_version, parameters, options),
        revision=own_version or spec.version,
        parameters={name: value for name, value in parameters.items() if name not in ("judge", *OPTIONS)},
        metrics=getattr(instance, "metrics", None) or spec.metrics,  # some depend on the parameters
        source=getattr(instance, "said_by", spec.kind),
        summary=spec.summary,
        origin=origin,
        spec=spec,
        shares=not any(map(_runs_code, origin["init_parameters"].values())),
        **options,
    )


def _version(spec: Spec, own: str | None, parameters: Mapping[str, Any], options: Mapping[str, Any]) -> str:
    """Return the version of a built-in evaluator.

    `own` is the version that those with a judge or a model make of their parameters. It stays as it is, so that
    stored scores and labels stay valid, unless the number of the evaluator or its arguments changed.
    """
    preparing = {
        name: options[name] for name in ("map", "prepare_data") if options.get(name) and name not in parameters
    }
    if own is None:
        return version_of(spec.id, number=spec.version, parameters={**parameters, **preparing})
    if spec.version == FIRST and not preparing:
        return own
    return version_of(own, number=spec.version, parameters=preparing)


def _runs_code(parameter: Any) -> bool:
    """Whether a parameter brings along functions of somebody else's."""
    return callable(parameter) or (isinstance(parameter, Mapping) and any(map(callable, parameter.values())))


def _check(id: str, factory: type, parameters: Mapping[str, Any]) -> None:
    """Raises `ValueError` for a parameter that there is not, one that is missing, and one of the wrong kind."""
    fields = [field for field in dataclasses.fields(factory) if field.init]
    known = _fields(factory)
    for name in parameters:
        if name not in known:
            raise ValueError(
                f"evaluator {id!r} has no parameter {name!r}; it has {', '.join(dict.fromkeys([*known, *OPTIONS]))}"
            )
    if lacking := {field.name for field in fields if _is_required(field)} - parameters.keys():
        raise ValueError(f"evaluator {id!r} needs {', '.join(sorted(lacking))}: get({id!r}, {min(lacking)}=…)")
    _typed.check(id, factory, parameters)


def _fields(factory: type) -> tuple[str, ...]:
    return tuple(field.name for field in dataclasses.fields(factory) if field.init)


def _is_required(field: dataclasses.Field[Any]) -> bool:
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING


def _parameters(instance: Any) -> dict[str, Any]:
    pairs = ((field, getattr(instance, field.name)) for field in dataclasses.fields(instance) if field.init)
    return {field.name: value for field, value in pairs if value != _default(field)}


def _default(field: dataclasses.Field[Any]) -> Any:
    return field.default if field.default_factory is dataclasses.MISSING else field.default_factory()


def _point(id: str) -> EntryPoint:
    """Where another package offers it. Raises `ValueError`, naming the closest ids of all that there are."""
    offered = _foreign.points()
    if id in offered:
        return offered[id]
    hint = did_you_mean(id, names(), 3) or "; `spanwise evaluators list` shows all"
    raise ValueError(f"there is no evaluator {id!r}{hint}")
