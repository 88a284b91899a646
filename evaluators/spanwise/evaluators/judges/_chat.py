"""Chats as OpenAI-compatible servers have them: what a completion says, and messages for those that take one text."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeGuard

import orjson

from spanwise.collector.records import JSON, Usage
from spanwise.evaluators.judges._ask import Completion, Message, Token

_DETAILS = {  # where a usage says it, and what OTel GenAI calls it
    ("prompt_tokens_details", "cached_tokens"): "cache_read.input_tokens",
    ("completion_tokens_details", "reasoning_tokens"): "reasoning.output_tokens",
}
REASONING = "reasoning.output_tokens"
LONGEST_NAME = 200  # characters
MOST_TOKENS = 100_000  # of a reply whose log-probabilities are read


def completion_of(body: Mapping[str, Any]) -> Completion:
    """What the body of a chat completion says; what it lacks is missing, of what is no chat completion all."""
    choice = _first(body.get("choices"))
    message = _mapping(choice.get("message"))
    refusal = message.get("refusal")
    return Completion(
        text=text_in(message.get("content")),
        model=_name(body.get("model")),
        usage=_usage(body.get("usage")),
        finish=_name(choice.get("finish_reason")) if choice else "no choices",
        refusal=refusal if isinstance(refusal, str) and refusal else None,
        logprobs=_tokens(_mapping(choice.get("logprobs")).get("content")),
    )


def text_in(content: Any) -> str:
    """The text of a message: a text, or a list of parts of which some have one."""
    if isinstance(content, str):
        return content
    if isinstance(content, Sequence):
        return "".join(part if isinstance(part, str) else str(_mapping(part).get("text") or "") for part in content)
    return ""


def as_text(messages: Iterable[Message]) -> str:
    """Messages as one text, for those that take no list of them: what the judge had replied is told apart."""
    return "\n\n".join(
        f"Your reply was:\n{message['content']}" if message["role"] == "assistant" else message["content"]
        for message in messages
    )


def in_words(messages: Sequence[Message], schema: Mapping[str, JSON]) -> tuple[Message, ...]:
    """The messages with a last word on the form of the reply, for whoever takes no schema."""
    told = orjson.dumps(schema).decode()
    words = f"Reply with one JSON object that follows this JSON Schema, and with nothing else:\n{told}"
    *before, last = messages
    if last["role"] != "user":
        return (*messages, {"role": "user", "content": words})
    return (*before, {**last, "content": f"{last['content']}\n\n{words}"})


def _usage(told: Any) -> Usage | None:
    if not isinstance(told, Mapping):
        return None
    if not _count(told.get("prompt_tokens")):  # no question has none: what was taken is not known
        return None
    details = {name: _count(_mapping(told.get(group)).get(count)) for (group, count), name in _DETAILS.items()}
    return Usage(
        _count(told.get("prompt_tokens")),
        _count(told.get("completion_tokens")),
        {name: count for name, count in details.items() if count},
    )


def _tokens(told: Any) -> tuple[Token, ...]:
    """The tokens of a reply; none where one of them makes no sense, since their texts together are the reply."""
    if not isinstance(told, Sequence) or isinstance(told, str) or len(told) > MOST_TOKENS:
        return ()
    tokens = [_token(_mapping(each)) for each in told]
    return tuple(token for token in tokens if token) if all(tokens) else ()


def _token(told: Mapping[str, Any]) -> Token | None:
    text, logprob, top = told.get("token"), told.get("logprob"), told.get("top_logprobs")
    if not isinstance(text, str) or not _is_number(logprob):
        return None
    listed = top if isinstance(top, Sequence) and not isinstance(top, str) else ()
    known: dict[str, float] = {}
    for each in map(_mapping, listed):  # the likeliest comes first
        name, value = each.get("token"), each.get("logprob")
        if isinstance(name, str) and _is_number(value):
            known.setdefault(name, float(value))
    return Token(text, float(logprob), known)


def _is_number(value: Any) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and value == value


def _first(choices: Any) -> Mapping[str, Any]:
    return _mapping(choices[0]) if isinstance(choices, Sequence) and not isinstance(choices, str) and choices else {}


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _name(value: Any) -> str | None:
    """What a server calls something, bounded."""
    return value[:LONGEST_NAME] if isinstance(value, str) and value else None


def _count(value: Any) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**53 else 0
