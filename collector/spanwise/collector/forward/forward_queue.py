"""Durable forward queue of one target: spool on disk, and the thread that sends with retries."""

from __future__ import annotations

import logging
import os
import threading
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from spanwise.collector.dialects import log_once
from spanwise.collector.forward.envelope import Envelope, can_join, join_envelopes, unpack_envelope
from spanwise.collector.forward.forward_transport import DeliveryResult, ForwardTarget, ForwardTransport, GrpcTransport
from spanwise.collector.prometheus_metrics import Metrics
from spanwise.tracer.export.disk_spool import (
    Spool,
    SpoolRecord,
    is_expired,
    list_segments,
    mark_settled,
    open_segment,
    read_records,
    remove_segment,
)
from spanwise.tracer.export.span_encoding import TRACES_PATH
from spanwise.tracer.http_connections import compute_backoff

# Sender thread of one target: retries with backoff, and reports of failures and recovery.

MAX_RETRY_PAUSE = 30.0  # maximum of the retry backoff in seconds
SHUTDOWN_TIMEOUT = 5.0  # seconds to wait at shutdown for requests in progress
# reasons of failures that the request itself may cause
SERVER_ERRORS = frozenset(("http_500", "grpc_internal", "grpc_unknown"))
# consecutive failures of this kind after which a sender checks whether the request, and not the target, causes them
MAX_SERVER_ERRORS = 10
logger = logging.getLogger("spanwise.collector")


class SenderThread(ABC):
    """Thread that sends items to one target, until it is stopped. Items stay in a durable queue until they are sent."""

    activity = "forwarding"  # for log lines
    failure_metric = "spanwise_forward_failures_total"

    def __init__(self, target: ForwardTarget, metrics: Metrics, max_pause: float, thread_name: str) -> None:
        self.target, self.metrics = target, metrics
        self.transport = GrpcTransport(target) if target.uses_grpc else ForwardTransport(target)
        self.stopping = threading.Event()
        self.failures = self.server_errors = 0  # consecutive failures, and consecutive `SERVER_ERRORS`
        self.failure = ""  # reason of the last failure, until the next success
        self._max_pause = max_pause
        self._thread = threading.Thread(target=self._run, name=thread_name, daemon=True)

    @abstractmethod
    def send_waiting(self) -> DeliveryResult | None:
        """Send until nothing is left or the thread is stopped. If the target asks to retry later, return its result."""

    @abstractmethod
    def wait_for_items(self) -> None:
        """Wait until there may be items to send, or the thread is stopped."""

    @abstractmethod
    def describe_retry(self) -> str:
        """Return where the items are that could not be sent, for the log."""

    def start(self) -> None:
        """Start the thread. It first sends the items that are left from an earlier run."""
        self._thread.start()

    def stop(self) -> None:
        """Tell the thread to start no further request."""
        self.stopping.set()

    def join(self, seconds: float) -> None:
        """Wait up to `seconds` for the request in progress."""
        if self._thread.is_alive():
            self._thread.join(seconds)

    def count_server_error(self, result: DeliveryResult) -> bool:
        """Count consecutive `SERVER_ERRORS`. At `MAX_SERVER_ERRORS`, reset the count and return True."""
        self.server_errors = self.server_errors + 1 if result.reason in SERVER_ERRORS else 0
        if self.server_errors < MAX_SERVER_ERRORS:
            return False
        self.server_errors = 0
        return True

    def report_failure(self, result: DeliveryResult) -> bool:
        """Count a failure, and log it if the last one had another reason. Return whether it was logged."""
        self.metrics.add(self.failure_metric, 1, target=self.target.name, reason=result.reason)
        if result.reason == self.failure:
            return False
        self.failure = result.reason
        message = "%s to %r (%s) fails: %s; %s"
        logger.warning(message, self.activity, self.target.name, self.target.url, result.reason, self.describe_retry())
        return True

    def report_success(self) -> None:
        """Log that the target accepts requests again, if the last one failed."""
        if self.failure:
            self.failure = ""
            logger.warning("%s to %r works again", self.activity, self.target.name)

    def _run(self) -> None:
        while not self.stopping.is_set():
            try:
                result = self.send_waiting()
                if result is not None:
                    self.report_failure(result)
            except Exception as error:  # an error of the disk or the store, or a bug, must not end the thread
                log_once(f"{self.activity} to {self.target.name!r} failed; it is retried", error)
                result = DeliveryResult("later", type(error).__name__)
            if result is None:
                self.wait_for_items()
            else:
                self.stopping.wait(max(result.after, compute_backoff(self.failures, longest=self._max_pause)))
                self.failures += 1
        self.transport.close()


def stop_senders(senders: Sequence[SenderThread]) -> None:
    """Stop the threads, and wait for requests in progress."""
    for sender in senders:
        sender.stop()
    deadline = time.monotonic() + SHUTDOWN_TIMEOUT
    for sender in senders:
        sender.join(max(0.0, deadline - time.monotonic()))


# Durable forward queue of one target: spool on disk, and delivery of the spooled requests.

MAX_QUEUE_BYTES = 1024 * 1024 * 1024  # maximum size of the spool of one target
MAX_JOINED_BYTES = 1024 * 1024  # maximum size of several requests that are joined; halved after each response 413
LOSS_LOG_INTERVAL = 60.0  # seconds between two log lines about one target's losses
# the envelope is None if the record is damaged or of an unknown format
QueuedRecord = tuple[SpoolRecord, Envelope | None]


class ForwardQueue(SenderThread):
    """Queue of one target: delivers at least once and in order, and counts dropped requests by reason."""

    def __init__(
        self,
        target: ForwardTarget,
        folder: Path,
        metrics: Metrics,
        max_bytes: int = MAX_QUEUE_BYTES,
        max_pause: float = MAX_RETRY_PAUSE,
    ) -> None:
        super().__init__(target, metrics, max_pause, f"spanwise-forward-{target.name}")
        self._folder = folder / target.folder
        self._spool = Spool(self._folder, max_bytes, {"url": target.url, "project": target.name})
        self._wake = threading.Event()
        self._max_joined = MAX_JOINED_BYTES
        self._dropped, self._log_lock, self._last_log = Counter[str](), threading.Lock(), float("-inf")
        metrics.gauge(
            "spanwise_forward_waiting_bytes",
            lambda: float(sum(map(_get_file_size, self._segments()))),
            target=target.name,
        )
        metrics.gauge("spanwise_forward_waiting_seconds", self._waiting_seconds, target=target.name)

    def put(self, envelope: Envelope) -> None:
        """Write a request to the spool on disk, or count it as dropped. Callable from any thread."""
        self._drop(self._spool.append(TRACES_PATH, envelope.packed(), 1)[1])
        self._wake.set()

    def stop(self) -> None:
        super().stop()
        self._wake.set()

    def join(self, seconds: float) -> None:
        super().join(seconds)
        self._spool.close_segment()

    def wait_for_items(self) -> None:
        # `stop` sets `stopping` before `_wake`, so this check sees it even if `clear` has just reset `_wake`
        if not self.stopping.is_set():
            self._wake.wait()

    def describe_retry(self) -> str:
        return f"requests are kept in {self._folder} and retried"

    def send_waiting(self) -> DeliveryResult | None:
        self._wake.clear()
        self._spool.close_segment()
        for segment in self._segments():
            if is_expired(segment):
                self._drop({"too_old": remove_segment(segment)})
            elif result := self._send_segment(segment):
                return result
        return None

    def _send_segment(self, segment: Path) -> DeliveryResult | None:
        with open_segment(segment) as descriptor:
            if descriptor is None:
                return None
            for group in _group_joinable(read_records(descriptor), 0 if self.failures else self._max_joined):
                if self.stopping.is_set():
                    return None
                # send one request, or several that are joined; return the result if the target asks to retry later
                envelopes = [envelope for _, envelope in group if envelope is not None]
                self._drop({"torn": len(group) - len(envelopes)})
                if envelopes and (result := self._deliver(envelopes)):
                    return result
                for record, _ in group:
                    mark_settled(descriptor, record)
        remove_segment(segment)
        return None

    def _deliver(self, envelopes: list[Envelope]) -> DeliveryResult | None:
        """Send requests as one. If the target refuses it, send its parts, or drop it. Return the result if the target
        asks to retry later.
        """
        result = self.transport.send(join_envelopes(envelopes))
        if result.verdict == "later" and not self._is_request_at_fault(result, envelopes):
            return result
        self.failures = self.server_errors = 0
        self.report_success()
        if result.verdict == "taken":
            self.metrics.add("spanwise_forwarded_total", len(envelopes), target=self.target.name)
            self.metrics.add("spanwise_forward_rejected_total", result.rejected, target=self.target.name)
            return None
        parts = [[envelope] for envelope in envelopes] if len(envelopes) > 1 else []
        if result.verdict == "too_large" and parts:
            self._max_joined //= 2
        elif result.verdict == "too_large":
            with suppress(ValueError):  # a body that cannot be parsed as a whole is not split
                parts = [[half] for half in envelopes[0].halves()]
        if not parts:
            self._drop({result.reason: len(envelopes)})
        return next((later for part in parts if (later := self._deliver(part))), None)

    def _is_request_at_fault(self, result: DeliveryResult, envelopes: Sequence[Envelope]) -> bool:
        """Return whether this request, and not the target, causes the responses 500. If so, the request is split or
        dropped.

        To find out, the queue sends another waiting request. If the target accepts that one, this request is the
        cause; the queue sends the other one again in its turn. Otherwise the target itself is broken.
        """
        if not self.count_server_error(result):
            return False
        for segment in self._segments():
            descriptor = os.open(segment, os.O_RDONLY)
            try:
                for record in read_records(descriptor):
                    other = _read_envelope(record)
                    if other is not None and other not in envelopes:
                        return self.transport.send(other).verdict == "taken"
            finally:
                os.close(descriptor)
        return False

    # Logging and metrics

    def _drop(self, lost: Mapping[str, int]) -> None:
        for reason, count in lost.items():
            if count:
                self.metrics.add("spanwise_forward_dropped_total", count, target=self.target.name, reason=reason)
        with self._log_lock:
            self._dropped += Counter(lost)
            if self._dropped and time.monotonic() - self._last_log >= LOSS_LOG_INTERVAL:
                counts = ", ".join(f"{count} {reason}" for reason, count in self._dropped.most_common())
                logger.warning("forwarding to %r dropped requests: %s", self.target.name, counts)
                self._dropped, self._last_log = Counter(), time.monotonic()

    def _waiting_seconds(self) -> float:
        first = next(iter(self._segments()), None)
        return 0.0 if first is None else max(0.0, time.time() - int(first.name[:20]) / 1e9)

    def _segments(self) -> list[Path]:
        return list_segments(self._folder) if self._folder.is_dir() else []


def _group_joinable(records: Iterable[SpoolRecord], max_bytes: int) -> Iterator[list[QueuedRecord]]:
    """Yield records in order, in groups that can be joined into one request of at most `max_bytes` bytes."""
    group: list[QueuedRecord] = []
    size = 0
    for record in records:
        envelope, length = _read_envelope(record), len(record.body or b"")
        if group and not (
            size + length <= max_bytes and envelope and group[-1][1] and can_join(group[-1][1], envelope)
        ):
            yield group
            group, size = [], 0
        group.append((record, envelope))
        size += length
    if group:
        yield group


def _read_envelope(record: SpoolRecord) -> Envelope | None:
    try:
        return None if record.body is None else unpack_envelope(record.body)
    except ValueError:
        return None


def _get_file_size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
