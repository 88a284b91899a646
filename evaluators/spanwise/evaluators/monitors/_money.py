"""What a rule's judges may spend, over all workers: a ledger over the store's budgets.

Each call is booked in the store before it is made, at the most that it can cost, and settled after it; what is to be
booked at the same time goes in one request. A worker that dies in between leaves what it has booked.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import NamedTuple

from spanwise.collector.records import Booked, Booking, Period
from spanwise.collector.stores import Store
from spanwise.evaluators.judges import Amount, Judge
from spanwise.evaluators.monitors._held import Held
from spanwise.evaluators.protocol import Evaluator, Skip

LINGER = 0.005  # seconds in which bookings and settlements gather
LENGTH: Mapping[str, int] = {"minute": 60, "day": 86_400}
SOON = 2.0  # seconds until the store is asked again after it did not answer
OWN = 30.0  # seconds that own calls are waited for, which mostly come to less than was reserved for them
SECOND = 1_000_000_000
NESTED = 4  # levels of objects in which judges are looked for


class OverBudget(Skip):
    """There is no room for a call in a budget of which `settled` is spent; its period ends in `left` seconds."""

    def __init__(self, why: str, *, settled: float, left: float, end_ns: int) -> None:
        super().__init__(why)
        self.settled, self.left, self.end_ns = settled, left, end_ns


class Limit(NamedTuple):
    """One bound: US dollars or calls, by the day or by the minute."""

    key: str  # as settings call it: "usd_per_day"
    limit: float

    @property
    def period(self) -> Period:
        """Day or minute."""
        return "day" if self.key.endswith("day") else "minute"

    def of(self, amount: Amount) -> float:
        """What an amount takes of it."""
        return amount.usd if self.key.startswith("usd") else float(amount.calls)


def budget_of(project: str, rule: str, key: str) -> str:
    """The name under which a store keeps what a rule has spent of a bound."""
    return f"{project}/{rule}/{key}"


def unpriced(budget: Mapping[str, float], evaluators: Sequence[Evaluator]) -> str | None:
    """Return why a rule's budget in dollars cannot be kept: the price of one of its judges is unknown."""
    if not any(key.startswith("usd") for key in budget):
        return None
    judges = (judge for evaluator in evaluators for judge in _judges_in(evaluator.function))
    if (judge := next((judge for judge in judges if judge.prices is None), None)) is None:
        return None
    return (
        f"its budget in dollars cannot be kept: the price of {judge.model or 'its judge'!r} is unknown; give the judge "
        "price=(dollars per million input tokens, per million output tokens), or use calls_per_day"
    )


def _judges_in(value: object, depth: int = 0) -> Iterator[Judge]:
    """Yield the judges that an evaluator's function holds, in panels too."""
    if isinstance(value, Judge):
        yield value
    elif depth < NESTED and isinstance(value, list | tuple):
        for each in value:
            yield from _judges_in(each, depth + 1)
    elif depth < NESTED and is_dataclass(value) and not isinstance(value, type):
        for field in fields(value):
            yield from _judges_in(getattr(value, field.name, None), depth + 1)


class _Asked(NamedTuple):
    bookings: Sequence[Booking]
    answer: asyncio.Future[list[bool]]


class StoreLedger:
    """A `Ledger` of one rule, with the limits that are in force. Lives on the judges' loop."""

    def __init__(self, store: Store, held: Held) -> None:
        self._store, self._held = store, held
        self._project, self._rule = held.name
        self._asked: list[_Asked] = []
        self._settled: dict[str, float] = {}
        self._sending: asyncio.Task[None] | None = None
        self._booked: dict[str, Sequence[Limit]] = {}
        self._settling: list[asyncio.Future[None]] = []

    async def book(self, id: str, amount: Amount) -> None:
        """Reserve an amount; the same id books once. Raises `OverBudget` where there is no room."""
        limits = [Limit(key, limit) for key, limit in self._held.in_force.settings.budget.items()]
        until = time.monotonic() + OWN
        while limits and id not in self._booked:
            kept = await self._ask([self._booking(id, limit, amount) for limit in limits])
            if all(kept):
                self._booked[id] = limits
                return
            self._give_back(id, [limit for limit, held in zip(limits, kept, strict=True) if held])
            full = limits[kept.index(False)]
            if not self._booked or time.monotonic() > until:
                raise await self._refusal(full, amount)
            await self._own_settlement()

    async def settle(self, id: str, actual: Amount | None) -> None:
        """Replace the reserved amount by the actual one; None: it stays booked, with its cost unknown.

        An id that is not booked changes nothing.
        """
        for limit in self._booked.pop(id, ()):
            if actual is not None:
                self._settled[f"{id}:{limit.key}"] = limit.of(actual)
        self._send()
        waiting, self._settling = self._settling, []
        for each in waiting:
            if not each.done():
                each.set_result(None)

    def _booking(self, id: str, limit: Limit, amount: Amount) -> Booking:
        budget = budget_of(self._project, self._rule, limit.key)
        return Booking(
            id=f"{id}:{limit.key}", budget=budget, amount=limit.of(amount), limit=limit.limit, period=limit.period
        )

    def _give_back(self, id: str, limits: Sequence[Limit]) -> None:
        for limit in limits:
            self._settled[f"{id}:{limit.key}"] = 0.0
        self._send()

    async def _ask(self, bookings: Sequence[Booking]) -> list[bool]:
        answer: asyncio.Future[list[bool]] = asyncio.get_running_loop().create_future()
        self._asked.append(_Asked(bookings, answer))
        self._send()
        return await answer

    async def _own_settlement(self) -> None:
        settled: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._settling.append(settled)
        await asyncio.wait([settled], timeout=OWN)

    def _send(self) -> None:
        if self._sending is None or self._sending.done():
            self._sending = asyncio.get_running_loop().create_task(self._sent())

    async def _sent(self) -> None:
        """Settle, then book, until nothing is left to be sent."""
        await asyncio.sleep(LINGER)
        while self._asked or self._settled:
            settled, self._settled = self._settled, {}
            asked, self._asked = self._asked, []
            await self._exchange(settled, asked)

    async def _exchange(self, settled: Mapping[str, float], asked: Sequence[_Asked]) -> None:
        try:
            if settled:
                await asyncio.to_thread(self._store.settle, settled)
            bookings = [booking for one in asked for booking in one.bookings]
            kept = await asyncio.to_thread(self._store.book, *bookings) if bookings else []
        except BaseException as error:
            self._settled = {**settled, **self._settled}  # the same again changes nothing
            for one in asked:
                if not one.answer.done():
                    one.answer.set_exception(error)
            if not isinstance(error, Exception):
                raise
            await asyncio.sleep(SOON)
            return
        for one in asked:
            mine, kept = kept[: len(one.bookings)], kept[len(one.bookings) :]
            if not one.answer.done():
                one.answer.set_result(mine)

    async def _refusal(self, full: Limit, amount: Amount) -> OverBudget:
        """Return why there is no room, and until when the period goes on."""
        now_ns, booked = await asyncio.to_thread(self._seen, full)
        length = LENGTH[full.period] * SECOND
        start_ns = now_ns // length * length
        used = next((one for one in booked if one.period_start_ns == start_ns), Booked(budget="", period_start_ns=0))
        unknown = f", {used.unknown:.6g} cost unknown" if used.unknown else ""
        why = (
            f"{full.key}={full.limit:g}, {used.settled:.6g} spent, {used.reserved:.6g} reserved{unknown}, and this "
            f"call may take {full.of(amount):.6g}"
        )
        end_ns = start_ns + length
        return OverBudget(why, settled=used.settled, left=(end_ns - now_ns) / SECOND, end_ns=end_ns)

    def _seen(self, full: Limit) -> tuple[int, list[Booked]]:
        booked = self._store.booked(budget_of(self._project, self._rule, full.key))
        return self._store.changes(limit=1).now_ns, booked
