"""Langfuse's scores, where its SDKs send them: `POST /api/public/scores` (5) and the batches of `/api/public/ingestion`
(2 and 3), answered as these read it. Of the batches scores alone are taken; spans come by OTLP.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import msgspec
from fastapi import Request, Response

from spanwise.collector import _wire
from spanwise.collector._access import access_of
from spanwise.collector.api._bounds import few
from spanwise.collector.api._http import Body, reply
from spanwise.collector.api._sane import sane_feedback
from spanwise.collector.clocks import bounded_feedback
from spanwise.collector.dialects import langfuse_score
from spanwise.collector.errors import Forbidden, Refused
from spanwise.collector.intake import ItemRefused, check_ids, weighed
from spanwise.collector.records import JSON, Feedback
from spanwise.collector.stores import Store

Score: TypeAlias = dict[str, Any]
SCORE = "score-create"
SOME_SPAN = "1" * 16


class Batch(msgspec.Struct):
    """What Langfuse's SDKs 2 and 3 send. An event has `id`, `type`, `timestamp` and `body`."""

    batch: list[dict[str, Any]]
    metadata: Any = None


def scores(request: Request, body: Body) -> Response:
    """Keep scores as feedback: a list, answered 202, or 207 if some were refused; or one, answered with its id."""
    given = _wire.decode(list[Score] | Score, body)
    several = given if isinstance(given, list) else [given]
    few(len(several))
    kept = _kept(request, [_read(score) for score in several])
    faults = [str(one) for one in kept if isinstance(one, ValueError)]
    if isinstance(given, dict):
        if faults:
            raise _refusal(kept[0])
        return reply({"id": given.get("id") or kept[0].id})
    if not faults:
        return reply({"message": "Accepted"}, 202)
    errors = [{"message": fault} for fault in faults]
    return reply({"accepted": len(kept) - len(faults), "rejected": len(faults), "errors": errors}, 207)


def _refusal(error: ValueError) -> Refused:
    """Why one score is refused; 403 where its key is of another project."""
    foreign = isinstance(error, ItemRefused) and error.reason == "project"
    return Forbidden(str(error)) if foreign else Refused(str(error))


def ingestion(request: Request, body: Body) -> Response:
    """Keep the scores of a batch as feedback; answered 207, with a status for each event. Other events are refused."""
    events = _wire.decode(Batch, body).batch
    few(len(events))
    kept = _kept(request, [_of_event(event) for event in events])
    paired = list(zip(map(_id_of, events), kept, strict=True))
    successes = [{"id": id, "status": 201} for id, one in paired if isinstance(one, Feedback)]
    errors = [_error(id, one) for id, one in paired if isinstance(one, ValueError)]
    return reply({"successes": successes, "errors": errors}, 207)


def _id_of(event: Mapping[str, JSON]) -> str:
    id = event.get("id")
    return id if isinstance(id, str) else ""


def _error(id: str, error: ValueError) -> dict[str, JSON]:
    return {"id": id, "status": 400, "message": str(error), "error": "InvalidRequestError"}


def _of_event(event: Mapping[str, JSON]) -> Feedback | ValueError:
    kind, score = event.get("type"), event.get("body")
    if kind != SCORE:
        told = "of these batches scores are taken alone: send spans by OTLP, as the SDK does from version 3 on"
        return ValueError(f"event {kind!r:.100} is not kept; {told}")
    if not isinstance(score, dict):
        return ValueError(f"the body of a {SCORE} is {score!r:.100}, not a score")
    return _read(score, event.get("timestamp"))


def _read(score: Score, sent: JSON = None) -> Feedback | ValueError:
    try:
        feedback = bounded_feedback(sane_feedback(langfuse_score(score, sent)))
        if feedback.target.trace_id is not None:
            check_ids(feedback.target.trace_id, feedback.target.span_id or SOME_SPAN, "")
        return feedback
    except (ValueError, OverflowError) as error:
        return error if isinstance(error, ValueError) else ValueError(str(error))


def _kept(request: Request, read: Sequence[Feedback | ValueError]) -> Sequence[Any]:
    """The same, durable; those that a key of one project may not give have become their refusal."""
    store: Store = request.app.state.store
    project = access_of(request.scope).project
    if project is not None:
        good = [one for one in read if isinstance(one, Feedback)]
        allowed = iter(weighed(store, project, good))
        read = [next(allowed) if isinstance(one, Feedback) else one for one in read]
    if rows := [one for one in read if isinstance(one, Feedback)]:
        store.add_feedback(rows)
    return read
