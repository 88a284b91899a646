"""Questions, completions and answers of judges, and the chat-completion format of OpenAI."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias, TypeGuard

import orjson

from spanwise.collector.records import JSON, Usage
from spanwise.evaluators.interface import Unjudged

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
