"""The evaluators that have a name: our own, and those that other packages offer by entry points."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeVar

from assay.evaluators.protocol import _foreign, _typed
from assay.evaluators.protocol._evaluator import Evaluator, make
from assay.evaluators.protocol._metric import Metric
from assay.evaluators.protocol._spec import Spec
from assay.tracer.hints import did_you_mean

MODULES = (  # where our own are registered
    "agents",
    "classification",
    "human",
    "json",
    "language",
    "looping",
    "numbers",
    "overlap",
    "pipeline",
    "privacy",
    "retrieval",
    "text",
    "text_matching",
)

C = TypeVar("C", bound=type)

# Parameters that every registered evaluator takes, and what they are called when the evaluator is made.
OPTIONS = {
    "key": "key",
    "threshold": "threshold",
    "metric_threshold": "threshold",
    "timeout": "timeout",
    "retries": "retries",
    "map": "map",
    "prepare_data": "prepare_data",
    "save_llm_result": "details",
    "max_dataset_rows": "max_cases",
    "min_test_cases": "min_cases",
}

# Haystack's names, with its own defaults; not listed, since they are other names of what is.
ALIASES: Mapping[str, tuple[str, dict[str, Any]]] = {
    "AnswerExactMatch": ("exact", {}),
    "DocumentMAP": ("ir_map", {"by": "content"}),
    "DocumentMRR": ("ir_mrr", {"by": "content"}),
    "DocumentNDCG": ("ir_ndcg", {"by": "content"}),
    "DocumentRecall": ("document_recall", {"mode": "single_hit", "by": "content"}),
}


@dataclass(frozen=True, slots=True)
class Entry:
    """A registered class and what is said of it."""

    spec: Spec
    factory: type


_entries: dict[str, Entry] = {}


def builtin(id: str, *, metrics: tuple[Metric, ...], **said: Any) -> Callable[[C], C]:
    """Register a frozen dataclass whose instances are evaluators: `@builtin("exact", metrics=(…), source="…")`."""

    def register(cls: C) -> C:
        group = cls.__module__.rpartition(".")[2]
        call = list(inspect.signature(cls.__call__).parameters.values())[1:]  # without self
        needs, uses = _foreign.arguments(call)
        _entries[id] = Entry(Spec(id=id, group=group, metrics=metrics, needs=needs, uses=uses, **said), cls)
        return cls

    return register


@cache
def _load() -> Mapping[str, Entry]:
    for module in MODULES:
        importlib.import_module(f"assay.evaluators.builtin.{module}")
    return _entries


def names() -> list[str]:
    """The ids of all evaluators that `get` knows, in alphabetical order."""
    return sorted({*_load(), *_foreign.points()})


def spec(id: str) -> Spec:
    """What is known of an evaluator. Raises `ValueError`, naming the closest ids."""
    entry = _load().get(id)
    if entry is not None:
        return entry.spec
    if id in (theirs := _foreign.points()):
        return _foreign.describe(theirs[id])
    raise _no_such(id)


def specs() -> list[Spec]:
    """What is known of all of our own, by id."""
    return [entry.spec for _, entry in sorted(_load().items())]


def factory(id: str) -> Any:
    """The class behind an id: its docstring defines the evaluator, its fields are the parameters.

    Of another package's, what its entry point names: a class, a function, or an evaluator's function.
    """
    entry = _load().get(id)
    if entry is not None:
        return entry.factory
    spec(id)
    thing = _foreign.load(_foreign.points()[id])
    return thing.function if isinstance(thing, Evaluator) else thing


def get(id: str, **parameters: Any) -> Evaluator:
    """A registered evaluator by its id, with its parameters: `get("regex", pattern=r"\\d+", key="has_number")`.

    All take `key`, `threshold` (or `metric_threshold`), `timeout`, `retries`, `map`, `prepare_data`,
    `max_dataset_rows`, `min_test_cases` and `save_llm_result`. Raises `ValueError` for an unknown id or parameter.
    """
    id, defaults = ALIASES.get(id, (id, {}))
    parameters = {**defaults, **parameters}
    entry = _load().get(id)
    if entry is None:
        return _from_entry_point(id, parameters)
    options, own = _split(parameters)
    known = [field.name for field in dataclasses.fields(entry.factory) if field.init]
    for name in own:
        if name not in known:
            raise ValueError(f"evaluator {id!r} has no parameter {name!r}; it has {', '.join([*known, *OPTIONS])}")
    if lacking := _required(entry.factory) - own.keys():
        raise ValueError(f"evaluator {id!r} needs {', '.join(sorted(lacking))}: get({id!r}, {min(lacking)}=…)")
    _typed.check(id, entry.factory, own)
    instance = entry.factory(**own)
    return _made(entry, instance, options, {"type": id, "init_parameters": parameters})


def _required(factory: type) -> set[str]:
    missing = dataclasses.MISSING
    fields = (field for field in dataclasses.fields(factory) if field.init)
    return {field.name for field in fields if field.default is missing and field.default_factory is missing}


def from_dict(data: Mapping[str, Any]) -> Evaluator:
    """An evaluator from what `to_dict` gave: an id with parameters, or the dotted name of a decorated function.

    Only functions under `@evaluator` are found by a dotted name, so that data cannot name any callable it likes.
    """
    name, parameters = str(data.get("type", "")), dict(data.get("init_parameters") or {})
    if "." not in name:
        return get(name, **parameters)
    module, _, attribute = name.rpartition(".")
    try:
        found = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"there is no evaluator {name!r}: {error}") from error
    if not isinstance(found, Evaluator):
        raise ValueError(f"{name!r} is no evaluator: put @evaluator above it")
    return found


def wrap_builtin(instance: object) -> Evaluator | None:
    """The evaluator around an instance of a registered class; None for anything else."""
    for entry in list(_entries.values()):
        if type(instance) is entry.factory:
            return _made(entry, instance, {}, {"type": entry.spec.id, "init_parameters": _parameters(instance)})
    return None


def _made(entry: Entry, instance: Any, options: dict[str, Any], origin: dict[str, Any]) -> Evaluator:
    said = entry.spec
    metrics = getattr(instance, "metrics", None) or said.metrics  # some depend on the parameters
    return make(
        instance,
        name=said.id,
        version=said.version,
        metrics=metrics,
        source=said.kind,
        summary=said.summary,
        origin=origin,
        spec=said,
        **options,
    )


def _parameters(instance: Any) -> dict[str, Any]:
    pairs = ((field, getattr(instance, field.name)) for field in dataclasses.fields(instance) if field.init)
    return {field.name: value for field, value in pairs if value != field.default}


def _split(parameters: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    options = {OPTIONS[name]: value for name, value in parameters.items() if name in OPTIONS}
    return options, {name: value for name, value in parameters.items() if name not in OPTIONS}


def _from_entry_point(id: str, parameters: dict[str, Any]) -> Evaluator:
    point = _foreign.points().get(id)
    if point is None:
        raise _no_such(id)
    options, own = _split(parameters)
    return _foreign.made(point, own, {**options, "origin": {"type": id, "init_parameters": parameters}})


def _no_such(id: str) -> ValueError:
    hint = did_you_mean(id, names(), 3) or "; `assay evaluators list` shows all"
    return ValueError(f"there is no evaluator {id!r}{hint}")
