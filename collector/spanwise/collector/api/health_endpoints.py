"""Health, readiness and Prometheus endpoints."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

from fastapi import FastAPI, Request, Response

from spanwise.collector.api.http_conversion import json_response
from spanwise.collector.errors import Closed
from spanwise.collector.prometheus_metrics import Metrics, RuleMetrics
from spanwise.collector.security.authorization import get_access
from spanwise.collector.stores import LocalStore, Store

PROMETHEUS_MEDIA_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def install_health(app: FastAPI, metrics: Metrics, ready: Callable[[], bool]) -> None:
    """Set the state that the health endpoints report: metrics, readiness and start time."""
    started = time.time()
    metrics.gauge("spanwise_start_time_seconds", lambda: started)
    app.state.metrics, app.state.ready, app.state.rule_metrics = metrics, ready, RuleMetrics()


async def healthz(request: Request) -> Response:
    """Report that the server is alive; for authorized callers also its process id and store."""
    status: dict[str, str | int | None] = {"status": "ok", "service": "spanwise"}
    if get_access(request.scope).known:
        store: Store = request.app.state.store
        status |= {"pid": os.getpid(), "store": store.where if isinstance(store, LocalStore) else None}
    return json_response(status)


async def readyz(request: Request) -> Response:
    """Report whether the server accepts spans: 503 while it starts, stops or cannot write; with the reason if
    authorized.
    """
    store: Store = request.app.state.store
    problem: str | None = "the server is starting or stopping"
    if request.app.state.ready():
        try:
            problem = store.trouble() if isinstance(store, LocalStore) else None
        except Closed as error:
            problem = str(error)
    if problem is None:
        return json_response({"ready": True})
    return json_response({"ready": False} | ({"why": problem} if get_access(request.scope).known else {}), 503)


def metrics(request: Request) -> Response:
    """Return metrics in Prometheus' text format."""
    numbers: Metrics = request.app.state.metrics
    rules: RuleMetrics = request.app.state.rule_metrics
    get_access(request.scope).require_all_projects("/metrics")
    store: Store = request.app.state.store
    health = store.health() if isinstance(store, LocalStore) else {}
    gauges = {f"spanwise_store_{name}": float(value) for name, value in health.items()}
    return Response(numbers.text(gauges) + rules.text(store), media_type=PROMETHEUS_MEDIA_TYPE)
