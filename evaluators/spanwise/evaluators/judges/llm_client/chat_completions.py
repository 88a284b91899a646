"""Questions and answers of judges, the chat-completion format, and parsing of JSON replies."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Protocol, TypeAlias, TypeGuard

import orjson

from spanwise.collector.records import JSON, Usage
from spanwise.evaluators.builtin.json import InvalidJSON, load_strict_json
from spanwise.evaluators.builtin.pipeline import find_ratings, is_quoted, parse_reply_objects
from spanwise.evaluators.interface import Unjudged

# Questions, completions and answers of judges, and the chat-completion format of OpenAI.

MAX_REPLY_LENGTH = 8_000  # maximum characters of an unparsable reply, in metadata and in the follow-up question
Message: TypeAlias = Mapping[str, str]  # {"role": "system" | "user" | "assistant", "content": …}


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """Question to a judge: messages, and the JSON schema of the reply's object (None: plain text).

    `sample` distinguishes repetitions of a question that need independent answers (samples, repetitions).
    `logprobs` is the number of alternatives with log-probabilities per token of the reply, 0 for none. `values`
    are the judged texts in the messages. A verdict that the reply may have quoted from these texts does not
    count. `bare_ratings` are the ratings that may form the whole reply, in place of an object with a `rating`.
    """

    messages: tuple[Message, ...]
    schema: Mapping[str, JSON] | None = None
    name: str = "reply"  # name of the schema
    sample: int = 0
    logprobs: int = 0
    values: tuple[str, ...] = ()
    bare_ratings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Token:
    """Token of a reply, its log-probability, and the log-probabilities of its alternatives by text."""

    text: str
    logprob: float
    top: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """Unparsed reply of a backend to an `Ask`. `notes` say which parameters the request omitted, and why."""

    text: str
    model: str | None = None
    usage: Usage | None = None
    finish: str | None = None  # "stop", "length", "content_filter", …
    refusal: str | None = None
    logprobs: tuple[Token, ...] = ()
    notes: tuple[str, ...] = ()


class Backend(Protocol):
    """Interface of a source of replies: an endpoint, a function, a script."""

    @property
    def model(self) -> str:
        """Return the model's name."""

    @property
    def where(self) -> str:
        """Return a description of the endpoint or function that receives the prompts."""

    async def complete(self, ask: Ask) -> Completion:
        """Return the reply.

        Raises `Unjudged` for a permanent error, and `CutOff` if a second call with more tokens may succeed. Other
        errors of the client are raised unchanged, and `is_transient` determines whether the call is retried.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """Parsed reply: `value` is the object that the schema describes, or the text if there was no schema."""

    value: Any
    text: str
    model: str
    usage: Usage | None = None  # total of all calls for this answer; zero for a cached answer
    cost: float | None = None  # US dollars, None if the price is unknown
    logprobs: tuple[Token, ...] = ()
    notes: tuple[str, ...] = ()
    cached: bool = False
    calls: int = 1  # calls of the backend, including failed ones; 0 for a cached answer


class ParseFailure(Unjudged):
    """Error for a reply that cannot be parsed. `text` is the reply."""

    def __init__(self, why: str, text: str) -> None:
        super().__init__(f"parse failure: {why}", {"reply": text})
        self.text = text


class Declined(Unjudged):
    """Error for a reply without an answer: a refusal, a stop by the content filter, or an empty text. `text` is the part
    of the reply that arrived.
    """

    def __init__(self, message: str, text: str = "") -> None:
        super().__init__(message, {"reply": text[:MAX_REPLY_LENGTH]} if text else None)


class CutOff(Unjudged):
    """Error for a reply that was truncated at its token limit.

    `again` is True if a reasoning model used up the limit and the next call gets a higher limit. `usage` is the
    token usage of the truncated call.
    """

    def __init__(self, message: str, text: str, *, usage: Usage | None = None, again: bool = False) -> None:
        super().__init__(message, {"reply": text[:MAX_REPLY_LENGTH]} if text else None)
        self.usage = usage
        self.again = again


class Unbilled(Unjudged):
    """Error for a question that the endpoint did not receive, or refused without processing it, so that it costs
    nothing.
    """


class NoJudge(Unjudged, ValueError):
    """Error for a missing judge: none is configured, and Spanwise never chooses a model by itself."""


_USAGE_DETAILS = {  # fields of a usage object, and their names in OTel GenAI
    ("prompt_tokens_details", "cached_tokens"): "cache_read.input_tokens",
    ("completion_tokens_details", "reasoning_tokens"): "reasoning.output_tokens",
}
REASONING_TOKENS = "reasoning.output_tokens"
MAX_NAME_LENGTH = 200  # in characters
MAX_LOGPROB_TOKENS = 100_000  # maximum tokens of a reply whose log-probabilities are read


def parse_completion(body: Mapping[str, Any]) -> Completion:
    """Parse the body of a chat completion. Missing or invalid fields get empty values."""
    choices = body.get("choices")
    if not isinstance(choices, Sequence) or isinstance(choices, str) or not choices:
        choices = [None]
    choice = _as_mapping(choices[0])
    message = _as_mapping(choice.get("message"))
    refusal = message.get("refusal")
    return Completion(
        text=extract_text(message.get("content")),
        model=_as_short_name(body.get("model")),
        usage=_parse_usage(body.get("usage")),
        finish=_as_short_name(choice.get("finish_reason")) if choice else "no choices",
        refusal=refusal if isinstance(refusal, str) and refusal else None,
        logprobs=_parse_tokens(_as_mapping(choice.get("logprobs")).get("content")),
    )


def extract_text(content: Any) -> str:
    """Return the text of a message's content: a text, or a list of parts, whose texts are joined."""
    if isinstance(content, str):
        return content
    if isinstance(content, Sequence):
        return "".join(part if isinstance(part, str) else str(_as_mapping(part).get("text") or "") for part in content)
    return ""


def join_messages(messages: Iterable[Message]) -> str:
    """Join messages to one text, for functions that take no list. "Your reply was:" introduces earlier replies of the
    judge.
    """
    return "\n\n".join(
        f"Your reply was:\n{message['content']}" if message["role"] == "assistant" else message["content"]
        for message in messages
    )


def make_object_schema(properties: Mapping[str, JSON]) -> dict[str, JSON]:
    """Return the schema of an object that has exactly these properties, in this order."""
    return {
        "type": "object",
        "properties": dict(properties),
        "required": list(properties),
        "additionalProperties": False,
    }


def add_schema_instruction(messages: Sequence[Message], schema: Mapping[str, JSON]) -> tuple[Message, ...]:
    """Append an instruction with the schema to the messages, for endpoints and functions without schema support."""
    schema_text = orjson.dumps(schema).decode()
    instruction = f"Reply with one JSON object that follows this JSON Schema, and with nothing else:\n{schema_text}"
    *before, last = messages
    if last["role"] != "user":
        return (*messages, {"role": "user", "content": instruction})
    return (*before, {**last, "content": f"{last['content']}\n\n{instruction}"})


def _parse_usage(reported: Any) -> Usage | None:
    if not isinstance(reported, Mapping):
        return None
    # every question has tokens, so a count of 0 means that the usage is unknown
    if not _as_count(reported.get("prompt_tokens")):
        return None
    details = {
        name: _as_count(_as_mapping(reported.get(group)).get(count)) for (group, count), name in _USAGE_DETAILS.items()
    }
    return Usage(
        _as_count(reported.get("prompt_tokens")),
        _as_count(reported.get("completion_tokens")),
        {name: count for name, count in details.items() if count},
    )


def _parse_tokens(reported: Any) -> tuple[Token, ...]:
    """Return the tokens of a reply with their log-probabilities. Return no tokens if one of them is invalid, because
    together they must form the reply.
    """
    if not isinstance(reported, Sequence) or isinstance(reported, str) or len(reported) > MAX_LOGPROB_TOKENS:
        return ()
    tokens = [_parse_token(_as_mapping(each)) for each in reported]
    return tuple(token for token in tokens if token) if all(tokens) else ()


def _parse_token(reported: Mapping[str, Any]) -> Token | None:
    text, logprob, top = reported.get("token"), reported.get("logprob"), reported.get("top_logprobs")
    if not isinstance(text, str) or not _is_number(logprob):
        return None
    listed = top if isinstance(top, Sequence) and not isinstance(top, str) else ()
    known: dict[str, float] = {}
    for each in map(_as_mapping, listed):  # the most likely alternative comes first, and `setdefault` keeps it
        name, value = each.get("token"), each.get("logprob")
        if isinstance(name, str) and _is_number(value):
            known.setdefault(name, float(value))
    return Token(text, float(logprob), known)


def _is_number(value: Any) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and value == value


def _as_mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _as_short_name(value: Any) -> str | None:
    """Return a name from the server, truncated to `MAX_NAME_LENGTH`."""
    return value[:MAX_NAME_LENGTH] if isinstance(value, str) and value else None


def _as_count(value: Any) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**53 else 0


# Reply parsing: strict and lenient reading of JSON replies, tolerated deviations, quoted verdicts.
#
# Only objects at the top level of the reply count. Quoted JSON in a rationale is text, and text next to an object is
# ignored. If there are several objects, their ratings must agree, and the first supplies the rationale. An object
# surrounded by text may be quoted from the judged values. If the judged values contain the verdict of the object, the
# parser rejects the whole reply.
#
# Tolerated deviations are:
#
# - the case of a label, and spaces, quotes and punctuation around it;
# - a number or boolean in quotes;
# - the case of a property's name;
# - extra properties, unless their names are numbers.
#
# Synonyms of a label are not accepted.
#
# If the question permits it, the whole reply may be one of its ratings, in quotes or a code fence, or after the word
# "rating".

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
