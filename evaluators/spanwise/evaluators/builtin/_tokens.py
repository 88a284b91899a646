"""Words of a text, in the ways that the metrics of their field count them."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from typing import Literal, TypeAlias, cast

from spanwise.evaluators.builtin._treebank import words

Tokenizer: TypeAlias = Callable[[str], list[str]]
Name = Literal["nltk", "13a", "rouge", "unicode", "characters"]

_NOT_ASCII_WORD = re.compile(r"[^a-z0-9]+")
# Scripts without spaces between words: each character stands for itself. Marks (vowel signs, accents) belong to the
# character before them; the `re` of Python would split words at them.
_IDEOGRAPHS = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
)
_WORD_OR_IDEOGRAPH = rf"[{_IDEOGRAPHS}--\P{{L}}]\p{{M}}*|[\w--[{_IDEOGRAPHS}]][\w\p{{M}}--[{_IDEOGRAPHS}--\p{{M}}]]*"
_ASCII_WORD = re.compile(r"\w+")
# What NLTK's Treebank patterns may take apart, beside what `_easy` does.
_HARD = re.compile(
    r"[«“‘„`\"'()\[\]{}<>;:@#$%&*»”’\u2012-\u2015\x1c-\x1f\x85]|--|\.\.|,(?![\s\d]|$)"
    r"|(?i:cannot|gimme|gonna|gotta|lemme|wanna)"
)
_SPLIT_OFF = re.compile(r"[?!]|,(?!\d)")
# mteval-v13a: symbols; periods and commas unless between digits; a hyphen after a digit.
_13A = [
    (re.compile(r"[{-~\[-` -&(-+:-@/]"), r" \g<0> "),
    (re.compile(r"([^0-9])([.,])"), r"\1 \2 "),
    (re.compile(r"([.,])([^0-9])"), r" \1 \2"),
    (re.compile(r"([0-9])(-)"), r"\1 \2 "),
]


@cache
def tokenizer(name: str) -> Tokenizer:
    """A tokenizer by name.

    "nltk": NLTK's Treebank words, without sentence splitting. "13a": mteval-v13a as sacrebleu has it. "rouge":
    lower-case ASCII letters and digits, as rouge-score. "unicode": lower-case words of any script, ideographs one by
    one. "characters": every character but white space. Raises `ValueError` for another name.
    """
    known: dict[str, Callable[[], Tokenizer]] = {
        "nltk": lambda: _nltk,
        "13a": _13a,
        "rouge": lambda: _rouge,
        "unicode": _unicode,
        "characters": lambda: _characters,
    }
    if name not in known:
        raise ValueError(f"tokenizer is one of {', '.join(map(repr, known))}, not {name!r}")
    return known[name]()


def _nltk(text: str) -> list[str]:
    return words(text) if _HARD.search(text) else _easy(text)


def _easy(text: str) -> list[str]:
    """NLTK's words of a text of which only commas, the last period, ? and ! are split off, without its 25 patterns."""
    text = text.rstrip()
    if text.endswith("."):
        text = f"{text[:-1]} ."
    return _SPLIT_OFF.sub(r" \g<0> ", text).split()


def _13a() -> Tokenizer:
    """What sacrebleu's does, without its cache of 65,536 texts."""
    return lambda text: _13a_split(text.replace("<skipped>", "").replace("-\n", "").replace("\n", " "))


def _13a_split(text: str) -> list[str]:
    for written, meant in (("&quot;", '"'), ("&amp;", "&"), ("&lt;", "<"), ("&gt;", ">")):
        text = text.replace(written, meant)
    text = f" {text} "
    for pattern, replacement in _13A:
        text = pattern.sub(replacement, text)
    return text.split()


def _rouge(text: str) -> list[str]:
    return _NOT_ASCII_WORD.sub(" ", text.lower()).split()


def _unicode() -> Tokenizer:
    import regex

    find = regex.compile(_WORD_OR_IDEOGRAPH, regex.VERSION1).findall
    return lambda text: _ASCII_WORD.findall(text.lower()) if text.isascii() else cast(list[str], find(text.lower()))


def _characters(text: str) -> list[str]:
    return [character for character in text if not character.isspace()]
