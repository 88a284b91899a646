"""Take secrets out of values: by key, by pattern, by function. Whatever fails takes the value along, never the span."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import orjson

from spanwise.tracer import _errors
from spanwise.tracer._settings import Redactor

REDACTED = "[redacted]"
FAILED = "[redacted: the redactor failed]"
_INDEX = re.compile(r"\d{1,5}")  # of a list that was flattened into keys
_MOST_KEYS = 4_096  # that are remembered


class Redaction:
    """Applies a list of redactors to attribute mappings and texts."""

    def __init__(self, redactors: Sequence[Redactor]) -> None:
        keys = [r for r in redactors if isinstance(r, str)]
        self._keys = frozenset(map(_folded, keys))
        self._patterns = [r for r in redactors if isinstance(r, re.Pattern)]
        self._functions: list[Callable[[str, Any], Any]] = [
            r for r in redactors if not isinstance(r, (str, re.Pattern)) and callable(r)
        ]
        self._assigned = _assignment(keys) if keys else None
        self._keys_known: dict[str, str] = {}

    def __bool__(self) -> bool:
        return bool(self._keys or self._patterns or self._functions)

    def attributes(self, attributes: Mapping[str, Any] | None) -> dict[str, Any]:
        """The attributes with every secret replaced; JSON texts are redacted inside, and stay JSON."""
        clean: dict[str, Any] = {}
        for key, value in (attributes or {}).items():
            clean[_free(self.key(key), clean)] = self.attribute(key, value)
        return clean

    def key(self, key: str) -> str:
        """A key, or another name that is one of few: patterns look at its words, which stand between dots. Functions do
        not: one that hides all texts would leave no name to find anything by.
        """
        if not self._patterns or self._keys_known.get(key) == key:
            return key
        if len(self._keys_known) > _MOST_KEYS:
            self._keys_known.clear()
        if key not in self._keys_known:
            words = (word if _INDEX.fullmatch(word) else self._without(word) for word in key.split("."))
            self._keys_known[key] = ".".join(words)
        return self._keys_known[key]

    def _without(self, text: str) -> str:
        for pattern in self._patterns:
            text = pattern.sub(REDACTED, text)
        return text

    def attribute(self, key: str, value: Any) -> Any:
        """One attribute's value, redacted."""
        try:
            if _folded(key) in self._keys or _folded(key.rpartition(".")[2]) in self._keys:
                return REDACTED
            if isinstance(value, bytes):
                value = value.decode("utf-8", "replace")
            clean = self._node(key, list(value) if isinstance(value, tuple) else value, top=True)
            return clean if _is_attribute(clean) else orjson.dumps(clean, default=repr).decode()
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # a `SystemExit` too: what a redactor cannot look at is withheld
            _errors.user("redact", error)
            return FAILED

    def text(self, text: str | None) -> str | None:
        """A free text (a name, a status description), redacted."""
        if not text:
            return text
        clean = self.attribute("", text)
        return clean if isinstance(clean, str) else FAILED

    def _node(self, key: str, value: Any, top: bool = False) -> Any:
        for function in self._functions:
            value = function(key, value)
        if isinstance(value, str):
            return self._string(key, value)
        if isinstance(value, Mapping):
            return {self._without(str(k)): self._entry(k, v) for k, v in value.items()}
        if isinstance(value, (list, tuple)):
            return [self._node(key, v) for v in value]
        # A card's number may be a number. Attributes that are numbers are counts, of which patterns know nothing.
        return value if top or type(value) is not int else self._number(value)

    def _number(self, value: int) -> int | str:
        text = str(value)
        return REDACTED if any(pattern.search(text) for pattern in self._patterns) else value

    def _entry(self, key: Any, value: Any) -> Any:
        return REDACTED if _folded(str(key)) in self._keys else self._node(str(key), value)

    def _string(self, key: str, text: str) -> str:
        inner = _decoded(text)
        if inner is not None:
            return orjson.dumps(self._node(key, inner), default=repr).decode()
        text = self._without(text)
        return self._assigned.sub(rf"\g<1>{REDACTED}", text) if self._assigned is not None else text


def _folded(key: str) -> str:
    """`api_key`, `apiKey` and `API-Key` are the same key."""
    return key.lower().replace("_", "").replace("-", "").replace(" ", "")


def _assignment(keys: Sequence[str]) -> re.Pattern[str]:
    """`password='x'` and `"password": "x"` in running text, as reprs and stack traces have them."""
    parts = "|".join("[-_ ]?".join(map(re.escape, re.split(r"[-_ ]", key))) for key in keys)
    value = r"""(?:"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'|[^\s,;)}\]&]+)"""
    return re.compile(rf"""((?<![A-Za-z0-9])(?:{parts})["']?\s*[:=]\s*)(?:Bearer\s+|Basic\s+)?{value}""", re.IGNORECASE)


def _decoded(text: str) -> Any:
    """The list or dict that a text is the JSON of, else None."""
    start = text[:64].lstrip()[:1]
    if start not in ("{", "["):
        return None
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        return None


def _free(key: str, taken: Mapping[str, Any]) -> str:
    """The key, numbered where another became the same."""
    if key not in taken:
        return key
    return next(numbered for i in range(2, len(taken) + 3) if (numbered := f"{key}~{i}") not in taken)


def _is_attribute(value: Any) -> bool:
    scalars = (str, bool, int, float)
    return isinstance(value, scalars) or (isinstance(value, list) and all(isinstance(v, scalars) for v in value))
