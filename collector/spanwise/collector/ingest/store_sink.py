"""Sink of the pipeline that writes decoded items to the store, within the sender's project.

The module waits for commits with `CommitWaiter` instead of `asyncio.wrap_future`, which wakes the loop once per
future and goes through five callbacks. For small requests that costs more than the commit itself.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from typing import Any, Protocol, TypeVar

from spanwise.collector.dialects import Amendment, LogItem, SideRecord, read_via
from spanwise.collector.errors import Closed, Forbidden, Refused
from spanwise.collector.ingest.decode_protocol import EncodedRows
from spanwise.collector.ingest.ingest_errors import ItemRefused, SideRecordRefused
from spanwise.collector.ingest.limits import BATCH_SIZE, check_amendment
from spanwise.collector.ingest.offload import Offloader
from spanwise.collector.ingest.otlp_signals import Request
from spanwise.collector.operations import ProjectScopedStore
from spanwise.collector.records import Feedback, OpenRun, ProcessReport, Run
from spanwise.collector.stores import FeedbackSource, LocalStore, RowStore, Store

Refusals = Sequence[ItemRefused]


class Sink(Protocol):
    """Destination of decoded requests: stores the items, or forwards them or the original `request.body`."""

    async def keep(self, request: Request[Any], items: Sequence[Any]) -> Refusals:
        """Store or forward the items. Return the refusals once all other items are durable. Raises if no item can be
        kept.
        """


class StoreSink:
    """Sink that stores runs, feedback, amendments and side records."""

    def __init__(self, store: Store, beside: Offloader) -> None:
        self._store, self._beside, self._settled = store, beside, CommitWaiter()
        # Stores with their own writer thread need no second thread that waits for it.
        self._append = store.append_async if isinstance(store, LocalStore) else None
        self._takes_rows = store if isinstance(store, RowStore) else None
        self._sends_on = store if isinstance(store, FeedbackSource) else None
        self._kinds: dict[str, Callable[[Sequence[Any]], Awaitable[Refusals]]] = {
            "traces": self._runs,
            "logs": self._logs,
        }

    async def keep(self, request: Request[Any], items: Sequence[Any]) -> Refusals:
        """Store the items of a request; return the refused ones.

        For traces, amendments of other runs come first, then the runs together with their feedback. For logs,
        feedback comes first, then amendments, then the rest.
        """
        if not items:
            return ()
        keep = self._kinds[request.signal.name]
        if request.project is None:
            return await keep(items)
        mine, refusals = await asyncio.to_thread(scope_items, self._store, request.project, items)
        return [*refusals, *(await keep(mine) if mine else ())]

    async def _runs(self, items: Sequence[Any]) -> Refusals:
        if rows := [item for item in items if isinstance(item, EncodedRows)]:
            return await self._written(rows, items[len(rows) :])
        runs = [item for item in items if isinstance(item, Run)]
        if len(runs) == len(items):
            await self._appended(runs)
            return ()
        # amendments come first: those of runs in the same request wait in the store until the runs are appended
        refusals = await asyncio.to_thread(self._amended, items)
        feedback = [item for item in items if isinstance(item, Feedback)]
        await self._appended(runs, feedback[:BATCH_SIZE])
        await self._added(feedback[BATCH_SIZE:])
        return refusals

    async def _written(self, rows: Sequence[EncodedRows], also: Sequence[SideRecord]) -> Refusals:
        """Write runs that a worker has encoded, with their side records."""
        assert self._takes_rows is not None, "rows are made for a store that takes them"
        refusals = await asyncio.to_thread(self._amended, also) if also else ()
        for one in rows[:-1]:
            await self._settled(self._takes_rows.write(one.taken()))
        feedback = [item for item in also if isinstance(item, Feedback)]
        await self._settled(self._takes_rows.write(rows[-1].taken(), feedback[:BATCH_SIZE]))
        await self._added(feedback[BATCH_SIZE:])
        return refusals

    async def _added(self, feedback: Sequence[Feedback]) -> None:
        """Add the feedback that exceeds the limit for the transaction of its runs."""
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
        """Append runs in batches, so that other requests can run in between and memory for encoding is bounded.

        The last batch includes the feedback, so that the runs it refers to are stored before or with it.
        """
        while len(runs) >= BATCH_SIZE:
            await self._settled(await self._beside(append, runs[:BATCH_SIZE]))
            runs = runs[BATCH_SIZE:]
        if runs or any(feedback):
            await self._settled(append(runs, *feedback))

    def _amended(self, items: Sequence[Run | SideRecord]) -> Refusals:
        """Apply amendments that are side records of spans; return the refusals."""
        return [SideRecordRefused(refusal.reason, str(refusal)) for refusal in self._amend(items)]

    async def _logs(self, items: Sequence[LogItem]) -> Refusals:
        return await asyncio.to_thread(self._beside_spans, items)

    def _beside_spans(self, items: Sequence[LogItem]) -> Refusals:
        store = self._store
        if feedback := self._but_our_own([item for item in items if isinstance(item, Feedback)]):
            store.add_feedback(feedback)
        refusals = self._amend(items)
        running = [item for item in items if isinstance(item, OpenRun)]
        for start in range(0, len(running), BATCH_SIZE):
            store.add_running(running[start : start + BATCH_SIZE])
        if reports := [item for item in items if isinstance(item, ProcessReport)]:
            store.add_reports(reports)
        return refusals

    def _but_our_own(self, feedback: Sequence[Feedback]) -> Sequence[Feedback]:
        """Return the feedback, except for rows that this store has forwarded, that came back, and that it still has.

        The store's own version of such a row may be newer.
        """
        passed_on = {id(one): via for one in feedback if (via := read_via(one))}
        if not passed_on or self._sends_on is None:
            return feedback
        us = self._sends_on.identity()
        returned = [one for one in feedback if us in passed_on.get(id(one), ())]
        here = self._sends_on.find_stored_feedback([one.id for one in returned]) if returned else ()
        return [one for one in feedback if not (us in passed_on.get(id(one), ()) and one.id in here)]

    def _amend(self, items: Sequence[Any]) -> list[ItemRefused]:
        """Apply amendments, also to runs that have not arrived; all amendments of one run go into one commit."""
        given, refusals = _validate_amendments([item for item in items if isinstance(item, Amendment)])
        # group amendments by run, in order of arrival
        runs: dict[tuple[str, str, str | None], list[Amendment]] = {}
        for one in given:
            runs.setdefault((one.trace_id, one.span_id, one.response_id), []).append(one)
        whole = list(runs.values())
        for start in range(0, len(whole), BATCH_SIZE):  # in batches, so that other writes can run in between
            refusals += self._amend_all(whole[start : start + BATCH_SIZE])
        return refusals

    def _amend_all(self, runs: Sequence[Sequence[Amendment]]) -> list[ItemRefused]:
        """Apply amendments in one transaction. If the store refuses it, split it repeatedly to find the invalid
        amendments.
        """
        try:
            self._store.add_amendments([amendment for of_run in runs for amendment in of_run])
            return []
        except Closed:  # not the items' fault: the next server may accept them
            raise
        except Refused as error:
            if len(runs) > 1:
                return self._amend_all(runs[: len(runs) // 2]) + self._amend_all(runs[len(runs) // 2 :])
            [said] = runs
            if len(said) == 1:
                return [ItemRefused("refused", str(error))]
            half = len(said) // 2
            return self._amend_all([said[:half]]) + self._amend_all([said[half:]])


def _validate_amendments(amendments: Sequence[Amendment]) -> tuple[list[Amendment], list[ItemRefused]]:
    """Return the valid amendments, and the refusals of the others."""
    given: list[Amendment] = []
    refusals: list[ItemRefused] = []
    for amendment in amendments:
        try:
            check_amendment(amendment.fields)
            given.append(amendment)
        except ItemRefused as refused:
            refusals.append(refused)
        except Refused as error:
            refusals.append(ItemRefused("refused", str(error)))
    return given, refusals


def scope_items(store: Store, project: str, items: Sequence[Run | LogItem]) -> tuple[list[Any], list[ItemRefused]]:
    """Assign items to the project. Return the assigned items, and refusals of items that belong to other projects."""
    mine: list[Any] = []
    refusals: list[ItemRefused] = []
    for one in scope_or_refuse(store, project, items):
        (refusals if isinstance(one, ItemRefused) else mine).append(one)
    return mine, refusals


def scope_or_refuse(store: Store, project: str, items: Sequence[Run | LogItem]) -> list[Any]:
    """Return a list with each item, assigned to the project, or its refusal if it belongs to another project."""
    view = ProjectScopedStore(store, project)
    foreign = view.foreign_traces(_trace_id(item) for item in items)
    others = view.foreign_experiments(_experiment_id(item) for item in items)
    # if the first item is a run, all items other than runs are side records
    beside = isinstance(items[0], Run) if items else False
    found: list[Any] = []
    for item in items:
        try:
            if (trace_id := _trace_id(item)) in foreign:
                raise view.foreign_error("trace", trace_id or "")
            if (experiment_id := _experiment_id(item)) in others:
                raise view.foreign_error("experiment", experiment_id or "")
            found.append(_scope_item(view, item))
        except Forbidden as error:
            if beside and not isinstance(item, Run):
                found.append(SideRecordRefused("project", str(error)))
            else:
                found.append(ItemRefused("project", str(error), item))
    return found


def _trace_id(item: Run | LogItem) -> str | None:
    if isinstance(item, Feedback):
        return item.target.trace_id
    return item.trace_id if isinstance(item, Run | OpenRun | Amendment) else None


def _experiment_id(item: Run | LogItem) -> str | None:
    if isinstance(item, Feedback):
        return item.target.experiment_id
    return item.experiment_id if isinstance(item, Run) else None


def _scope_item(view: ProjectScopedStore, item: Run | LogItem) -> Run | LogItem:
    if isinstance(item, Run | OpenRun | ProcessReport):
        return view.assign_project(item)
    if isinstance(item, Feedback) and item.target.session_id is not None:
        raise view.target_error()
    if isinstance(item, Amendment):
        return view.scope_amendment(item)
    return view.scope_feedback(item) if isinstance(item, Feedback) else item


T = TypeVar("T")


class CommitWaiter:
    """Callable that awaits a future of another thread: `await settled(future)`. For one event loop at a time."""

    def __init__(self) -> None:
        self._mailbox: _LoopWakeup | None = None

    async def __call__(self, future: Future[T]) -> T:
        """Return the future's result or raise its error.

        If the caller is cancelled, a future that has not started is cancelled too.
        """
        if not future.done():
            try:
                loop = asyncio.get_running_loop()
                if self._mailbox is None or self._mailbox.loop is not loop:
                    self._mailbox = _LoopWakeup(loop)
                await self._mailbox.waiter(future)
            except asyncio.CancelledError:
                future.cancel()
                raise
        return future.result()


class _LoopWakeup:
    """Queue of finished futures for one event loop, with at most one pending wake-up."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._settled: deque[asyncio.Future[None]] = deque()
        self._called = False  # True while a wake-up is scheduled and has not run

    def waiter(self, future: Future[Any]) -> asyncio.Future[None]:
        """Return an asyncio future that completes after the thread's future."""
        waiter = self.loop.create_future()
        future.add_done_callback(partial(self._notify_loop, waiter))
        return waiter

    def _notify_loop(self, waiter: asyncio.Future[None], _: Future[Any]) -> None:
        self._settled.append(waiter)  # before `_called` is read, so that a scheduled wake-up sees it
        if not self._called:
            self._called = True
            with suppress(RuntimeError):  # the loop is closed: nothing waits any more
                self.loop.call_soon_threadsafe(self._wake_waiters)

    def _wake_waiters(self) -> None:
        self._called = False
        while self._settled:
            waiter = self._settled.popleft()
            if not waiter.done():
                waiter.set_result(None)
