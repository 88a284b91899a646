"""Feedback."""

from __future__ import annotations

from typing import Annotated

import msgspec
from fastapi import APIRouter, Query, Response

from assay.collector import _wire
from assay.collector.api._http import Body, Conditions, Limit, given, reply, wire
from assay.collector.records import JSON, Feedback, Page, Target
from assay.collector.stores import TraceStore


class FeedbackChange(msgspec.Struct, forbid_unknown_fields=True):
    """Fields of a feedback that may change."""

    score: bool | float | msgspec.UnsetType | None = msgspec.UNSET
    label: str | msgspec.UnsetType | None = msgspec.UNSET
    comment: str | msgspec.UnsetType | None = msgspec.UNSET
    metadata: dict[str, JSON] | msgspec.UnsetType = msgspec.UNSET


def router(store: TraceStore) -> APIRouter:
    """The routes over a store."""
    routes = APIRouter(prefix="/api/feedback", tags=["feedback"])

    @routes.get("")
    @wire(returns=Page[Feedback])
    def feedbacks(
        filter: Conditions,
        key: str | None = None,
        target: str | None = None,
        limit: Limit = 1000,
        cursor: str | None = None,
    ) -> Response:
        """Feedback on traces that pass, or on one target (a JSON object), newest first."""
        aim = None if target is None else _wire.decode(Target, target.encode())
        return reply(store.feedbacks(filter, key=key, limit=limit, cursor=cursor, target=aim))

    @routes.post("")
    @wire(takes=list[Feedback], returns=list[str])
    def add(body: Body) -> Response:
        """Keep feedback; answered with the ids when it is durable. The same id overwrites."""
        feedback = _wire.decode(list[Feedback], body)
        store.add_feedback(feedback)
        return reply([one.id for one in feedback])

    @routes.patch("")
    @wire(takes=dict[str, FeedbackChange], returns=list[Feedback])
    def change(body: Body) -> Response:
        """Change fields of feedback by id; all or none. What it is about and whose it is cannot change."""
        asked = _wire.decode(dict[str, FeedbackChange], body)
        return reply(store.change_feedback({id: given(fields) for id, fields in asked.items()}))

    @routes.delete("")
    @wire(returns=dict[str, int])
    def delete(id: Annotated[list[str], Query()]) -> Response:
        """Remove feedback by id."""
        return reply({"deleted": store.delete_feedback(id)})

    return routes
