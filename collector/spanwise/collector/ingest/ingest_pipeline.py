"""Ingest pipeline: decodes a request, counts its items and hands them to the sinks, for HTTP and gRPC."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, TypeVar

from spanwise.collector.dialects import log_once
from spanwise.collector.ingest.decode_pool import DecodePool
from spanwise.collector.ingest.ingest_errors import (
    PermanentError,
    RequestRefused,
    SideRecordRefused,
    classify_store_error,
)
from spanwise.collector.ingest.limits import LARGE_BODY_BYTES, Limits
from spanwise.collector.ingest.offload import Offloader
from spanwise.collector.ingest.otlp_signals import Request, Signal
from spanwise.collector.ingest.request_decoder import DecodedRequest, decode
from spanwise.collector.ingest.store_sink import Refusals, Sink
from spanwise.collector.prometheus_metrics import Metrics

T = TypeVar("T")
VALUE_OVERHEAD_BYTES = 64  # memory of a decoded attribute or list element, in addition to its text


class IngestPipeline:
    """Pipeline that decodes requests and hands their items to the sinks, for every transport of OTLP.

    It raises errors of two kinds: `PermanentError` and `RetryableError`.
    """

    def __init__(
        self,
        keepers: Sequence[Sink],
        beside: Offloader,
        metrics: Metrics,
        limits: Limits,
        decoders: DecodePool | None = None,
    ) -> None:
        self._keepers, self._beside, self._metrics, self._limits = keepers, beside, metrics, limits
        self._decoders, self._passed_on = decoders, len(keepers) > 1

    async def take(self, request: Request[T]) -> DecodedRequest[T]:
        """Decode and store a request. Return the decoded request once its items are durable.

        Raises no other errors than `PermanentError` and `RetryableError`.
        """
        start = time.perf_counter()
        if len(request.body) < LARGE_BODY_BYTES:  # small requests need no lane
            decoded = await self._decode_and_store(request)
        else:
            async with self._beside.turn(len(request.body)):
                decoded = await self._decode_and_store(request)
        self._metrics.observe("spanwise_acknowledgement_seconds", time.perf_counter() - start)
        return decoded

    async def _decode_and_store(self, request: Request[T]) -> DecodedRequest[T]:
        decoded = await self._decoded(request)
        if not self._passed_on:
            request.body = b""  # free the body, because it and the decoded items may both be large
        request.admit(decoded.values * VALUE_OVERHEAD_BYTES)
        self._count(request.signal, "spanwise_received_total", decoded.count + decoded.refused_count + decoded.passed)
        if decoded.passed:
            self._count(request.signal, "spanwise_passed_over_total", decoded.passed)
        try:
            if decoded.items or not decoded.refused:  # a request without items may still have to be forwarded
                await self._store_items(request, decoded)
        finally:
            if decoded.refused:
                for reason, count in decoded.refused_by_reason.items():
                    self._count(request.signal, "spanwise_refused_total", count, reason=reason)
            for reason, count in decoded.beside_by_reason.items():
                self._count(request.signal, "spanwise_beside_refused_total", count, reason=reason)
            for dialect, count in decoded.faults.items():
                self._metrics.add("spanwise_dialect_errors_total", count, dialect=dialect)
        return decoded

    def refused(self, signal: Signal[Any], reason: str) -> None:
        """Count a request that is answered with an error."""
        self._count(signal, "spanwise_requests_refused_total", 1, reason=reason)

    async def _decoded(self, request: Request[T]) -> DecodedRequest[T]:
        try:
            if self._decoders is not None:
                elsewhere = await self._decoders(request, keep=self._passed_on)
                if elsewhere is not None:
                    return elsewhere
            args = request.codec, request.body, self._limits
            if len(request.body) >= LARGE_BODY_BYTES:
                return await self._beside(decode, *args)
            start = time.perf_counter()
            decoded = decode(*args)
            if self._decoders is not None:
                self._decoders.worked(time.perf_counter() - start, len(request.body))
            return decoded
        except RequestRefused:
            raise
        except Exception as error:  # a retry would fail on the same bytes again
            log_once("the collector failed on a request, which is refused", error)
            raise PermanentError("decoding", f"the collector failed on this request: {error!r:.200}") from error

    async def _store_items(self, request: Request[T], decoded: DecodedRequest[T]) -> None:
        start = time.perf_counter()
        refusals: Refusals = ()
        items = [*decoded.items, *decoded.also] if decoded.also else decoded.items
        for keeper in self._keepers:
            try:
                refused = await keeper.keep(request, items)
            except Exception as error:
                raise classify_store_error(error) from error
            # several sinks may refuse the same item, so use the longest list of refusals instead of all of them
            refusals = max(refusals, refused, key=len)
            if foreign := [one.item for one in refused if one.item is not None]:
                request = replace(request, refused=(*request.refused, *foreign))
        for refusal in refusals:
            decoded.refuse(refusal)
        self._metrics.observe("spanwise_commit_seconds", time.perf_counter() - start)
        lost = sum(not isinstance(refusal, SideRecordRefused) for refusal in refusals)
        self._count(request.signal, "spanwise_stored_total", decoded.count - lost)
        if decoded.also:
            kept = len(decoded.also) - (len(refusals) - lost)
            self._count(request.signal, "spanwise_beside_stored_total", kept)

    def _count(self, signal: Signal[Any], name: str, amount: float, **labels: str) -> None:
        self._metrics.add(name, amount, signal=signal.name, **labels)
