"""Feedback forwarder: stored feedback sent to every target as OTLP log records, from a durable cursor.

The store itself is the queue: it holds the feedback durably, and the cursor of every target. A spool would be a
second copy that could lose feedback which the store still has. Delivery is at least once: after a crash, feedback
that was acknowledged but not recorded is sent again under the same id.

Fields without an OpenTelemetry name are sent as `spanwise.feedback.*`, from which another Spanwise collector restores
the feedback unchanged.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping, Sequence
from functools import partial

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, ArrayValue, KeyValue
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord

from spanwise.collector.dialects import log_once, read_via, write_feedback_attributes
from spanwise.collector.forward.envelope import Envelope
from spanwise.collector.forward.forward_transport import DeliveryResult, ForwardTarget, ForwardTransport
from spanwise.collector.prometheus_metrics import Metrics
from spanwise.collector.records import JSON
from spanwise.collector.stores import FeedbackSource, OutgoingFeedback
from spanwise.tracer import attribute_names as names
from spanwise.tracer.backoff import compute_backoff

BATCH_SIZE = 200  # feedback rows in one request
MAX_REQUEST_BYTES = 1024 * 1024  # maximum size of a request, unless it holds a single feedback row
MAX_VIA = 8  # feedback that this many collectors have forwarded is not sent on
POLL_INTERVAL = 0.5  # seconds between two polls of the store
MAX_RETRY_PAUSE = 30.0  # maximum of the retry backoff in seconds
SHUTDOWN_TIMEOUT = 5.0  # seconds to wait at shutdown for requests in progress
# consecutive answers 500 after which rows are sent one by one, because one of them may cause the error
MAX_SERVER_ERRORS = 10
logger = logging.getLogger("spanwise.collector")


class FeedbackForwarder:
    """Feedback forwarder with one sender per target. Call `begin` once, and `close` before the store is closed."""

    def __init__(self, targets: Sequence[ForwardTarget], longest_pause: float = MAX_RETRY_PAUSE) -> None:
        """Create the forwarder; `longest_pause` is the maximum of the retry backoff in seconds."""
        self.targets, self._longest = tuple(targets), longest_pause
        self._outlets: list[FeedbackSender] = []

    def begin(self, store: FeedbackSource, metrics: Metrics) -> None:
        """Start one sender per target, at its stored cursor."""
        self._outlets = [FeedbackSender(store, target, metrics, self._longest) for target in self.targets]
        for outlet in self._outlets:
            outlet.start()

    def close(self) -> None:
        """Stop sending; the next server on this store sends the remaining feedback."""
        for outlet in self._outlets:
            outlet.end()
        end = time.monotonic() + SHUTDOWN_TIMEOUT
        for outlet in self._outlets:
            outlet.join(max(0.0, end - time.monotonic()))


class FeedbackSender:
    """Sender thread of one target: reads feedback from the cursor, sends it, and advances the cursor."""

    def __init__(self, store: FeedbackSource, target: ForwardTarget, metrics: Metrics, longest_pause: float) -> None:
        self._store, self._target, self._metrics, self._longest = store, target, metrics, longest_pause
        self._post = ForwardTransport(target)
        self._end = threading.Event()
        self._failed = self._faults = 0
        self._error: str | None = None
        self._identity = store.identity()
        self._cursor = store.open_outlet(target.name, target.url).cursor
        self._thread = threading.Thread(target=self._run, name=f"spanwise-feedback-{target.name}", daemon=True)
        metrics.gauge("spanwise_feedback_out_waiting", self._count_waiting, target=target.name)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def end(self) -> None:
        """Tell the thread to start no further request."""
        self._end.set()

    def join(self, seconds: float) -> None:
        """Wait up to `seconds` for the request in progress."""
        if self._thread.is_alive():
            self._thread.join(seconds)

    def _count_waiting(self) -> float:
        try:
            return float(self._store.waiting_after(self._cursor))
        except Exception:  # the store does not answer; /metrics must work anyway
            return float("nan")

    def _run(self) -> None:
        while not self._end.is_set():
            try:
                later = self._send_all()
            except Exception as error:  # an error of the store or a bug must not end the thread
                log_once(f"forwarding feedback to {self._target.name!r} failed; it is retried", error)
                later = DeliveryResult("later", type(error).__name__)
            if later is None:
                self._end.wait(POLL_INTERVAL)
            else:
                self._end.wait(max(later.after, compute_backoff(self._failed, longest=self._longest)))
                self._failed += 1
        self._post.close()

    def _send_all(self) -> DeliveryResult | None:
        """Send until nothing is left or the thread ends. If the target asks to retry later, return its result."""
        while not self._end.is_set() and (rows := self._store.said_after(self._cursor, BATCH_SIZE)):
            if later := self._send(rows):
                self._metrics.add(
                    "spanwise_feedback_out_failures_total", 1, target=self._target.name, reason=later.reason
                )
                if later.reason != self._error:
                    self._error = later.reason
                    message = "forwarding feedback to %r (%s) fails: %s; the feedback stays in the store and is retried"
                    logger.warning(message, self._target.name, self._target.url, later.reason)
                    self._store.move_outlet(self._target.name, self._cursor, 0, 0, later.reason)
                return later
        return None

    def _send(self, rows: Sequence[OutgoingFeedback]) -> DeliveryResult | None:
        """Send rows in one request. If it is too large or refused, split the rows and send both halves."""
        good = [row for row in rows if len(read_via(row.feedback)) < MAX_VIA]
        far = {"hops": len(rows) - len(good)}
        body = build_logs_request(good, self._identity)
        if len(body) > MAX_REQUEST_BYTES and len(rows) > 1:
            return self._in_two(rows)
        answer = self._posted(body) if good else DeliveryResult("taken")
        if answer.verdict == "later":
            self._faults = self._faults + 1 if answer.reason == "http_500" else 0
            return self._one_by_one(rows, answer) if self._faults >= MAX_SERVER_ERRORS else answer
        self._failed = self._faults = 0
        if answer.verdict == "taken":
            rejected = min(answer.rejected, len(good))
            self._note(rows, len(good) - rejected, {**far, "rejected": rejected})
            return None
        if len(rows) > 1:
            return self._in_two(rows)
        self._note(rows, 0, {answer.reason: 1})
        return None

    def _posted(self, body: bytes) -> DeliveryResult:
        return self._post.send(Envelope("logs", False, (), body))

    def _in_two(self, rows: Sequence[OutgoingFeedback]) -> DeliveryResult | None:
        half = len(rows) // 2
        for part in (rows[:half], rows[half:]):
            if self._end.is_set():
                return None
            if later := self._send(part):
                return later
        return None

    def _one_by_one(self, rows: Sequence[OutgoingFeedback], answer: DeliveryResult) -> DeliveryResult | None:
        """Send rows one by one, to find those on which the target fails.

        Rows that fail are dropped only if the target accepts at least one other row. Otherwise the target itself is
        broken.
        """
        self._faults = 0
        answers = []
        for row in rows:
            answers.append(self._posted(build_logs_request([row], self._identity)))
            if self._end.is_set() or answers[-1].reason not in ("", "http_500"):
                return answer
        taken = sum(one.verdict == "taken" for one in answers)
        if not taken:
            return answer
        self._failed = 0
        self._note(rows, taken, {"http_500": len(rows) - taken})
        return None

    def _note(self, rows: Sequence[OutgoingFeedback], sent: int, lost: dict[str, int]) -> None:
        """Record rows as sent or dropped: advance the cursor first in the store, then in this process."""
        self._store.move_outlet(self._target.name, rows[-1].number, sent, sum(lost.values()))
        self._cursor = rows[-1].number
        count = partial(self._metrics.add, target=self._target.name)
        count("spanwise_feedback_out_total", sent)
        for reason, number in lost.items():
            if number:
                count("spanwise_feedback_out_dropped_total", number, reason=reason)
        if self._error is not None:
            self._error = None
            logger.warning("forwarding feedback to %r works again", self._target.name)


SCOPE_NAME = "spanwise.feedback"


def build_logs_request(rows: Sequence[OutgoingFeedback], identity: str) -> bytes:
    """Return an `ExportLogsServiceRequest`, grouped by project and environment.

    The store's `identity` is added to each record, to detect loops.
    """
    request = ExportLogsServiceRequest()
    groups: dict[tuple[str | None, str | None], list[OutgoingFeedback]] = {}
    for row in rows:
        groups.setdefault((row.project, row.environment), []).append(row)
    for (project, environment), some in groups.items():
        group = request.resource_logs.add()
        said = {"service.name": project or "spanwise", names.PROJECT: project, names.ENVIRONMENT: environment}
        group.resource.attributes.extend(_make_key_values({name: value for name, value in said.items() if value}))
        scope = group.scope_logs.add()
        scope.scope.name = SCOPE_NAME
        scope.log_records.extend(_make_log_record(row, identity) for row in some)
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
