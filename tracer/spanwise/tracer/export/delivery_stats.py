"""Delivery statistics: span counts by outcome, and reports of counts and open spans to the collector.

Reports are OTLP log events for collectors that identify themselves as Spanwise's in their responses. Reports are not
stored: a report that cannot be sent is replaced by a later one.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
from opentelemetry.sdk.resources import Resource

from spanwise.tracer import attribute_names as names
from spanwise.tracer.export.disk_spool import count_spooled
from spanwise.tracer.export.otlp_encoding import LOGS_PATH, TRACES_PATH, FeedbackEvent, encode_events
from spanwise.tracer.export.otlp_http_client import OtlpHttpClient, RequestOutcome
from spanwise.tracer.export.span_queue import SpanQueue
from spanwise.tracer.export.span_sanitizer import SpanSanitizer
from spanwise.tracer.otel.exit_lock import ExitLock
from spanwise.tracer.otel.live_span import Clock, LiveSpan, LocalTrace, sync_open_traces


@dataclass(frozen=True, slots=True)
class FlushResult:
    """Result of a flush.

    The result is true if the collector has acknowledged every span and feedback event queued before the flush.
    """

    delivered: int = 0
    spilled: int = 0  # items of this process on disk, to be sent when the collector is reachable
    dropped: int = 0
    pending: int = 0  # still queued after the timeout

    def __bool__(self) -> bool:
        return not (self.spilled or self.dropped or self.pending)


class DeliveryCounts:
    """Counts of spans and feedback events since the start of the process."""

    def __init__(self) -> None:
        self.delivered = self.spilled = 0
        self.dropped: Counter[str] = Counter()
        self._lock: Any = threading.RLock()

    def add(self, *, delivered: int = 0, spilled: int = 0, dropped: int = 0, reason: str = "") -> None:
        """Add to the counts."""
        with self._lock:
            self.delivered += delivered
            self.spilled += spilled
            if dropped:
                self.dropped[reason] += dropped

    @property
    def settled(self) -> int:
        """Return the total of delivered, spooled and dropped items.

        An item that was spooled counts a second time when it is sent from the spool.
        """
        return self.delivered + self.spilled + sum(tuple(self.dropped.values()))

    def bound_waits(self) -> None:
        """Limit the time that a thread waits for the lock; see `ExitLock`."""
        self._lock = ExitLock(self._lock)


REPORT_AGE_NS = 1_000_000_000  # age in nanoseconds at which an open run is reported
_MAX_PER_REPORT = 1_000
_MAX_UNREPORTED = 50_000  # with more open spans, some probably never end: the set is cleared


class SpanAccount:
    """Counts of the spans that are delivered to one address.

    The numbers of started and ended spans are added per trace, by `sync_account`, so that they cost a traced call no
    time.
    """

    def __init__(self) -> None:
        self.started = self.open = self.delivered = 0
        self.dropped: Counter[str] = Counter()  # by reason
        self.folders: set[Path | None] = set()  # spool directories
        self.resource: Resource | None = None
        self.unreported: set[Any] = set()  # open spans that have not been reported yet

    def find_unreported(self) -> list[Any]:
        """Return the spans that have been open for longer than `REPORT_AGE_NS`, oldest first, up to the limit of one
        request.
        """
        unreported, latest = tuple(self.unreported), Clock.now() - REPORT_AGE_NS
        if len(unreported) > _MAX_UNREPORTED:
            self.unreported.clear()
        due = [span for span in unreported if span.end_time is None and (span.start_time or 0) <= latest]
        return sorted(due, key=lambda span: span.start_time or 0)[:_MAX_PER_REPORT]

    def mark_reported(self, spans: list[Any]) -> None:
        """Mark open spans as reported, so that they are not reported again."""
        self.unreported.difference_update(spans)

    def report(self, pending: int, dropped: Counter[str]) -> dict[str, Any]:
        """Return the attributes of a process report: counts of started, open, delivered, … spans.

        The given `dropped` is added to the account's own count.
        """
        sync_open_traces(self)
        return {
            names.REPORT_STARTED: self.started,
            names.REPORT_OPEN: self.open,
            names.REPORT_DELIVERED: self.delivered,
            names.REPORT_SPILLED: sum(map(count_spooled, self.folders)),
            names.REPORT_PENDING: pending,
            names.REPORT_DROPPED: orjson.dumps(self.dropped + dropped).decode(),
            names.REPORT_PID: os.getpid(),
        }


_accounts: weakref.WeakValueDictionary[str, SpanAccount] = weakref.WeakValueDictionary()


def get_account(url: str) -> SpanAccount:
    """Return the account of an address. All runtimes of this process that deliver there share it."""
    account = _accounts.get(url)
    if account is None:
        account = _accounts[url] = SpanAccount()
    return account


def forget_accounts() -> None:
    """Remove all accounts, in a forked child."""
    _accounts.clear()


PERIOD = 10.0  # minimum seconds between two reports
SendRequest = Callable[[str, bytes], RequestOutcome]


class ProcessReporter:
    """Reporter that sends counts and open spans to the collector. It runs on the delivery thread."""

    def __init__(
        self, account: SpanAccount, queue: SpanQueue, sanitizer: SpanSanitizer, client: OtlpHttpClient
    ) -> None:
        self._account, self._queue, self._sanitizer, self._client = account, queue, sanitizer, client
        self._reported: dict[str, Any] = {}
        self._next_report = 0.0

    def send_reports(self, send: SendRequest, urgent: bool) -> None:
        """Send the spans that have been open for long, and the counts if they have changed since the last report.

        An urgent report is sent even if the last one was sent a moment ago, because it may be the last one.
        """
        due = self._account.find_unreported()
        if due and self._client.is_spanwise is None:
            # Send an empty request, which every collector accepts. The response shows whether the collector is
            # Spanwise's
            verdict = send(TRACES_PATH, b"").verdict
            if self._client.is_spanwise is None and verdict != "later":
                self._client.is_spanwise = False
        if self._client.is_spanwise:
            resources = {id(resource): resource for resource in (_get_local_trace_of(span).resource for span in due)}
            for key, resource in resources.items():
                spans = [span for span in due if id(_get_local_trace_of(span).resource) == key]
                attributes = self._sanitizer.resource(resource).attributes
                body = encode_events([self._make_started_event(span, attributes) for span in spans])
                if send(LOGS_PATH, body).verdict != "later":
                    self._account.mark_reported(spans)
            self._send_counts(send, urgent)
        elif self._client.is_spanwise is False:
            self._account.mark_reported(due)

    def _make_started_event(self, span: Any, resource: Any) -> FeedbackEvent:
        context, parent = span.get_span_context(), span.parent
        attributes = {
            names.STARTED_NAME: self._sanitizer.name(span.name),
            names.KIND: (span.attributes or {}).get(names.KIND),
            names.STARTED_PARENT: f"{parent.span_id:016x}" if parent else None,
            names.LOCAL_ROOT: f"{_get_local_trace_of(span).root_id:016x}",
        }
        start = span.start_time or 0
        return FeedbackEvent(context.trace_id, context.span_id, start, attributes, resource, names.STARTED_EVENT)

    def _send_counts(self, send: SendRequest, urgent: bool) -> None:
        if not urgent and time.monotonic() < self._next_report:
            return
        report, resource = self._account.report(self._queue.pending, self._queue.dropped), self._account.resource
        if not report[names.REPORT_STARTED] or report == self._reported or resource is None:
            return
        event = FeedbackEvent(0, 0, Clock.now(), report, resource.attributes, names.REPORT_EVENT)
        self._next_report = time.monotonic() + PERIOD
        if send(LOGS_PATH, encode_events([event])).verdict == "ok":
            self._reported = report


def _get_local_trace_of(span: Any) -> LocalTrace:
    local: LocalTrace = span.local if isinstance(span, LiveSpan) else span._spanwise_local
    return local
