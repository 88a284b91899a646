"""Feedback forwarder: stored feedback sent to every target as OTLP log records, from a durable cursor.

The store is the queue: feedback lies there durably before anybody is told of it, and where each target stands is kept
beside it. A spool would be a second copy of the same, which could lose what the store still has. Sent is at least once:
what is acknowledged, and not yet noted, goes out again after a crash, under the same id.

What OpenTelemetry has no name for travels under `spanwise.feedback.*`, by which a collector of Spanwise's keeps it as
it was.
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

BATCH_SIZE = 200  # feedbacks of one request
MAX_REQUEST_BYTES = 1024 * 1024  # of one request; a larger one is one feedback
MAX_VIA = 8  # collectors in a row, each before the other
POLL_INTERVAL = 0.5  # seconds between two looks at the store
MAX_RETRY_PAUSE = 30.0  # seconds between two tries
SHUTDOWN_TIMEOUT = 5.0  # seconds that the end waits for requests under way
MAX_SERVER_ERRORS = 10  # tries of one feedback to which a target answers 500, which may be its fault
logger = logging.getLogger("spanwise.collector")


class FeedbackForwarder:
    """Sends a store's feedback to targets, each at its own pace. `begin` once, `close` before the store is."""

    def __init__(self, targets: Sequence[ForwardTarget], longest_pause: float = MAX_RETRY_PAUSE) -> None:
        """`longest_pause`: seconds between two tries of one target."""
        self.targets, self._longest = tuple(targets), longest_pause
        self._outlets: list[FeedbackSender] = []

    def begin(self, store: FeedbackSource, metrics: Metrics) -> None:
        """Go on where each target stands."""
        self._outlets = [FeedbackSender(store, target, metrics, self._longest) for target in self.targets]
        for outlet in self._outlets:
            outlet.start()

    def close(self) -> None:
        """Send no more; what waits is sent by the next server on this store."""
        for outlet in self._outlets:
            outlet.end()
        end = time.monotonic() + SHUTDOWN_TIMEOUT
        for outlet in self._outlets:
            outlet.join(max(0.0, end - time.monotonic()))


class FeedbackSender:
    """One target's way out: a thread that reads on from the cursor, sends, and notes how far it is."""

    def __init__(self, store: FeedbackSource, target: ForwardTarget, metrics: Metrics, longest_pause: float) -> None:
        self._store, self._target, self._metrics, self._longest = store, target, metrics, longest_pause
        self._post = ForwardTransport(target)
        self._end = threading.Event()
        self._failed = self._faults = 0
        self._error: str | None = None
        self._identity = store.identity()
        self._cursor = store.open_outlet(target.name, target.url).cursor
        self._thread = threading.Thread(target=self._run, name=f"spanwise-feedback-{target.name}", daemon=True)
        metrics.gauge("spanwise_feedback_out_waiting", self._waiting, target=target.name)

    def start(self) -> None:
        """Begin to send."""
        self._thread.start()

    def end(self) -> None:
        """Begin no further request."""
        self._end.set()

    def join(self, seconds: float) -> None:
        """Wait for the one under way."""
        if self._thread.is_alive():
            self._thread.join(seconds)

    def _waiting(self) -> float:
        try:
            return float(self._store.waiting_after(self._cursor))
        except Exception:  # of a store that does not answer now; numbers are asked for all the same
            return float("nan")

    def _run(self) -> None:
        while not self._end.is_set():
            try:
                later = self._send_all()
            except Exception as error:  # of the store, or a fault of ours: neither ends the thread
                log_once(f"sending feedback on to {self._target.name!r} failed, and is tried again", error)
                later = DeliveryResult("later", type(error).__name__)
            if later is None:
                self._end.wait(POLL_INTERVAL)
            else:
                self._end.wait(max(later.after, compute_backoff(self._failed, longest=self._longest)))
                self._failed += 1
        self._post.close()

    def _send_all(self) -> DeliveryResult | None:
        """Send what waits, until there is nothing, the target says later (that answer), or this ends."""
        while not self._end.is_set() and (rows := self._store.said_after(self._cursor, BATCH_SIZE)):
            if later := self._send(rows):
                self._tell_away(later)
                return later
        return None

    def _send(self, rows: Sequence[OutgoingFeedback]) -> DeliveryResult | None:
        """Send these, in two parts where together they are too large, or one of them is refused."""
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
        """Find what a target fails on. It is given up only where others are taken: else the target itself is broken."""
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
        """These are done with: durably first, then for this process."""
        self._store.move_outlet(self._target.name, rows[-1].number, sent, sum(lost.values()))
        self._cursor = rows[-1].number
        count = partial(self._metrics.add, target=self._target.name)
        count("spanwise_feedback_out_total", sent)
        for reason, number in lost.items():
            if number:
                count("spanwise_feedback_out_dropped_total", number, reason=reason)
        if self._error is not None:
            self._error = None
            logger.warning("feedback goes out to %r again", self._target.name)

    def _tell_away(self, answer: DeliveryResult) -> None:
        self._metrics.add("spanwise_feedback_out_failures_total", 1, target=self._target.name, reason=answer.reason)
        if answer.reason != self._error:
            self._error = answer.reason
            told = "sending feedback on to %r (%s) fails: %s; it waits in the store"
            logger.warning(told, self._target.name, self._target.url, answer.reason)
            self._store.move_outlet(self._target.name, self._cursor, 0, 0, answer.reason)


SCOPE_NAME = "spanwise.feedback"


def build_logs_request(rows: Sequence[OutgoingFeedback], identity: str) -> bytes:
    """An `ExportLogsServiceRequest`, by project and environment; `identity` is that of the store they come from."""
    request = ExportLogsServiceRequest()
    groups: dict[tuple[str | None, str | None], list[OutgoingFeedback]] = {}
    for row in rows:
        groups.setdefault((row.project, row.environment), []).append(row)
    for (project, environment), some in groups.items():
        group = request.resource_logs.add()
        group.resource.attributes.extend(_make_key_values(_make_resource(project, environment)))
        scope = group.scope_logs.add()
        scope.scope.name = SCOPE_NAME
        scope.log_records.extend(_make_log_record(row, identity) for row in some)
    return bytes(request.SerializeToString())


def _make_resource(project: str | None, environment: str | None) -> dict[str, JSON]:
    said = {"service.name": project or "spanwise", names.PROJECT: project, names.ENVIRONMENT: environment}
    return {name: value for name, value in said.items() if value}


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
    """An id as OTLP has it; nothing for one that it has no room for, which a receiver then refuses."""
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
