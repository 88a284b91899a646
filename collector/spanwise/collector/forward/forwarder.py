"""Forwarder: ingest sink that puts each received request into the queue of every target."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from spanwise.collector.dialects import Amendment, log_once
from spanwise.collector.forward.envelope import Envelope
from spanwise.collector.forward.forward_queue import MAX_QUEUE_BYTES, MAX_RETRY_PAUSE, ForwardQueue
from spanwise.collector.forward.forward_transport import ForwardTarget
from spanwise.collector.ingest import ItemRefused, Request
from spanwise.collector.prometheus_metrics import Metrics
from spanwise.collector.records import Feedback, OpenRun, Run

MAX_HOPS = 8  # collectors in a row, each before the other
SHUTDOWN_TIMEOUT = 5.0  # seconds that the end waits for requests under way


class Forwarder:
    """Passes requests on as they came, once the store has them: first to the disk, in `folder`, then to each target.

    It marks what it passes on, so that what comes back to it goes no further. Senders' headers, and with them their
    keys, are not among what it keeps.
    """

    def __init__(
        self,
        targets: Sequence[ForwardTarget],
        folder: Path,
        most_bytes: int = MAX_QUEUE_BYTES,
        longest_pause: float = MAX_RETRY_PAUSE,
    ) -> None:
        """`most_bytes` of one target wait on disk; it is tried again after `longest_pause` seconds at most."""
        self.targets, self._folder, self._bounds = tuple(targets), folder, (most_bytes, longest_pause)
        self._mark = secrets.token_hex(8)
        self._outboxes: list[ForwardQueue] = []
        self._metrics = Metrics()

    def begin(self, metrics: Metrics) -> None:
        """Make room for each target, count in the server's numbers, and send what is left from before."""
        self._metrics = metrics
        with suppress(OSError):  # each outbox tries again, and says why not
            self._folder.mkdir(0o700, parents=True, exist_ok=True)
        self._outboxes = [ForwardQueue(target, self._folder, metrics, *self._bounds) for target in self.targets]
        for outbox in self._outboxes:
            outbox.start()

    def left(self) -> list[str]:
        """Folders in which something waits that is for none of the targets."""
        mine = {target.folder for target in self.targets}
        return sorted({path.parent.name for path in self._folder.glob("*/*.spool")} - mine)

    def close(self) -> None:
        """Send no more; what waits stays on disk."""
        for outbox in self._outboxes:
            outbox.end()
        end = time.monotonic() + SHUTDOWN_TIMEOUT
        for outbox in self._outboxes:
            outbox.join(max(0.0, end - time.monotonic()))

    async def keep(self, request: Request[Any], items: Sequence[Any]) -> tuple[ItemRefused, ...]:
        """Pass a request on; never an error of its sender's."""
        if request.body and not self._has_been_here(request):
            try:
                await asyncio.to_thread(self._put, request)
            except Exception as error:
                log_once("a request could not be passed on", error)
                self._lose("internal")
        return ()

    def _has_been_here(self, request: Request[Any]) -> bool:
        if self._mark in request.hops or len(request.hops) >= MAX_HOPS:
            self._metrics.add("spanwise_forward_loops_total", 1)
            return True
        return False

    def _put(self, request: Request[Any]) -> None:
        is_json = request.codec is request.signal.json
        whole = Envelope(request.signal.name, is_json, (*request.hops, self._mark), request.body)
        try:
            letter = whole.chosen(_make_selector(request.refused, is_json)) if request.refused else whole
        except ValueError:  # what was refused cannot be told from the rest
            return self._lose("project")
        if letter is not None:
            for outbox in self._outboxes:
                outbox.put(letter)
        return None

    def _lose(self, reason: str) -> None:
        for target in self.targets:
            self._metrics.add("spanwise_forward_dropped_total", 1, target=target.name, reason=reason)


def _make_selector(refused: Sequence[Any], is_json: bool) -> Callable[[int, Any], bool]:
    """All items but those that a key may not send: these spans, and log records of these traces."""
    ids = {_find_ids(item) for item in refused}

    def choose(number: int, item: Any) -> bool:
        if is_json:
            trace_id, span_id = str(item.get("traceId") or "").lower(), str(item.get("spanId") or "").lower()
        else:
            trace_id, span_id = item.trace_id.hex(), item.span_id.hex()
        return (trace_id, span_id) not in ids and (trace_id, "") not in ids

    return choose


def _find_ids(item: Any) -> tuple[str, str]:
    """Trace and span of an item; without a span, where a record may name it otherwise than by its own fields."""
    if isinstance(item, Run):
        return item.trace_id, item.span_id
    if isinstance(item, Feedback):
        return item.target.trace_id or "", ""
    return (item.trace_id, "") if isinstance(item, Amendment | OpenRun) else ("", "")
