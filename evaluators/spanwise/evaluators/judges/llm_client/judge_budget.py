"""Budget of judges: ledgers that reserve the maximum cost of a call and settle its actual cost."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import NamedTuple, Protocol

from spanwise.evaluators.interface import Skip

USD_TOLERANCE = 1e-9  # tolerance in US dollars when comparing sums


class Amount(NamedTuple):
    """Amount of US dollars and calls."""

    usd: float = 0.0
    calls: int = 0


class AskedModel(NamedTuple):
    """Model that a call asks. `priced` is False if its price is unknown, so that the amount has no US dollars."""

    name: str
    priced: bool


UNKNOWN_MODEL = AskedModel("", priced=False)


class Ledger(Protocol):
    """Interface for booking calls: a judge's budget in this process, or a budget in a store that many workers share."""

    async def book(self, id: str, amount: Amount, model: AskedModel = UNKNOWN_MODEL) -> None:
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


def get_ledgers(budget: Ledger | None) -> list[Ledger]:
    """Return the ledgers in which the calls of a judge with this budget are booked."""
    return [ledger for ledger in (budget, _current_ledger.get()) if ledger is not None]


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

    async def book(self, id: str, amount: Amount, model: AskedModel = UNKNOWN_MODEL) -> None:
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


def _add_amounts(*amounts: Amount) -> Amount:
    return Amount(sum(amount.usd for amount in amounts), sum(amount.calls for amount in amounts))
