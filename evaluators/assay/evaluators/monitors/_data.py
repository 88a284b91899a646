"""Rules that came through the API: made of data, which names evaluators and brings no code."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from assay.collector.records import JSON, Rule
from assay.evaluators.monitors._rule import Monitored
from assay.evaluators.protocol import Evaluator, from_dict, names
from assay.tracer.hints import did_you_mean

_WORDS = ("type", "init_parameters", "parameters", "key", "version", "source")


def of_data(rule: Rule) -> Monitored:
    """The rule with its evaluators. Raises `ValueError`, with the way out, for what data may not say."""
    made = tuple(_made(entry) for entry in rule.evaluators)
    keys = [evaluator.key for evaluator in made]
    if not made or len(set(keys)) < len(keys):
        raise ValueError(f"evaluators have one key each, not {keys!r}; give another key")
    if sets := [evaluator.key for evaluator in made if evaluator.summary]:
        raise ValueError(f"{sets[0]!r} looks at a whole set of cases; leave it out")
    return Monitored(rule, made)


def _made(entry: Mapping[str, JSON]) -> Evaluator:
    id, parameters = entry.get("type"), entry.get("init_parameters", entry.get("parameters")) or {}
    if unknown := next((name for name in entry if name not in _WORDS), None):
        raise ValueError(f"an evaluator in data has type and init_parameters, not {unknown!r}")
    if not isinstance(id, str) or id not in names():
        # A dotted name would import a module: data names what is registered, and nothing else
        hint = did_you_mean(str(id), names(), 3) or "; `assay evaluators list` shows all"
        raise ValueError(f"{id!r} is no registered evaluator{hint}")
    if not isinstance(parameters, Mapping):
        raise ValueError(f"init_parameters of {id!r} are an object of names and values, not {parameters!r:.100}")
    _check(id, parameters)
    try:
        return from_dict({"type": id, "init_parameters": dict(parameters)})
    except Exception as error:  # an evaluator of another package may raise anything
        raise ValueError(f"evaluator {id!r}: {error}") from error


def _check(id: str, parameters: Mapping[str, Any]) -> None:
    """Data names no file of the machine that runs it, and holds no key, which whoever reads the rule would see."""
    for name, value in _within(parameters):
        if name == "api_key":
            raise ValueError(
                f"{id!r} names an api_key, which everybody would see who reads the rule: a judge at the environment's "
                "own address takes ASSAY_JUDGE_KEY of the monitor; for another one write the rule in a file"
            )
        if (name == "cache" and isinstance(value, str)) or name == "directory":
            raise ValueError(f"{id!r} names {name}={value!r} on the monitor's machine: write such a rule in a file")


def _within(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for name, inner in value.items():
            yield str(name), inner
            yield from _within(inner)
    elif isinstance(value, Sequence) and not isinstance(value, str):
        for inner in value:
            yield from _within(inner)
