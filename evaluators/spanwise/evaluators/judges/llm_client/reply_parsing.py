"""Reply parsing: strict and lenient reading of JSON replies, tolerated deviations, quoted verdicts.

Only objects at the top level of the reply count. Quoted JSON in a rationale is text, and text next to an object is
ignored. If there are several objects, their ratings must agree, and the first supplies the rationale. An object
surrounded by text may be quoted from the judged values. If the judged values contain the verdict of the object, the
parser rejects the whole reply.

Tolerated deviations are:

- the case of a label, and spaces, quotes and punctuation around it;
- a number or boolean in quotes;
- the case of a property's name;
- extra properties, unless their names are numbers.

Synonyms of a label are not accepted.

If the question permits it, the whole reply may be one of its ratings, in quotes or a code fence, or after the word
"rating".
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import orjson

from spanwise.collector.records import JSON
from spanwise.evaluators.builtin.json import InvalidJSON, load_strict_json
from spanwise.evaluators.builtin.pipeline import find_ratings, is_quoted, parse_reply_objects
from spanwise.evaluators.judges.llm_client.chat_completions import Ask, Completion, CutOff, Declined, ParseFailure

MAX_LENIENT_LENGTH = 50_000  # maximum characters of a reply for lenient parsing
MAX_BARE_LENGTH = 200  # maximum characters of a reply that is a bare rating
_REASONING_BLOCK = re.compile(r"\s*<think(?:ing)?>.*?</think(?:ing)?>", re.DOTALL)
_REASONING_START = re.compile(r"\s*<think(?:ing)?>")
_FENCED_BLOCK = re.compile(r"```[\w-]*[ \t]*\r?\n(.*?)```", re.DOTALL)


@dataclass(frozen=True, slots=True)
class ParsedReply:
    """Value of a reply, and notes about tolerated deviations."""

    value: Any
    notes: tuple[str, ...] = ()


def parse_reply(ask: Ask, completion: Completion) -> ParsedReply:
    """Return the object that the schema describes, or the text if there is no schema.

    Raises `ParseFailure` for a reply of another form, `CutOff` for a truncated one, and `Declined` for one without an
    answer.
    """
    _check_answered(completion)
    text = _strip_reasoning(completion)
    if completion.finish != "length" and (rating := _find_bare_rating(text, ask.bare_ratings)) is not None:
        return ParsedReply({"rating": rating}, ("the reply was a bare rating",))
    try:
        strictly = None if ask.schema is None else _parse_strictly(text, ask.schema)
        if strictly is None and completion.finish == "length":
            raise _make_cut_off_error(completion)
        return strictly or (ParsedReply(text) if ask.schema is None else _parse_leniently(text, ask.schema, ask.values))
    except InvalidJSON as error:
        raise ParseFailure(str(error), completion.text) from None


def _find_bare_rating(text: str, ratings: Sequence[str]) -> str | None:
    """Return the rating that forms the whole text, or None."""
    if not ratings or len(text) > MAX_BARE_LENGTH:
        return None
    word = re.fullmatch(rf"\W*(?:rating)?\W*({'|'.join(map(re.escape, ratings))})\W*", text, re.IGNORECASE)
    return None if word is None else next(each for each in ratings if each.casefold() == word[1].casefold())


def _check_answered(completion: Completion) -> None:
    """Raise `Declined` for a reply without an answer, and `CutOff` for an empty reply that was truncated."""
    if completion.refusal:
        raise Declined(f"the judge refused: {' '.join(completion.refusal.split()):.300}")
    if completion.finish == "content_filter":
        raise Declined("the content filter of the endpoint stopped the judge's answer", completion.text)
    if not completion.text.strip():
        if completion.finish == "length":
            raise _make_cut_off_error(completion)
        why = f" (it ended with {completion.finish!r})" if completion.finish not in (None, "stop") else ""
        raise Declined(f"the judge's answer is empty{why}")


def _make_cut_off_error(completion: Completion) -> CutOff:
    used = f" after {completion.usage.output_tokens} tokens" if completion.usage else ""
    return CutOff(
        f"the judge's answer was truncated{used}; increase max_tokens", completion.text, usage=completion.usage
    )


def _strip_reasoning(completion: Completion) -> str:
    """Return the reply without the reasoning that some models write before it. Raises `CutOff` or `ParseFailure` if the
    reasoning does not end.
    """
    text = (
        _REASONING_BLOCK.sub("", completion.text, count=1)
        if _REASONING_BLOCK.match(completion.text)
        else completion.text
    )
    if not _REASONING_START.match(text):
        return text
    if completion.finish == "length":
        raise _make_cut_off_error(completion)
    raise ParseFailure("the reply is thoughts without an end", completion.text)


def _parse_strictly(text: str, schema: Mapping[str, JSON]) -> ParsedReply | None:
    """Parse a text that is JSON. Return None if it is not. Raises `InvalidJSON` if it violates the schema."""
    try:
        value = load_strict_json(text.strip(), lenient=True)
    except InvalidJSON:
        return None
    return ParsedReply(*_validate(value, schema))


def _validate(value: Any, schema: Mapping[str, JSON]) -> tuple[Any, tuple[str, ...]]:
    """Return the value normalized to the schema, and notes about tolerated deviations. Raises `InvalidJSON`."""
    notes: list[str] = []
    try:
        tidy = normalize_reply(value, schema, notes)
        problem = find_schema_violation(tidy, schema)
    except RecursionError:
        raise InvalidJSON("nested too deeply to be read") from None
    if problem:
        raise InvalidJSON(problem)
    return tidy, tuple(dict.fromkeys(notes))


def _parse_leniently(text: str, schema: Mapping[str, JSON], values: Sequence[str]) -> ParsedReply:
    """Find the verdict in a reply with prose, code fences or slightly invalid JSON. Raises `InvalidJSON` if there is
    none, if several differ, or if the verdict may be a quotation.
    """
    if len(text) > MAX_LENIENT_LENGTH:
        raise InvalidJSON(f"the reply is no JSON, and too long to look for some: {len(text):,} characters")
    candidates = _find_candidates(text, schema) or [_repair_json(text, schema)]
    (value, forgiven), *others = (_validate(each, schema) for each in candidates)
    if any(is_quoted(each, schema, values) for each in (value, *(other for other, _ in others))):
        raise InvalidJSON(
            "a verdict among words is also in the judged text and may be a quotation; reply with JSON alone"
        )
    if any(find_ratings(other, schema) != find_ratings(value, schema) for other, _ in others):
        raise InvalidJSON(f"{len(candidates)} objects that differ; give one")
    return ParsedReply(value, ("lenient parsing: the reply was not plain JSON", *forgiven))


def _find_candidates(text: str, schema: Mapping[str, JSON]) -> list[Any]:
    """Return the objects in a text that have at least one property of the schema, or none if the text cannot be
    parsed.
    """
    if schema.get("type") == "array":
        lists = []
        for block in _FENCED_BLOCK.findall(text):
            try:
                value = load_strict_json(block.strip())
            except InvalidJSON:
                continue
            if isinstance(value, list):
                lists.append(value)
        return lists
    try:
        objects, _ = parse_reply_objects(text)
    except (InvalidJSON, RecursionError):
        return []
    properties = _list_properties(schema)
    return [
        each
        for each in objects
        if isinstance(each, Mapping) and any(str(name).strip().casefold() in properties for name in each)
    ]


def _repair_json(text: str, schema: Mapping[str, JSON]) -> Any:
    """Return the value that json-repair reads between the first and the last bracket. Raises `InvalidJSON`."""
    kind, opens, closes = (list, "[", "]") if schema.get("type") == "array" else (dict, "{", "}")
    start, end = text.find(opens), text.rfind(closes)
    if start < 0:
        raise InvalidJSON(f"the reply holds no JSON {'list' if kind is list else 'object'}")
    if end < start:
        raise InvalidJSON("the JSON in the reply does not end")
    block = text[start : end + 1]
    # if a property occurs several times, choosing one occurrence would be a guess
    for name in sorted(_list_properties(schema) - {""}):
        if len(re.findall(rf"(?<!\w){re.escape(name)}[\"'“”„‘’\\]*\s*[:=]", block, re.IGNORECASE)) > 1:
            raise InvalidJSON(f"{name!r} stands in the reply more than once, and its JSON cannot be read")
    import json_repair

    try:
        value = json_repair.loads(block, skip_json_loads=True)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, kind):
        raise InvalidJSON("the JSON in the reply cannot be read")
    return value


def _list_properties(schema: Mapping[str, JSON]) -> set[str]:
    properties = schema.get("properties")
    return {name.casefold() for name in properties} if isinstance(properties, Mapping) else set()


MAX_SCHEMA_DEPTH = 32
_LABEL_PADDING = " \t\r\n\"'“”„‘’«»`*_.,;:!()[]{}<>"
_NUMBER = re.compile(r"[-+]?\d+(?:\.\d+)?")
_UNCHANGED = object()


def normalize_reply(value: Any, schema: Any, notes: list[str], deep: int = 0) -> Any:
    """Return the value with tolerated deviations corrected, and append each to `notes`."""
    if not isinstance(schema, Mapping) or deep > MAX_SCHEMA_DEPTH:
        return value
    if isinstance(schema.get("enum"), list | tuple):
        return _match_label(value, schema["enum"], notes)
    if isinstance(value, Mapping) and isinstance(schema.get("properties"), Mapping):
        return _normalize_object(value, schema, notes, deep)
    if isinstance(value, list) and "items" in schema:
        return [normalize_reply(member, schema["items"], notes, deep + 1) for member in value]
    return _unquote(value, schema.get("type"), notes)


def find_schema_violation(value: Any, schema: Mapping[str, JSON]) -> str | None:
    """Return a description of the first schema violation, or None."""
    from jsonschema.exceptions import best_match

    if _has_infinity(value):
        return "a number in the reply is too large to be one"
    error = best_match(_make_validator(orjson.dumps(schema)).iter_errors(value))
    return None if error is None else _describe_violation(error)


def _has_infinity(value: Any) -> bool:
    """Return whether the value contains infinity, to which Python converts numbers such as 1e999."""
    if isinstance(value, Mapping):
        return any(map(_has_infinity, value.values()))
    if isinstance(value, list):
        return any(map(_has_infinity, value))
    return isinstance(value, float) and not math.isfinite(value)


def _normalize_object(
    value: Mapping[str, Any], schema: Mapping[str, Any], notes: list[str], deep: int
) -> dict[str, Any]:
    """Return an object with corrected property names, in the order of the schema.

    If two names differ only by case and have different values, the object is returned unchanged and fails validation.
    """
    properties = schema["properties"]
    known = {name.casefold(): name for name in properties}
    named: dict[str, Any] = {}
    for name, member in value.items():
        meant = name if name in properties else known.get(str(name).strip().casefold(), name)
        if meant in named and named[meant] != member:
            return dict(value)
        named[meant] = member
    if named.keys() != value.keys():
        notes.append("corrected the case of a property's name")
    closed = schema.get("additionalProperties") is False
    # an extra number among numbered properties is kept and fails validation: the judge may have counted differently
    are_numbered = all(name.isdigit() for name in properties)
    unknown = [name for name in named if name not in properties and not (are_numbered and str(name).isdigit())]
    extra = sorted(map(str, unknown)) if closed else []
    if extra:
        notes.append(f"ignored unknown properties: {', '.join(extra[:5])}")
    ordered = [name for name in properties if name in named]
    others = [name for name in named if name not in properties and not (closed and name in unknown)]
    return {name: normalize_reply(named[name], properties.get(name), notes, deep + 1) for name in (*ordered, *others)}


def _match_label(value: Any, labels: Sequence[Any], notes: list[str]) -> Any:
    """Return the label that matches with tolerated deviations, else the value unchanged."""
    if any(type(label) is type(value) and label == value for label in labels):
        return value
    if not isinstance(value, str | int | float) or isinstance(value, bool) or not _strip_label(value):
        return value
    meant = [label for label in labels if _strip_label(label) == _strip_label(value)]
    if len(meant) != 1:
        return value
    notes.append(f"read {value!r:.60} as {meant[0]!r}")
    return meant[0]


def _strip_label(label: Any) -> str:
    """Return a label in lower case, without spaces, quotes and punctuation around it. A leading minus is kept, because
    it belongs to a number.
    """
    text = f"{label:g}" if isinstance(label, float) else str(label)
    return text.strip(_LABEL_PADDING).casefold()


def _unquote(value: Any, kind: Any, notes: list[str]) -> Any:
    """Convert a quoted number or boolean to the type in the schema. Return any other value unchanged."""
    if not isinstance(value, str):
        return value
    text = value.strip()
    read: Any = _UNCHANGED
    if kind in ("number", "integer") and _NUMBER.fullmatch(text):
        read = float(text) if kind == "number" or "." in text else int(text)
    if kind == "boolean" and text.casefold() in ("true", "false"):
        read = text.casefold() == "true"
    if read is _UNCHANGED:
        return value
    notes.append(f"read {value!r:.60} as {read!r}")
    return read


@lru_cache(maxsize=256)
def _make_validator(schema: bytes) -> Any:
    from jsonschema import Draft202012Validator

    return Draft202012Validator(orjson.loads(schema))


def _describe_violation(error: Any) -> str:
    where = ".".join(map(str, error.absolute_path))
    subject = repr(where) if where else "the reply"
    if labels := error.schema.get("enum"):  # `enum` is stricter than `type`, so the message lists the permitted values
        return (
            f"{subject} is {_to_short_json(error.instance)}, which is none of {', '.join(map(_to_short_json, labels))}"
        )
    if error.validator == "required":
        lacking = [name for name in error.validator_value if name not in error.instance]
        return f"{subject} lacks {', '.join(map(repr, lacking))}"
    if error.validator == "type":
        kinds = error.validator_value if isinstance(error.validator_value, str) else " or ".join(error.validator_value)
        return f"{subject} is {_to_short_json(error.instance)}, which is no {kinds}"
    return f"{subject}: {error.message:.300}"


def _to_short_json(value: Any) -> str:
    text = orjson.dumps(value, default=str).decode()
    return text if len(text) <= 120 else text[:120] + "…"
