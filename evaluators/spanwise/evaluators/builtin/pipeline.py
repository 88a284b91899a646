"""Pipeline evaluator: score returned by a callable, parsed from its free-form or JSON reply.

A reply is JSON (alone, in a code fence or inside prose) or prose. JSON may have the mistakes of models: curly or
single quotes, bare keys, Python's True and None, trailing commas, raw newlines, or a missing first brace if the
prompt ended with one. A text that begins like an object and cannot be parsed to its end is an error; nothing is
guessed.

The comparison with judged texts ignores whitespace, quotes, braces, escapes, Markdown, letter case and compatibility
forms. A quotation in inline code, in a fence, inside another string or in another layout is therefore still
recognised.
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
    """Return the number in a judge's reply, as `parse_reply_number` reads it.

    Raises `ValueError` that contains the reply.
    """
    try:
        return parse_reply_number(answer, judged)
    except ValueError as error:
        raise ValueError(f"the judging pipeline returned {answer!r:.200}: {error}") from error


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
    """Number that another callable gives to the outputs.

    `function` (sync or async) is called with the outputs that have the names of its parameters. Other outputs
    are left out (`**kwargs` receives all). A missing required one is an error that names it. If outputs are not
    a dict, and for the names of a case's fields (`inputs`, `documents`, `reference_outputs`, …), the case
    provides the value. The range depends on the function; a number below `minimum` or above `maximum` is an
    error.

    The function must return a number, a text that is a number, an object, or prose with "score: 4". JSON (also in a
    code fence or inside prose) is read before prose is searched, so that a number inside a JSON string never counts.
    The number of an object is its "score", "rating", "value" or "grade".

    Errors that contain the reply are: no number, several different numbers, truncated JSON, and an object inside
    prose whose number also occurs in the function's arguments.
    """

    function: Callable[..., Any]
    minimum: float = -math.inf
    maximum: float = math.inf
    _asks: tuple[tuple[str, bool], ...] = field(init=False, repr=False, compare=False, default=())
    _takes_all: bool = field(init=False, repr=False, compare=False, default=False)

    def __post_init__(self) -> None:
        if not callable(self.function):
            raise ValueError(f"function must be callable, not {self.function!r}")
        if math.isnan(self.minimum) or math.isnan(self.maximum):
            raise ValueError(f"minimum and maximum must be numbers, not {self.minimum!r} and {self.maximum!r}")
        if self.minimum > self.maximum:
            raise ValueError(f"minimum {self.minimum!r} is above maximum {self.maximum!r}")
        object.__setattr__(self, "_asks", _list_parameters(self.function))
        parameters = inspect.signature(self.function).parameters.values()
        object.__setattr__(self, "_takes_all", any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters))

    @property
    def metrics(self) -> tuple[Metric, ...]:
        """Return the metric, with the range of `minimum` and `maximum` if both are given."""
        declared = math.isfinite(self.minimum) and math.isfinite(self.maximum)
        return (Metric("pipeline", (self.minimum, self.maximum) if declared else None, primary=True),)

    async def __call__(self, case: Case, outputs: Any) -> dict[str, Any]:
        arguments = self._arguments(case, outputs)
        answer = self.function(**arguments)
        if inspect.isawaitable(answer):
            answer = await answer
        if answer is None:
            raise Skip("the judging pipeline returned None")
        score = parse_number(answer, map(str, arguments.values()))
        if not self.minimum <= score <= self.maximum:
            raise ValueError(f"the judging pipeline returned {score!r}, outside [{self.minimum!r}, {self.maximum!r}]")
        return {"score": score, "comment": None if isinstance(answer, int | float) else f"{answer}"[:1000]}

    def _arguments(self, case: Case, outputs: Any) -> dict[str, Any]:
        offered = outputs if isinstance(outputs, Mapping) else {}
        arguments = dict(offered) if self._takes_all else {}
        for name, needed in self._asks:
            value = offered[name] if name in offered else get_case_field(case, name)
            if value is not None:
                arguments[name] = value
            elif needed:
                available = ", ".join(map(repr, offered)) or "none by name"
                raise ValueError(f"the judging pipeline asks for {name!r}; the outputs are {available}")
        return arguments


def _list_parameters(function: Callable[..., Any]) -> tuple[tuple[str, bool], ...]:
    parameters = inspect.signature(function).parameters.values()
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    named = [parameter for parameter in parameters if parameter.kind in kinds]
    return tuple((parameter.name, parameter.default is parameter.empty) for parameter in named)


NUMBER_KEYS = ("score", "rating", "value", "grade")  # member names of an object's number, in any letter case

_QUOTE = r"[\"'“”„‘’]"
_OBJECT_START = re.compile(rf"\{{\s*(?:{_QUOTE}|\}}|\Z|\w+\s*:)|\[\s*{_QUOTE}")
_MISSING_BRACE = re.compile(rf"\s*{_QUOTE}\w+{_QUOTE}\s*:")
_MARK = re.compile(r"[\"'“”„‘’{}\[\]]")
_CURLY = re.compile(r"[^”]*+”")
# From an opening quote to the matching closing quote.
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
    """Return the one number of a reply: a number, a text that is one, an object with one, or prose with "score: 4".

    In an object it is the value of one of `NUMBER_KEYS`, a number or a text that is one; other members are ignored.
    Raises `ValueError` for no number, several different ones, JSON that cannot be parsed, or an object inside prose
    whose number also occurs in one of the `judged` texts, because it may be a quotation.
    """
    if isinstance(reply, bool | int | float):
        return _to_float(reply)
    text = strip_code_fence(reply).strip() if isinstance(reply, str) else ""
    if _NUMBER.fullmatch(text):
        return float(text)
    objects, prose = parse_reply_objects(text) if isinstance(reply, str) else ([reply], "")
    given = [number for each in objects for number in _object_numbers(each)]
    numbers = [
        {name: member for name, member in each.items() if _is_number_key(name)} if isinstance(each, Mapping) else {}
        for each in objects
    ]
    if prose.strip() and any(is_quoted(each, {}, judged) for each in numbers):
        raise ValueError("it contains an object that is also in the judged text and may be a quotation of it")
    given += map(float, _SCORE.findall(_QUOTED.sub(_drop_quotation, prose)))
    if not given:
        raise ValueError(f"it is not a number, and has no number named {' or '.join(map(repr, NUMBER_KEYS))}")
    if len(set(given)) > 1:
        raise ValueError(f"it contains several numbers: {', '.join(f'{number:g}' for number in given[:10])}")
    return given[0]


def parse_reply_objects(text: str) -> tuple[list[Any], str]:
    """Return the JSON objects and lists of texts in a reply, and the prose around them. Raises `InvalidJSON`."""
    if _MISSING_BRACE.match(text):
        text = "{" + text + ("" if text.rstrip().endswith("}") else "}")
    objects, prose, end = [], [], 0
    while begins := _OBJECT_START.search(text, end):
        prose.append(text[end : begins.start()])
        strict, end = _rewrite_strict(text, begins.start())
        objects.append(load_strict_json(strict))
    return objects, " ".join([*prose, text[end:]])


def _rewrite_strict(text: str, start: int) -> tuple[str, int]:
    """Return the value that begins at `start` as strict JSON, and the position of its end."""
    parts, place, depth = [], start, 0
    while mark := _MARK.search(text, place):
        sign, between = mark.group(), text[place : mark.start()]
        parts.append(_WORD.sub(_quote_word, between.rstrip().removesuffix(",") if sign in "}]" else between))
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


def _quote_word(word: re.Match[str]) -> str:
    return _CONSTANTS[word["constant"]] if word["constant"] else f'"{word["key"]}"'


def _straighten_quotes(quote: str, inner: str) -> str:
    """Return the content of a quoted string as a string of strict JSON."""
    if quote == '"':
        known = _ESCAPED.sub(lambda escaped: ("" if escaped[1] in _JSON_ESCAPES else "\\") + escaped[0], inner)
        return '"' + _CONTROL.sub(lambda raw: json.dumps(raw.group())[1:-1], known) + '"'
    return json.dumps(_ESCAPED.sub(lambda escaped: _ESCAPES.get(escaped[1], escaped[1]), inner))


def _object_numbers(value: Any) -> Iterator[float]:
    """Yield the numbers of an object.

    Raises `ValueError` if the members named in `NUMBER_KEYS` are not numbers.
    """
    named = [member for name, member in value.items() if _is_number_key(name)] if isinstance(value, Mapping) else []
    numbers = [number for member in named for number in _member_numbers(member)]
    if named and not numbers:
        raise ValueError(f"its {' or '.join(map(repr, NUMBER_KEYS))} is {named[0]!r:.100}, which is not a number")
    yield from numbers


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
    """Return "" for quoted text with a colon or equals sign, which may be someone else's score. Keep any other
    quotation, such as a name or number.
    """
    return "" if re.search("[:=]", quotation.group()) else quotation.group()


_ESCAPED_CODE = re.compile(r"\\+u([0-9a-fA-F]{4})")
_ESCAPED_SPACE = re.compile(r"\\+[nrt]")
_IGNORED = re.compile(r"[^\w:]|_")


def find_ratings(value: Any, schema: Any) -> list[tuple[str, Any]]:
    """Return (name, value) of the members that are ratings: all except free text, nested ones included.

    A list of scalars is one member. If all members are free text, all are returned.
    """
    members = list(_walk_members(value, schema))
    return [(name, member) for name, member, is_free in members if not is_free] or [pair[:2] for pair in members]


def is_quoted(value: Any, schema: Any, texts: Iterable[str]) -> bool:
    """Return whether one of `texts` contains every rating of `value`, a decoded JSON object or array.

    The reasons around a rating are not compared, because a quotation often shortens them.
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
    """Return a text without the details that may change when it is quoted."""
    text = unquote(html.unescape(_ESCAPED_CODE.sub(lambda code: chr(int(code[1], 16)), text)))
    text = unicodedata.normalize("NFKC", _ESCAPED_SPACE.sub(" ", text)).casefold()
    return _IGNORED.sub("", text.replace("=", ":"))
