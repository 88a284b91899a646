"""Where what was taken in goes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Future
from typing import Any, Protocol

from spanwise.collector.dialects import Also, Amendment, LogItem, via_of
from spanwise.collector.errors import Closed, Refused
from spanwise.collector.intake._apart import Rows
from spanwise.collector.intake._beside import Beside
from spanwise.collector.intake._errors import BesideRefused, ItemRefused
from spanwise.collector.intake._held import held
from spanwise.collector.intake._large import MANY
from spanwise.collector.intake._settled import Settled
from spanwise.collector.intake._signal import Request
from spanwise.collector.intake._texts import check_amended
from spanwise.collector.records import Feedback, OpenRun, ProcessReport, Run
from spanwise.collector.stores import SendsOn, Serving, Store, TakesRows

Refusals = Sequence[ItemRefused]


class Keeper(Protocol):
    """Keeps what a request brought, or passes it on (its items, if any, or `request.body` as it came)."""

    async def keep(self, request: Request[Any], items: Sequence[Any]) -> Refusals:
        """Return when the items are durable, with the reasons why single ones are not; raise when none is."""


class StoreKeeper:
    """Keeps runs, feedback, amendments and what is said beside spans in a store."""

    def __init__(self, store: Store, beside: Beside) -> None:
        self._store, self._beside, self._settled = store, beside, Settled()
        # Stores that write in a thread of their own need no second one to wait for it
        self._append = store.append_async if isinstance(store, Serving) else None
        self._takes_rows = store if isinstance(store, TakesRows) else None
        self._sends_on = store if isinstance(store, SendsOn) else None
        self._kinds: dict[str, Callable[[Sequence[Any]], Awaitable[Refusals]]] = {
            "traces": self._runs,
            "logs": self._logs,
        }

    async def keep(self, request: Request[Any], items: Sequence[Any]) -> Refusals:
        """What came beside runs for other runs is kept, then runs are appended, with the feedback beside them. Of logs
        feedback is added first, then runs are amended, then comes the rest.
        """
        if not items:
            return ()
        keep = self._kinds[request.signal.name]
        if request.project is None:
            return await keep(items)
        mine, refusals = await asyncio.to_thread(held, self._store, request.project, items)
        return [*refusals, *(await keep(mine) if mine else ())]

    async def _runs(self, items: Sequence[Any]) -> Refusals:
        if rows := [item for item in items if isinstance(item, Rows)]:
            return await self._written(rows, items[len(rows) :])
        runs = [item for item in items if isinstance(item, Run)]
        if len(runs) == len(items):
            await self._appended(runs)
            return ()
        refusals = await asyncio.to_thread(self._amended, items)  # first, so that they wait for what comes with them
        feedback = [item for item in items if isinstance(item, Feedback)]
        await self._appended(runs, feedback[:MANY])
        await self._added(feedback[MANY:])
        return refusals

    async def _written(self, rows: Sequence[Rows], also: Sequence[Also]) -> Refusals:
        """As runs, of what another process made of them."""
        assert self._takes_rows is not None, "rows are made for a store that takes them"
        refusals = await asyncio.to_thread(self._amended, also) if also else ()
        for one in rows[:-1]:
            await self._settled(self._takes_rows.write(one.taken()))
        feedback = [item for item in also if isinstance(item, Feedback)]
        await self._settled(self._takes_rows.write(rows[-1].taken(), feedback[:MANY]))
        await self._added(feedback[MANY:])
        return refusals

    async def _added(self, feedback: Sequence[Feedback]) -> None:
        """What is too much to be written with the runs that it came with: afterwards, in several transactions."""
        if feedback:
            await asyncio.to_thread(self._store.add_feedback, feedback)

    async def _appended(self, runs: Sequence[Run], *feedback: Sequence[Feedback]) -> None:
        if self._append is None:
            await asyncio.to_thread(self._store.append, runs, *feedback)
        else:
            await self._in_slices(self._append, runs, *feedback)

    async def _in_slices(
        self, append: Callable[..., Future[None]], runs: Sequence[Run], *feedback: Sequence[Feedback]
    ) -> None:
        """Append; of many some at a time, so that others have their turn, and not all are encoded at once.

        Feedback goes with the last of them: nothing speaks of a run of this request that is not there.
        """
        while len(runs) >= MANY:
            await self._settled(await self._beside(append, runs[:MANY]))
            runs = runs[MANY:]
        if runs or any(feedback):
            await self._settled(append(runs, *feedback))

    def _amended(self, items: Sequence[Run | Also]) -> Refusals:
        """Amend the runs of which something was said beside others; why that could not be."""
        return [BesideRefused(refusal.reason, str(refusal)) for refusal in self._amend(items)]

    async def _logs(self, items: Sequence[LogItem]) -> Refusals:
        return await asyncio.to_thread(self._beside_spans, items)

    def _beside_spans(self, items: Sequence[LogItem]) -> Refusals:
        store = self._store
        if feedback := self._but_our_own([item for item in items if isinstance(item, Feedback)]):
            store.add_feedback(feedback)
        refusals = self._amend(items)
        running = [item for item in items if isinstance(item, OpenRun)]
        for start in range(0, len(running), MANY):
            store.add_running(running[start : start + MANY])
        if reports := [item for item in items if isinstance(item, ProcessReport)]:
            store.add_reports(reports)
        return refusals

    def _but_our_own(self, feedback: Sequence[Feedback]) -> Sequence[Feedback]:
        """Without what was sent on from here and has come back: it is here, perhaps said anew since then."""
        passed_on = {id(one): via for one in feedback if (via := via_of(one))}
        if not passed_on or self._sends_on is None:
            return feedback
        us = self._sends_on.identity()
        returned = [one for one in feedback if us in passed_on.get(id(one), ())]
        here = self._sends_on.feedback_there([one.id for one in returned]) if returned else ()
        return [one for one in feedback if not (us in passed_on.get(id(one), ()) and one.id in here)]

    def _amend(self, items: Sequence[Any]) -> list[ItemRefused]:
        """Amend runs, those also that are not here yet: what is said of one run at once, so many runs in one commit."""
        given, refusals = _sound([item for item in items if isinstance(item, Amendment)])
        whole = _by_run(given)
        for start in range(0, len(whole), MANY):  # so that others have their turn between
            refusals += self._amend_all(whole[start : start + MANY])
        return refusals

    def _amend_all(self, runs: Sequence[Sequence[Amendment]]) -> list[ItemRefused]:
        """All at once; in halves where the store refuses some, down to those."""
        try:
            self._store.add_amendments([amendment for of_run in runs for amendment in of_run])
            return []
        except Closed:  # no fault of the items': the next server may keep them
            raise
        except Refused as error:
            if len(runs) > 1:
                return self._amend_all(runs[: len(runs) // 2]) + self._amend_all(runs[len(runs) // 2 :])
            [said] = runs
            if len(said) == 1:
                return [ItemRefused("refused", str(error))]
            half = len(said) // 2
            return self._amend_all([said[:half]]) + self._amend_all([said[half:]])


def _by_run(amendments: Sequence[Amendment]) -> list[list[Amendment]]:
    """What is said of each run, in the order in which it came."""
    runs: dict[tuple[str, str, str | None], list[Amendment]] = {}
    for one in amendments:
        runs.setdefault((one.trace_id, one.span_id, one.response_id), []).append(one)
    return list(runs.values())


def _sound(amendments: Sequence[Amendment]) -> tuple[list[Amendment], list[ItemRefused]]:
    """Those that a run can have, and why others are refused."""
    given: list[Amendment] = []
    refusals: list[ItemRefused] = []
    for amendment in amendments:
        try:
            check_amended(amendment.fields)
            given.append(amendment)
        except ItemRefused as refused:
            refusals.append(refused)
        except Refused as error:
            refusals.append(ItemRefused("refused", str(error)))
    return given, refusals
