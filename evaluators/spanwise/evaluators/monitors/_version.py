"""What makes a rule another one: a hash of what is scored and with what. No bytecode: Pythons differ in it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from spanwise.collector.records import JSON, Rule, canonical
from spanwise.evaluators.protocol import Evaluator, NoSource, names, source_of

_HASHED = ("filter", "target", "kind", "scope", "evaluators")


def version_of(rule: Rule) -> Rule:
    """The rule with its version: 12 hex digits over filter, target, scope and evaluators."""
    return replace(rule, version=_digest({name: getattr(rule, name) for name in _HASHED}))


def entry_of(rule: str, evaluator: Evaluator, version: str | None) -> Mapping[str, JSON]:
    """What a store keeps of an evaluator: registry id and parameters, or name and hash of source.

    Raises `ValueError` for code whose source is not to be had, unless a `version` stands for it.
    """
    entry: dict[str, Any] = {"key": evaluator.key, "version": evaluator.revision}
    code: Any
    if _is_registered(evaluator):
        try:
            return {**entry, **evaluator.to_dict()}
        except ValueError:  # a parameter is a function
            entry["type"], code = evaluator.origin["type"], dict(evaluator.origin["init_parameters"])
    elif identity := vars(type(evaluator.function)).get("RULE_IDENTITY"):
        entry["function"], digest = identity
        return {**entry, "source": version or _digest({entry["function"].replace(":", "."): digest})}
    else:
        entry["function"], code = _name_of(evaluator.function), evaluator.function
    try:
        return {**entry, "source": version or _source(code)}
    except NoSource as error:
        way_out = f'say monitor({rule!r}, …, version="1"), and another one when it changes'
        raise ValueError(f"rule {rule!r}: {error}; {way_out}") from None


def _is_registered(evaluator: Evaluator) -> bool:
    return bool(evaluator.origin) and (evaluator.spec is not None or evaluator.origin["type"] in names())


def _name_of(function: Callable[..., Any]) -> str:
    return f"{function.__module__}:{getattr(function, '__qualname__', type(function).__qualname__)}"


def _source(code: Any) -> str:
    """The digest of the source of a function, or of parameters of which some are functions. Raises `NoSource`."""
    if isinstance(code, Mapping):
        return _digest({name: _source(value) if callable(value) else repr(value) for name, value in code.items()})
    return _digest(source_of(code))


def _digest(value: JSON) -> str:
    return hashlib.sha256(canonical(value)).hexdigest()[:12]
