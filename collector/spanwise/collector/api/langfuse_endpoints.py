"""Langfuse-compatible endpoints for scores and score batches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import msgspec
from fastapi import Request, Response

from spanwise.collector import record_encoding
from spanwise.collector.api.http_conversion import RequestBody, json_response
from spanwise.collector.api.operation_validation import check_count, validate_feedback
from spanwise.collector.clock_skew import correct_feedback_time
from spanwise.collector.dialects import read_langfuse_score
from spanwise.collector.errors import Forbidden, Refused
from spanwise.collector.ingest import ItemRefused, check_ids, scope_or_refuse
from spanwise.collector.records import JSON, Feedback
from spanwise.collector.security.authorization import get_access
from spanwise.collector.stores import Store

Score: TypeAlias = dict[str, Any]
SCORE_EVENT = "score-create"
PLACEHOLDER_SPAN_ID = "1" * 16


class Batch(msgspec.Struct):
    """Batch of events as Langfuse's SDKs 2 and 3 send it. An event has `id`, `type`, `timestamp` and `body`."""

    batch: list[dict[str, Any]]
    metadata: Any = None


def scores(request: Request, body: RequestBody) -> Response:
    """Store scores as feedback. A list is answered with 202, or 207 if some are refused; a single score with its id."""
    content = record_encoding.decode(list[Score] | Score, body)
    rows = content if isinstance(content, list) else [content]
    check_count(len(rows))
    stored = _store_scores(request, [_read_score(score) for score in rows])
    faults = [str(result) for result in stored if isinstance(result, ValueError)]
    if isinstance(content, dict):
        if faults:
            error = stored[0]
            foreign = isinstance(error, ItemRefused) and error.reason == "project"
            raise Forbidden(str(error)) if foreign else Refused(str(error))
        return json_response({"id": content.get("id") or stored[0].id})
    if not faults:
        return json_response({"message": "Accepted"}, 202)
    errors = [{"message": fault} for fault in faults]
    return json_response({"accepted": len(stored) - len(faults), "rejected": len(faults), "errors": errors}, 207)


def ingestion(request: Request, body: RequestBody) -> Response:
    """Store a batch of scores as feedback. The response is 207, with a status per event; other events are refused."""
    events = record_encoding.decode(Batch, body).batch
    check_count(len(events))
    stored = _store_scores(request, [_read_event(event) for event in events])
    pairs = list(zip((id if isinstance(id := event.get("id"), str) else "" for event in events), stored, strict=True))
    successes = [{"id": id, "status": 201} for id, result in pairs if isinstance(result, Feedback)]
    errors = [
        {"id": id, "status": 400, "message": str(result), "error": "InvalidRequestError"}
        for id, result in pairs
        if isinstance(result, ValueError)
    ]
    return json_response({"successes": successes, "errors": errors}, 207)


def _read_event(event: Mapping[str, JSON]) -> Feedback | ValueError:
    kind, score = event.get("type"), event.get("body")
    if kind != SCORE_EVENT:
        message = f"only {SCORE_EVENT} events are accepted; send spans by OTLP, as the SDK does from version 3 on"
        return ValueError(f"unsupported event type {kind!r:.100}: {message}")
    if not isinstance(score, dict):
        return ValueError(f"the body of a {SCORE_EVENT} event must be an object, got {score!r:.100}")
    return _read_score(score, event.get("timestamp"))


def _read_score(score: Score, sent: JSON = None) -> Feedback | ValueError:
    try:
        feedback = correct_feedback_time(validate_feedback(read_langfuse_score(score, sent)))
        if feedback.target.trace_id is not None:
            check_ids(feedback.target.trace_id, feedback.target.span_id or PLACEHOLDER_SPAN_ID, "")
        return feedback
    except (ValueError, OverflowError) as error:
        return error if isinstance(error, ValueError) else ValueError(str(error))


def _store_scores(request: Request, read: Sequence[Feedback | ValueError]) -> Sequence[Any]:
    """Store the feedback durably. Return it, with a refusal in place of each row outside of the key's project."""
    store: Store = request.app.state.store
    project = get_access(request.scope).project
    if project is not None:
        good = [row for row in read if isinstance(row, Feedback)]
        allowed = iter(scope_or_refuse(store, project, good))
        read = [next(allowed) if isinstance(row, Feedback) else row for row in read]
    if rows := [row for row in read if isinstance(row, Feedback)]:
        store.add_feedback(rows)
    return read
