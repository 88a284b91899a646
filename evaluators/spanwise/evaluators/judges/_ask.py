"""What a judge is asked, what it completes, what it has answered."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from spanwise.collector.records import JSON, Usage
from spanwise.evaluators.protocol import Unjudged

KEPT = 8_000  # characters of a reply that is no answer: in metadata, and shown to the judge that gave it
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
        super().__init__(message, {"reply": text[:KEPT]} if text else None)


class CutOff(Unjudged):
    """The answer ended at the most tokens that it may have. `again`: a second call has more room, since a model that
    thinks has used up what it had; `usage` is what the call took.
    """

    def __init__(self, message: str, text: str, *, usage: Usage | None = None, again: bool = False) -> None:
        super().__init__(message, {"reply": text[:KEPT]} if text else None)
        self.usage = usage
        self.again = again


class NoJudge(Unjudged, ValueError):
    """No judge is named anywhere, and none is guessed."""
