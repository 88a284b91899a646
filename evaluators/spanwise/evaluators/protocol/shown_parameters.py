"""Parameters of an evaluator as its feedback carries them: short, without secrets."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from spanwise.collector.records import Feedback
from spanwise.evaluators.protocol._plain import plain
from spanwise.evaluators.protocol.fingerprint import is_secret

PARAMETERS = "evaluator_parameters"  # the name in the metadata of feedback
LONGEST = 500  # characters of one value; of a longer one the beginning is kept


def shown_parameters(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return the metadata that all feedback of an evaluator has: {} for one without parameters."""
    shown = {name: _shown(value) for name, value in parameters.items() if not is_secret(name)}
    return {PARAMETERS: shown} if shown else {}


def parameters_of(feedback: Feedback) -> Mapping[str, Any]:
    """Return the parameters of the evaluator that a feedback came from; {} where it has none."""
    given = feedback.metadata.get(PARAMETERS)
    return given if isinstance(given, Mapping) else {}


def _shown(value: Any) -> Any:
    """Return a value as JSON has it; functions and objects by their names, long values cut."""
    if isinstance(value, Mapping):
        made: Any = {str(name): _shown(member) for name, member in value.items() if not is_secret(str(name))}
    elif isinstance(value, list | tuple):
        made = [_shown(member) for member in value]
    elif value is None or isinstance(value, str | int | float):
        made = plain(value)
    else:
        made = getattr(value, "__qualname__", None) or type(value).__qualname__
    text = made if isinstance(made, str) else json.dumps(made)  # orjson refuses lone surrogates
    return made if len(text) <= LONGEST else f"{text[:LONGEST]}… ({len(text)} characters)"
