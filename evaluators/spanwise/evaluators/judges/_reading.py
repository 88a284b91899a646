"""What a reply says: JSON as the schema has it, read strictly first, then with patience, never by guessing.

Only an object that stands in the reply as such counts, and of several only a rating that they agree on; the
reasons are then those of the first. What is quoted in a
rationale is a text in it; words beside an object are not looked at. An object among words that the judged values state,
too, may be a quotation of them: it does not count, and neither does any other object of that reply.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from spanwise.collector.records import JSON
from spanwise.evaluators.builtin._quotation import is_quoted, ratings_of
from spanwise.evaluators.builtin._replies import objects_in
from spanwise.evaluators.builtin.json import InvalidJSON, loads
from spanwise.evaluators.judges._ask import Ask, Completion, CutOff, Declined, ParseFailure
from spanwise.evaluators.judges._forgiving import tidied, wrong

LONGEST = 50_000  # characters of a reply that is looked at with patience
_THOUGHT = re.compile(r"\s*<think(?:ing)?>.*?</think(?:ing)?>", re.DOTALL)
_THINKS = re.compile(r"\s*<think(?:ing)?>")
_FENCED = re.compile(r"```[\w-]*[ \t]*\r?\n(.*?)```", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Reading:
    """The value, and what was forgiven."""

    value: Any
    notes: tuple[str, ...] = ()


def reading(ask: Ask, completion: Completion) -> Reading:
    """The object that the schema describes, or the text where there is no schema.

    Raises `ParseFailure` for what is not what was asked for, `CutOff`, and `Declined` where nothing was answered.
    """
    _check_said(completion)
    text = _spoken(completion)
    try:
        strictly = None if ask.schema is None else _strictly(text, ask.schema)
        if strictly is None and completion.finish == "length":
            raise _cut_off(completion)
        return strictly or (Reading(text) if ask.schema is None else _patiently(text, ask.schema, ask.values))
    except InvalidJSON as error:
        raise ParseFailure(str(error), completion.text) from None


def _check_said(completion: Completion) -> None:
    """Raises `Declined` where the judge has not answered, and `CutOff`."""
    if completion.refusal:
        raise Declined(f"the judge refused: {' '.join(completion.refusal.split()):.300}")
    if completion.finish == "content_filter":
        raise Declined("the content filter of the endpoint stopped the judge's answer", completion.text)
    if not completion.text.strip():
        if completion.finish == "length":
            raise _cut_off(completion)
        why = f" (it ended with {completion.finish!r})" if completion.finish not in (None, "stop") else ""
        raise Declined(f"the judge's answer is empty{why}")


def _cut_off(completion: Completion) -> CutOff:
    used = f" after {completion.usage.output_tokens} tokens" if completion.usage else ""
    return CutOff(
        f"the judge's answer was cut off{used}: give the judge more max_tokens", completion.text, usage=completion.usage
    )


def _spoken(completion: Completion) -> str:
    """The reply without the thoughts that some models write down before it. Raises `CutOff`, `ParseFailure`."""
    text = _THOUGHT.sub("", completion.text, count=1) if _THOUGHT.match(completion.text) else completion.text
    if not _THINKS.match(text):
        return text
    if completion.finish == "length":
        raise _cut_off(completion)
    raise ParseFailure("the reply is thoughts without an end", completion.text)


def _strictly(text: str, schema: Mapping[str, JSON]) -> Reading | None:
    """What a text that is JSON says; None for one that is not. Raises `InvalidJSON` where the schema is not met."""
    try:
        value = loads(text.strip(), lenient=True)
    except InvalidJSON:
        return None
    return Reading(*_checked(value, schema))


def _checked(value: Any, schema: Mapping[str, JSON]) -> tuple[Any, tuple[str, ...]]:
    """A value as the schema has it, and what was forgiven. Raises `InvalidJSON`."""
    notes: list[str] = []
    try:
        tidy = tidied(value, schema, notes)
        problem = wrong(tidy, schema)
    except RecursionError:
        raise InvalidJSON("nested too deeply to be read") from None
    if problem:
        raise InvalidJSON(problem)
    return tidy, tuple(dict.fromkeys(notes))


def _patiently(text: str, schema: Mapping[str, JSON], values: Sequence[str]) -> Reading:
    """The one verdict among words, fences and JSON as models write it. Raises `InvalidJSON`."""
    if len(text) > LONGEST:
        raise InvalidJSON(f"the reply is no JSON, and too long to look for some: {len(text):,} characters")
    found = _candidates(text, schema) or [_repaired(text, schema)]
    (value, forgiven), *others = (_checked(each, schema) for each in found)
    if any(is_quoted(each, schema, values) for each in (value, *(other for other, _ in others))):
        raise InvalidJSON(
            "a verdict among words is also in the judged text and may be a quotation; reply with JSON alone"
        )
    if any(ratings_of(other, schema) != ratings_of(value, schema) for other, _ in others):
        raise InvalidJSON(f"{len(found)} objects that differ; give one")
    return Reading(value, ("read with patience: the reply was not plain JSON", *forgiven))


def _candidates(text: str, schema: Mapping[str, JSON]) -> list[Any]:
    """The objects in a text that have at least one of the schema's properties; none where it cannot be read."""
    if schema.get("type") == "array":
        return list(_fenced_lists(text))
    try:
        objects, _ = objects_in(text)
    except (InvalidJSON, RecursionError):
        return []
    return [each for each in objects if isinstance(each, Mapping) and _named(each) & _properties(schema)]


def _fenced_lists(text: str) -> Iterator[Any]:
    for block in _FENCED.findall(text):
        try:
            value = loads(block.strip())
        except InvalidJSON:
            continue
        if isinstance(value, list):
            yield value


def _repaired(text: str, schema: Mapping[str, JSON]) -> Any:
    """What json-repair makes of the text from its first brace to its last. Raises `InvalidJSON`."""
    kind, opens, closes = (list, "[", "]") if schema.get("type") == "array" else (dict, "{", "}")
    start, end = text.find(opens), text.rfind(closes)
    if start < 0:
        raise InvalidJSON(f"the reply holds no JSON {'list' if kind is list else 'object'}")
    if end < start:
        raise InvalidJSON("the JSON in the reply does not end")
    block = text[start : end + 1]
    if twice := _named_twice(block, _properties(schema)):
        raise InvalidJSON(f"{twice!r} stands in the reply more than once, and its JSON cannot be read")
    import json_repair

    try:
        value = json_repair.loads(block, skip_json_loads=True)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, kind):
        raise InvalidJSON("the JSON in the reply cannot be read")
    return value


def _named_twice(block: str, names: set[str]) -> str | None:
    """A property that a text names more than once like one: which of them counts would be a guess."""
    return next((name for name in sorted(names) if len(_key(name).findall(block)) > 1), None)


def _key(name: str) -> re.Pattern[str]:
    return re.compile(rf"(?<!\w){re.escape(name)}[\"'“”„‘’\\]*\s*[:=]", re.IGNORECASE)


def _properties(schema: Mapping[str, JSON]) -> set[str]:
    properties = schema.get("properties")
    return {name.casefold() for name in properties} if isinstance(properties, Mapping) else set()


def _named(value: Mapping[str, Any]) -> set[str]:
    return {str(name).strip().casefold() for name in value}
