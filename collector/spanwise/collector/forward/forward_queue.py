"""Durable forward queue of one target: spool on disk, and delivery of the spooled requests."""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from spanwise.collector.forward.envelope import Envelope, can_join, join_envelopes, unpack_envelope
from spanwise.collector.forward.forward_transport import DeliveryResult, ForwardTarget
from spanwise.collector.forward.sender_thread import MAX_RETRY_PAUSE, SenderThread, logger
from spanwise.collector.prometheus_metrics import Metrics
from spanwise.tracer.spool_management import (
    TRACES_PATH,
    Spool,
    SpoolRecord,
    is_expired,
    list_segments,
    mark_settled,
    open_segment,
    read_records,
    remove_segment,
)

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
        metrics.gauge("spanwise_forward_waiting_bytes", self._waiting_bytes, target=target.name)
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

    def _waiting_bytes(self) -> float:
        return float(sum(_get_file_size(path) for path in self._segments()))

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
