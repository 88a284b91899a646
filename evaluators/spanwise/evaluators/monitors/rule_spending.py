"""Spending of a rule: budget ledger in the store, and pacing of the sample rate over the day and the month.

Before each call, its maximum cost is booked in the store, also for a rule without a budget. After the call, the
booking is settled with the actual cost. Concurrent bookings share one request. If a worker dies in between, its
bookings remain.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import NamedTuple

from spanwise.collector.records import Backfill, Booking, BudgetUsage, Period, Rule, Spender
from spanwise.collector.rule_policy import MIN_PACING_FACTOR, find_period, get_budget_period
from spanwise.collector.stores import Store
from spanwise.evaluators.interface import Evaluator, Skip
from spanwise.evaluators.judges import UNKNOWN_MODEL, Amount, AskedModel, Judge, Ledger
from spanwise.evaluators.monitors.monitored_rule import ActiveRule, RuleKey, rule_key

BATCH_DELAY_S = 0.005  # seconds for which bookings and settlements are collected before they are sent
STORE_RETRY_S = 2.0  # seconds until the next request if the store did not answer
# seconds that a call waits for other calls of this worker to be settled, which usually cost less than they reserved
OWN_CALLS_WAIT_S = 30.0
SECOND_NS = 1_000_000_000
MAX_NESTING = 4  # maximum nesting of objects that are searched for judges


class BudgetExceeded(Skip):
    """Error for a call that does not fit into a budget.

    `settled` is the part of the budget that is spent. The budget's period ends in `left` seconds.
    """

    def __init__(self, reason: str, *, settled: float, left: float, end_ns: int) -> None:
        super().__init__(reason)
        self.settled, self.left, self.end_ns = settled, left, end_ns


class BudgetLimit(NamedTuple):
    """Limit of a budget: US dollars or calls, per month, day or minute."""

    key: str  # key in the rule's budget, such as "usd_per_day"
    limit: float
    prefix: str = ""  # before the key in the names of the budget and of bookings, for those of backfills

    @property
    def period(self) -> Period:
        """Return the period of the limit."""
        return get_budget_period(self.key)

    def measure(self, amount: Amount) -> float:
        """Return the part of an amount that counts against this limit."""
        return amount.usd if self.key.startswith("usd") else float(amount.calls)


UNLIMITED = BudgetLimit("usd", sys.float_info.max)  # booked for a rule without a limit in US dollars


def budget_name(project: str, rule: str, key: str) -> str:
    """Return the name under which the store records how much of a limit a rule has spent."""
    return f"{project}/{rule}/{key}"


def find_unpriced_judge(budget: Mapping[str, float], evaluators: Sequence[Evaluator]) -> str | None:
    """Return the reason why a rule's budget in dollars cannot be enforced; None if it can be.

    It cannot be enforced if the price of one of its judges is unknown.
    """
    if not any(key.startswith("usd") for key in budget):
        return None
    judges = (judge for evaluator in evaluators for judge in _find_judges(evaluator.function))
    if (judge := next((judge for judge in judges if judge.prices is None), None)) is None:
        return None
    return (
        f"its budget in US dollars cannot be enforced: the price of {judge.model or 'its judge'!r} is unknown; give "
        "the judge price=(dollars per million input tokens, per million output tokens), or use calls_per_day"
    )


def _find_judges(value: object, depth: int = 0) -> Iterator[Judge]:
    """Yield the judges that an evaluator's function holds, including those in panels."""
    if isinstance(value, Judge):
        yield value
    elif depth < MAX_NESTING and isinstance(value, list | tuple):
        for member in value:
            yield from _find_judges(member, depth + 1)
    elif depth < MAX_NESTING and is_dataclass(value) and not isinstance(value, type):
        for field in fields(value):
            yield from _find_judges(getattr(value, field.name, None), depth + 1)


class _BookingRequest(NamedTuple):
    bookings: Sequence[Booking]
    answer: asyncio.Future[list[bool]]


# Share of each period's budget of a rule that its backfills may use, so that live traffic has the rest
BACKFILL_SHARE = 0.5
BACKFILL_PREFIX = "backfill/"  # of the amount that backfills have spent of a rule's own budget
NO_LIMIT = 1e15


def get_execution_budget(active_rule: ActiveRule, backfill: Backfill | None) -> Mapping[str, float]:
    """Return the budget of a rule's live traffic, or that of a backfill: its own, or its share of the rule's."""
    budget = active_rule.in_force.settings.budget
    if backfill is None:
        return budget
    return backfill.budget or {key: BACKFILL_SHARE * limit for key, limit in budget.items()}


class StoreLedger:
    """Budget ledger of one rule or of a backfill, with the limits that are in force. It runs on the event loop of the
    judges.

    One booking of each call carries the spender: that of a limit in US dollars or, if there is none, `UNLIMITED`.
    """

    def __init__(self, store: Store, active_rule: ActiveRule, backfill: Backfill | None = None) -> None:
        self._store, self._active_rule, self._backfill = store, active_rule, backfill
        self._booked: dict[str, Sequence[BudgetLimit]] = {}  # calls that are not settled yet, with their limits
        self._requests: list[_BookingRequest] = []  # bookings to send
        self._settled: dict[str, float] = {}  # settlements to send
        self._sender: asyncio.Task[None] | None = None
        self._waiting: list[asyncio.Future[None]] = []  # calls that wait until another call is settled

    def of_evaluator(self, key: str) -> Ledger:
        """Return the ledger for the calls of one evaluator."""
        return _EvaluatorLedger(self, key)

    async def book(self, id: str, amount: Amount, model: AskedModel = UNKNOWN_MODEL, evaluator: str = "") -> None:
        """Reserve an amount for a call of an evaluator. Repeating the call with the same id has no effect.

        Raises `BudgetExceeded` if the amount does not fit into the budget.
        """
        limits = self._list_limits()
        if not any(limit.key.startswith("usd") for limit in limits):
            limits.append(UNLIMITED)
        charged = next(limit for limit in limits if limit.key.startswith("usd") and limit.prefix != BACKFILL_PREFIX)
        project, rule = self._active_rule.name
        spender = Spender(project=project, rule=rule, evaluator=evaluator, model=model.name, priced=model.priced)
        until = time.monotonic() + OWN_CALLS_WAIT_S
        while id not in self._booked:
            bookings = [
                Booking(
                    id=f"{id}:{limit.prefix}{limit.key}",
                    budget=budget_name(*self._active_rule.name, limit.prefix + limit.key),
                    amount=limit.measure(amount),
                    limit=limit.limit,
                    period=limit.period,
                    spender=spender if limit is charged else None,
                )
                for limit in limits
            ]
            answer: asyncio.Future[list[bool]] = asyncio.get_running_loop().create_future()
            self._requests.append(_BookingRequest(bookings, answer))
            self._start_sending()
            booked = await answer
            if all(booked):
                self._booked[id] = limits
                return
            for limit, is_booked in zip(limits, booked, strict=True):
                if is_booked:  # release the part that was booked
                    self._settled[f"{id}:{limit.prefix}{limit.key}"] = 0.0
            self._start_sending()
            full = limits[booked.index(False)]
            if not self._booked or time.monotonic() > until:
                raise await asyncio.to_thread(self._make_refusal, full, amount)
            # wait: settling the worker's own calls may free a part of the budget
            settled: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(settled)
            await asyncio.wait([settled], timeout=OWN_CALLS_WAIT_S)

    async def settle(self, id: str, actual: Amount | None) -> None:
        """Replace the reserved amount by the actual one. With None the cost is unknown, and the reservation remains.

        An unknown id is ignored.
        """
        for limit in self._booked.pop(id, ()):
            if actual is not None:
                self._settled[f"{id}:{limit.prefix}{limit.key}"] = limit.measure(actual)
        self._start_sending()
        waiting, self._waiting = self._waiting, []
        for future in waiting:
            if not future.done():
                future.set_result(None)

    def _list_limits(self) -> list[BudgetLimit]:
        """Return the limits in force. What a backfill spends of a paced budget is booked a second time, so that pacing
        can leave it out.
        """
        budget, job = get_execution_budget(self._active_rule, self._backfill), self._backfill
        prefix = f"backfill/{job.id}/" if job is not None and job.budget else ""
        limits = [BudgetLimit(key, limit, prefix) for key, limit in budget.items()]
        if job is not None and not job.budget:
            limits += [BudgetLimit(key, NO_LIMIT, BACKFILL_PREFIX) for key in PACED_BUDGETS if key in budget]
        return limits

    def _start_sending(self) -> None:
        if self._sender is None or self._sender.done():
            self._sender = asyncio.get_running_loop().create_task(self._send_batches())

    async def _send_batches(self) -> None:
        """Send settlements and then bookings to the store, until none is pending."""
        await asyncio.sleep(BATCH_DELAY_S)
        while self._requests or self._settled:
            settled, self._settled = self._settled, {}
            requests, self._requests = self._requests, []
            await self._exchange(settled, requests)

    async def _exchange(self, settled: Mapping[str, float], requests: Sequence[_BookingRequest]) -> None:
        try:
            if settled:
                await asyncio.to_thread(self._store.settle, settled)
            bookings = [booking for request in requests for booking in request.bookings]
            booked = await asyncio.to_thread(self._store.book, *bookings) if bookings else []
        except BaseException as error:
            self._settled = {**settled, **self._settled}  # send it again: repeating a settlement has no effect
            for request in requests:
                if not request.answer.done():
                    request.answer.set_exception(error)
            if not isinstance(error, Exception):
                raise
            await asyncio.sleep(STORE_RETRY_S)
            return
        for request in requests:
            answers, booked = booked[: len(request.bookings)], booked[len(request.bookings) :]
            if not request.answer.done():
                request.answer.set_result(answers)

    def _make_refusal(self, full: BudgetLimit, amount: Amount) -> BudgetExceeded:
        """Return the error for a call that does not fit, with the state of the budget and the end of its period."""
        periods = self._store.booked(budget_name(*self._active_rule.name, full.prefix + full.key))
        now_ns = self._store.changes(limit=1).now_ns
        start_ns, end_ns = find_period(full.period, now_ns)
        current = (period for period in periods if period.period_start_ns == start_ns)
        used = next(current, BudgetUsage(budget="", period_start_ns=0))
        unknown = f", {used.unknown:.6g} cost unknown" if used.unknown else ""
        reason = (
            f"{full.key}={full.limit:g}, {used.settled:.6g} spent, {used.reserved:.6g} reserved{unknown}, and this "
            f"call may take {full.measure(amount):.6g}"
        )
        return BudgetExceeded(reason, settled=used.settled, left=(end_ns - now_ns) / SECOND_NS, end_ns=end_ns)


@dataclass(frozen=True, slots=True)
class _EvaluatorLedger:
    """Ledger of a rule for the calls of one of its evaluators."""

    ledger: StoreLedger
    evaluator: str

    async def book(self, id: str, amount: Amount, model: AskedModel = UNKNOWN_MODEL) -> None:
        await self.ledger.book(id, amount, model, self.evaluator)

    async def settle(self, id: str, actual: Amount | None) -> None:
        await self.ledger.settle(id, actual)


PACING_INTERVAL_S = 2.0  # seconds between two measurements of spending
MIN_CHANGE_INTERVAL_S = 60.0  # minimum seconds between two changes of the rate
SPEND_WINDOW_S = 600.0  # seconds over which the rate of spending is measured
MIN_CHANGE = 0.1  # smaller relative changes are not made, to keep the history short
MAX_INCREASE = 2.0  # maximum increase of a rate in one change, because spending follows with a delay
DAY_S = 86_400.0
PACED_BUDGETS = ("usd_per_month", "usd_per_day")


class PacedBudget(NamedTuple):
    """Amounts of a paced budget in the present period, and the period's start and end in seconds since 1970.

    `spent` is the amount of live traffic, `backfilled` that of backfills.
    """

    spent: float
    limit: float
    start: float
    end: float
    backfilled: float = 0.0


class Pacer:
    """Pacer of one rule. The rule's sample rates are multiplied by `factor`.

    The factor is at least `MIN_PACING_FACTOR`, so that a burst of traffic does not end the scoring for the
    period. If spending is still too high, the rule stops when the budget is used up.
    """

    def __init__(self, factor: float | None) -> None:
        self.factor = 1.0 if factor is None else factor
        self._measured: deque[tuple[float, float]] = deque()  # (time, amount spent by then)
        self._period_start = float("-inf")
        self._changed_at: float | None = None

    def is_due(self, now: float) -> bool:
        """Return whether spending is to be measured again."""
        return not self._measured or now >= self._measured[-1][0] + PACING_INTERVAL_S

    def update(self, now: float, *budgets: PacedBudget) -> float | None:
        """Record the spending of one or more budgets. Return the new factor if it changes, else None.

        The argument `now` is in seconds since 1970, UTC. The strictest budget counts. The one with the longest
        period measures the speed, without what backfills spend of it.
        """
        longest = max(budgets, key=lambda budget: budget.end - budget.start)
        spent, start = longest.spent, longest.start
        if start != self._period_start:
            self._measured.clear()
            self._period_start = start
        self._measured.append((now, spent))
        while now - self._measured[0][0] > SPEND_WINDOW_S:
            self._measured.popleft()
        began, before = self._measured[0]
        if now - began < PACING_INTERVAL_S or (
            self._changed_at is not None and now < self._changed_at + MIN_CHANGE_INTERVAL_S
        ):
            return None
        speed = (spent - before) / (now - began)  # dollars per second
        allowed = min(max(0.0, one.limit - one.spent - one.backfilled) / max(1.0, one.end - now) for one in budgets)
        if speed > 0:
            wanted = max(MIN_PACING_FACTOR, min(1.0, self.factor * MAX_INCREASE, self.factor * allowed / speed))
        else:
            wanted = min(1.0, MAX_INCREASE * self.factor) if allowed > 0 else self.factor
        if abs(wanted - self.factor) < MIN_CHANGE * self.factor and not (wanted == 1.0 != self.factor):
            return None
        self.factor, self._changed_at = wanted, now
        self._measured = deque([(now, spent)])
        return wanted


class BudgetPacing:
    """Pacers of the rules for which this process decides."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._pacers: dict[RuleKey, Pacer] = {}

    def adjust(self, rules: Iterable[Rule], now: float) -> None:
        """Change the sample rates of those rules that spend too fast or too slowly. `now` is the store's time, in
        seconds since 1970.
        """
        paced = {
            rule_key(rule): rule
            for rule in rules
            if rule.settings.pace and any(name in rule.settings.budget for name in PACED_BUDGETS)
        }
        self._pacers = {name: pacer for name, pacer in self._pacers.items() if name in paced}
        for name, rule in paced.items():
            pacer = self._pacers.setdefault(name, Pacer(rule.settings.paced))
            if not pacer.is_due(now):
                continue
            budgets = []
            for limit in (BudgetLimit(*item) for item in rule.settings.budget.items() if item[0] in PACED_BUDGETS):
                start_ns, end_ns = find_period(limit.period, int(now) * SECOND_NS)
                total, backfilled = (
                    sum(
                        one.settled + one.reserved + one.unknown
                        for one in self._store.booked(budget_name(rule.project, rule.name, prefix + limit.key))
                        if one.period_start_ns == start_ns
                    )
                    for prefix in ("", BACKFILL_PREFIX)
                )
                live = max(0.0, total - backfilled)
                ends = start_ns / SECOND_NS, end_ns / SECOND_NS
                budgets.append(PacedBudget(live, limit.limit, *ends, backfilled))
            factor = pacer.update(now, *budgets)
            if factor is not None:
                settings = {"paced": None if factor == 1.0 else factor}
                self._store.change_rule(rule.name, project=rule.project, settings=settings)
