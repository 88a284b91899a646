"""One question to a judge: its calls, one after another, and what they have cost."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING
from uuid import uuid4

from spanwise.collector.records import Usage
from spanwise.evaluators.judges._ask import KEPT, Answer, Ask, Completion, CutOff, ParseFailure
from spanwise.evaluators.judges._budget import Amount, ledgers_of, most
from spanwise.evaluators.judges._endpoint import Endpoint, loaded
from spanwise.evaluators.judges._limits import limiter_of
from spanwise.evaluators.judges._prices import cost_of
from spanwise.evaluators.judges._reading import Reading, reading
from spanwise.evaluators.judges._retry import Deadline, NoReply, is_unconnected, persistent, told, unjudged, was_sent
from spanwise.evaluators.protocol import Skip, Unjudged, is_cancelled

if TYPE_CHECKING:
    from spanwise.evaluators.judges._judge import Judge


log = logging.getLogger("spanwise.evaluators")


class Question:
    """One question, with all that it takes. Lives on the judges' loop."""

    def __init__(self, judge: Judge, ask: Ask) -> None:
        self._judge = judge
        self._backend = judge.answering
        self._ask = ask
        self._limiter = limiter_of(judge)
        self._deadline = Deadline(judge.deadline)
        self._tries = 0
        self._calls = 0  # those of them that a server has seen
        self._failed: Exception | None = None  # the last attempt: of it more is to be said than of a wait in line
        self._usages: list[Usage | None] = []
        self._notes: list[str] = []

    async def answer(self) -> tuple[Answer, Completion]:
        """What the judge answers, and the reply that says so.

        Raises `ParseFailure`, other `Unjudged`, `Skip` when the budget has no room for the first call, and what a
        function raises.
        """
        if isinstance(self._backend, Endpoint):
            await loaded()
        try:
            completion = await self._completion(self._ask)
            try:
                came = reading(self._ask, completion)
            except ParseFailure as failure:
                came, completion = await self._once_more(completion, failure)
        except Unjudged as error:
            error.metadata = {**error.metadata, **self._spent()}
            raise
        return self._answer(came, completion), completion

    async def _once_more(self, unread: Completion, failure: ParseFailure) -> tuple[Reading, Completion]:
        """The question again, with the reply and what is wrong with it. Raises `ParseFailure` with both replies."""
        first = failure.text[:KEPT]
        try:
            completion = await self._completion(again(self._ask, unread, failure))
            came = reading(self._ask, completion)
        except ParseFailure as second:
            second.metadata = {**second.metadata, "reply": second.text[:KEPT], "first_reply": first}
            raise second from None
        except (Unjudged, Skip) as error:
            failure.metadata = {**failure.metadata, "reply": first, "asked_again": str(error)}
            raise failure from None
        self._notes.append(f"asked again: {str(failure)[:200]}")
        return came, completion

    async def _completion(self, ask: Ask) -> Completion:
        """The reply, after as many attempts as it takes; a model that thinks gets more room while there is some."""
        self._failed = None
        while True:
            try:
                return await persistent(lambda: self._attempt(ask), self._deadline, self._limiter.gives_up)
            except CutOff as cut:
                if not cut.again:
                    raise
            except _Dearer:
                pass
            except Skip:
                if self._failed is None:
                    raise
                raise self._unjudged(self._failed) from self._failed
            except Exception as error:
                told = self._unjudged(self._failed or error)
                if told is error:
                    raise
                raise told from error

    def _unjudged(self, error: Exception) -> Exception:
        return unjudged(error, self._judge.where, self._tries, self._deadline, self._judge.api_key)

    async def _attempt(self, ask: Ask) -> Completion:
        bound, again, left = self._judge.concurrency, self._tries > 0, self._deadline.left
        within = self._deadline.seconds if left is None else left
        async with self._booked(ask) as booked, self._limiter.call(bound, again=again, within=within):
            if most(self._judge, ask).usd > booked.amount.usd:  # others have found out that the model thinks
                raise _Dearer
            self._deadline.start()
            self._tries += 1
            self._calls += 1
            booked.started = True
            completion = await self._called(ask)
            booked.settle(completion.usage)
            self._usages.append(completion.usage)
            return completion

    @asynccontextmanager
    async def _booked(self, ask: Ask) -> AsyncIterator[_Booking]:
        """Room in the budget for one call; what it came to is settled, whatever comes of it."""
        booking = _Booking(self._judge, most(self._judge, ask))
        ledgers, id = ledgers_of(self._judge), uuid4().hex
        if not ledgers:
            yield booking
            return
        try:
            async with asyncio.timeout(self._deadline.left):
                for ledger in ledgers:
                    await ledger.book(id, booking.amount)
            yield booking
        except BaseException as error:
            booking.fail(error)
            raise
        finally:
            for ledger in ledgers:
                await ledger.settle(id, booking.actual)

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
        except CutOff as cut:
            self._usages.append(cut.usage)
            self._failed = cut
            raise
        except Exception as error:
            self._failed = error
            if is_unconnected(error):
                self._calls -= 1
                self._announce(error)
            raise

    def _announce(self, error: Exception) -> None:
        """Log once for all who ask this endpoint that it cannot be reached."""
        patience = self._limiter.unreachable(self._deadline.seconds)
        if patience is not None:
            reason = told(error, self._judge.api_key)
            log.warning(
                "spanwise: the judge %s cannot be reached: %s; it is tried for up to %.3g s",
                self._judge.where,
                reason,
                patience,
            )

    def _answer(self, came: Reading, completion: Completion) -> Answer:
        usage = total(self._usages)
        return Answer(
            value=came.value,
            text=completion.text,
            model=completion.model or self._judge.model,
            usage=usage,
            cost=cost_of(self._judge, usage) if usage is not None else None,
            logprobs=completion.logprobs,
            notes=(*completion.notes, *self._notes, *came.notes),
            calls=self._calls,
        )

    def _spent(self) -> dict[str, object]:
        """What went into a question without an answer."""
        usage = total(self._usages)
        if usage is None:
            return {"calls": self._calls} if self._calls else {}
        tokens = {"input_tokens": usage.input_tokens, "output_tokens": usage.output_tokens}
        return {"calls": self._calls, **tokens, "cost": cost_of(self._judge, usage)}


class _Dearer(Exception):
    """A call may cost more than when it was booked."""


class _Booking:
    """What a call is booked with, and what it came to."""

    def __init__(self, judge: Judge, amount: Amount) -> None:
        self._judge = judge
        self.amount = amount
        self.started = False
        self._is_unknown = False

    @property
    def actual(self) -> Amount | None:
        """What the call has taken; None where its outcome is unknown."""
        return None if self._is_unknown else self.amount

    def settle(self, usage: Usage | None) -> None:
        """A reply has come; what it took is not known of every endpoint, then it is what it may have taken."""
        cost = cost_of(self._judge, usage) if usage is not None else None
        if cost is not None:
            self.amount = Amount(cost, 1)

    def fail(self, error: BaseException) -> None:
        """Take nothing for a call that was not made or was refused; the outcome of one that broke off is unknown."""
        if isinstance(error, CutOff):
            self.settle(error.usage)
        elif self.started and was_sent(error):
            self._is_unknown = True
        else:
            self.amount = Amount()


def again(ask: Ask, unread: Completion, failure: ParseFailure) -> Ask:
    """The question with a reply that could not be read, and what is wrong with it."""
    wanted = "the answer" if ask.schema is None else "one JSON object as it was asked for, and nothing else"
    said = {"role": "assistant", "content": unread.text[:KEPT] or "(nothing)"}
    told = {"role": "user", "content": f"That could not be read ({str(failure)[:500]}). Reply with {wanted}."}
    return replace(ask, messages=(*ask.messages, said, told))


def total(usages: list[Usage | None]) -> Usage | None:
    """Of all replies together; None where one of them did not say."""
    known = [usage for usage in usages if usage is not None]
    if not known or len(known) < len(usages):
        return None
    details: dict[str, int] = {}
    for usage in known:
        for name, tokens in usage.details.items():
            details[name] = details.get(name, 0) + tokens
    return Usage(sum(usage.input_tokens for usage in known), sum(usage.output_tokens for usage in known), details)
