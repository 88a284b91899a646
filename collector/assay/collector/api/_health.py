"""Whether the collector is alive, whether it is ready, and its numbers."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Mapping

from fastapi import APIRouter, Response

from assay.collector._metrics import Metrics
from assay.collector.api._http import reply, wire
from assay.collector.stores import Store


def router(store: Store, metrics: Metrics, ready: Callable[[], bool]) -> APIRouter:
    """The routes over a store and its server's numbers."""
    routes = APIRouter(tags=["health"])
    started = time.time()
    metrics.gauge("assay_start_time_seconds", lambda: started)

    @routes.get("/healthz")
    @wire(returns=dict[str, str | int | None])
    async def healthz() -> Response:
        """Alive. Says who answers, so that a busy port can be named with its holder."""
        return reply({"status": "ok", "service": "assay", "pid": os.getpid(), "store": getattr(store, "path", None)})

    @routes.get("/readyz")
    @wire(returns=dict[str, bool])
    async def readyz() -> Response:
        """Ready for spans: 503 while starting, stopping, or unable to keep anything."""
        found = ready() and await asyncio.to_thread(_writable, store)
        return reply({"ready": found}, 200 if found else 503)

    @routes.get("/metrics")
    def numbers() -> Response:
        """Prometheus' text format."""
        return Response(metrics.text(_stored(store)), media_type="text/plain; version=0.0.4; charset=utf-8")

    return routes


def _writable(store: Store) -> bool:
    return bool(_health(store).get("writable", True))


def _stored(store: Store) -> dict[str, float]:
    """What the store says of itself: queue, lag, sizes."""
    return {f"assay_store_{name}": float(value) for name, value in _health(store).items()}


def _health(store: Store) -> Mapping[str, float]:
    health = getattr(store, "health", None)
    return {} if health is None else health()
