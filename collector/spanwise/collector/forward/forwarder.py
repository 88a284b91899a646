"""Forwarders: received requests put into the queue of every target, and stored feedback sent from a cursor."""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, cast

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, ArrayValue, KeyValue
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord

from spanwise.collector.dialects import Amendment, log_once, read_via, write_feedback_attributes
from spanwise.collector.errors import StoreError
from spanwise.collector.forward.envelope import Envelope
from spanwise.collector.forward.forward_queue import (
    MAX_QUEUE_BYTES,
    MAX_RETRY_PAUSE,
    SERVER_ERRORS,
    ForwardQueue,
    SenderThread,
    stop_senders,
)
from spanwise.collector.forward.forward_transport import DeliveryResult, ForwardTarget
from spanwise.collector.ingest import ItemRefused, Request
from spanwise.collector.prometheus_metrics import Metrics
from spanwise.collector.records import JSON, Feedback, OpenRun, Run
from spanwise.collector.stores import ControlStore, FeedbackSource, OutgoingFeedback
from spanwise.tracer import attribute_names as names

# Forwarder: ingest sink that puts each received request into the queue of every target.

MAX_HOPS = 8  # requests that this many collectors have forwarded are not sent on


class Forwarder:
    """Sink that forwards received requests unchanged to every target, after the store has committed them.

    The forwarder first writes a request to a spool in `folder`. It adds its mark to each request, and does not
    forward a request that already has the mark, which prevents loops. It does not store the sender's headers, and so
    no API keys.
    """

    def __init__(
        self,
        targets: Sequence[ForwardTarget],
        folder: Path,
        most_bytes: int = MAX_QUEUE_BYTES,
        longest_pause: float = MAX_RETRY_PAUSE,
    ) -> None:
        """Create the forwarder.

        The queue of one target holds up to `most_bytes`; retries pause up to `longest_pause` seconds.
        """
        self.targets, self._folder, self._options = tuple(targets), folder, (most_bytes, longest_pause)
        self._mark = secrets.token_hex(8)
        self._queues: list[ForwardQueue] = []
        self._metrics = Metrics()

    def begin(self, metrics: Metrics) -> None:
        """Create the queues, register their metrics, and send requests that are left from an earlier run."""
        self._metrics = metrics
        with suppress(OSError):  # each queue tries to create its folder again, and reports the error
            self._folder.mkdir(0o700, parents=True, exist_ok=True)
        self._queues = [ForwardQueue(target, self._folder, metrics, *self._options) for target in self.targets]
        for queue in self._queues:
            queue.start()

    def left(self) -> list[str]:
        """Return the folders of targets that are no longer configured but still have waiting requests."""
        mine = {target.folder for target in self.targets}
        return sorted({path.parent.name for path in self._folder.glob("*/*.spool")} - mine)

    def close(self) -> None:
        """Stop sending; waiting requests stay on disk."""
        stop_senders(self._queues)

    async def keep(self, request: Request[Any], items: Sequence[Any]) -> tuple[ItemRefused, ...]:
        """Queue a request for every target. Refuse no items: errors of forwarding are not the sender's fault."""
        if request.body and (self._mark in request.hops or len(request.hops) >= MAX_HOPS):
            self._metrics.add("spanwise_forward_loops_total", 1)
        elif request.body:
            try:
                await asyncio.to_thread(self._put, request)
            except Exception as error:
                log_once("a request could not be queued for forwarding", error)
                self._count_dropped("internal")
        return ()

    def _put(self, request: Request[Any]) -> None:
        is_json = request.codec is request.signal.json
        received = Envelope(request.signal.name, is_json, (*request.hops, self._mark), request.body)
        try:
            allowed = received.chosen(_make_selector(request.refused, is_json)) if request.refused else received
        except ValueError:  # refused items cannot be separated from the others
            self._count_dropped("project")
            return
        if allowed is not None:
            for queue in self._queues:
                queue.put(allowed)

    def _count_dropped(self, reason: str) -> None:
        for target in self.targets:
            self._metrics.add("spanwise_forward_dropped_total", 1, target=target.name, reason=reason)


def _make_selector(refused: Sequence[Any], is_json: bool) -> Callable[[int, Any], bool]:
    """Return a function that selects all items except refused ones.

    Refused spans are recognized by their ids, and refused log records by trace.
    """
    ids = {_find_ids(item) for item in refused}

    def choose(number: int, item: Any) -> bool:
        if is_json:
            trace_id, span_id = str(item.get("traceId") or "").lower(), str(item.get("spanId") or "").lower()
        else:
            trace_id, span_id = item.trace_id.hex(), item.span_id.hex()
        return (trace_id, span_id) not in ids and (trace_id, "") not in ids

    return choose


def _find_ids(item: Any) -> tuple[str, str]:
    """Return trace id and span id of an item. The span id is "" for log records, which may name their span in
    attributes.
    """
    if isinstance(item, Run):
        return item.trace_id, item.span_id
    if isinstance(item, Feedback):
        return item.target.trace_id or "", ""
    return (item.trace_id, "") if isinstance(item, Amendment | OpenRun) else ("", "")


# Feedback forwarder: stored feedback sent to every target as OTLP log records, from a durable cursor.
#
# The store itself is the queue: it holds the feedback durably, and the cursor of every target. A spool would be a
# second copy that could lose feedback which the store still has. Delivery is at least once: after a crash, feedback
# that was acknowledged but not recorded is sent again under the same id.
#
# Fields without an OpenTelemetry name are sent as `spanwise.feedback.*`, from which another Spanwise collector
# restores the feedback unchanged.

BATCH_SIZE = 200  # feedback rows in one request
MAX_REQUEST_BYTES = 1024 * 1024  # maximum size of a request, unless it holds a single feedback row
MAX_VIA = 8  # feedback that this many collectors have forwarded is not sent on
POLL_INTERVAL = 0.5  # seconds between two polls of the store
LEASE_S, RENEW_S = 30.0, 10.0  # of the lease of a target, where several collectors share a store


class FeedbackForwarder:
    """Feedback forwarder with one sender per target. Call `begin` once, and `close` before the store is closed.

    Of several collectors with one store, the one that has the lease of a target sends to it.
    """

    def __init__(self, targets: Sequence[ForwardTarget], longest_pause: float = MAX_RETRY_PAUSE) -> None:
        """Create the forwarder; `longest_pause` is the maximum of the retry backoff in seconds."""
        self.targets, self._max_pause = tuple(targets), longest_pause
        self._senders: list[FeedbackSender] = []

    def begin(self, store: FeedbackSource, metrics: Metrics) -> None:
        """Start one sender per target, at its stored cursor."""
        self._senders = [FeedbackSender(store, target, metrics, self._max_pause) for target in self.targets]
        for sender in self._senders:
            sender.start()

    def close(self) -> None:
        """Stop sending; the next server on this store sends the remaining feedback."""
        stop_senders(self._senders)
        for sender in self._senders:
            sender.release()


class FeedbackSender(SenderThread):
    """Sender thread of one target: reads feedback from the cursor, sends it, and advances the cursor."""

    activity = "forwarding feedback"
    failure_metric = "spanwise_feedback_out_failures_total"

    def __init__(self, store: FeedbackSource, target: ForwardTarget, metrics: Metrics, max_pause: float) -> None:
        super().__init__(target, metrics, max_pause, f"spanwise-feedback-{target.name}")
        self._store, self._identity = store, store.identity()
        self._cursor = store.open_outlet(target.name, target.url).cursor
        self._lease = (
            None if getattr(store, "is_exclusive", True) else TargetLease(cast(ControlStore, store), target.name)
        )
        metrics.gauge("spanwise_feedback_out_waiting", self._count_waiting, target=target.name)

    def release(self) -> None:
        """Release the lease of the target, if this collector has it."""
        if self._lease is not None:
            self._lease.release()

    def _count_waiting(self) -> float:
        try:
            return float(self._store.count_feedback_after(self._cursor))
        except Exception:  # the store does not answer; /metrics must work anyway
            return float("nan")

    def wait_for_items(self) -> None:
        self.stopping.wait(POLL_INTERVAL)

    def describe_retry(self) -> str:
        return "the feedback stays in the store and is retried"

    def report_failure(self, result: DeliveryResult) -> bool:
        is_new = super().report_failure(result)
        if is_new:
            self._store.move_outlet(self.target.name, self._cursor, 0, 0, result.reason)
        return is_new

    def send_waiting(self) -> DeliveryResult | None:
        if self._lease is not None:
            had_lease = self._lease.is_held
            if not self._lease.renew():
                return None
            if not had_lease:  # another collector has sent meanwhile
                self._cursor = self._store.open_outlet(self.target.name, self.target.url).cursor
        while (
            not self.stopping.is_set()
            and (self._lease is None or self._lease.renew())
            and (rows := self._store.feedback_after(self._cursor, BATCH_SIZE))
        ):
            if later := self._send(rows):
                return later
        return None

    def _send(self, rows: Sequence[OutgoingFeedback]) -> DeliveryResult | None:
        """Send rows in one request. If it is too large or refused, split the rows and send both halves."""
        good = [row for row in rows if len(read_via(row.feedback)) < MAX_VIA]
        lost = {"hops": len(rows) - len(good)}
        body = build_logs_request(good, self._identity)
        if len(body) > MAX_REQUEST_BYTES and len(rows) > 1:
            return self._send_halves(rows)
        result = self._post(body) if good else DeliveryResult("taken")
        if result.verdict == "later":
            return self._send_each(rows, result) if self.count_server_error(result) else result
        self.failures = self.server_errors = 0
        if result.verdict == "taken":
            rejected = min(result.rejected, len(good))
            self._record(rows, len(good) - rejected, {**lost, "rejected": rejected})
            return None
        if len(rows) > 1:
            return self._send_halves(rows)
        self._record(rows, 0, {result.reason: 1})
        return None

    def _post(self, body: bytes) -> DeliveryResult:
        return self.transport.send(Envelope("logs", False, (), body))

    def _send_halves(self, rows: Sequence[OutgoingFeedback]) -> DeliveryResult | None:
        half = len(rows) // 2
        for part in (rows[:half], rows[half:]):
            if self.stopping.is_set():
                return None
            if later := self._send(part):
                return later
        return None

    def _send_each(self, rows: Sequence[OutgoingFeedback], result: DeliveryResult) -> DeliveryResult | None:
        """Send rows one by one, to find those on which the target fails.

        Rows that fail are dropped only if the target accepts at least one other row. Otherwise the target itself is
        broken.
        """
        results = []
        for row in rows:
            results.append(self._post(build_logs_request([row], self._identity)))
            if self.stopping.is_set() or results[-1].reason not in SERVER_ERRORS | {""}:
                return result
        taken = sum(one.verdict == "taken" for one in results)
        if not taken:
            return result
        self.failures = 0
        self._record(rows, taken, {result.reason: len(rows) - taken})
        return None

    def _record(self, rows: Sequence[OutgoingFeedback], sent: int, lost: dict[str, int]) -> None:
        """Record rows as sent or dropped: advance the cursor first in the store, then in this process."""
        self._store.move_outlet(self.target.name, rows[-1].number, sent, sum(lost.values()))
        self._cursor = rows[-1].number
        count = partial(self.metrics.add, target=self.target.name)
        count("spanwise_feedback_out_total", sent)
        for reason, number in lost.items():
            if number:
                count("spanwise_feedback_out_dropped_total", number, reason=reason)
        self.report_success()


class TargetLease:
    """Lease of a target: of several collectors that share a store, one sends feedback to it."""

    def __init__(self, store: ControlStore, target: str) -> None:
        self._store, self._name = store, f"feedback-to/{target}"
        self._holder = f"{socket.gethostname()}/{os.getpid()}/{secrets.token_hex(4)}"
        self._renew_at = self._until = 0.0

    @property
    def is_held(self) -> bool:
        """Return whether this collector had the lease when it last asked for it."""
        return time.monotonic() < self._until

    def renew(self) -> bool:
        """Acquire or renew the lease, at most every `RENEW_S` seconds. Return whether this collector has it."""
        now = time.monotonic()
        if now >= self._renew_at:
            is_held = self._store.acquire(self._name, self._holder, LEASE_S) is not None
            self._renew_at, self._until = now + RENEW_S, now + LEASE_S if is_held else 0.0
        return now < self._until

    def release(self) -> None:
        """Release the lease, so that another collector continues at once."""
        if self.is_held:
            with suppress(StoreError):
                self._store.release(self._name, self._holder)


SCOPE_NAME = "spanwise.feedback"


def build_logs_request(rows: Sequence[OutgoingFeedback], identity: str) -> bytes:
    """Return an `ExportLogsServiceRequest`, grouped by project and environment.

    The store's `identity` is added to each record, to detect loops.
    """
    request = ExportLogsServiceRequest()
    groups: dict[tuple[str | None, str | None], list[OutgoingFeedback]] = {}
    for row in rows:
        groups.setdefault((row.project, row.environment), []).append(row)
    for (project, environment), members in groups.items():
        group = request.resource_logs.add()
        resource = {"service.name": project or "spanwise", names.PROJECT: project, names.ENVIRONMENT: environment}
        group.resource.attributes.extend(_make_key_values({name: value for name, value in resource.items() if value}))
        scope = group.scope_logs.add()
        scope.scope.name = SCOPE_NAME
        scope.log_records.extend(_make_log_record(row, identity) for row in members)
    return bytes(request.SerializeToString())


def _make_log_record(row: OutgoingFeedback, identity: str) -> LogRecord:
    feedback, target = row.feedback, row.feedback.target
    via = [*read_via(feedback), identity]
    return LogRecord(
        time_unix_nano=max(0, feedback.created_ns),
        observed_time_unix_nano=max(0, feedback.created_ns),
        event_name=names.EVALUATION_EVENT,
        trace_id=_parse_id(target.trace_id, 16),
        span_id=_parse_id(target.span_id, 8),
        attributes=_make_key_values(write_feedback_attributes(feedback, via)),
    )


def _parse_id(id: str | None, length: int) -> bytes:
    """Return an id as bytes; b"" for an id that OTLP cannot represent. The receiver then refuses the feedback."""
    try:
        found = bytes.fromhex(id or "")
    except ValueError:
        return b""
    return found if len(found) == length else b""


def _make_key_values(attributes: Mapping[str, JSON]) -> list[KeyValue]:
    return [KeyValue(key=name, value=_make_any_value(value)) for name, value in attributes.items()]


def _make_any_value(value: JSON) -> AnyValue:
    if isinstance(value, bool):
        return AnyValue(bool_value=value)
    if isinstance(value, int):
        return AnyValue(int_value=value)
    if isinstance(value, float):
        return AnyValue(double_value=value)
    if isinstance(value, list):
        return AnyValue(array_value=ArrayValue(values=[_make_any_value(one) for one in value]))
    return AnyValue(string_value=str(value).encode("utf-8", "replace").decode())
