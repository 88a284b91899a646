"""Whether a parameter is of the kind that an evaluator declares, and the words for what it should have been."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import pytest

from looped_cases import loop_over
from spanwise.evaluators.interface import check_parameter_types, is_of_type


@loop_over(
    ("value", "hint"),
    [
        (1, int),
        (1, float),
        (0.5, float),
        (True, bool),
        (None, int | None),
        ("all", Literal["all", "any"]),
        (["a"], Sequence[str]),
        (("a", "b"), tuple[str, ...]),
        ([], Sequence[str]),
        ([1, None], Sequence[int | None]),
        (len, Callable[[str], int]),
        ({"a": 1}, Mapping[str, Any]),
        (object(), Any),
        ("a", str | Sequence[str]),
    ],
)
def test_values_that_fit(value, hint):
    assert is_of_type(value, hint)


@loop_over(
    ("value", "hint"),
    [
        (True, int),
        (True, float),
        (0.5, int),
        ("1", int),
        (1, bool),
        ("some", Literal["all", "any"]),
        ("ab", Sequence[str]),
        (["a", 1], Sequence[str]),
        ({"a"}, Sequence[str]),
        (5, Callable[[str], int]),
        ([("a", 1)], Mapping[str, Any]),
        (None, str),
        (5, str | None),
    ],
)
def test_values_that_do_not(value, hint):
    assert not is_of_type(value, hint)


@dataclass
class Declared:
    text: str = ""
    count: int | None = None
    share: float = 0.0
    strict: bool = False
    kind: Literal["a", "b"] = "a"
    names: Sequence[str] | None = None
    detect: Callable[[str], str] | None = None
    schema: Mapping[str, Any] | str = ""


@loop_over(
    ("name", "value", "words"),
    [
        ("text", 5, "text must be a string, got 5"),
        ("count", "5", "count must be an integer or None, got '5'"),
        ("share", "x", "share must be a number, got 'x'"),
        ("strict", 1, "strict must be True or False, got 1"),
        ("kind", "c", "kind must be 'a' or 'b', got 'c'"),
        ("names", 5, "names must be a list of strings or None, got 5"),
        ("detect", 5, "detect must be a function or None, got 5"),
        ("schema", 5, "schema must be a dict or a string, got 5"),
    ],
)
def test_what_should_have_been_given_is_told_in_words(name, value, words):
    with pytest.raises(ValueError) as caught:
        check_parameter_types("judge", Declared, {name: value})
    assert str(caught.value) == f"evaluator 'judge': {words}"


def test_every_parameter_is_looked_at():
    check_parameter_types("judge", Declared, {"text": "a", "count": 3})
    with pytest.raises(ValueError, match="count must be"):
        check_parameter_types("judge", Declared, {"text": "a", "count": "3"})
