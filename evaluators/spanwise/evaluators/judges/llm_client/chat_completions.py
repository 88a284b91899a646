"""Questions, completions and answers of judges, and the chat-completion format of OpenAI."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias, TypeGuard

import orjson

from spanwise.collector.records import JSON, Usage
from spanwise.evaluators.interface import Unjudged

MAX_REPLY_LENGTH = 8_000  # characters of a reply that is no answer: in metadata, and shown to the judge that gave it
Message: TypeAlias = Mapping[str, str]  # {"role": "system" | "user" | "assistant", "content": …}


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """One question: messages, and the JSON schema of an object as the reply (None: words).

    `sample` numbers askings of the same question that are to be answered anew (samples, repetitions); `logprobs` is how
    many alternatives are wanted per token of the reply, 0 for none. `values` are the judged texts in the messages: a
    verdict that a reply quotes from them does not count.
    """

    messages: tuple[Message, ...]
    schema: Mapping[str, JSON] | None = None
    name: str = "reply"  # the schema's name
    sample: int = 0
    logprobs: int = 0
    values: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Token:
    """A token of a reply, its log-probability, and those of its alternatives by text."""

    text: str
    logprob: float
    top: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """What a backend gives for an `Ask`: the reply as it came. `notes` say what it was asked without, and why."""

    text: str
    model: str | None = None
    usage: Usage | None = None
    finish: str | None = None  # "stop", "length", "content_filter", …
    refusal: str | None = None
    logprobs: tuple[Token, ...] = ()
    notes: tuple[str, ...] = ()


class Backend(Protocol):
    """Who answers: an endpoint, a function, a script."""

    @property
    def model(self) -> str:
        """Its name."""

    @property
    def where(self) -> str:
        """To whom text goes, for people."""

    async def complete(self, ask: Ask) -> Completion:
        """The reply. Raises `Unjudged` for what no other try can mend, `CutOff` where one with more room may, and the
        client's own errors for all else: what `may_pass` says of these decides about another try.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A reply that was read: `value` is the object that the schema describes, or the text where there was none."""

    value: Any
    text: str
    model: str
    usage: Usage | None = None  # of all calls that it took; of an answer out of the cache 0 and 0
    cost: float | None = None  # US dollars, None where the price is not known
    logprobs: tuple[Token, ...] = ()
    notes: tuple[str, ...] = ()
    cached: bool = False
    calls: int = 1  # of the backend, failed ones counted; 0 out of the cache


class ParseFailure(Unjudged):
    """What the judge said is not what was asked for; `text` is what it said."""

    def __init__(self, why: str, text: str) -> None:
        super().__init__(f"parse failure: {why}", {"reply": text})
        self.text = text


class Declined(Unjudged):
    """The judge did not answer: a refusal, a content filter, an empty reply; `text` is what it said before that."""

    def __init__(self, message: str, text: str = "") -> None:
        super().__init__(message, {"reply": text[:MAX_REPLY_LENGTH]} if text else None)


class CutOff(Unjudged):
    """The answer ended at the most tokens that it may have. `again`: a second call has more room, since a model that
    thinks has used up what it had; `usage` is what the call took.
    """

    def __init__(self, message: str, text: str, *, usage: Usage | None = None, again: bool = False) -> None:
        super().__init__(message, {"reply": text[:MAX_REPLY_LENGTH]} if text else None)
        self.usage = usage
        self.again = again


class NoJudge(Unjudged, ValueError):
    """No judge is named anywhere, and none is guessed."""


_USAGE_DETAILS = {  # where a usage says it, and what OTel GenAI calls it
    ("prompt_tokens_details", "cached_tokens"): "cache_read.input_tokens",
    ("completion_tokens_details", "reasoning_tokens"): "reasoning.output_tokens",
}
REASONING_TOKENS = "reasoning.output_tokens"
MAX_NAME_LENGTH = 200  # characters
MAX_LOGPROB_TOKENS = 100_000  # of a reply whose log-probabilities are read


def parse_completion(body: Mapping[str, Any]) -> Completion:
    """What the body of a chat completion says; what it lacks is missing, of what is no chat completion all."""
    choice = _get_first_choice(body.get("choices"))
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
    """The text of a message: a text, or a list of parts of which some have one."""
    if isinstance(content, str):
        return content
    if isinstance(content, Sequence):
        return "".join(part if isinstance(part, str) else str(_as_mapping(part).get("text") or "") for part in content)
    return ""


def join_messages(messages: Iterable[Message]) -> str:
    """Messages as one text, for those that take no list of them: what the judge had replied is told apart."""
    return "\n\n".join(
        f"Your reply was:\n{message['content']}" if message["role"] == "assistant" else message["content"]
        for message in messages
    )


def add_schema_instruction(messages: Sequence[Message], schema: Mapping[str, JSON]) -> tuple[Message, ...]:
    """The messages with a last word on the form of the reply, for whoever takes no schema."""
    told = orjson.dumps(schema).decode()
    words = f"Reply with one JSON object that follows this JSON Schema, and with nothing else:\n{told}"
    *before, last = messages
    if last["role"] != "user":
        return (*messages, {"role": "user", "content": words})
    return (*before, {**last, "content": f"{last['content']}\n\n{words}"})


def _parse_usage(told: Any) -> Usage | None:
    if not isinstance(told, Mapping):
        return None
    if not _as_count(told.get("prompt_tokens")):  # no question has none: what was taken is not known
        return None
    details = {
        name: _as_count(_as_mapping(told.get(group)).get(count)) for (group, count), name in _USAGE_DETAILS.items()
    }
    return Usage(
        _as_count(told.get("prompt_tokens")),
        _as_count(told.get("completion_tokens")),
        {name: count for name, count in details.items() if count},
    )


def _parse_tokens(told: Any) -> tuple[Token, ...]:
    """The tokens of a reply; none where one of them makes no sense, since their texts together are the reply."""
    if not isinstance(told, Sequence) or isinstance(told, str) or len(told) > MAX_LOGPROB_TOKENS:
        return ()
    tokens = [_parse_token(_as_mapping(each)) for each in told]
    return tuple(token for token in tokens if token) if all(tokens) else ()


def _parse_token(told: Mapping[str, Any]) -> Token | None:
    text, logprob, top = told.get("token"), told.get("logprob"), told.get("top_logprobs")
    if not isinstance(text, str) or not _is_number(logprob):
        return None
    listed = top if isinstance(top, Sequence) and not isinstance(top, str) else ()
    known: dict[str, float] = {}
    for each in map(_as_mapping, listed):  # the likeliest comes first
        name, value = each.get("token"), each.get("logprob")
        if isinstance(name, str) and _is_number(value):
            known.setdefault(name, float(value))
    return Token(text, float(logprob), known)


def _is_number(value: Any) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and value == value


def _get_first_choice(choices: Any) -> Mapping[str, Any]:
    return _as_mapping(choices[0]) if isinstance(choices, Sequence) and not isinstance(choices, str) and choices else {}


def _as_mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _as_short_name(value: Any) -> str | None:
    """What a server calls something, bounded."""
    return value[:MAX_NAME_LENGTH] if isinstance(value, str) and value else None


def _as_count(value: Any) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**53 else 0
