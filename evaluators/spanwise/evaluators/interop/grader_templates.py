"""Template strings of OpenAI's graders, and the formulas of multi graders.

A template has variables such as `{{ item.answer }}`, `{{ sample.output_text }}` and `{{ sample.output_json.steps[0] }}`.
Formulas are parsed and evaluated node by node. Neither is ever passed to Python's `eval`.
"""

from __future__ import annotations

import ast
import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from spanwise.collector.records import JSON, Case
from spanwise.evaluators.interface import Skip

_VARIABLE = re.compile(r"\{\{([^{}]*)\}\}")
_STEP = re.compile(r"\.?([^.\[\]\"']+)|\[\s*(?:(-?\d+)|\"([^\"]*)\"|'([^']*)')\s*\]")
NAMESPACES = ("item", "sample")
Namespace = Mapping[str, Mapping[str, JSON]]


def list_variables(template: str) -> list[str]:
    """Return the variables of a template without braces, such as "item.answer"."""
    return [name.strip() for name in _VARIABLE.findall(template)]


def split_path(variable: str) -> list[str | int]:
    """Return the steps of a variable: "item.rows[0].name" → ["item", "rows", 0, "name"]. Raises `ValueError`."""
    steps: list[str | int] = []
    position = 0
    while position < len(variable):
        found = _STEP.match(variable, position)
        if found is None:
            break
        name, number, *quoted = found.groups()
        steps.append(
            name.strip() if name is not None else int(number) if number else next(q for q in quoted if q is not None)
        )
        position = found.end()
    if position < len(variable) or len(steps) < 2 or steps[0] not in NAMESPACES:
        raise ValueError(f"unknown variable {{{{ {variable} }}}}; expected item.NAME or sample.NAME")
    return steps


def render_template(template: str, namespace: Namespace) -> str:
    """Return the template with its variables replaced. Values other than texts are rendered as JSON.

    The text of a value is not searched for variables again. Raises `Skip` if the case has no such value.
    """

    def replace(found: re.Match[str]) -> str:
        value = find_value(found[1].strip(), namespace)
        return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)

    return _VARIABLE.sub(replace, template)


def find_value(variable: str, namespace: Namespace) -> JSON:
    """Return the value of a variable. Raises `Skip` if there is none, and `ValueError` for an unknown namespace."""
    value: Any = namespace
    for step in split_path(variable):
        if isinstance(step, int) and isinstance(value, list) and -len(value) <= step < len(value):
            value = value[step]
        elif isinstance(value, list) and isinstance(step, str) and step.isdecimal() and int(step) < len(value):
            value = value[int(step)]
        elif isinstance(value, Mapping) and str(step) in value:
            value = value[str(step)]
        else:
            raise Skip(f"needs {variable}; the case has none")
    return value


def render_messages(messages: Iterable[Mapping[str, str]], item: JSON) -> list[dict[str, str]]:
    """Return a prompt's messages with their `item` variables replaced. Raises `Skip` for a variable that `item` lacks."""
    fields = dict(item) if isinstance(item, Mapping) else {"input": item}
    namespace = {"item": fields, "sample": make_sample(None)}
    return [{**message, "content": render_template(message["content"], namespace)} for message in messages]


def make_namespace(case: Case) -> dict[str, dict[str, JSON]]:
    """Return the variables of a case: `item` has the fields of inputs and reference, `sample` those of the outputs."""
    item: dict[str, JSON] = dict(case.inputs) if isinstance(case.inputs, Mapping) else {"input": case.inputs}
    if isinstance(case.reference_outputs, Mapping):
        item |= case.reference_outputs
    elif case.reference_outputs is not None:
        item.setdefault("reference", case.reference_outputs)
    return {"item": item, "sample": make_sample(case.outputs)}


def make_sample(outputs: JSON) -> dict[str, JSON]:
    """Return the variables of the namespace `sample` for a text, a JSON value, or a list of messages."""
    message: Mapping[str, JSON] = {"role": "assistant", "content": outputs}
    if isinstance(outputs, list) and outputs and all(isinstance(each, Mapping) and "role" in each for each in outputs):
        message = outputs[-1]
    content = message.get("content")
    text = content if isinstance(content, str) else "" if content is None else json.dumps(content, ensure_ascii=False)
    sample: dict[str, JSON] = {
        "output_text": text,
        "output_tools": message.get("tool_calls") or [],
        "choices": [{"message": {**message, "content": text}}],
    }
    if content is not None and not isinstance(content, str):
        sample["output_json"] = content
    elif text:
        try:
            sample["output_json"] = json.loads(text, parse_constant=lambda name: None)
        except (ValueError, RecursionError):
            pass  # as in OpenAI Evals, the variable then does not exist
    return sample


MAX_FORMULA_CHARACTERS = 10_000
_OPERATORS: Mapping[type[ast.AST], Callable[[float, float], float]] = {
    ast.Add: lambda left, right: left + right,
    ast.Sub: lambda left, right: left - right,
    ast.Mult: lambda left, right: left * right,
    ast.Div: lambda left, right: left / right,
    ast.Pow: math.pow,
    ast.BitXor: math.pow,  # OpenAI writes powers as ^
}
_FUNCTIONS: Mapping[str, Callable[..., float]] = {
    "min": min,
    "max": max,
    "abs": abs,
    "floor": math.floor,
    "ceil": math.ceil,
    "exp": math.exp,
    "sqrt": math.sqrt,
    "log": math.log,
}


class Formula:
    """Formula of a multi grader over the scores of its graders: + - * / ^, parentheses, and `min`, `max`, `abs`, `floor`,
    `ceil`, `exp`, `sqrt`, `log`.

    Raises `ValueError` for anything else.
    """

    def __init__(self, text: str) -> None:
        if len(text) > MAX_FORMULA_CHARACTERS:
            raise ValueError(f"calculate_output must have at most {MAX_FORMULA_CHARACTERS} characters, got {len(text)}")
        # ^ binds as ** does; in Python it would bind more loosely than +
        try:
            self._root = ast.parse(text.strip().replace("^", "**"), mode="eval").body
            self.names = tuple(dict.fromkeys(self._check(self._root)))
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            reason = error.msg if isinstance(error, SyntaxError) else str(error)
            raise ValueError(
                f"invalid formula {text!r:.200}: {reason}; it may have + - * / ^ and {', '.join(_FUNCTIONS)}"
            ) from None

    def _check(self, node: ast.expr) -> Iterator[str]:
        """Yield the names of scores below a node. Raises `ValueError` for nodes that formulas do not have."""
        match node:
            case ast.Constant(value=value) if type(value) in (int, float):
                return
            case ast.Name(id=name):
                yield name
            case ast.UnaryOp(op=ast.UAdd() | ast.USub(), operand=operand):
                yield from self._check(operand)
            case ast.BinOp(left=left, op=operator, right=right) if type(operator) in _OPERATORS:
                yield from self._check(left)
                yield from self._check(right)
            case ast.Call(func=ast.Name(id=name), args=[_, *_] as arguments, keywords=[]) if name in _FUNCTIONS:
                for argument in arguments:
                    yield from self._check(argument)
            case _:
                raise ValueError(f"{type(node).__name__} is not allowed")

    def compute(self, scores: Mapping[str, float]) -> float:
        """Return the result. Raises `ValueError` if it is undefined, such as for a division by zero."""
        try:
            result = float(self._compute(self._root, scores))
        except (ArithmeticError, ValueError, TypeError) as error:
            raise ValueError(f"the formula has no result: {error}") from None
        if not math.isfinite(result):
            raise ValueError(f"the formula has no finite result: {result}")
        return result

    def _compute(self, node: ast.expr, scores: Mapping[str, float]) -> float:
        match node:
            case ast.Constant(value=value):
                return float(value)  # type: ignore[arg-type]
            case ast.Name(id=name):
                return scores[name]
            case ast.UnaryOp(op=operator, operand=operand):
                value = self._compute(operand, scores)
                return -value if isinstance(operator, ast.USub) else value
            case ast.BinOp(left=left, op=operator, right=right):
                return _OPERATORS[type(operator)](self._compute(left, scores), self._compute(right, scores))
            case ast.Call(func=ast.Name(id=name), args=arguments):
                values = [self._compute(argument, scores) for argument in arguments]
                return _FUNCTIONS[name](values) if name in ("min", "max") else _FUNCTIONS[name](*values)
        raise ValueError(f"{type(node).__name__} is not allowed")  # pragma: no cover
