"""The traces' half of the client."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeVar

from assay.collector import _wire
from assay.collector.client._transport import Params, Transport, segment
from assay.collector.filters import Filter, combined
from assay.collector.records import (
    JSON,
    Bucket,
    Feedback,
    Page,
    Retention,
    Run,
    SessionSummary,
    Target,
    Trace,
    TraceSummary,
)

T = TypeVar("T")
# Of one request: far below what the server takes, so that no batch is refused for its size alone
BATCH, IDS = 1000, 500


class Traces:
    """Implements `TraceStore`, but for `close`."""

    _transport: Transport

    def append(self, runs: Sequence[Run]) -> None:
        """See `TraceStore.append`."""
        for batch in batches(runs):
            self._transport.ask(Any, "POST", "/api/runs", body=batch)

    def amend(self, trace_id: str, span_id: str, fields: Mapping[str, JSON]) -> bool:
        """See `TraceStore.amend`."""
        return self._transport.ask(bool, "PATCH", f"/api/runs/{segment(trace_id)}/{segment(span_id)}", body=fields)

    def add_feedback(self, feedback: Sequence[Feedback]) -> None:
        """See `TraceStore.add_feedback`."""
        for batch in batches(feedback):
            self._transport.ask(Any, "POST", "/api/feedback", body=batch)

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
        """See `TraceStore.feedback`."""
        aim = Target(trace_id=target, span_id=span_id) if isinstance(target, str) else target
        kept = Feedback(target=aim, key=key, score=score, label=label, comment=comment, author=author, source="human")
        self.add_feedback([kept])
        return kept

    def change_feedback(self, changes: Mapping[str, Mapping[str, Any]]) -> list[Feedback]:
        """See `TraceStore.change_feedback`. One request, so that all or none are changed."""
        return self._transport.ask(list[Feedback], "PATCH", "/api/feedback", body=changes)

    def delete_feedback(self, ids: Sequence[str]) -> int:
        """See `TraceStore.delete_feedback`."""
        return sum(
            self._deleted("DELETE", "/api/feedback", [("id", one) for one in batch]) for batch in batches(ids, IDS)
        )

    def traces(
        self, filter: Filter | None = None, *, limit: int = 50, cursor: str | None = None, **conditions: object
    ) -> Page[TraceSummary]:
        """See `TraceStore.traces`."""
        params = [*_asked(filter, conditions), ("limit", limit), ("cursor", cursor)]
        return self._transport.ask(Page[TraceSummary], "GET", "/api/traces", params)

    def trace(self, trace_id: str) -> Trace:
        """See `TraceStore.trace`."""
        return self._transport.ask(Trace, "GET", f"/api/traces/{segment(trace_id)}")

    def many(self, trace_ids: Sequence[str]) -> list[Trace]:
        """See `TraceStore.many`."""
        asked = (
            self._transport.ask(list[Trace], "POST", "/api/traces/many", body=ids) for ids in batches(trace_ids, IDS)
        )
        return [trace for found in asked for trace in found]

    def feedbacks(
        self,
        filter: Filter | None = None,
        *,
        key: str | None = None,
        limit: int = 1000,
        cursor: str | None = None,
        target: Target | None = None,
        **conditions: object,
    ) -> Page[Feedback]:
        """See `TraceStore.feedbacks`."""
        aim = None if target is None else _wire.encode(target).decode()
        params = [*_asked(filter, conditions), ("key", key), ("limit", limit), ("cursor", cursor), ("target", aim)]
        return self._transport.ask(Page[Feedback], "GET", "/api/feedback", params)

    def sessions(
        self, filter: Filter | None = None, *, limit: int = 50, cursor: str | None = None, **conditions: object
    ) -> Page[SessionSummary]:
        """See `TraceStore.sessions`."""
        params = [*_asked(filter, conditions), ("limit", limit), ("cursor", cursor)]
        return self._transport.ask(Page[SessionSummary], "GET", "/api/sessions", params)

    def aggregate(
        self,
        filter: Filter | None = None,
        *,
        bucket_ns: int | None = None,
        group_by: str | None = None,
        **conditions: object,
    ) -> list[Bucket]:
        """See `TraceStore.aggregate`."""
        params = [*_asked(filter, conditions), ("bucket_ns", bucket_ns), ("group_by", group_by)]
        return self._transport.ask(list[Bucket], "GET", "/api/aggregate", params)

    def values(self, field: str, *, limit: int = 100) -> list[str]:
        """See `TraceStore.values`."""
        return self._transport.ask(list[str], "GET", f"/api/values/{segment(field)}", [("limit", limit)])

    def count(self) -> Mapping[str, int]:
        """See `TraceStore.count`."""
        return self._transport.ask(dict[str, int], "GET", "/api/count")

    def delete(self, filter: Filter | None = None, **conditions: object) -> int:
        """See `TraceStore.delete`."""
        return self._deleted("DELETE", "/api/traces", _asked(filter, conditions))

    def prune(self, rule: Retention) -> int:
        """See `TraceStore.prune`."""
        return self._deleted("POST", "/api/prune", body=rule)

    def set_retention(self, rule: Retention) -> None:
        """See `TraceStore.set_retention`."""
        self._transport.ask(Any, "POST", "/api/retention", body=rule)

    def retention(self) -> list[Retention]:
        """See `TraceStore.retention`."""
        return self._transport.ask(list[Retention], "GET", "/api/retention")

    def vacuum(self) -> int:
        """See `TraceStore.vacuum`."""
        found: dict[str, int] = self._transport.ask(dict[str, int], "POST", "/api/vacuum", patient=True)
        return found["freed_bytes"]

    def _deleted(self, method: str, path: str, params: Params = (), body: Any = None) -> int:
        found: dict[str, int] = self._transport.ask(dict[str, int], method, path, params, body, patient=True)
        return found["deleted"]


def batches(items: Sequence[T], size: int = BATCH) -> Iterator[Sequence[T]]:
    """Slices of a size."""
    return (items[start : start + size] for start in range(0, len(items), size))


def _asked(filter: Filter | None, conditions: Mapping[str, Any]) -> list[tuple[str, Any]]:
    return [("filter", _wire.encode(combined(filter, conditions)).decode())]
