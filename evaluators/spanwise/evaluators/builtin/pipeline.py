"""Pipeline evaluator: score returned by a callable, parsed from its free-form or JSON reply.

A reply is JSON, alone, in a code fence or among words, or it is words. JSON may be as models write it: with curly or
single quotes, bare keys, Python's True and None, a comma too many, raw newlines, and without its first brace where the
prompt ended with one. What begins like an object and cannot be read to its end is an error: nothing in it is guessed.

The comparison ignores whitespace, quotes, braces, escapes, Markdown, letter case and compatibility forms, so that a
quotation in inline code, in a fence, inside another string or in another layout is still recognised.
"""

from __future__ import annotations

import html
import inspect
import json
import math
import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

from spanwise.collector.records import Case
from spanwise.evaluators.builtin.json import InvalidJSON, load_strict_json, strip_code_fence
from spanwise.evaluators.interface import Metric, Skip, get_case_field, register_builtin
from spanwise.evaluators.interface.evaluator_spec import VALID


def parse_number(answer: Any, judged: Iterable[str] = ()) -> float:
    """The number in what a judge said, as `number_in` reads it. Raises `ValueError`, which shows what it said."""
    try:
        return parse_reply_number(answer, judged)
    except ValueError as error:
        raise ValueError(f"the judging pipeline said {answer!r:.200}: {error}") from error


@register_builtin(
    "pipeline",
    metrics=(Metric("pipeline", None, primary=True),),
    standards=(VALID,),
    source="Laminar: pipeline-based evaluator",
    canonical="by hand",
    example='get_evaluator("pipeline", function=lambda question, answer: \'{"score": 4}\'), '
    'outputs={"question": "Why?", "answer": "So."}',
)
@dataclass(frozen=True, slots=True)
class Pipeline:
    """The number that another callable gives to the outputs.

    `function` (sync or async) is called with those of the outputs that have the names of its parameters: outputs that
    it does not ask for are left out (`**kwargs` asks for all), and one that it asks for and that is not there is an
    error that names it. Where outputs are no dict, and for the names of a case's fields (`inputs`, `documents`,
    `reference_outputs`, …), the case gives the value. The range is the function's own; `minimum` and `maximum` make
    what lies outside an error.

    What it returns must be a number, a text that is one, an object, or words with "score: 4". JSON (also in a code
    fence or among words) is read before words are searched, so that a number that it only quotes never counts. The
    number of an object is its "score", "rating", "value" or "grade". None, several that differ, JSON that is cut off,
    and an object among words whose number stands in what the function was given are errors that show the reply.
    """

    function: Callable[..., Any]
    minimum: float = -math.inf
    maximum: float = math.inf
    _asks: tuple[tuple[str, bool], ...] = field(init=False, repr=False, compare=False, default=())
    _takes_all: bool = field(init=False, repr=False, compare=False, default=False)

    def __post_init__(self) -> None:
        if not callable(self.function):
            raise ValueError(f"function is a callable, not {self.function!r}")
        if math.isnan(self.minimum) or math.isnan(self.maximum):
            raise ValueError(f"minimum and maximum are numbers, not {self.minimum!r} and {self.maximum!r}")
        if self.minimum > self.maximum:
            raise ValueError(f"minimum {self.minimum!r} is above maximum {self.maximum!r}")
        object.__setattr__(self, "_asks", _list_parameters(self.function))
        parameters = inspect.signature(self.function).parameters.values()
        object.__setattr__(self, "_takes_all", any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters))

    @property
    def metrics(self) -> tuple[Metric, ...]:
        """The range is what was declared."""
        declared = math.isfinite(self.minimum) and math.isfinite(self.maximum)
        return (Metric("pipeline", (self.minimum, self.maximum) if declared else None, primary=True),)

    async def __call__(self, case: Case, outputs: Any) -> dict[str, Any]:
        arguments = self._arguments(case, outputs)
        answer = self.function(**arguments)
        if inspect.isawaitable(answer):
            answer = await answer
        if answer is None:
            raise Skip("the judging pipeline gave nothing")
        score = parse_number(answer, map(str, arguments.values()))
        if not self.minimum <= score <= self.maximum:
            raise ValueError(f"the judging pipeline gave {score!r}, outside [{self.minimum!r}, {self.maximum!r}]")
        return {"score": score, "comment": None if isinstance(answer, int | float) else f"{answer}"[:1000]}

    def _arguments(self, case: Case, outputs: Any) -> dict[str, Any]:
        offered = outputs if isinstance(outputs, Mapping) else {}
        arguments = dict(offered) if self._takes_all else {}
        for name, needed in self._asks:
            value = offered[name] if name in offered else get_case_field(case, name)
            if value is not None:
                arguments[name] = value
            elif needed:
                there = ", ".join(map(repr, offered)) or "none by name"
                raise ValueError(f"the judging pipeline asks for {name!r}; the outputs are {there}")
        return arguments


def _list_parameters(function: Callable[..., Any]) -> tuple[tuple[str, bool], ...]:
    parameters = inspect.signature(function).parameters.values()
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    named = [parameter for parameter in parameters if parameter.kind in kinds]
    return tuple((parameter.name, parameter.default is parameter.empty) for parameter in named)


NUMBER_KEYS = ("score", "rating", "value", "grade")  # what an object may call its number, in letters of any case

_QUOTE = r"[\"'“”„‘’]"
_OBJECT_START = re.compile(rf"\{{\s*(?:{_QUOTE}|\}}|\Z|\w+\s*:)|\[\s*{_QUOTE}")
_MISSING_BRACE = re.compile(rf"\s*{_QUOTE}\w+{_QUOTE}\s*:")
_MARK = re.compile(r"[\"'“”„‘’{}\[\]]")
_CURLY = re.compile(r"[^”]*+”")
# From an opening quote on, to the one that closes it.
_QUOTE_END = {
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
_JSON_ESCAPES = frozenset('"\\/bfnrtu')  # what may follow a backslash in JSON
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r"}

_NUMBER = re.compile(r"[-+]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d+)?")
_SCORE = re.compile(rf"{_QUOTE}?\bscore\b{_QUOTE}?\s*[:=]\s*{_QUOTE}?({_NUMBER.pattern})(?![.,]?\d)", re.IGNORECASE)
_QUOTED = re.compile(r'"[^"]*+"|“[^“”]*+”|„[^„“”]*+[“”]|‘[^‘’]*+’')


def parse_reply_number(reply: Any, judged: Iterable[str] = ()) -> float:
    """The one number that a reply gives: a number, a text that is one, an object with one, or words with "score: 4".

    In an object it is the value of `NUMBERS`, a number or a text that is one; the others may be words. Raises
    `ValueError` when there is none, when several differ, for JSON that cannot be read, and for an object among words
    whose number one of the `judged` texts states, too: it may be a quotation.
    """
    if isinstance(reply, bool | int | float):
        return _to_float(reply)
    text = strip_code_fence(reply).strip() if isinstance(reply, str) else ""
    if _NUMBER.fullmatch(text):
        return float(text)
    objects, words = parse_reply_objects(text) if isinstance(reply, str) else ([reply], "")
    given = [number for each in objects for number in _object_numbers(each)]
    if words.strip() and any(is_quoted(_number_members(each), {}, judged) for each in objects):
        raise ValueError("an object among its words is also in the judged text and may be a quotation of it")
    given += map(float, _SCORE.findall(_QUOTED.sub(_drop_quotation, words)))
    if not given:
        raise ValueError(f"it is no number, and has none called {' or '.join(map(repr, NUMBER_KEYS))}")
    if len(set(given)) > 1:
        raise ValueError(f"it gives several numbers: {', '.join(f'{number:g}' for number in given[:10])}")
    return given[0]


def parse_reply_objects(text: str) -> tuple[list[Any], str]:
    """The JSON objects and lists of texts in a reply, and the words around them. Raises `InvalidJSON`."""
    if _MISSING_BRACE.match(text):
        text = "{" + text + ("" if text.rstrip().endswith("}") else "}")
    objects, words, end = [], [], 0
    while begins := _OBJECT_START.search(text, end):
        words.append(text[end : begins.start()])
        strict, end = _rewrite_strict(text, begins.start())
        objects.append(load_strict_json(strict))
    return objects, " ".join([*words, text[end:]])


def _rewrite_strict(text: str, start: int) -> tuple[str, int]:
    """What begins at `start` in strict JSON, which it may be already, and where it ends."""
    parts, place, depth = [], start, 0
    while mark := _MARK.search(text, place):
        sign, between = mark.group(), text[place : mark.start()]
        parts.append(_WORD.sub(_quote_word, _strip_comma(between) if sign in "}]" else between))
        place = mark.end()
        if sign in _QUOTE_END:
            closed = _QUOTE_END[sign].match(text, place)
            if closed is None:
                break
            parts.append(_straighten_quotes(sign, text[place : closed.end() - 1]))
            place = closed.end()
            continue
        parts.append(sign)
        depth += 1 if sign in "{[" else -1
        if depth == 0:
            return "".join(parts), place
    raise InvalidJSON(f"it is cut off: what begins with {text[start : start + 40]!r} does not end")


def _strip_comma(between: str) -> str:
    return between.rstrip().removesuffix(",")


def _quote_word(word: re.Match[str]) -> str:
    return _CONSTANTS[word["constant"]] if word["constant"] else f'"{word["key"]}"'


def _straighten_quotes(quote: str, inner: str) -> str:
    """A string as strict JSON has it."""
    if quote == '"':
        known = _ESCAPED.sub(lambda escaped: ("" if escaped[1] in _JSON_ESCAPES else "\\") + escaped[0], inner)
        return '"' + _CONTROL.sub(lambda raw: json.dumps(raw.group())[1:-1], known) + '"'
    return json.dumps(_ESCAPED.sub(lambda escaped: _ESCAPES.get(escaped[1], escaped[1]), inner))


def _object_numbers(value: Any) -> Iterator[float]:
    """The numbers that an object gives. Raises `ValueError` when what should be its number is none."""
    named = [member for name, member in value.items() if _is_number_key(name)] if isinstance(value, Mapping) else []
    numbers = [number for member in named for number in _member_numbers(member)]
    if named and not numbers:
        raise ValueError(f"its {' or '.join(map(repr, NUMBER_KEYS))} is {named[0]!r:.100}, which is no number")
    yield from numbers


def _number_members(value: Any) -> Any:
    """The members of an object that give its number."""
    return (
        {name: member for name, member in value.items() if _is_number_key(name)} if isinstance(value, Mapping) else {}
    )


def _is_number_key(name: Any) -> bool:
    return isinstance(name, str) and name.casefold() in NUMBER_KEYS


def _member_numbers(member: Any) -> Iterator[float]:
    if isinstance(member, bool | int | float):
        yield _to_float(member)
    elif isinstance(member, str) and _NUMBER.fullmatch(member.strip()):
        yield float(member)
    elif isinstance(member, Mapping):
        yield from _object_numbers(member)


def _to_float(number: float) -> float:
    try:
        return float(number)
    except OverflowError:
        return math.copysign(math.inf, number)


def _drop_quotation(quotation: re.Match[str]) -> str:
    """Words in quotes are what somebody else said, unless it is a name or a number that is in quotes."""
    return "" if re.search("[:=]", quotation.group()) else quotation.group()


_ESCAPED_CODE = re.compile(r"\\+u([0-9a-fA-F]{4})")
_ESCAPED_SPACE = re.compile(r"\\+[nrt]")
_IGNORED = re.compile(r"[^\w:]|_")


def find_ratings(value: Any, schema: Any) -> list[tuple[str, Any]]:
    """Return (name, value) of the members that rate: all but free text, nested ones included.

    A list of scalars is one member. Where all members are free text, all are returned.
    """
    members = list(_walk_members(value, schema))
    return [(name, member) for name, member, is_free in members if not is_free] or [pair[:2] for pair in members]


def is_quoted(value: Any, schema: Any, texts: Iterable[str]) -> bool:
    """Return whether one of `texts` states every rating of `value`, a decoded JSON object or array.

    The reasons around a rating are not compared: a quotation often shortens them.
    """
    pairs = [_normalize_pair(name, member) for name, member in find_ratings(value, schema)]
    return bool(pairs) and any(all(pair in text for pair in pairs) for text in map(_normalize_quotation, texts))


def _walk_members(value: Any, schema: Any, name: str = "") -> Iterator[tuple[str, Any, bool]]:
    """Yield (name, value, whether it is free text) of all members, nested ones included."""
    schema = schema if isinstance(schema, Mapping) else {}
    if isinstance(value, Mapping):
        properties = schema.get("properties")
        known = properties if isinstance(properties, Mapping) else {}
        for key, member in value.items():
            yield from _walk_members(member, known.get(key), str(key))
    elif isinstance(value, list) and any(isinstance(member, Mapping | list) for member in value):
        for member in value:
            yield from _walk_members(member, schema.get("items"), name)
    else:
        accepted = schema.get("items") if isinstance(value, list) else schema
        is_label = isinstance(accepted, Mapping) and "enum" in accepted
        scalars = value if isinstance(value, list) else [value]
        yield name, value, not is_label and all(isinstance(scalar, str) for scalar in scalars)


def _normalize_pair(name: str, value: Any) -> str:
    shown = "".join(map(_format_scalar, value)) if isinstance(value, list) else _format_scalar(value)
    return f"{_normalize_quotation(name)}:{_normalize_quotation(shown)}" if name else _normalize_quotation(shown)


def _format_scalar(value: Any) -> str:
    if value is None:
        return "null"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _normalize_quotation(text: str) -> str:
    """Return a text without all that may change when it is quoted."""
    text = unquote(html.unescape(_ESCAPED_CODE.sub(lambda code: chr(int(code[1], 16)), text)))
    text = unicodedata.normalize("NFKC", _ESCAPED_SPACE.sub(" ", text)).casefold()
    return _IGNORED.sub("", text.replace("=", ":"))
