"""Scores as Langfuse's SDKs send them: to `POST /api/public/scores`, or as `score-create` in its batches.

Source: `langfuse/api/scores/types/create_score_request.py` of langfuse 5.0.4, and `ScoreBody` of 2 and 3. An id of
Langfuse's that is none of OpenTelemetry's becomes one as its SDK makes them (`create_trace_id(seed=…)`).
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping
from datetime import UTC, datetime
from hashlib import sha256
from typing import Any

from spanwise.collector.dialects._values import as_text, number, text
from spanwise.collector.records import JSON, Feedback, Source, Target

KINDS = ("NUMERIC", "BOOLEAN", "CATEGORICAL", "TEXT", "CORRECTION")
LABELLED = ("CATEGORICAL", "TEXT")
SOURCES: Mapping[str, Source] = {"API": "code", "EVAL": "model", "ANNOTATION": "human"}
BESIDE = {"environment": "default", "configId": None, "queueId": None}  # kept as metadata, but for what says nothing
TRACE, SPAN = re.compile("[0-9a-f]{32}"), re.compile("[0-9a-f]{16}")
CORRECTED = "correction"  # the label of one; the text that is right is its comment


def langfuse_score(body: Mapping[str, JSON], sent: JSON = None) -> Feedback:
    """The feedback that a score is; `sent` is when its event says that it was. Raises `ValueError` for what is none.

    A score's id makes it the same one when it comes again; without one each is another, as Langfuse has it.
    """
    name, metadata = text(body.get("name")), _metadata(body)
    if name is None:
        raise ValueError(f"a score needs a name, not {body.get('name')!r:.100}")
    return Feedback(
        target=_target(body, metadata),
        key=name,
        **_value(name, body, metadata),
        source=_source(body.get("source"), body.get("queueId")),
        author=text(body.get("authorUserId")),
        metadata=metadata,
        created_ns=_nanoseconds(body.get("timestamp") or sent),
        id=_id("score", as_text(body["id"])) if body.get("id") else secrets.token_hex(16),
    )


def _source(said: JSON, queue: JSON) -> Source:
    if said is None and queue:  # of people's work
        return "human"
    return SOURCES.get(said, "code") if isinstance(said, str) else "code"


def _target(body: Mapping[str, JSON], metadata: dict[str, JSON]) -> Target:
    trace, span, session, run = (
        _named(body, name) for name in ("traceId", "observationId", "sessionId", "datasetRunId")
    )
    if trace is not None:
        others = {"langfuse.session_id": session, "langfuse.dataset_run_id": run}
        metadata |= {name: id for name, id in others.items() if id is not None}
        return Target(trace_id=_otel(trace, TRACE, "trace", metadata), span_id=_otel(span, SPAN, "span", metadata))
    if span is not None:
        raise ValueError(f"observationId {span!r:.100} comes without the traceId of its trace")
    if session is None and run is None:
        raise ValueError("a score is about something: say traceId, sessionId or datasetRunId")
    return Target(session_id=session) if session is not None else Target(experiment_id=run)


def _named(body: Mapping[str, JSON], name: str) -> str | None:
    given = body.get(name)
    if given is not None and not isinstance(given, str):
        raise ValueError(f"{name} is {given!r:.100}, not a text")
    return given or None


def _otel(given: str | None, form: re.Pattern[str], what: str, metadata: dict[str, JSON]) -> str | None:
    """An id as OpenTelemetry has them; of any other text what Langfuse's SDK makes of it as a seed."""
    if given is None or form.fullmatch(given.lower()):
        return given and given.lower()
    metadata[f"langfuse.{what}_id"] = given
    return sha256(given.encode("utf-8", "replace")).hexdigest()[: 32 if form is TRACE else 16]


def _value(name: str, body: Mapping[str, JSON], metadata: dict[str, JSON]) -> dict[str, Any]:
    """Score or label, and comment, by the score's data type; that of its value where none is said."""
    value, kind, comment = body.get("value"), body.get("dataType"), body.get("comment")
    said = None if comment is None else as_text(comment)
    if kind is None:
        kind = "BOOLEAN" if isinstance(value, bool) else "CATEGORICAL" if isinstance(value, str) else "NUMERIC"
    if kind not in KINDS:
        raise ValueError(f"score {name!r:.100}: dataType {kind!r:.100} is none of {', '.join(KINDS)}")
    if kind == "CORRECTION" and isinstance(value, str):
        metadata |= {"langfuse.comment": said} if said is not None else {}
        return {"label": CORRECTED, "comment": value}
    if kind in LABELLED and isinstance(value, str) and value:
        return {"label": value, "comment": said}
    if kind == "BOOLEAN" and value in (0, 1):
        return {"score": bool(value), "comment": said}
    score = None if isinstance(value, str) else number(value)
    if kind == "NUMERIC" and score is not None:
        return {"score": score, "comment": said}
    raise ValueError(f"score {name!r:.100}: {value!r:.200} is no value of {kind}")


def _metadata(body: Mapping[str, JSON]) -> dict[str, JSON]:
    given = body.get("metadata")
    metadata = dict(given) if isinstance(given, Mapping) else {} if given is None else {"metadata": given}
    kept = {name: body[name] for name, default in BESIDE.items() if body.get(name) not in (None, default)}
    return metadata | {f"langfuse.{name}": value for name, value in kept.items()}


def _nanoseconds(given: JSON) -> int:
    """When something was, out of ISO 8601; without an offset UTC is meant. Now, if nothing is given."""
    if given is None:
        when = datetime.now(UTC)
    else:
        try:
            when = datetime.fromisoformat(as_text(given))
        except ValueError:
            raise ValueError(f"timestamp {given!r:.100} is no time in ISO 8601") from None
    when = when if when.tzinfo else when.replace(tzinfo=UTC)
    since = when - datetime(1970, 1, 1, tzinfo=UTC)
    return max(0, (since.days * 86_400 + since.seconds) * 10**9 + since.microseconds * 1000)


def _id(*parts: str) -> str:
    """An id that nobody else's way of making ids leads to."""
    return sha256(repr(("langfuse", *parts)).encode("utf-8", "replace")).hexdigest()[:32]
