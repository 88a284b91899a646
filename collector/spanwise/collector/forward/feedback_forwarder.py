"""Feedback forwarder: stored feedback sent to every target as OTLP log records, from a durable cursor.

The store itself is the queue: it holds the feedback durably, and the cursor of every target. A spool would be a
second copy that could lose feedback which the store still has. Delivery is at least once: after a crash, feedback
that was acknowledged but not recorded is sent again under the same id.

Fields without an OpenTelemetry name are sent as `spanwise.feedback.*`, from which another Spanwise collector restores
the feedback unchanged.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, ArrayValue, KeyValue
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord

from spanwise.collector.dialects import read_via, write_feedback_attributes
from spanwise.collector.forward.envelope import Envelope
from spanwise.collector.forward.forward_transport import DeliveryResult, ForwardTarget
from spanwise.collector.forward.sender_thread import MAX_RETRY_PAUSE, SERVER_ERRORS, SenderThread, stop_senders
from spanwise.collector.prometheus_metrics import Metrics
from spanwise.collector.records import JSON
from spanwise.collector.stores import FeedbackSource, OutgoingFeedback
from spanwise.tracer import attribute_names as names

BATCH_SIZE = 200  # feedback rows in one request
MAX_REQUEST_BYTES = 1024 * 1024  # maximum size of a request, unless it holds a single feedback row
MAX_VIA = 8  # feedback that this many collectors have forwarded is not sent on
POLL_INTERVAL = 0.5  # seconds between two polls of the store


class FeedbackForwarder:
    """Feedback forwarder with one sender per target. Call `begin` once, and `close` before the store is closed."""

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


class FeedbackSender(SenderThread):
    """Sender thread of one target: reads feedback from the cursor, sends it, and advances the cursor."""

    activity = "forwarding feedback"
    failure_metric = "spanwise_feedback_out_failures_total"

    def __init__(self, store: FeedbackSource, target: ForwardTarget, metrics: Metrics, max_pause: float) -> None:
        super().__init__(target, metrics, max_pause, f"spanwise-feedback-{target.name}")
        self._store, self._identity = store, store.identity()
        self._cursor = store.open_outlet(target.name, target.url).cursor
        metrics.gauge("spanwise_feedback_out_waiting", self._count_waiting, target=target.name)

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
        while not self.stopping.is_set() and (rows := self._store.feedback_after(self._cursor, BATCH_SIZE)):
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
