"""Infinite numbers in JSON, which has none: the words "Infinity" and "-Infinity", as protobuf's JSON writes them."""

from __future__ import annotations

from collections.abc import Mapping
from math import inf
from typing import Any

_WORDS = {"Infinity": inf, "-Infinity": -inf}
_NUMBERS = {number: word for word, number in _WORDS.items()}


def in_json(value: Any) -> Any:
    """The value with words in the place of infinite numbers, however deep they are in dicts and lists."""
    if isinstance(value, float):
        return _NUMBERS.get(value, value)
    if isinstance(value, Mapping):
        return {name: in_json(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        inner = map(in_json, value)
        return tuple(inner) if isinstance(value, tuple) else list(inner)
    return value


def number_of(value: Any) -> Any:
    """The infinite number that a word stands for; anything else as it is."""
    return _WORDS.get(value, value) if isinstance(value, str) else value
