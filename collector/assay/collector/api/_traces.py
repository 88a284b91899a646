"""Traces, runs, sessions, aggregates."""

from __future__ import annotations

from fastapi import APIRouter, Response

from assay.collector import _wire
from assay.collector.api._http import Body, Conditions, Limit, Number, reply, wire
from assay.collector.errors import NotFound
from assay.collector.filters import Filter
from assay.collector.intake import check_ids
from assay.collector.records import JSON, Bucket, Page, Run, SessionSummary, Trace, TraceSummary
from assay.collector.stores import TraceStore


def router(store: TraceStore) -> APIRouter:
    """The routes over a store."""
    routes = APIRouter(prefix="/api", tags=["traces"])

    @routes.get("/traces")
    @wire(returns=Page[TraceSummary])
    def traces(filter: Conditions, limit: Limit = 50, cursor: str | None = None) -> Response:
        """Traces that pass the conditions in the query string, latest first."""
        return reply(store.traces(filter, limit=limit, cursor=cursor))

    @routes.delete("/traces")
    @wire(returns=dict[str, int])
    def delete(filter: Conditions) -> Response:
        """Remove the traces that pass, with all that hangs on them. No conditions at all are refused."""
        return reply({"deleted": store.delete(filter)})

    @routes.post("/traces/many")
    @wire(takes=list[str], returns=list[Trace])
    def many(body: Body) -> Response:
        """Several traces by their ids, in the order asked."""
        return reply(store.many(_wire.decode(list[str], body)))

    @routes.get("/traces/{trace_id}")
    @wire(returns=Trace)
    def trace(trace_id: str) -> Response:
        """One trace with all its runs and feedback."""
        return reply(store.trace(trace_id))

    @routes.delete("/traces/{trace_id}")
    @wire(returns=dict[str, int])
    def delete_one(trace_id: str) -> Response:
        """Remove one trace."""
        deleted = store.delete(Filter(trace_ids=(trace_id,)))
        if not deleted:
            raise NotFound(f"there is no trace {trace_id!r}")
        return reply({"deleted": deleted})

    @routes.post("/runs")
    @wire(takes=list[Run], returns=dict[str, int])
    def append(body: Body) -> Response:
        """Keep runs; answered when they are durable."""
        runs = _wire.decode(list[Run], body)
        for run in runs:
            check_ids(run.trace_id, run.span_id, run.parent_id or "")
        store.append(runs)
        return reply({"stored": len(runs)})

    @routes.patch("/runs/{trace_id}/{span_id}")
    @wire(takes=dict[str, JSON], returns=bool)
    def amend(trace_id: str, span_id: str, body: Body) -> Response:
        """Fill in what is said of a stored run later, such as inputs, outputs, usage; false if it is away."""
        return reply(store.amend(trace_id, span_id, _wire.decode(dict[str, JSON], body)))

    @routes.get("/sessions")
    @wire(returns=Page[SessionSummary])
    def sessions(filter: Conditions, limit: Limit = 50, cursor: str | None = None) -> Response:
        """Sessions of the traces that pass, latest first."""
        return reply(store.sessions(filter, limit=limit, cursor=cursor))

    @routes.get("/aggregate")
    @wire(returns=list[Bucket])
    def aggregate(filter: Conditions, bucket_ns: Number | None = None, group_by: str | None = None) -> Response:
        """Counts, latency, tokens, cost and feedback over time."""
        return reply(store.aggregate(filter, bucket_ns=bucket_ns, group_by=group_by))

    @routes.get("/values/{field}")
    @wire(returns=list[str])
    def values(field: str, limit: Limit = 100) -> Response:
        """Known values of project, environment, name, kind, model, tag, session, user or feedback."""
        return reply(store.values(field, limit=limit))

    @routes.get("/count")
    @wire(returns=dict[str, int])
    def count() -> Response:
        """How many spans, traces and feedbacks are stored and visible."""
        return reply(store.count())

    return routes
