"""The runs of an experiment that its store has not taken, read as if it had."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, cast

from spanwise.collector.errors import Refused, Unavailable
from spanwise.collector.records import Example, Feedback, Run, Trace
from spanwise.collector.stores import Store
from spanwise.evaluators.engine._spool import Spool

LARGEST = 64 * 2**20  # bytes of files that are held in memory


def with_spool(store: Store, spool: Spool, largest: int = LARGEST) -> Store:
    """A store that also shows what waits in a spool, until somebody has delivered it; refused if that is too large."""
    return cast(Store, _Spooled(store, spool, largest))


class _Spooled:
    """Every verb is the store's, but for those that read runs and examples."""

    def __init__(self, store: Store, spool: Spool, largest: int) -> None:
        self._store, self._spool, self._largest = store, spool, largest
        self._runs: dict[str, list[Run]] = {}
        self._feedback: dict[str, list[Feedback]] = {}
        self._read = -1  # bytes of the files, when they were read

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def many(self, trace_ids: Sequence[str]) -> list[Trace]:
        """Several traces at once, in the order asked. Raises `Unavailable` for those that only an absent store has."""
        self._look()
        elsewhere = [trace_id for trace_id in trace_ids if trace_id not in self._runs]
        stored = {trace.trace_id: trace for trace in self._stored(elsewhere)}
        found = (self._kept(id) if id in self._runs else stored.get(id) for id in trace_ids)
        return [trace for trace in found if trace is not None]

    def trace(self, trace_id: str) -> Trace:
        """One trace. Raises `NotFound`."""
        self._look()
        return self._kept(trace_id) if trace_id in self._runs else self._store.trace(trace_id)

    def examples(self, *args: Any, **given: Any) -> list[Example]:
        """As of the store, whose absence is told in one line."""
        try:
            return self._store.examples(*args, **given)
        except Unavailable as error:
            raise Unavailable(f"the runs are kept in a spool, but their examples are away: {error}") from None

    def _stored(self, trace_ids: Sequence[str]) -> Iterable[Trace]:
        try:
            traces = self._store.many(trace_ids) if trace_ids else []
        except Unavailable as error:
            raise Unavailable(f"{len(trace_ids)} of the runs are not in the spool, and away: {error}") from None
        for trace in traces:
            more = self._feedback.get(trace.trace_id, ())
            yield replace(trace, feedback=(*trace.feedback, *more)) if more else trace

    def _kept(self, trace_id: str) -> Trace:
        runs = tuple(self._runs[trace_id])
        root = next((run for run in runs if run.parent_id is None), runs[0])
        return Trace(root, runs, feedback=tuple(self._feedback.get(trace_id, ())))

    def _look(self) -> None:
        """Read the files, unless they are as they were: somebody may have delivered them."""
        size = self._spool.size
        if size == self._read:
            return
        if size > self._largest:
            paths = " and ".join(map(str, self._spool.paths))
            raise Refused(
                f"{size / 2**20:.3g} MiB of runs wait in {paths}, too much to be read there: deliver them first"
            )
        self._read, self._runs, self._feedback = size, {}, {}
        for parcel in self._spool.parcels():
            for run in parcel.runs:
                self._runs.setdefault(run.trace_id, []).append(run)
            for outcome in parcel.feedback:
                self._feedback.setdefault(outcome.target.trace_id or "", []).append(outcome)
