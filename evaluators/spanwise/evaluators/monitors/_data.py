"""Rules that came through the API: made of data, which names evaluators and brings no code."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from spanwise.collector.records import JSON, Rule
from spanwise.evaluators.models._address import ADDRESSES, of_environment
from spanwise.evaluators.models._presets import BY_HUB, PRESETS
from spanwise.evaluators.monitors._rule import Monitored
from spanwise.evaluators.protocol import Evaluator, check_keys, from_dict, names
from spanwise.evaluators.protocol._own import entry
from spanwise.tracer.hints import did_you_mean

_WORDS = ("type", "init_parameters", "parameters", "key", "version", "source")
_MODELS = ("model", "embed", "embedding")  # parameters that name what is loaded
_JUDGES = ("judge", "agent")  # whose model is a name at an address
_COMPARED = ("json_schema", "attributes", "inputs", "expected", "expectations", "tools", "examples", "map")
_RUN, _FILES = ("pickle", "remote_code"), ("directory", "conv")
_FILE = "write such a rule in a file"


def of_data(rule: Rule) -> Monitored:
    """The rule with its evaluators. Raises `ValueError`, with the way out, for what data may not say."""
    made = tuple(_made(entry) for entry in rule.evaluators)
    if not made:
        raise ValueError("a rule has at least one evaluator, not []")
    try:
        check_keys(made)
    except ValueError as error:
        raise ValueError(f"evaluators have one key each: {error}") from None
    if sets := [evaluator.key for evaluator in made if evaluator.summary]:
        raise ValueError(f"{sets[0]!r} looks at a whole set of cases; leave it out")
    return Monitored(rule, made)


def _made(entry: Mapping[str, JSON]) -> Evaluator:
    id, parameters = entry.get("type"), entry.get("init_parameters", entry.get("parameters")) or {}
    if unknown := next((name for name in entry if name not in _WORDS), None):
        raise ValueError(f"an evaluator in data has type and init_parameters, not {unknown!r}")
    if not isinstance(id, str) or id not in names():
        # A dotted name would import a module: data names what is registered, and nothing else
        hint = did_you_mean(str(id), names(), 3) or "; `spanwise evaluators list` shows all"
        raise ValueError(f"{id!r} is no registered evaluator{hint}")
    if not isinstance(parameters, Mapping):
        raise ValueError(f"init_parameters of {id!r} are an object of names and values, not {parameters!r:.100}")
    _check(id, parameters)
    try:
        return from_dict({"type": id, "init_parameters": dict(parameters)})
    except Exception as error:  # an evaluator of another package may raise anything
        raise ValueError(f"evaluator {id!r}: {error}") from error


def _check(id: str, parameters: Mapping[str, Any]) -> None:
    """Whoever may save a rule is not whoever runs the monitor: what it names runs no code, is no file, and sends no
    text to where the environment does not send it anyway. Keys would be seen by all who read the rule.
    """
    for name, value in _of_machine(id, parameters):
        if name in ("api_key", "token"):
            raise ValueError(
                f"{id!r} names {'an' if name == 'api_key' else 'a'} {name}, which everybody would see who reads the "
                "rule: at the environment's own address that of the monitor's environment is taken; for another one "
                "write the rule in a file"
            )
        if name in _RUN and value:
            raise ValueError(f"{id!r}: {name}={value!r} would run code on the monitor's machine: {_FILE}")
        if (name in _FILES and value) or (name == "cache" and isinstance(value, str)):
            raise ValueError(f"{id!r} names {name}={value!r} on the monitor's machine: {_FILE}")
        if name == "base_url" and value is not None and not of_environment(value):
            raise ValueError(
                f"{id!r} would send texts to {value!r:.200}, which the monitor's environment does not name "
                f"({', '.join(ADDRESSES)}): {_FILE}"
            )
        if name in _MODELS and isinstance(value, str) and value not in PRESETS and value not in BY_HUB:
            raise ValueError(
                f"{id!r}: {name}={value!r:.200} is none of the models that rules may name without a file "
                f"({', '.join(PRESETS)}): {_FILE}"
            )


def _of_machine(id: str, parameters: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Parameters that say what the machine does, and what is within them. What answers and spans are compared with says
    nothing of it; what another package's evaluator takes for a model nobody knows.
    """
    if entry(id) is None:
        yield from ((name, value) for name, value in _within(parameters) if name not in _MODELS)
        return
    for name, value in parameters.items():
        yield name, value
        if name not in _COMPARED:
            at_an_address = name in _JUDGES or (isinstance(value, Mapping) and value.get("base_url") is not None)
            yield from ((inner, one) for inner, one in _within(value) if not (at_an_address and inner == "model"))


def _within(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for name, inner in value.items():
            yield str(name), inner
            yield from _within(inner)
    elif isinstance(value, Sequence) and not isinstance(value, str):
        for inner in value:
            yield from _within(inner)
