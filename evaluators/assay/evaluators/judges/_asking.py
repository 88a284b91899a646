"""From a question to an answer: what surrounds the call of a backend.

Cache, budget, a place in the line, the call with its attempts under one deadline, the reading of the reply, one more
question where it cannot be read; what it has cost is settled, and the answer kept. All of it on the judges' loop.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

from assay.collector.records import Usage
from assay.evaluators.judges._ask import Answer, Ask, Backend, Completion, NoJudge, ParseFailure
from assay.evaluators.judges._limits import limiter_of
from assay.evaluators.judges._loop import on_judges_loop
from assay.evaluators.judges._reading import read
from assay.evaluators.judges._retry import Deadline, NoReply, persistent, unjudged
from assay.evaluators.protocol import Skip, Unjudged, is_cancelled

if TYPE_CHECKING:
    from assay.evaluators.judges._judge import Judge

SHOWN = 8_000  # characters of a reply that are kept, and shown to the judge that gave it


async def answered(judge: Judge, ask: Ask) -> Answer:
    """What a judge answers. Raises `ParseFailure`, other `Unjudged`, and `Skip` when a budget is used up."""
    if judge.backend is None:
        raise NoJudge("no judge is named")
    backend = judge.backend
    return await on_judges_loop(lambda: _Question(judge, backend, ask).answer())


class _Question:
    """One question, with all that it takes."""

    def __init__(self, judge: Judge, backend: Backend, ask: Ask) -> None:
        self._judge = judge
        self._backend = backend
        self._ask = ask
        self._limiter = limiter_of(judge)
        self._deadline = Deadline(judge.deadline)
        self._calls = 0
        self._failed: Exception | None = None  # the last attempt, of which more is to be said than of a wait in line
        self._replies: list[Completion] = []

    async def answer(self) -> Answer:
        """What the judge answers. Raises what `answered` raises."""
        completion = await self._completion(self._ask)
        try:
            return self._answer(read(self._ask, completion), completion)
        except ParseFailure as failure:
            return await self._once_more(completion, failure)

    async def _once_more(self, unread: Completion, failure: ParseFailure) -> Answer:
        """The question again, with the reply and what is wrong with it. Raises `ParseFailure` with both replies."""
        try:
            completion = await self._completion(again(self._ask, unread, failure))
            return self._answer(
                read(self._ask, completion), completion, f"asked again, as the first reply was no answer: {failure}"
            )
        except ParseFailure as second:
            second.metadata = {**second.metadata, "reply": second.text[:SHOWN], "first_reply": failure.text[:SHOWN]}
            raise second from None
        except (Unjudged, Skip) as error:
            failure.metadata = {**failure.metadata, "reply": failure.text[:SHOWN], "asked_again": str(error)}
            raise failure from None

    async def _completion(self, ask: Ask) -> Completion:
        try:
            return await persistent(lambda: self._attempt(ask), self._deadline)
        except Exception as error:
            judge, told = self._judge, self._failed or error
            raise unjudged(told, judge.where, self._calls, self._deadline, judge.api_key) from error

    async def _attempt(self, ask: Ask) -> Completion:
        bound, within = self._judge.concurrency, self._deadline.left
        async with self._limiter.call(bound, again=self._calls > 0, within=within) as call:
            self._deadline.start()
            self._calls += 1
            call.completion = await self._called(ask)
            self._replies.append(call.completion)
            return call.completion

    async def _called(self, ask: Ask) -> Completion:
        seconds = self._deadline.of_attempt
        try:
            async with asyncio.timeout(seconds) as limit:
                return await self._backend.complete(ask)
        except TimeoutError as error:
            self._failed = NoReply(f"no reply within {seconds:.3g} s") if limit.expired() else error
            raise self._failed from error
        except asyncio.CancelledError as error:
            if is_cancelled():
                raise
            raise Unjudged(f"{self._judge.where} cancelled the question") from error
        except Exception as error:
            self._failed = error
            raise

    def _answer(self, value: object, completion: Completion, *notes: str) -> Answer:
        return Answer(
            value=value,
            text=completion.text,
            model=completion.model or self._judge.model,
            usage=_sum([reply.usage for reply in self._replies]),
            logprobs=completion.logprobs,
            notes=(*completion.notes, *notes),
            calls=self._calls,
        )


def again(ask: Ask, unread: Completion, failure: ParseFailure) -> Ask:
    """The question with a reply that could not be read, and what is wrong with it."""
    wanted = "the answer" if ask.schema is None else "one JSON object as it was asked for, and nothing else"
    said = {"role": "assistant", "content": unread.text[:SHOWN] or "(nothing)"}
    told = {"role": "user", "content": f"That could not be read ({str(failure)[:500]}). Reply with {wanted}."}
    return replace(ask, messages=(*ask.messages, said, told))


def _sum(usages: list[Usage | None]) -> Usage | None:
    """Of all calls together; None where one of them is not known."""
    known = [usage for usage in usages if usage is not None]
    if not known or len(known) < len(usages):
        return None
    details: dict[str, int] = {}
    for usage in known:
        for name, tokens in usage.details.items():
            details[name] = details.get(name, 0) + tokens
    return Usage(sum(usage.input_tokens for usage in known), sum(usage.output_tokens for usage in known), details)
