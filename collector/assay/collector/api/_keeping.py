"""Looking after what is stored: retention, and space."""

from __future__ import annotations

from fastapi import APIRouter, Response

from assay.collector import _wire
from assay.collector.api._http import Body, reply, wire
from assay.collector.records import Retention
from assay.collector.stores import Store


def router(store: Store) -> APIRouter:
    """The routes over a store."""
    routes = APIRouter(prefix="/api", tags=["keeping"])

    @routes.post("/prune")
    @wire(takes=Retention, returns=dict[str, int])
    def prune(body: Body) -> Response:
        """Delete what is older, or takes more room, than a rule allows."""
        return reply({"deleted": store.prune(_wire.decode(Retention, body))})

    @routes.get("/retention")
    @wire(returns=list[Retention])
    def kept() -> Response:
        """The rules by which is pruned about once an hour."""
        return reply(store.retention())

    @routes.post("/retention")
    @wire(takes=Retention, returns=Retention)
    def keep(body: Body) -> Response:
        """Keep a project's rule; one without limits takes it away."""
        rule = _wire.decode(Retention, body)
        store.set_retention(rule)
        return reply(rule)

    @routes.post("/vacuum")
    @wire(returns=dict[str, int])
    def vacuum() -> Response:
        """Give the space of what was deleted back to the disk. Writing waits meanwhile."""
        return reply({"freed_bytes": store.vacuum()})

    return routes
