"""Ingest pipeline: decodes a request, counts its items and hands them to the sinks, for HTTP and gRPC."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, TypeVar

from spanwise.collector.ingest.decode_pool import DecodePool
from spanwise.collector.ingest.ingest_errors import SideRecordRefused, classify_store_error
from spanwise.collector.ingest.limits import LARGE_BODY_BYTES
from spanwise.collector.ingest.offload import Offloader
from spanwise.collector.ingest.otlp_signals import Request, Signal
from spanwise.collector.ingest.request_decoder import DecodedRequest, count_by_reason
from spanwise.collector.ingest.store_sink import Refusals, Sink
from spanwise.collector.prometheus_metrics import Metrics

T = TypeVar("T")
VALUE_OVERHEAD_BYTES = 64  # memory of a decoded attribute or list element, in addition to its text


class IngestPipeline:
    """Pipeline that decodes requests and hands their items to the sinks, for every transport of OTLP.

    It raises errors of two kinds: `PermanentError` and `RetryableError`.
    """

    def __init__(self, sinks: Sequence[Sink], decoders: DecodePool, offloader: Offloader, metrics: Metrics) -> None:
        """Create the pipeline. It passes the items to the sinks in order."""
        self._sinks, self._decoders, self._offloader, self._metrics = sinks, decoders, offloader, metrics

    async def process(self, request: Request[T]) -> DecodedRequest[T]:
        """Decode and store a request. Return the decoded request once its items are durable.

        Raises no other errors than `PermanentError` and `RetryableError`.
        """
        start = time.perf_counter()
        if len(request.body) < LARGE_BODY_BYTES:  # small requests need no lane
            decoded = await self._decode_and_store(request)
        else:
            async with self._offloader.turn(len(request.body)):
                decoded = await self._decode_and_store(request)
        self._metrics.observe("spanwise_acknowledgement_seconds", time.perf_counter() - start)
        return decoded

    async def _decode_and_store(self, request: Request[T]) -> DecodedRequest[T]:
        keep_body = len(self._sinks) > 1  # sinks other than the store may forward the body
        decoded = await self._decoders.decode(request, keep_body=keep_body)
        if not keep_body:
            request.body = b""  # free the body, because it and the decoded items may both be large
        request.admit(decoded.values * VALUE_OVERHEAD_BYTES)
        received = decoded.count + decoded.refused.total() + decoded.ignored
        self._count(request.signal, "spanwise_received_total", received)
        if decoded.ignored:
            self._count(request.signal, "spanwise_passed_over_total", decoded.ignored)
        try:
            if decoded.items or not decoded.refused:  # a request without items may still have to be forwarded
                await self._store_items(request, decoded)
        finally:
            if decoded.refused:
                for reason, count in count_by_reason(decoded.refused).items():
                    self._count(request.signal, "spanwise_refused_total", count, reason=reason)
            if decoded.refused_side_records:
                for reason, count in count_by_reason(decoded.refused_side_records).items():
                    self._count(request.signal, "spanwise_beside_refused_total", count, reason=reason)
            for dialect, count in decoded.faults.items():
                self._metrics.add("spanwise_dialect_errors_total", count, dialect=dialect)
        return decoded

    async def _store_items(self, request: Request[T], decoded: DecodedRequest[T]) -> None:
        start = time.perf_counter()
        refusals: Refusals = ()
        items = [*decoded.items, *decoded.side_records] if decoded.side_records else decoded.items
        for sink in self._sinks:
            try:
                refused = await sink.keep(request, items)
            except Exception as error:
                raise classify_store_error(error) from error
            # several sinks may refuse the same item, so use the longest list of refusals instead of all of them
            refusals = max(refusals, refused, key=len)
            if foreign := [refusal.item for refusal in refused if refusal.item is not None]:
                request = replace(request, refused=(*request.refused, *foreign))
        for refusal in refusals:
            decoded.refuse(refusal)
        self._metrics.observe("spanwise_commit_seconds", time.perf_counter() - start)
        lost = sum(not isinstance(refusal, SideRecordRefused) for refusal in refusals)
        self._count(request.signal, "spanwise_stored_total", decoded.count - lost)
        if decoded.side_records:
            stored = len(decoded.side_records) - (len(refusals) - lost)
            self._count(request.signal, "spanwise_beside_stored_total", stored)

    def count_refused_request(self, signal: Signal[Any], reason: str) -> None:
        """Count a request that is answered with an error."""
        self._count(signal, "spanwise_requests_refused_total", 1, reason=reason)

    def _count(self, signal: Signal[Any], name: str, amount: float, **labels: str) -> None:
        self._metrics.add(name, amount, signal=signal.name, **labels)
