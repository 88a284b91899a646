"""The language of conditions on a text: `("Brazil" OR "brazil") AND regexp("15,?969") AND NOT "Real"`.

Operands are strings in double quotes (found anywhere in the text) and regexp("…") (searched for). NOT binds before AND,
AND before OR. In a string `\\"` is a quote and `\\\\` a backslash; in a pattern only `\\"` is replaced, all else is the
pattern's own.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, TypeAlias

from spanwise.collector.errors import SpanwiseError
from spanwise.evaluators.builtin._patterns import compiled, search

Step: TypeAlias = tuple[Literal["string", "regexp", "AND", "OR", "NOT"], str]

_TOKEN = re.compile(
    r'(?P<regexp>regexp\(\s*"(?P<pattern>(?:[^"\\]|\\.)*+)"\s*\))|"(?P<string>(?:[^"\\]|\\.)*+)"'
    r"|(?P<operator>\b(?:AND|OR|NOT)\b)|(?P<open>\()|(?P<close>\))|(?P<space>\s+)|(?P<other>\w+|.)",
    re.DOTALL,
)
_BINDS = {"OR": 1, "AND": 2, "NOT": 3}


class ConditionError(SpanwiseError, ValueError):
    """A malformed condition; the message points at the column, counted from 1."""


@dataclass(frozen=True, slots=True)
class Condition:
    """A parsed condition, as steps of a stack machine (so that deep nesting costs no recursion)."""

    text: str
    steps: tuple[Step, ...]

    def holds(self, text: str, *, seconds: float = 1.0) -> bool:
        """Whether the condition holds for a text. Raises `TimeoutError` when a pattern takes longer than `seconds`."""
        stack: list[bool] = []
        for kind, value in self.steps:
            if kind == "string":
                stack.append(value in text)
            elif kind == "regexp":
                stack.append(search(value, text, seconds=seconds) is not None)
            elif kind == "NOT":
                stack.append(not stack.pop())
            else:
                right, left = stack.pop(), stack.pop()
                stack.append((left and right) if kind == "AND" else (left or right))
        return stack.pop()


@lru_cache(maxsize=1024)
def parse(text: str) -> Condition:
    """A condition from its text. Raises `ConditionError`."""
    steps: list[Step] = []
    waiting: list[tuple[str, int]] = []  # operators and open parentheses, with their columns
    operand_next = True
    for match in _TOKEN.finditer(text):
        kind, column = _kind(match), match.start() + 1
        if kind == "space":
            continue
        _expect(text, kind, match.group(), column, operand_next)
        if kind in ("string", "regexp"):
            steps.append(_operand(text, match, column))
            operand_next = False
        elif kind == "open":
            waiting.append(("(", column))
        elif kind == "close":
            _close(text, steps, waiting, column)
        else:
            _operator(match.group(), column, steps, waiting)
            operand_next = True
    if operand_next:
        raise _error(text, len(text) + 1, 'an operand is missing: a string in double quotes, or regexp("…")')
    while waiting:
        name, column = waiting.pop()
        if name == "(":
            raise _error(text, column, "this parenthesis is never closed")
        steps.append((name, ""))  # type: ignore[arg-type]
    return Condition(text, tuple(steps))


def _kind(match: re.Match[str]) -> str:
    for kind in ("space", "regexp", "string", "operator", "open", "close"):
        if match.group(kind) is not None:
            return kind
    return "other"


def _expect(text: str, kind: str, token: str, column: int, operand_next: bool) -> None:
    if kind == "other":
        raise _error(text, column, _what_instead(token))
    begins_operand = kind in ("string", "regexp", "open") or token == "NOT"
    if operand_next and not begins_operand:
        raise _error(text, column, f"an operand is missing before {token!r}")
    if not operand_next and begins_operand:
        raise _error(text, column, f"AND or OR is missing before {token!r:.40}")


def _what_instead(token: str) -> str:
    if token.upper() in _BINDS:
        return f"{token!r} is written {token.upper()}"
    if token == '"':
        return "this string is never closed"
    if token == "regexp":
        return 'a pattern is written regexp("…")'
    return f'{token!r} is no operand: strings stand in double quotes, patterns in regexp("…")'


def _operand(text: str, match: re.Match[str], column: int) -> Step:
    pattern = match.group("pattern")
    if pattern is not None:
        pattern = pattern.replace('\\"', '"')
        try:
            compiled(pattern)
        except ValueError as error:
            raise _error(text, column, str(error)) from error
        return "regexp", pattern
    string = re.sub(r'\\(["\\])', r"\1", match.group("string"))
    if not string:
        raise _error(text, column, "an empty string is in every text")
    return "string", string


def _operator(name: str, column: int, steps: list[Step], waiting: list[tuple[str, int]]) -> None:
    while name != "NOT" and waiting and _BINDS.get(waiting[-1][0], 0) >= _BINDS[name]:
        steps.append((waiting.pop()[0], ""))  # type: ignore[arg-type]
    waiting.append((name, column))


def _close(text: str, steps: list[Step], waiting: list[tuple[str, int]], column: int) -> None:
    while waiting and waiting[-1][0] != "(":
        steps.append((waiting.pop()[0], ""))  # type: ignore[arg-type]
    if not waiting:
        raise _error(text, column, "this parenthesis was never opened")
    waiting.pop()


def _error(text: str, column: int, what: str) -> ConditionError:
    shown = text if len(text) <= 200 else text[max(0, column - 100) : column + 100]
    return ConditionError(f"condition {shown!r}, column {column}: {what}")
