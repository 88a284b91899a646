"""Durable forward queue of one target: spool on disk, sender thread, retry and backoff."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from spanwise.collector.dialects import log_once
from spanwise.collector.forward.envelope import Envelope, can_join, join_envelopes, unpack_envelope
from spanwise.collector.forward.forward_transport import DeliveryResult, ForwardTarget, ForwardTransport
from spanwise.collector.prometheus_metrics import Metrics
from spanwise.tracer.backoff import compute_backoff
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
MAX_RETRY_PAUSE = 30.0  # maximum of the retry backoff in seconds
MAX_JOINED_BYTES = 1024 * 1024  # maximum size of several requests that are joined; halved after each answer 413
MAX_SERVER_ERRORS = (
    10  # consecutive answers 500 after which the queue tries another request, to see whether this one causes the error
)
LOSS_LOG_INTERVAL = 60.0  # seconds between two log lines about one target's losses
logger = logging.getLogger("spanwise.collector")
# the envelope is None if the record is damaged or of an unknown format
QueuedRecord = tuple[SpoolRecord, Envelope | None]


class ForwardQueue:
    """Queue of one target: delivers at least once and in order, and counts dropped requests by reason."""

    def __init__(
        self,
        target: ForwardTarget,
        folder: Path,
        metrics: Metrics,
        most_bytes: int = MAX_QUEUE_BYTES,
        longest: float = MAX_RETRY_PAUSE,
    ) -> None:
        self.target, self._metrics, self._post, self._longest = target, metrics, ForwardTransport(target), longest
        self._folder = folder / target.folder
        self._spool = Spool(self._folder, most_bytes, {"url": target.url, "project": target.name})
        self._wake, self._end = threading.Event(), threading.Event()
        self._thread: threading.Thread | None = None
        self._joined = MAX_JOINED_BYTES
        self._failed = self._faults = 0  # consecutive failures, and consecutive answers 500
        self._away, self._telling = "", threading.Lock()
        self._dropped, self._told_at = Counter[str](), float("-inf")
        metrics.gauge("spanwise_forward_waiting_bytes", self._waiting_bytes, target=target.name)
        metrics.gauge("spanwise_forward_waiting_seconds", self._waiting_seconds, target=target.name)

    def put(self, letter: Envelope) -> None:
        """Write a request to the spool on disk, or count it as dropped. Callable from any thread."""
        self._drop(self._spool.keep(TRACES_PATH, letter.packed(), 1)[1])
        self._wake.set()

    def start(self) -> None:
        """Start the sender thread. It first sends the requests that are left from an earlier run."""
        self._thread = threading.Thread(target=self._run, name=f"spanwise-forward-{self.target.name}", daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Tell the thread to start no further request."""
        self._end.set()
        self._wake.set()

    def join(self, seconds: float) -> None:
        """Wait up to `seconds` for the request in progress. The next queue on this folder sends the remaining ones."""
        if self._thread is not None:
            self._thread.join(seconds)
        self._spool.rest()

    def _run(self) -> None:
        while not self._end.is_set():
            self._wake.clear()
            answer = self._send_all()
            if answer is None:
                # `end` sets `_end` before `_wake`, so this check sees it even if `clear` has just reset `_wake`
                if not self._end.is_set():
                    self._wake.wait()
            else:
                self._end.wait(max(answer.after, compute_backoff(self._failed, longest=self._longest)))
                self._failed += 1
        self._post.close()

    def _send_all(self) -> DeliveryResult | None:
        """Send until nothing is left or the queue ends. If the target asks to retry later, return its result."""
        try:
            self._spool.rest()
            for segment in self._segments():
                if is_expired(segment):
                    self._drop({"too_old": remove_segment(segment)})
                elif answer := self._send_segment(segment):
                    self._metrics.add(
                        "spanwise_forward_failures_total", 1, target=self.target.name, reason=answer.reason
                    )
                    if answer.reason != self._away:
                        self._away = answer.reason
                        message = "forwarding to %r (%s) fails: %s; requests are kept in %s and retried"
                        logger.warning(message, self.target.name, self.target.url, answer.reason, self._folder)
                    return answer
            return None
        except Exception as error:  # a disk error or a bug must not end the thread
            log_once(f"forwarding to {self.target.name!r} failed; it is retried", error)
            return DeliveryResult("later", type(error).__name__)

    def _send_segment(self, segment: Path) -> DeliveryResult | None:
        with open_segment(segment) as descriptor:
            if descriptor is None:
                return None
            for waiting in _group_joinable(read_records(descriptor), 0 if self._failed else self._joined):
                if self._end.is_set():
                    return None
                # send one request, or several that are joined; return the result if the target asks to retry later
                letters = [letter for _, letter in waiting if letter is not None]
                self._drop({"torn": len(waiting) - len(letters)})
                if answer := (self._deliver(letters) if letters else None):
                    return answer
                for record, _ in waiting:
                    mark_settled(descriptor, record)
        remove_segment(segment)
        return None

    def _deliver(self, letters: list[Envelope]) -> DeliveryResult | None:
        answer = self._post.send(join_envelopes(letters))
        if answer.verdict == "later" and not self._is_its_fault(answer, letters):
            return answer
        self._failed = self._faults = 0
        if self._away:
            self._away = ""
            logger.warning("forwarding to %r works again", self.target.name)
        if answer.verdict == "taken":
            self._metrics.add("spanwise_forwarded_total", len(letters), target=self.target.name)
            self._metrics.add("spanwise_forward_rejected_total", answer.rejected, target=self.target.name)
            return None
        if answer.verdict == "too_large" and len(letters) > 1:
            self._joined //= 2
        parts = [[letter] for letter in letters] if len(letters) > 1 else []
        if not parts and answer.verdict == "too_large":
            with suppress(ValueError):  # a body that cannot be parsed as a whole is not split
                parts = [[half] for half in letters[0].halves()]
        if not parts:
            self._drop({answer.reason: len(letters)})
        return next((later for part in parts if (later := self._deliver(part))), None)

    def _is_its_fault(self, answer: DeliveryResult, letters: Sequence[Envelope]) -> bool:
        """Return whether this request, and not the target, causes the errors 500. If so, the request is split or
        dropped.

        To find out, the queue sends another waiting request. If the target accepts that one, this request is the
        cause; the queue sends the other one again in its turn. Otherwise the target itself is broken.
        """
        self._faults = self._faults + 1 if answer.reason == "http_500" else 0
        if self._faults < MAX_SERVER_ERRORS:
            return False
        self._faults = 0
        other = next((letter for letter in self._waiting() if letter not in letters), None)
        return other is not None and self._post.send(other).verdict == "taken"

    def _waiting(self) -> Iterator[Envelope]:
        """Yield the requests in the spool without removing them."""
        for segment in self._segments():
            descriptor = os.open(segment, os.O_RDONLY)
            try:
                yield from (
                    letter for record in read_records(descriptor) if (letter := _read_envelope(record)) is not None
                )
            finally:
                os.close(descriptor)

    # Logging and metrics

    def _drop(self, lost: Mapping[str, int]) -> None:
        for reason, count in lost.items():
            if count:
                self._metrics.add("spanwise_forward_dropped_total", count, target=self.target.name, reason=reason)
        with self._telling:
            self._dropped += Counter(lost)
            if self._dropped and time.monotonic() - self._told_at >= LOSS_LOG_INTERVAL:
                told = ", ".join(f"{count} {reason}" for reason, count in self._dropped.most_common())
                logger.warning("forwarding to %r dropped requests: %s", self.target.name, told)
                self._dropped, self._told_at = Counter(), time.monotonic()

    def _waiting_bytes(self) -> float:
        return float(sum(_get_file_size(path) for path in self._segments()))

    def _waiting_seconds(self) -> float:
        first = next(iter(self._segments()), None)
        return 0.0 if first is None else max(0.0, time.time() - int(first.name[:20]) / 1e9)

    def _segments(self) -> list[Path]:
        return list_segments(self._folder) if self._folder.is_dir() else []


def _group_joinable(found: Iterable[SpoolRecord], most: int) -> Iterator[list[QueuedRecord]]:
    """Yield records in order, in groups that can be joined into one request of at most `most` bytes."""
    group: list[QueuedRecord] = []
    size = 0
    for record in found:
        letter, length = _read_envelope(record), len(record.body or b"")
        if group and not (size + length <= most and letter and group[-1][1] and can_join(group[-1][1], letter)):
            yield group
            group, size = [], 0
        group.append((record, letter))
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
