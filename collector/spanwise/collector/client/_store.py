"""The client as one store."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from spanwise.collector._verbs import Call, Control, Traces
from spanwise.collector._verbs._table import BATCH
from spanwise.collector.client._ask import ask
from spanwise.collector.client._lots import Lot, halves, lots
from spanwise.collector.client._transport import Transport
from spanwise.collector.errors import TooLarge
from spanwise.collector.filters import Filter, combined
from spanwise.collector.records import Feedback, Run, Target, TraceSummary, checked_target
from spanwise.collector.stores._each import each


class HTTPStore(Traces, Control):
    """Implements `spanwise.collector.stores.Store` over the API of a collector at `url`; its verbs are the table's.

    Makes no connection before the first call. A server that is away raises `Unavailable`; what it refuses, `Refused`.
    """

    def __init__(self, url: str, api_key: str | None = None) -> None:
        self.url = url.rstrip("/")
        self._transport = Transport(url, api_key)

    def __repr__(self) -> str:
        return f"HTTPStore({self.url!r})"

    def __enter__(self) -> HTTPStore:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def where(self) -> str:
        """Its address."""
        return self.url

    def append(self, runs: Sequence[Run], feedback: Sequence[Feedback] = ()) -> None:
        """As of `TraceStore`, in several requests if it is much: those of one trace in one, but for a huge one's."""
        for together in lots(runs, feedback, BATCH):
            self._append(together)

    def _append(self, lot: Lot) -> None:
        """Keep a lot, in halves if it is too large for one request, down to single runs."""
        try:
            super().append(*lot)
        except TooLarge:
            parts = list(halves(*lot))
            if len(parts) < 2:
                raise
            for part in parts:
                self._append(part)

    def each(self, filter: Filter | None = None, **conditions: object) -> Iterator[TraceSummary]:
        """All traces that pass, page by page: see `TraceStore`."""
        return each(self.traces, combined(filter, conditions))

    def feedback(
        self,
        target: str | Target,
        key: str,
        score: float | bool | None = None,
        *,
        label: str | None = None,
        comment: str | None = None,
        author: str | None = None,
        span_id: str | None = None,
    ) -> Feedback:
        """Attach a person's feedback to a trace (its id) or any other target, and return what was kept."""
        aim = Target(trace_id=target, span_id=span_id) if isinstance(target, str) else target
        kept = Feedback(
            target=checked_target(aim),
            key=key,
            score=score,
            label=label,
            comment=comment,
            author=author,
            source="human",
        )
        self.add_feedback([kept])
        return kept

    def numbers(self) -> dict[str, float]:
        """The collector's own numbers, by name with labels, as /metrics tells them."""
        lines = (line.rpartition(" ") for line in self._transport.text("/metrics").splitlines() if line[:1] != "#")
        return {name: float(value) for name, _, value in lines if name}

    def close(self) -> None:
        """Let go of the connections; every write was durable when it returned."""
        self._transport.close()

    def _ask(self, call: Call, args: tuple[Any, ...], given: dict[str, Any]) -> Any:
        return ask(self._transport, call, args, given)
