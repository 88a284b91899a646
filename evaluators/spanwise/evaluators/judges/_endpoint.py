"""A model behind an OpenAI-compatible endpoint, asked through openai's own client."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from importlib import import_module
from typing import TYPE_CHECKING, Any

import orjson

from spanwise.evaluators.judges._ask import Ask, Completion, CutOff
from spanwise.evaluators.judges._chat import REASONING, completion_of, in_words
from spanwise.evaluators.judges._faults import final, not_a_completion
from spanwise.evaluators.judges._habits import Form, Habits, habits_of
from spanwise.evaluators.judges._loop import kept, on_judges_loop
from spanwise.evaluators.judges._schemas import response_format
from spanwise.evaluators.protocol import Unjudged, in_thread
from spanwise.tracer.suppression import suppress_instrumentation

if TYPE_CHECKING:
    from openai import AsyncAPIResponse, AsyncOpenAI

LARGEST = 32 << 20  # bytes of an answer, unpacked
CLIENTS = 32  # endpoints and keys whose connections are kept
_NO_KEY = "none"  # the client insists on one; servers at home look at none


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """What is asked, where, with which parameters; `timeout` is in seconds, of one request.

    What the endpoint or the model refuses is left out, noted, and not given again in this process.
    """

    model: str
    base_url: str
    api_key: str | None = field(default=None, repr=False)
    temperature: float | None = 0.0
    seed: int | None = 0
    max_tokens: int = 2048
    timeout: float = 60.0
    bounded: bool = False  # in dollars: a reply of any length is not asked for

    @property
    def where(self) -> str:
        """Model and address."""
        return f"{self.model} at {self.base_url}"

    @property
    def most_tokens(self) -> int:
        """Tokens that a reply may have, and the thoughts before it."""
        return self.max_tokens * self._habits.room

    async def complete(self, ask: Ask) -> Completion:
        """The reply. Raises the client's errors where they can pass, `CutOff`, and `Unjudged` for all else."""
        return await on_judges_loop(lambda: self._complete(ask))

    @property
    def _habits(self) -> Habits:
        return habits_of(self.base_url, self.model)

    async def _complete(self, ask: Ask) -> Completion:
        """As often as something is refused that can be left out: such a call costs nothing."""
        import openai

        form, first = self._habits.form(ask.schema), None
        while True:
            if self.bounded and form.limit is None:
                raise Unjudged(f"{self.where} takes no limit of tokens, so max_usd cannot be kept; give max_calls")
            try:
                completion = await self._once(ask, form)
            except openai.APIStatusError as error:
                first = first or error
                refused = form.refused_by(error, self._parameters(ask, form))
                if refused is None:
                    self._habits.too_much(form, first)
                    raise final(first, self) or first from None
                form = refused
            except openai.APIConnectionError as error:
                lasting = final(error, self)
                if lasting is None:
                    raise
                raise lasting from None
            else:
                self._habits.keep(form)
                return self._whole(completion, form, ask)

    async def _once(self, ask: Ask, form: Form) -> Completion:
        parameters = self._parameters(ask, form)
        async with kept(_Clients, _Clients).client(self.base_url, self.api_key) as client:
            with suppress_instrumentation():
                asked = client.chat.completions.with_streaming_response.create(**parameters, timeout=self.timeout)
                async with asked as raw:
                    content = await self._content(raw)
        body = _body(content)
        if not isinstance(body, Mapping) or "choices" not in body:
            raise not_a_completion(raw.http_response, content, body, self)
        completion = completion_of(body)
        return replace(completion, notes=form.notes(ask, completion))

    async def _content(self, raw: AsyncAPIResponse[Any]) -> bytes:
        """What came, unpacked. Raises `Unjudged` for more than a reply can be, and the client's error where it breaks
        off.
        """
        import openai

        content = bytearray()
        try:
            async for piece in raw.iter_bytes():
                content += piece
                if len(content) > LARGEST:
                    break
        except Exception as error:
            raise openai.APIConnectionError(request=raw.http_request) from error
        if len(content) > LARGEST:
            raise Unjudged(f"{self.base_url} answered with more than {LARGEST >> 20} MiB")
        return bytes(content)

    def _parameters(self, ask: Ask, form: Form) -> dict[str, Any]:
        """All that is sent, by name."""
        messages: Sequence[Mapping[str, str]] = ask.messages
        if ask.schema is not None and form.level != "json_schema":
            messages = in_words(ask.messages, ask.schema)
        wanted = {
            "temperature": self.temperature,
            "seed": self.seed,
            "logprobs": True if ask.logprobs else None,
            "top_logprobs": min(ask.logprobs, form.top) or None,
            "response_format": response_format(ask.name, ask.schema, form.level),
        }
        given = {name: value for name, value in wanted.items() if value is not None and name not in form.without}
        if form.limit is not None:
            given[form.limit] = self.max_tokens * form.room
        return {"model": self.model, "messages": [dict(message) for message in messages], **given}

    def _whole(self, completion: Completion, form: Form, ask: Ask) -> Completion:
        """The completion. Raises `CutOff` where a model has used up its tokens before it said anything."""
        if completion.finish != "length" or not _thought(completion):
            return completion
        again = self._habits.more_room(form)
        raise CutOff(
            f"{self.where} was cut off at {self.max_tokens * form.room} tokens while it thought"
            f"{'' if again else '; give the judge more max_tokens'}",
            completion.text,
            usage=completion.usage,
            again=again,
        )


async def loaded() -> None:
    """openai's client is imported, which takes a second or two: on a thread, and before anybody's deadline starts."""
    await asyncio.shield(
        kept(loaded, lambda: asyncio.ensure_future(in_thread(lambda: import_module("openai.resources.chat"))))
    )


@dataclass(slots=True)
class _Held:
    """A client, and how many calls are under way through it."""

    client: AsyncOpenAI
    calls: int = 0


class _Clients:
    """One client per endpoint and key; beyond so many, those that were not used for longest are closed."""

    def __init__(self) -> None:
        self._held: OrderedDict[tuple[str, str | None], _Held] = OrderedDict()

    @asynccontextmanager
    async def client(self, base_url: str, key: str | None) -> AsyncIterator[AsyncOpenAI]:
        held = self._of(base_url, key)
        held.calls += 1
        try:
            yield held.client
        finally:
            held.calls -= 1
            if len(self._held) > CLIENTS:
                await asyncio.shield(self._close_old())

    def _of(self, base_url: str, key: str | None) -> _Held:
        from openai import AsyncOpenAI, DefaultAsyncHttpxClient

        if (base_url, key) not in self._held:
            http = DefaultAsyncHttpxClient(follow_redirects=False)
            made = AsyncOpenAI(base_url=base_url, api_key=key or _NO_KEY, max_retries=0, http_client=http)
            self._held[base_url, key] = _Held(made)
        self._held.move_to_end((base_url, key))
        return self._held[base_url, key]

    async def _close_old(self) -> None:
        idle = [name for name, held in self._held.items() if not held.calls]
        for held in [self._held.pop(name) for name in idle[: max(0, len(self._held) - CLIENTS)]]:
            await held.client.close()

    async def aclose(self) -> None:
        for held in self._held.values():
            await held.client.close()


def _body(content: bytes) -> Any:
    try:
        return orjson.loads(content)
    except orjson.JSONDecodeError:
        return None


def _thought(completion: Completion) -> bool:
    """Whether tokens went into thoughts: they are counted, or stand in the reply, or there is no reply at all."""
    counted = completion.usage is not None and completion.usage.details.get(REASONING, 0) > 0
    text = completion.text.lstrip()
    return counted or not text or (text.startswith("<think>") and "</think>" not in text)
