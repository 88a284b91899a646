"""What a judge replied: JSON is read before any pattern looks at it, so that a number that it only quotes never counts.

A reply is JSON, alone, in a code fence or among words, or it is words. JSON may be as models write it: with curly or
single quotes, bare keys, Python's True and None, a comma too many, raw newlines, and without its first brace where the
prompt ended with one. What begins like an object and cannot be read to its end is an error: nothing in it is guessed.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from spanwise.evaluators.builtin._quotation import is_quoted
from spanwise.evaluators.builtin.json import InvalidJSON, loads, unfenced

NUMBERS = ("score", "rating", "value", "grade")  # what an object may call its number, in letters of any case

_QUOTE = r"[\"'“”„‘’]"
_BEGINS = re.compile(rf"\{{\s*(?:{_QUOTE}|\}}|\Z|\w+\s*:)|\[\s*{_QUOTE}")
_LACKS_BRACE = re.compile(rf"\s*{_QUOTE}\w+{_QUOTE}\s*:")
_MARK = re.compile(r"[\"'“”„‘’{}\[\]]")
_CURLY = re.compile(r"[^”]*+”")
# From an opening quote on, to the one that closes it.
_REST = {
    '"': re.compile(r'(?:[^"\\]|\\.)*+"', re.DOTALL),
    "'": re.compile(r"(?:[^'\\]|\\.)*+'", re.DOTALL),
    "“": _CURLY,
    "”": _CURLY,
    "„": re.compile(r"[^“”]*+[“”]"),
    "‘": re.compile(r"[^’]*+’"),
    "’": re.compile(r"[^’]*+’"),
}
_WORD = re.compile(r"(?<![\w.])(?:(?P<constant>True|False|None)\b|(?P<key>[^\W\d]\w*)(?=\s*:))")
_CONSTANTS = {"True": "true", "False": "false", "None": "null"}
_CONTROL = re.compile(r"[\x00-\x1f]")
_ESCAPED = re.compile(r"\\(.)", re.DOTALL)
_KNOWN = frozenset('"\\/bfnrtu')  # what may follow a backslash in JSON
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r"}

_NUMBER = re.compile(r"[-+]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d+)?")
_SCORE = re.compile(rf"{_QUOTE}?\bscore\b{_QUOTE}?\s*[:=]\s*{_QUOTE}?({_NUMBER.pattern})(?![.,]?\d)", re.IGNORECASE)
_QUOTED = re.compile(r'"[^"]*+"|“[^“”]*+”|„[^„“”]*+[“”]|‘[^‘’]*+’')


def number_in(reply: Any, judged: Iterable[str] = ()) -> float:
    """The one number that a reply gives: a number, a text that is one, an object with one, or words with "score: 4".

    In an object it is the value of `NUMBERS`, a number or a text that is one; the others may be words. Raises
    `ValueError` when there is none, when several differ, for JSON that cannot be read, and for an object among words
    whose number one of the `judged` texts states, too: it may be a quotation.
    """
    if isinstance(reply, bool | int | float):
        return _float(reply)
    text = unfenced(reply).strip() if isinstance(reply, str) else ""
    if _NUMBER.fullmatch(text):
        return float(text)
    objects, words = objects_in(text) if isinstance(reply, str) else ([reply], "")
    given = [number for each in objects for number in _numbers_of(each)]
    if words.strip() and any(is_quoted(_numbered(each), {}, judged) for each in objects):
        raise ValueError("an object among its words is also in the judged text and may be a quotation of it")
    given += map(float, _SCORE.findall(_QUOTED.sub(_unless_said, words)))
    if not given:
        raise ValueError(f"it is no number, and has none called {' or '.join(map(repr, NUMBERS))}")
    if len(set(given)) > 1:
        raise ValueError(f"it gives several numbers: {', '.join(f'{number:g}' for number in given[:10])}")
    return given[0]


def objects_in(text: str) -> tuple[list[Any], str]:
    """The JSON objects and lists of texts in a reply, and the words around them. Raises `InvalidJSON`."""
    if _LACKS_BRACE.match(text):
        text = "{" + text + ("" if text.rstrip().endswith("}") else "}")
    objects, words, end = [], [], 0
    while begins := _BEGINS.search(text, end):
        words.append(text[end : begins.start()])
        strict, end = _rewritten(text, begins.start())
        objects.append(loads(strict))
    return objects, " ".join([*words, text[end:]])


def _rewritten(text: str, start: int) -> tuple[str, int]:
    """What begins at `start` in strict JSON, which it may be already, and where it ends."""
    parts, place, depth = [], start, 0
    while mark := _MARK.search(text, place):
        sign, between = mark.group(), text[place : mark.start()]
        parts.append(_WORD.sub(_quoted, _without_comma(between) if sign in "}]" else between))
        place = mark.end()
        if sign in _REST:
            closed = _REST[sign].match(text, place)
            if closed is None:
                break
            parts.append(_straight(sign, text[place : closed.end() - 1]))
            place = closed.end()
            continue
        parts.append(sign)
        depth += 1 if sign in "{[" else -1
        if depth == 0:
            return "".join(parts), place
    raise InvalidJSON(f"it is cut off: what begins with {text[start : start + 40]!r} does not end")


def _without_comma(between: str) -> str:
    return between.rstrip().removesuffix(",")


def _quoted(word: re.Match[str]) -> str:
    return _CONSTANTS[word["constant"]] if word["constant"] else f'"{word["key"]}"'


def _straight(quote: str, inner: str) -> str:
    """A string as strict JSON has it."""
    if quote == '"':
        known = _ESCAPED.sub(lambda escaped: ("" if escaped[1] in _KNOWN else "\\") + escaped[0], inner)
        return '"' + _CONTROL.sub(lambda raw: json.dumps(raw.group())[1:-1], known) + '"'
    return json.dumps(_ESCAPED.sub(lambda escaped: _ESCAPES.get(escaped[1], escaped[1]), inner))


def _numbers_of(value: Any) -> Iterator[float]:
    """The numbers that an object gives. Raises `ValueError` when what should be its number is none."""
    named = [member for name, member in value.items() if _is_number_called(name)] if isinstance(value, Mapping) else []
    numbers = [number for member in named for number in _numbers_in(member)]
    if named and not numbers:
        raise ValueError(f"its {' or '.join(map(repr, NUMBERS))} is {named[0]!r:.100}, which is no number")
    yield from numbers


def _numbered(value: Any) -> Any:
    """The members of an object that give its number."""
    return (
        {name: member for name, member in value.items() if _is_number_called(name)}
        if isinstance(value, Mapping)
        else {}
    )


def _is_number_called(name: Any) -> bool:
    return isinstance(name, str) and name.casefold() in NUMBERS


def _numbers_in(member: Any) -> Iterator[float]:
    if isinstance(member, bool | int | float):
        yield _float(member)
    elif isinstance(member, str) and _NUMBER.fullmatch(member.strip()):
        yield float(member)
    elif isinstance(member, Mapping):
        yield from _numbers_of(member)


def _float(number: float) -> float:
    try:
        return float(number)
    except OverflowError:
        return math.copysign(math.inf, number)


def _unless_said(quotation: re.Match[str]) -> str:
    """Words in quotes are what somebody else said, unless it is a name or a number that is in quotes."""
    return "" if re.search("[:=]", quotation.group()) else quotation.group()
