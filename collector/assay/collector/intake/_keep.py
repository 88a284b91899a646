"""Where what was taken in goes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Future
from typing import Any, Protocol

from assay.collector.dialects import Amendment, LogItem
from assay.collector.errors import Closed, Refused
from assay.collector.intake._beside import Beside
from assay.collector.intake._errors import ItemRefused
from assay.collector.intake._held import held
from assay.collector.intake._signal import Request
from assay.collector.intake._texts import check_amended
from assay.collector.records import Feedback, OpenRun, ProcessReport, Run
from assay.collector.stores import Serving, Store

MANY = 250  # runs, from which on they are encoded beside the event loop, and written in pieces
Refusals = Sequence[ItemRefused]


class Keeper(Protocol):
    """Keeps what a request brought, or passes it on (its items, if any, or `request.body` as it came)."""

    async def keep(self, request: Request[Any], items: Sequence[Any]) -> Refusals:
        """Return when the items are durable, with the reasons why single ones are not; raise when none is."""


class StoreKeeper:
    """Keeps runs, feedback, amendments and what is said beside spans in a store."""

    def __init__(self, store: Store, beside: Beside) -> None:
        self._store, self._beside = store, beside
        # Stores that write in a thread of their own need no second one to wait for it
        self._append = store.append_async if isinstance(store, Serving) else None
        self._kinds: dict[str, Callable[[Sequence[Any]], Awaitable[Refusals]]] = {
            "traces": self._runs,
            "logs": self._logs,
        }

    async def keep(self, request: Request[Any], items: Sequence[Any]) -> Refusals:
        """Runs are appended; of logs feedback is added first, then runs are amended, one by one, then the rest."""
        if not items:
            return ()
        keep = self._kinds[request.signal.name]
        if request.project is None:
            return await keep(items)
        mine, refusals = await asyncio.to_thread(held, self._store, request.project, items)
        return [*refusals, *(await keep(mine) if mine else ())]

    async def _runs(self, runs: Sequence[Run]) -> Refusals:
        if self._append is None:
            await asyncio.to_thread(self._store.append, runs)
        else:
            await self._in_slices(self._append, runs)
        return ()

    async def _in_slices(self, append: Callable[[Sequence[Run]], Future[None]], runs: Sequence[Run]) -> None:
        """Append; of many some at a time, so that others have their turn, and not all are encoded at once."""
        if len(runs) < MANY:
            await asyncio.wrap_future(append(runs))
            return
        for start in range(0, len(runs), MANY):
            await asyncio.wrap_future(await self._beside(append, runs[start : start + MANY]))

    async def _logs(self, items: Sequence[LogItem]) -> Refusals:
        return await asyncio.to_thread(self._beside_spans, items)

    def _beside_spans(self, items: Sequence[LogItem]) -> Refusals:
        store = self._store
        if feedback := [item for item in items if isinstance(item, Feedback)]:
            store.add_feedback(feedback)
        refusals = [self._amend(item) for item in items if isinstance(item, Amendment)]
        if running := [item for item in items if isinstance(item, OpenRun)]:
            store.add_running(running)
        if reports := [item for item in items if isinstance(item, ProcessReport)]:
            store.add_reports(reports)
        return [refusal for refusal in refusals if refusal]

    def _amend(self, content: Amendment) -> ItemRefused | None:
        try:
            check_amended(content.fields)
            if self._store.amend(content.trace_id, content.span_id, content.fields):
                return None
        except Closed:  # no fault of the item's: the next server may keep it
            raise
        except ItemRefused as refused:
            return refused
        except Refused as error:
            return ItemRefused("refused", str(error))
        return ItemRefused("no_span", f"span {content.span_id!r} of trace {content.trace_id!r} is not here")
