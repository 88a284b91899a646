"""Forwarder: ingest sink that puts each received request into the queue of every target."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from spanwise.collector.dialects import Amendment, log_once
from spanwise.collector.forward.envelope import Envelope
from spanwise.collector.forward.forward_queue import MAX_QUEUE_BYTES, ForwardQueue
from spanwise.collector.forward.forward_transport import ForwardTarget
from spanwise.collector.forward.sender_thread import MAX_RETRY_PAUSE, stop_senders
from spanwise.collector.ingest import ItemRefused, Request
from spanwise.collector.prometheus_metrics import Metrics
from spanwise.collector.records import Feedback, OpenRun, Run

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
