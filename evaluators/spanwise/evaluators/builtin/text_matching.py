r"""Text matching: condition language with AND, OR, NOT and regular expressions under a time limit.

Operands are strings in double quotes (found anywhere in the text) and regexp("…") (searched for). NOT binds before
AND, AND before OR. In a string `\"` is a quote and `\\` a backslash. In a pattern only `\"` is replaced; everything
else is part of the pattern.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal, TypeAlias

from spanwise.collector.errors import SpanwiseError
from spanwise.collector.records import Document
from spanwise.evaluators.builtin.boolean_families import family_metrics, family_rows
from spanwise.evaluators.builtin.case_text import extract_text
from spanwise.evaluators.interface import Skip, register_builtin
from spanwise.evaluators.interface.evaluator_spec import VALID


def search_pattern(pattern: str, text: str, *, flags: str = "", seconds: float = 1.0) -> str | None:
    """Return the first match of a regular expression, or None. `flags` are letters as in "(?i)".

    The limit `seconds` is CPU time of the whole process, as measured by the `regex` library. Other processes do not
    make a search fail, but busy threads of this process do. Raises `TimeoutError` if the search takes longer,
    `ValueError` for an invalid pattern.
    """
    try:
        match = compile_pattern(pattern, flags).search(text, timeout=seconds)
    except TimeoutError as error:
        raise TimeoutError(f"searching for {pattern!r} took more than {seconds} s of CPU time") from error
    return None if match is None else str(match.group())


def check_time_limit(seconds: float) -> None:
    """Raise `ValueError` for a time limit that is not positive."""
    if not seconds > 0:
        raise ValueError(f"seconds must be a number above 0, got {seconds!r}")


@lru_cache(maxsize=1024)
def compile_pattern(pattern: str, flags: str = "") -> Any:
    """Return a compiled pattern of the `regex` library, whose searches accept a time limit.

    Raises `ValueError`.
    """
    import regex

    try:
        return regex.compile(f"(?{flags}){pattern}" if flags else pattern)
    except regex.error as error:  # the message of the error names the position
        raise ValueError(f"{pattern!r} is not a valid regular expression: {error}") from error


ConditionStep: TypeAlias = tuple[Literal["string", "regexp", "AND", "OR", "NOT"], str]

_TOKEN = re.compile(
    r'(?P<regexp>regexp\(\s*"(?P<pattern>(?:[^"\\]|\\.)*+)"\s*\))|"(?P<string>(?:[^"\\]|\\.)*+)"'
    r"|(?P<operator>\b(?:AND|OR|NOT)\b)|(?P<open>\()|(?P<close>\))|(?P<space>\s+)|(?P<other>\w+|.)",
    re.DOTALL,
)
_PRECEDENCE = {"OR": 1, "AND": 2, "NOT": 3}


class ConditionError(SpanwiseError, ValueError):
    """Raised for a malformed condition; the message gives the column, counted from 1."""


@dataclass(frozen=True, slots=True)
class Condition:
    """Parsed condition in postfix form, evaluated on a stack, so that deep nesting needs no recursion."""

    text: str
    steps: tuple[ConditionStep, ...]

    def holds(self, text: str, *, seconds: float = 1.0) -> bool:
        """Return whether the condition holds for a text.

        Raises `TimeoutError` if a pattern takes longer than `seconds`.
        """
        stack: list[bool] = []
        for kind, value in self.steps:
            if kind == "string":
                stack.append(value in text)
            elif kind == "regexp":
                stack.append(search_pattern(value, text, seconds=seconds) is not None)
            elif kind == "NOT":
                stack.append(not stack.pop())
            else:
                right, left = stack.pop(), stack.pop()
                stack.append((left and right) if kind == "AND" else (left or right))
        return stack.pop()


@lru_cache(maxsize=1024)
def parse_condition(text: str) -> Condition:
    """Parse a condition. Raises `ConditionError`."""
    steps: list[ConditionStep] = []
    waiting: list[tuple[str, int]] = []  # operators and open parentheses, with their columns
    operand_next = True
    for match in _TOKEN.finditer(text):
        kind, column = _token_kind(match), match.start() + 1
        if kind == "space":
            continue
        token = match.group()
        if kind == "other":
            raise _condition_error(text, column, _suggest_token(token))
        begins_operand = kind in ("string", "regexp", "open") or token == "NOT"
        if operand_next and not begins_operand:
            raise _condition_error(text, column, f"an operand is missing before {token!r}")
        if not operand_next and begins_operand:
            raise _condition_error(text, column, f"AND or OR is missing before {token!r:.40}")
        if kind in ("string", "regexp"):
            steps.append(_parse_operand(text, match, column))
            operand_next = False
        elif kind == "open":
            waiting.append(("(", column))
        elif kind == "close":
            while waiting and waiting[-1][0] != "(":
                steps.append((waiting.pop()[0], ""))  # type: ignore[arg-type]
            if not waiting:
                raise _condition_error(text, column, "this parenthesis was never opened")
            waiting.pop()
        else:
            _push_operator(match.group(), column, steps, waiting)
            operand_next = True
    if operand_next:
        raise _condition_error(text, len(text) + 1, 'an operand is missing: a string in double quotes, or regexp("…")')
    while waiting:
        name, column = waiting.pop()
        if name == "(":
            raise _condition_error(text, column, "this parenthesis is never closed")
        steps.append((name, ""))  # type: ignore[arg-type]
    return Condition(text, tuple(steps))


def _token_kind(match: re.Match[str]) -> str:
    for kind in ("space", "regexp", "string", "operator", "open", "close"):
        if match.group(kind) is not None:
            return kind
    return "other"


def _suggest_token(token: str) -> str:
    if token.upper() in _PRECEDENCE:
        return f"{token!r} is written {token.upper()}"
    if token == '"':
        return "this string is never closed"
    if token == "regexp":
        return 'a pattern is written regexp("…")'
    return f'{token!r} is not an operand: write strings in double quotes and patterns as regexp("…")'


def _parse_operand(text: str, match: re.Match[str], column: int) -> ConditionStep:
    pattern = match.group("pattern")
    if pattern is not None:
        pattern = pattern.replace('\\"', '"')
        try:
            compile_pattern(pattern)
        except ValueError as error:
            raise _condition_error(text, column, str(error)) from error
        return "regexp", pattern
    string = re.sub(r'\\(["\\])', r"\1", match.group("string"))
    if not string:
        raise _condition_error(text, column, "an empty string is in every text")
    return "string", string


def _push_operator(name: str, column: int, steps: list[ConditionStep], waiting: list[tuple[str, int]]) -> None:
    while name != "NOT" and waiting and _PRECEDENCE.get(waiting[-1][0], 0) >= _PRECEDENCE[name]:
        steps.append((waiting.pop()[0], ""))  # type: ignore[arg-type]
    waiting.append((name, column))


def _condition_error(text: str, column: int, what: str) -> ConditionError:
    shown = text if len(text) <= 200 else text[max(0, column - 100) : column + 100]
    return ConditionError(f"condition {shown!r}, column {column}: {what}")


def matches_condition(condition: str, text: str, *, seconds: float = 1.0) -> bool:
    """Return whether a condition such as `"15,969" AND regexp("[Mm]illion")` holds for a text.

    Raises `ValueError` with the column for a malformed condition, `TimeoutError` if a pattern takes longer than
    `seconds`.
    """
    return parse_condition(condition).holds(text, seconds=seconds)


@register_builtin(
    "text_matching",
    metrics=family_metrics("text_matching"),
    standards=(VALID,),
    source="H2O Eval Studio: text matching",
    canonical="by hand",
    example='get_evaluator("text_matching"), outputs="15969 million", documents=["It was 15,969 million"], '
    'conditions=\'regexp("15,?969") AND NOT "Real"\'',
)
@dataclass(frozen=True, slots=True)
class TextMatching:
    """True if the answer, and the retrieved context as a whole, meet the condition.

    A condition joins strings in double quotes and `regexp("…")` by AND, OR and NOT. NOT binds before AND before OR,
    and parentheses group. It comes from the case's `conditions` (a list: all must hold) or from the parameter
    `condition`.

    The context is all chunks together, one per line; `evaluate_retrieved_context=False` checks the answer only. If no
    chunk was retrieved, the answer alone decides, and no retrieval failure is counted. `seconds` limits each pattern.
    """

    condition: str | None = None
    evaluate_retrieved_context: bool = True
    seconds: float = 1.0

    def __post_init__(self) -> None:
        if self.condition is not None:
            parse_condition(self.condition)
        check_time_limit(self.seconds)

    def __call__(
        self, outputs: Any, documents: Sequence[Document] | None = None, conditions: Any = None
    ) -> list[dict[str, Any]]:
        wanted = parse_conditions(self.condition, conditions)
        answer = all(condition.holds(extract_text(outputs), seconds=self.seconds) for condition in wanted)
        context = None
        if documents and self.evaluate_retrieved_context:
            context_text = "\n".join(document.content for document in documents)
            context = all(condition.holds(context_text, seconds=self.seconds) for condition in wanted)
        return family_rows("text_matching", answer, context)


def parse_conditions(parameter: str | None, conditions: Any) -> list[Condition]:
    """Return the parsed conditions of a case.

    Raises `Skip` if there are none, `ValueError` for an invalid condition.
    """
    if parameter is not None:
        conditions = parameter
    if conditions is None or (isinstance(conditions, str | list | tuple) and not conditions):
        raise Skip("needs conditions; the case has none")
    listed = conditions if isinstance(conditions, list | tuple) else [conditions]
    for condition in listed:
        if not isinstance(condition, str):
            raise ValueError(f'a condition is a string such as \'"a" AND NOT "b"\', not {condition!r:.200}')
    return [parse_condition(condition) for condition in listed]
