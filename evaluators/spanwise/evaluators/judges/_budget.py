"""What a judge may spend: the most that a call can cost is booked before it, what it has cost is settled after."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, NamedTuple, Protocol

import orjson

from spanwise.collector.records import Usage
from spanwise.evaluators.judges._ask import Ask
from spanwise.evaluators.judges._prices import cost_of
from spanwise.evaluators.protocol import Skip

if TYPE_CHECKING:
    from spanwise.evaluators.judges._judge import Judge

EXACT = 1e-9  # US dollars below which two sums are the same
AROUND = 1_024  # bytes: roles, separators and instructions that an endpoint puts around messages and schema


class Amount(NamedTuple):
    """US dollars and calls."""

    usd: float = 0.0
    calls: int = 0


class Ledger(Protocol):
    """Where calls are booked: a judge's budget in this process, or a store's, for many workers."""

    async def book(self, id: str, amount: Amount) -> None:
        """Reserve an amount; the same id books once. Raises `Skip` where there is no room."""

    async def settle(self, id: str, actual: Amount | None) -> None:
        """Replace the reserved amount by the actual one; None: the outcome of the call is unknown, and the amount stays
        booked. An id that is not booked changes nothing.
        """


_charged: ContextVar[Ledger | None] = ContextVar("spanwise-charged", default=None)


@contextmanager
def charged(ledger: Ledger | None) -> Iterator[None]:
    """Calls of judges inside are booked there, beside each judge's own budget."""
    token = _charged.set(ledger)
    try:
        yield
    finally:
        _charged.reset(token)


def ledgers_of(judge: Judge) -> list[Ledger]:
    """Where a judge's calls are booked."""
    return [ledger for ledger in (judge.budget, _charged.get()) if ledger is not None]


class Budget:
    """A ledger within one process, of one judge or of several that are given it. Used on the judges' loop alone.

    What has no room only because of what others have reserved waits for these: mostly they come to less.
    """

    def __init__(self, *, max_usd: float | None = None, max_calls: int | None = None) -> None:
        self.max_usd = max_usd
        self.max_calls = max_calls
        self.spent = Amount()
        self._booked: dict[str, Amount] = {}
        self._waiting: list[asyncio.Future[None]] = []
        self._process = os.getpid()

    @property
    def reserved(self) -> Amount:
        """Of calls under way."""
        return _sum(Amount(), *self._booked.values())

    async def book(self, id: str, amount: Amount) -> None:
        """Reserve an amount; the same id books once. Raises `Skip` where there is no room, and will be none."""
        if self._process != os.getpid():  # a fork: calls under way are the parent's
            self._process, self._booked, self._waiting = os.getpid(), {}, []
        while id not in self._booked:
            if self._has_room(_sum(self.spent, self.reserved, amount)):
                self._booked[id] = amount
            elif self._booked and self._has_room(_sum(self.spent, amount)):
                await self._settling()
            else:
                raise Skip(self._refusal(amount))

    async def settle(self, id: str, actual: Amount | None) -> None:
        """Replace the reserved amount by the actual one; None: it is counted as spent, as the outcome is unknown. An id
        that is not booked changes nothing.
        """
        booked = self._booked.pop(id, None)
        if booked is None:
            return
        self.spent = _sum(self.spent, booked if actual is None else actual)
        waiting, self._waiting = self._waiting, []
        for each in waiting:
            if not each.done():
                each.set_result(None)

    async def _settling(self) -> None:
        settled: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(settled)
        await settled

    def _has_room(self, amount: Amount) -> bool:
        in_usd = self.max_usd is None or amount.usd <= self.max_usd + EXACT
        return in_usd and (self.max_calls is None or amount.calls <= self.max_calls)

    def _refusal(self, amount: Amount) -> str:
        spent, reserved = self.spent, self.reserved
        if self.max_calls is not None and spent.calls + reserved.calls + amount.calls > self.max_calls:
            return f"over budget: max_calls={self.max_calls}, {spent.calls} made, {reserved.calls} under way"
        return (
            f"over budget: max_usd={self.max_usd:g}, ${spent.usd:.6f} spent, ${reserved.usd:.6f} reserved, and this "
            f"call may cost ${amount.usd:.6f}"
        )


def budget_for(max_usd: float | None, max_calls: int | None, given: Ledger | None) -> Ledger | None:
    """The ledger of a judge with these bounds: the given one, unless it is a budget with other bounds."""
    if max_usd is None and max_calls is None:
        return None if isinstance(given, Budget) else given
    if given is None or (isinstance(given, Budget) and (given.max_usd, given.max_calls) != (max_usd, max_calls)):
        return Budget(max_usd=max_usd, max_calls=max_calls)
    return given


def most(judge: Judge, ask: Ask) -> Amount:
    """What one call can cost at most: as many tokens as the question has bytes, and all that a reply may have."""
    usage = Usage(bytes_of(ask) + AROUND, judge.most_tokens)
    return Amount(cost_of(judge, usage) or 0.0, 1)


def bytes_of(ask: Ask) -> int:
    """Bytes of messages and schema."""
    schema = 2 * len(orjson.dumps(ask.schema)) if ask.schema is not None else 0  # some are told it in words, too
    return schema + sum(len(message["content"].encode(errors="replace")) for message in ask.messages)


def _sum(*amounts: Amount) -> Amount:
    return Amount(sum(amount.usd for amount in amounts), sum(amount.calls for amount in amounts))
