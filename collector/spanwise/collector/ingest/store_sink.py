"""Sink of the pipeline that writes decoded items to the store, within the sender's project.

The module waits for commits with `CommitWaiter` instead of `asyncio.wrap_future`, which wakes the loop once per
future and goes through five callbacks. For small requests that costs more than the commit itself.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from typing import Any, Protocol, TypeVar

from spanwise.collector.dialects import Amendment, LogItem, SideRecord, read_via
from spanwise.collector.errors import Closed, Forbidden, Refused
from spanwise.collector.ingest.decode_pool import Offloader
from spanwise.collector.ingest.otlp_signals import EncodedRows, Request
from spanwise.collector.ingest.request_decoder import BATCH_SIZE, ItemRefused, SideRecordRefused, check_amendment
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

    def __init__(self, store: Store, offloader: Offloader) -> None:
        self._store, self._offloader, self._commit = store, offloader, CommitWaiter()
        # Stores with their own writer thread need no second thread that waits for it.
        self._append_async = store.append_async if isinstance(store, LocalStore) else None
        self._row_store = store if isinstance(store, RowStore) else None
        self._feedback_source = store if isinstance(store, FeedbackSource) else None

    async def keep(self, request: Request[Any], items: Sequence[Any]) -> Refusals:
        """Store the items of a request; return the refused ones.

        For traces, amendments of other runs come first, then the runs together with their feedback. For logs,
        feedback comes first, then amendments, then the rest.
        """
        refusals: Refusals = ()
        if items and request.project is not None:
            items, refusals = await asyncio.to_thread(scope_items, self._store, request.project, items)
        if not items:
            return refusals
        if request.signal.name == "traces":
            refused = await self._store_runs(items)
        else:
            refused = await asyncio.to_thread(self._store_log_items, items)
        return [*refusals, *refused] if refusals else refused

    async def _store_runs(self, items: Sequence[Any]) -> Refusals:
        """Store runs, or rows of runs that a worker has encoded, with their side records."""
        if isinstance(items[0], EncodedRows):
            assert self._row_store is not None, "workers encode rows only for a store that takes them"
            rows = [item for item in items if isinstance(item, EncodedRows)]
            side_records = items[len(rows) :]
            refusals = await asyncio.to_thread(self._amend_runs, side_records) if side_records else ()
            feedback = [item for item in side_records if isinstance(item, Feedback)]
            for encoded in rows[:-1]:
                await self._commit(self._row_store.write(encoded.take()))
            await self._commit(self._row_store.write(rows[-1].take(), feedback[:BATCH_SIZE]))
        else:
            runs = [item for item in items if isinstance(item, Run)]
            if len(runs) == len(items):
                await self._append(runs)
                return ()
            # amendments come first: those of runs in the same request wait in the store until the runs are appended
            refusals = await asyncio.to_thread(self._amend_runs, items)
            feedback = [item for item in items if isinstance(item, Feedback)]
            await self._append(runs, feedback[:BATCH_SIZE])
        if len(feedback) > BATCH_SIZE:  # feedback that exceeds the limit for the transaction of its runs
            await asyncio.to_thread(self._store.add_feedback, feedback[BATCH_SIZE:])
        return refusals

    async def _append(self, runs: Sequence[Run], *feedback: Sequence[Feedback]) -> None:
        """Append runs in batches, so that other requests can run in between and memory for encoding is bounded.

        The last batch includes the feedback, so that the runs it refers to are stored before or with it.
        """
        append = self._append_async
        if append is None:
            await asyncio.to_thread(self._store.append, runs, *feedback)
            return
        while len(runs) >= BATCH_SIZE:
            await self._commit(await self._offloader(append, runs[:BATCH_SIZE]))
            runs = runs[BATCH_SIZE:]
        if runs or any(feedback):
            await self._commit(append(runs, *feedback))

    def _amend_runs(self, items: Sequence[Run | SideRecord]) -> Refusals:
        """Apply amendments that are side records of spans; return the refusals."""
        return [SideRecordRefused(refusal.reason, str(refusal)) for refusal in self._amend(items)]

    def _store_log_items(self, items: Sequence[LogItem]) -> Refusals:
        store = self._store
        if feedback := self._drop_returned_feedback([item for item in items if isinstance(item, Feedback)]):
            store.add_feedback(feedback)
        refusals = self._amend(items)
        open_runs = [item for item in items if isinstance(item, OpenRun)]
        for start in range(0, len(open_runs), BATCH_SIZE):
            store.add_running(open_runs[start : start + BATCH_SIZE])
        if reports := [item for item in items if isinstance(item, ProcessReport)]:
            store.add_reports(reports)
        return refusals

    def _drop_returned_feedback(self, feedback: Sequence[Feedback]) -> Sequence[Feedback]:
        """Return the feedback, except for rows that this store has forwarded, that came back, and that it still has.

        The store's own version of such a row may be newer.
        """
        source = self._feedback_source
        if source is None or not any(map(read_via, feedback)):
            return feedback
        identity = source.identity()
        returned = {id(row) for row in feedback if identity in read_via(row)}
        if not returned:
            return feedback
        stored = source.find_stored_feedback([row.id for row in feedback if id(row) in returned])
        return [row for row in feedback if not (id(row) in returned and row.id in stored)]

    def _amend(self, items: Sequence[Any]) -> list[ItemRefused]:
        """Apply amendments, also to runs that have not arrived; all amendments of one run go into one commit."""
        refusals: list[ItemRefused] = []
        # valid amendments by run, in order of arrival
        by_run: dict[tuple[str, str, str | None], list[Amendment]] = {}
        for item in items:
            if isinstance(item, Amendment):
                try:
                    check_amendment(item.fields)
                except ItemRefused as refused:
                    refusals.append(refused)
                except Refused as error:
                    refusals.append(ItemRefused("refused", str(error)))
                else:
                    by_run.setdefault((item.trace_id, item.span_id, item.response_id), []).append(item)
        groups = list(by_run.values())
        for start in range(0, len(groups), BATCH_SIZE):  # in batches, so that other writes can run in between
            refusals += self._add_amendments(groups[start : start + BATCH_SIZE])
        return refusals

    def _add_amendments(self, groups: Sequence[Sequence[Amendment]]) -> list[ItemRefused]:
        """Apply amendments in one transaction. If the store refuses it, split it repeatedly to find the invalid
        amendments.
        """
        try:
            self._store.add_amendments([amendment for group in groups for amendment in group])
            return []
        except Closed:  # not the items' fault: the next server may accept them
            raise
        except Refused as error:
            if len(groups) > 1:
                half = len(groups) // 2
                return self._add_amendments(groups[:half]) + self._add_amendments(groups[half:])
            [group] = groups
            if len(group) == 1:
                return [ItemRefused("refused", str(error))]
            half = len(group) // 2
            return self._add_amendments([group[:half]]) + self._add_amendments([group[half:]])


def scope_items(store: Store, project: str, items: Sequence[Run | LogItem]) -> tuple[list[Any], list[ItemRefused]]:
    """Assign items to the project. Return the assigned items, and refusals of items that belong to other projects."""
    results = scope_or_refuse(store, project, items)
    refusals = [result for result in results if isinstance(result, ItemRefused)]
    return [result for result in results if not isinstance(result, ItemRefused)], refusals


def scope_or_refuse(store: Store, project: str, items: Sequence[Run | LogItem]) -> list[Any]:
    """Return a list with each item, assigned to the project, or its refusal if it belongs to another project."""
    view = ProjectScopedStore(store, project)
    foreign_traces = view.foreign_traces(_trace_id(item) for item in items)
    foreign_experiments = view.foreign_experiments(_experiment_id(item) for item in items)
    # if the first item is a run, all items other than runs are side records
    has_side_records = isinstance(items[0], Run) if items else False
    results: list[Any] = []
    for item in items:
        try:
            if (trace_id := _trace_id(item)) in foreign_traces:
                raise view.foreign_error("trace", trace_id or "")
            if (experiment_id := _experiment_id(item)) in foreign_experiments:
                raise view.foreign_error("experiment", experiment_id or "")
            if isinstance(item, Feedback):
                results.append(view.scope_feedback(item))
            elif isinstance(item, Amendment):
                results.append(view.scope_amendment(item))
            else:
                results.append(view.assign_project(item))
        except Forbidden as error:
            if has_side_records and not isinstance(item, Run):
                results.append(SideRecordRefused("project", str(error)))
            else:
                results.append(ItemRefused("project", str(error), item))
    return results


def _trace_id(item: Run | LogItem) -> str | None:
    if isinstance(item, Feedback):
        return item.target.trace_id
    return item.trace_id if isinstance(item, Run | OpenRun | Amendment) else None


def _experiment_id(item: Run | LogItem) -> str | None:
    if isinstance(item, Feedback):
        return item.target.experiment_id
    return item.experiment_id if isinstance(item, Run) else None


T = TypeVar("T")


class CommitWaiter:
    """Callable that awaits a future of another thread: `await commit(future)`. For one event loop at a time."""

    def __init__(self) -> None:
        self._wakeup: _LoopWakeup | None = None

    async def __call__(self, future: Future[T]) -> T:
        """Return the future's result or raise its error.

        If the caller is cancelled, a future that has not started is cancelled too.
        """
        if not future.done():
            try:
                loop = asyncio.get_running_loop()
                if self._wakeup is None or self._wakeup.loop is not loop:
                    self._wakeup = _LoopWakeup(loop)
                await self._wakeup.make_waiter(future)
            except asyncio.CancelledError:
                future.cancel()
                raise
        return future.result()


class _LoopWakeup:
    """Queue of finished futures for one event loop, with at most one pending wake-up."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._finished: deque[asyncio.Future[None]] = deque()
        self._scheduled = False  # True while a wake-up is scheduled and has not run

    def make_waiter(self, future: Future[Any]) -> asyncio.Future[None]:
        """Return an asyncio future that completes after the thread's future."""
        waiter = self.loop.create_future()
        future.add_done_callback(partial(self._notify_loop, waiter))
        return waiter

    def _notify_loop(self, waiter: asyncio.Future[None], _: Future[Any]) -> None:
        self._finished.append(waiter)  # before `_scheduled` is read, so that a scheduled wake-up sees it
        if not self._scheduled:
            self._scheduled = True
            with suppress(RuntimeError):  # the loop is closed: nothing waits any more
                self.loop.call_soon_threadsafe(self._wake_waiters)

    def _wake_waiters(self) -> None:
        self._scheduled = False
        while self._finished:
            waiter = self._finished.popleft()
            if not waiter.done():
                waiter.set_result(None)
