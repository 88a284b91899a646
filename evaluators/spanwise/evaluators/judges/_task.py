"""A question by examples, as Haystack asks it: instructions, named inputs, named outputs, and what good replies are."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from spanwise.collector.records import JSON

_IN_TEXT = re.compile(r"\{(?=[\s{A-Za-z_])")  # in JSON text a brace before these stands inside of a string
_ANY_OF = [{"type": kind} for kind in ("number", "string", "boolean", "null")]
_ANYTHING: dict[str, JSON] = {"anyOf": [*_ANY_OF, {"type": "array", "items": {"anyOf": _ANY_OF}}]}


@dataclass(frozen=True, slots=True)
class Task:
    """`examples` are dicts with `inputs` and `outputs`, each a dict by name."""

    instructions: str
    outputs: Sequence[str]
    examples: Sequence[Mapping[str, Any]]

    def template(self, inputs: Mapping[str, str]) -> str:
        """The prompt in Haystack's layout. `inputs` say which argument stands for each input.

        A brace that stands before a word in an example is written as JSON's \\u007b: it is no placeholder.
        """
        shown = "\n".join(
            f"Inputs:\n{_json(one['inputs'])}\nOutputs:\n{_json(one['outputs'])}" for one in self.examples
        )
        asked = ", ".join(f'"{name}": {{{{ {argument} }}}}' for name, argument in inputs.items())
        return (
            f"Instructions:\n{self.instructions}\n\n"
            f"Generate the response in JSON format with the following keys:\n{json.dumps(list(self.outputs))}\n"
            "Consider the instructions and the examples below to determine those values.\n\n"
            f"Examples:\n{shown}\n\n"
            f"Inputs:\n{{{asked}}}\nOutputs:\n"
        )

    @property
    def schema(self) -> dict[str, JSON]:
        """The form of a reply: the outputs, each of the kind that it has in the examples."""
        given = [one["outputs"] for one in self.examples]
        columns = {name: [row[name] for row in given if name in row] for name in self.outputs}
        return _object({name: _kind(values) for name, values in columns.items()})


def _json(value: Any) -> str:
    return _IN_TEXT.sub(r"\\u007b", json.dumps(value))


def _kind(values: Sequence[Any]) -> dict[str, JSON]:
    """The schema of values like these; of none, or of several kinds, that of any number, text or list."""
    kinds = {type(value) for value in values}
    if kinds == {bool}:
        return {"type": "boolean"}
    if kinds == {int} and set(values) == {0, 1}:
        return {"type": "integer", "enum": [0, 1]}
    if kinds and kinds <= {int, float}:
        return {"type": "number"}
    if kinds == {str}:
        return {"type": "string"}
    if kinds == {list}:
        return {"type": "array", "items": _kind([member for value in values for member in value])}
    return _of_dicts(values) if kinds == {dict} else _ANYTHING


def _of_dicts(values: Sequence[Mapping[str, Any]]) -> dict[str, JSON]:
    names = dict.fromkeys(name for value in values for name in value)
    return _object({name: _kind([value[name] for value in values if name in value]) for name in names})


def _object(properties: Mapping[str, JSON]) -> dict[str, JSON]:
    return {
        "type": "object",
        "properties": dict(properties),
        "required": list(properties),
        "additionalProperties": False,
    }
