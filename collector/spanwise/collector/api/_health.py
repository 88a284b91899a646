"""Whether the collector is alive, for which it needs neither thread nor store; whether it is ready; its numbers."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping

from fastapi import FastAPI, Request, Response

from spanwise.collector._access import access_of, whole_store
from spanwise.collector._metrics import Metrics
from spanwise.collector.api._http import reply
from spanwise.collector.api._rule_metrics import RuleMetrics
from spanwise.collector.errors import Closed
from spanwise.collector.stores import Serving, Store

TEXT = "text/plain; version=0.0.4; charset=utf-8"


def install(app: FastAPI, metrics: Metrics, ready: Callable[[], bool]) -> None:
    """Give the routes what they tell: the server's numbers, and whether it takes requests."""
    started = time.time()
    metrics.gauge("spanwise_start_time_seconds", lambda: started)
    app.state.metrics, app.state.ready, app.state.rule_metrics = metrics, ready, RuleMetrics()


async def healthz(request: Request) -> Response:
    """Alive. Says who answers to those who may know, so that a busy port can be named with its holder."""
    told: dict[str, str | int | None] = {"status": "ok", "service": "spanwise"}
    if access_of(request.scope).known:
        store: Store = request.app.state.store
        told |= {"pid": os.getpid(), "store": store.where if isinstance(store, Serving) else None}
    return reply(told)


async def readyz(request: Request) -> Response:
    """Ready for spans: 503 while starting, stopping, or unable to keep anything; says why to those who may know."""
    why = _trouble(request.app.state.store) if request.app.state.ready() else "the server is starting or stopping"
    if why is None:
        return reply({"ready": True})
    return reply({"ready": False} | ({"why": why} if access_of(request.scope).known else {}), 503)


def metrics(request: Request) -> Response:
    """Prometheus' text format."""
    numbers: Metrics = request.app.state.metrics
    rules: RuleMetrics = request.app.state.rule_metrics
    store = whole_store(request)
    return Response(numbers.text(_stored(store)) + rules.text(store), media_type=TEXT)


def _trouble(store: Store) -> str | None:
    try:
        return store.trouble() if isinstance(store, Serving) else None
    except Closed as error:
        return str(error)


def _stored(store: Store) -> dict[str, float]:
    """What the store says of itself: queue, lag, sizes."""
    return {f"spanwise_store_{name}": float(value) for name, value in _health(store).items()}


def _health(store: Store) -> Mapping[str, float]:
    return store.health() if isinstance(store, Serving) else {}
