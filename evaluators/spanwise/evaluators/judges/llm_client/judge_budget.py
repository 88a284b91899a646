"""Budget of judges: prices, reservation of the maximum cost of a call, settlement of the actual cost."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple, Protocol

import orjson

from spanwise.collector.records import Usage
from spanwise.evaluators.interface import Skip
from spanwise.evaluators.judges.llm_client.chat_completions import Ask

if TYPE_CHECKING:
    from spanwise.evaluators.judges.llm_client.judge_settings import JudgeSettings


USD_TOLERANCE = 1e-9  # tolerance in US dollars when comparing sums
MESSAGE_OVERHEAD = 1_024  # bytes for roles, separators and instructions that an endpoint adds to messages and schema


class Amount(NamedTuple):
    """Amount of US dollars and calls."""

    usd: float = 0.0
    calls: int = 0


class Ledger(Protocol):
    """Interface for booking calls: a judge's budget in this process, or a budget in a store that many workers share."""

    async def book(self, id: str, amount: Amount) -> None:
        """Reserve an amount for the call `id`. A second booking with the same id has no effect. Raises `Skip` if the
        budget is exhausted.
        """

    async def settle(self, id: str, actual: Amount | None) -> None:
        """Replace the reserved amount by the actual one. None means that the outcome of the call is unknown: the
        reserved amount stays booked.

        An id without a reservation is ignored.
        """


_current_ledger: ContextVar[Ledger | None] = ContextVar("spanwise-charged", default=None)


@contextmanager
def use_ledger(ledger: Ledger | None) -> Iterator[None]:
    """Book the judge calls of a block in this ledger, in addition to each judge's budget."""
    token = _current_ledger.set(ledger)
    try:
        yield
    finally:
        _current_ledger.reset(token)


def get_ledgers(judge: JudgeSettings) -> list[Ledger]:
    """Return the ledgers in which a judge's calls are booked."""
    return [ledger for ledger in (judge.budget, _current_ledger.get()) if ledger is not None]


class Budget:
    """Ledger within one process, for one judge or several. Only the judges' loop uses it.

    If an amount would fit without the reservations of other calls, the booking waits until these calls are settled,
    because most calls cost less than reserved.
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
        """Return the amount reserved for calls in progress."""
        return _add_amounts(Amount(), *self._booked.values())

    async def book(self, id: str, amount: Amount) -> None:
        """Reserve an amount for the call `id`. A second booking with the same id has no effect. Raises `Skip` if the
        amount would not fit even without the reservations of other calls.
        """
        if self._process != os.getpid():  # after a fork, calls in progress belong to the parent
            self._process, self._booked, self._waiting = os.getpid(), {}, []
        while id not in self._booked:
            if self._has_room(_add_amounts(self.spent, self.reserved, amount)):
                self._booked[id] = amount
            elif self._booked and self._has_room(_add_amounts(self.spent, amount)):
                settled: asyncio.Future[None] = asyncio.get_running_loop().create_future()
                self._waiting.append(settled)
                await settled
            else:
                raise Skip(self._describe_refusal(amount))

    async def settle(self, id: str, actual: Amount | None) -> None:
        """Replace the reserved amount by the actual one. None means that the outcome of the call is unknown: the
        reserved amount counts as spent.

        An id without a reservation is ignored.
        """
        booked = self._booked.pop(id, None)
        if booked is None:
            return
        self.spent = _add_amounts(self.spent, booked if actual is None else actual)
        waiting, self._waiting = self._waiting, []
        for each in waiting:
            if not each.done():
                each.set_result(None)

    def _has_room(self, amount: Amount) -> bool:
        in_usd = self.max_usd is None or amount.usd <= self.max_usd + USD_TOLERANCE
        return in_usd and (self.max_calls is None or amount.calls <= self.max_calls)

    def _describe_refusal(self, amount: Amount) -> str:
        spent, reserved = self.spent, self.reserved
        if self.max_calls is not None and spent.calls + reserved.calls + amount.calls > self.max_calls:
            return f"over budget: max_calls={self.max_calls}, {spent.calls} made, {reserved.calls} under way"
        return (
            f"over budget: max_usd={self.max_usd:g}, ${spent.usd:.6f} spent, ${reserved.usd:.6f} reserved, and this "
            f"call may cost ${amount.usd:.6f}"
        )


def make_budget(max_usd: float | None, max_calls: int | None, given: Ledger | None) -> Ledger | None:
    """Return the ledger for a judge with these limits, or None if it needs none.

    The given ledger is used, unless it is a `Budget` with other limits: then a new `Budget` replaces it. Without
    limits, a given `Budget` is not used.
    """
    if max_usd is None and max_calls is None:
        return None if isinstance(given, Budget) else given
    if given is None or (isinstance(given, Budget) and (given.max_usd, given.max_calls) != (max_usd, max_calls)):
        return Budget(max_usd=max_usd, max_calls=max_calls)
    return given


def compute_max_cost(judge: JudgeSettings, ask: Ask) -> Amount:
    """Return the maximum cost of one call: one token per byte of the question, and the longest reply."""
    usage = Usage(count_question_bytes(ask) + MESSAGE_OVERHEAD, judge.most_tokens)
    return Amount(compute_cost(judge, usage) or 0.0, 1)


def count_question_bytes(ask: Ask) -> int:
    """Return the number of bytes of messages and schema."""
    # the schema counts twice, because some endpoints also get it in the messages
    schema = 2 * len(orjson.dumps(ask.schema)) if ask.schema is not None else 0
    return schema + sum(len(message["content"].encode(errors="replace")) for message in ask.messages)


def _add_amounts(*amounts: Amount) -> Amount:
    return Amount(sum(amount.usd for amount in amounts), sum(amount.calls for amount in amounts))


MILLION = 1_000_000


@lru_cache(maxsize=256)
def look_up_price(model: str, base_url: str | None) -> tuple[float, float] | None:
    """Return US dollars per million tokens of input and of output according to genai-prices, or None if it has no price.

    A model at an unknown address has no price, even if its name is known.
    """
    from genai_prices import Usage as Billed
    from genai_prices import calc_price

    from spanwise.collector.dialects import has_price

    if not has_price(base_url):
        return None
    try:
        price = calc_price(Billed(input_tokens=1, output_tokens=1), model, provider_api_url=base_url)
    except LookupError:
        return None
    return float(price.input_price) * MILLION, float(price.output_price) * MILLION


def compute_cost(judge: JudgeSettings, usage: Usage) -> float | None:
    """Return the US dollars for a judge's call, or None if its price is unknown."""
    if judge.price is not None:
        return (usage.input_tokens * judge.price[0] + usage.output_tokens * judge.price[1]) / MILLION
    if judge.prices is None:
        return None
    # the collector's `compute_cost` accounts for price tiers, cached tokens and time-dependent prices
    from spanwise.collector.dialects import compute_cost, find_provider

    provider = find_provider(judge.base_url) if judge.base_url else None
    return compute_cost(judge.model, usage, {"gen_ai.provider.name": provider}, time.time_ns())
