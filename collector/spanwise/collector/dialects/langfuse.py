"""Langfuse: attributes of its SDKs, and scores sent to its API.

Source: `langfuse/api/scores/types/create_score_request.py` of langfuse 5.0.4, and `ScoreBody` of 2 and 3. Ids that
are not OpenTelemetry ids are hashed as Langfuse's SDK does (`create_trace_id(seed=…)`).
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping
from datetime import UTC, datetime
from hashlib import sha256
from typing import Any

from spanwise.collector.dialects import field_extraction
from spanwise.collector.dialects.draft import (
    AGGREGATE_KINDS,
    Draft,
    applies_to,
    parse_count,
    parse_json,
    parse_number,
    text_or_none,
    to_text,
)
from spanwise.collector.dialects.token_costs import normalize_usage
from spanwise.collector.records import JSON, Feedback, Source, Target

OBSERVATION_KINDS = {
    "generation": "llm",
    **{kind: kind for kind in ("agent", "tool", "chain", "retriever", "evaluator", "guardrail", "embedding")},
}
STEP_KINDS = {"span": "chain", "event": "chain"}
TYPE, TAGS = "langfuse.observation.type", "langfuse.trace.tags"
MODEL = "langfuse.observation.model.name"
USAGE, COST = "langfuse.observation.usage_details", "langfuse.observation.cost_details"
METADATA_NAMES = ("langfuse.trace.metadata", "langfuse.observation.metadata")
METADATA_MEMOS = tuple(field_extraction.make_suffix_memo(f"{whole}.") for whole in METADATA_NAMES)
CONTENT_FIELDS = (("inputs", "input"), ("outputs", "output"))
# the content of the trace is read only on its root span
CONTENT_PREFIXES = ("langfuse.trace.", "langfuse.observation.")
BASE_TOKEN_FIELDS = frozenset(("input", "output", "total"))


@applies_to("langfuse")
def langfuse(draft: Draft) -> None:
    """Take kind, inputs, outputs, model, tokens, cost, session, user, tags and metadata."""
    kind = draft.attributes.get(TYPE)
    kind = kind.lower() if isinstance(kind, str) else None
    if kind in OBSERVATION_KINDS and field_extraction.fill_field(draft, "kind", OBSERVATION_KINDS[kind]):
        del draft.attributes[TYPE]
    elif kind in STEP_KINDS:
        draft.fields.setdefault("kind", STEP_KINDS[kind])
    # take inputs and outputs. A model's output stays text, even if it looks like a number
    read = field_extraction.parse_container if draft.fields.get("kind") == "llm" else field_extraction.parse_result
    for field, suffix in CONTENT_FIELDS:
        for prefix in CONTENT_PREFIXES[draft.span.parent_id is not None :]:
            field_extraction.take_attribute(
                draft, field, prefix + suffix, lambda value: field_extraction.unwrap_arguments(read(value))
            )
    field_extraction.take_attribute(draft, "model", MODEL, text_or_none)
    _usage(draft)
    field_extraction.take_attribute(draft, "session_id", "langfuse.session.id", text_or_none)
    field_extraction.take_attribute(draft, "user_id", "langfuse.user.id", text_or_none)
    field_extraction.take_attribute(draft, "tags", TAGS, lambda value: field_extraction.read_strings(value) or None)
    _take_metadata(draft)


def _usage(draft: Draft) -> None:
    """Take cost, and tokens under OpenAI's or Langfuse's names.

    In Langfuse's format, `input` and `output` exclude tokens that have a count of their own, such as cached tokens.
    """
    attributes = draft.attributes
    if draft.fields.get("kind") in AGGREGATE_KINDS:
        draft.sums = True
        return
    field_extraction.take_cost(draft, COST)
    counts = parse_json(attributes.get(USAGE))
    if (usage := field_extraction.read_usage(counts)) is None:
        return
    if ("input" in counts or "output" in counts) and parse_count(counts.get("total")) != usage.total_tokens:
        usage = normalize_usage(
            _sum_tokens(counts, "input")
            + sum(parse_count(tokens) or 0 for name, tokens in counts.items() if name.startswith("cache")),
            _sum_tokens(counts, "output"),
            dict(usage.details),
        )
    is_complete = counts.keys() <= BASE_TOKEN_FIELDS and parse_count(counts.get("total")) in (None, usage.total_tokens)
    if field_extraction.fill_field(draft, "usage", usage) and is_complete:
        del attributes[USAGE]


def _sum_tokens(counts: dict[str, JSON], side: str) -> int:
    return sum(parse_count(tokens) or 0 for name, tokens in counts.items() if name.startswith(side))


def _take_metadata(draft: Draft) -> None:
    """Take metadata of the trace, then of the observation.

    SDKs from version 5 on encode strings as JSON, so that the string "12" is not read as a number.
    """
    major = draft.span.scope_version.partition(".")[0]
    is_encoded = draft.span.scope == "langfuse-sdk" and major.isdecimal() and int(major) >= 5
    read = parse_json if is_encoded else _parse_structured
    for name in METADATA_NAMES:
        field_extraction.take_attribute(draft, "metadata", name, _parse_object)
    field_extraction.take_metadata(draft, *METADATA_MEMOS, read=read)


def _parse_structured(value: JSON) -> JSON:
    return parse_json(value) if isinstance(value, str) and value[:1] in ("{", "[", '"') else value


def _parse_object(value: JSON) -> dict[str, JSON] | None:
    return found if isinstance(found := field_extraction.parse_container(value), dict) else None


DATA_TYPES = ("NUMERIC", "BOOLEAN", "CATEGORICAL", "TEXT", "CORRECTION")
LABEL_TYPES = ("CATEGORICAL", "TEXT")
SCORE_SOURCES: Mapping[str, Source] = {"API": "code", "EVAL": "model", "ANNOTATION": "human"}
# field → default; any other value is kept as metadata
EXTRA_FIELDS = {
    "environment": "default",
    "configId": None,
    "queueId": None,
}
TRACE_ID, SPAN_ID = re.compile("[0-9a-f]{32}"), re.compile("[0-9a-f]{16}")
CORRECTION_LABEL = "correction"  # label of a correction; the comment of the feedback holds the corrected text


def read_langfuse_score(body: Mapping[str, JSON], sent: JSON = None) -> Feedback:
    """Return the feedback for a score. Raise `ValueError` for an invalid score.

    `sent` is the time of the event with the score, used if the score has no time. A score with an id overwrites an
    earlier one with the same id. Without an id, every score is a new one, as in Langfuse.
    """
    name, value = text_or_none(body.get("name")), body.get("metadata")
    metadata = dict(value) if isinstance(value, Mapping) else {} if value is None else {"metadata": value}
    metadata |= {
        f"langfuse.{field}": body[field]
        for field, default in EXTRA_FIELDS.items()
        if body.get(field) not in (None, default)
    }
    if name is None:
        raise ValueError(f"name of a score must be a non-empty string, got {body.get('name')!r:.100}")
    origin = body.get("source")
    source: Source = SCORE_SOURCES.get(origin, "code") if isinstance(origin, str) else "code"
    if origin is None and body.get("queueId"):  # annotation queues are for human feedback
        source = "human"
    id = secrets.token_hex(16)
    if body.get("id"):  # a hash of the id cannot collide with ids from other sources
        id = sha256(repr(("langfuse", "score", to_text(body["id"]))).encode("utf-8", "replace")).hexdigest()[:32]
    return Feedback(
        target=_read_target(body, metadata),
        key=name,
        **_read_score_value(name, body, metadata),
        source=source,
        author=text_or_none(body.get("authorUserId")),
        metadata=metadata,
        created_ns=_parse_timestamp(body.get("timestamp") or sent),
        id=id,
    )


def _read_target(body: Mapping[str, JSON], metadata: dict[str, JSON]) -> Target:
    trace, span, session, run = (
        _read_optional_text(body, name) for name in ("traceId", "observationId", "sessionId", "datasetRunId")
    )
    if trace is not None:
        others = {"langfuse.session_id": session, "langfuse.dataset_run_id": run}
        metadata |= {name: id for name, id in others.items() if id is not None}
        return Target(
            trace_id=_make_otel_id(trace, TRACE_ID, "trace", metadata),
            span_id=_make_otel_id(span, SPAN_ID, "span", metadata),
        )
    if span is not None:
        raise ValueError(f"observationId {span!r:.100} requires the traceId of its trace")
    if session is None and run is None:
        raise ValueError("a score requires a traceId, sessionId or datasetRunId")
    return Target(session_id=session) if session is not None else Target(experiment_id=run)


def _read_optional_text(body: Mapping[str, JSON], name: str) -> str | None:
    value = body.get(name)
    if value is not None and not isinstance(value, str):
        raise ValueError(f"{name} must be a string, got {value!r:.100}")
    return value or None


def _make_otel_id(id: str | None, pattern: re.Pattern[str], what: str, metadata: dict[str, JSON]) -> str | None:
    """Return the id if it is an OpenTelemetry id. Otherwise return a hash of it, as Langfuse's SDK does, and add the
    original id to the metadata.
    """
    if id is None or pattern.fullmatch(id.lower()):
        return id and id.lower()
    metadata[f"langfuse.{what}_id"] = id
    return sha256(id.encode("utf-8", "replace")).hexdigest()[: 32 if pattern is TRACE_ID else 16]


def _read_score_value(name: str, body: Mapping[str, JSON], metadata: dict[str, JSON]) -> dict[str, Any]:
    """Return score or label, and comment, depending on the score's data type. Without a data type, the type of the value
    decides.
    """
    value, kind, comment = body.get("value"), body.get("dataType"), body.get("comment")
    comment_text = None if comment is None else to_text(comment)
    if kind is None:
        kind = "BOOLEAN" if isinstance(value, bool) else "CATEGORICAL" if isinstance(value, str) else "NUMERIC"
    if kind not in DATA_TYPES:
        raise ValueError(
            f"score {name!r:.100}: unknown dataType {kind!r:.100}; expected one of: {', '.join(DATA_TYPES)}"
        )
    if kind == "CORRECTION" and isinstance(value, str):
        metadata |= {"langfuse.comment": comment_text} if comment_text is not None else {}
        return {"label": CORRECTION_LABEL, "comment": value}
    if kind in LABEL_TYPES and isinstance(value, str) and value:
        return {"label": value, "comment": comment_text}
    if kind == "BOOLEAN" and value in (0, 1):
        return {"score": bool(value), "comment": comment_text}
    score = None if isinstance(value, str) else parse_number(value)
    if kind == "NUMERIC" and score is not None:
        return {"score": score, "comment": comment_text}
    raise ValueError(f"score {name!r:.100}: {value!r:.200} is not a valid value of dataType {kind}")


def _parse_timestamp(value: JSON) -> int:
    """Return an ISO 8601 time as nanoseconds. The default offset is UTC; without a value, return the present time."""
    if value is None:
        time = datetime.now(UTC)
    else:
        try:
            time = datetime.fromisoformat(to_text(value))
        except ValueError:
            raise ValueError(f"timestamp must be an ISO 8601 time, got {value!r:.100}") from None
    time = time if time.tzinfo else time.replace(tzinfo=UTC)
    elapsed = time - datetime(1970, 1, 1, tzinfo=UTC)
    return max(0, (elapsed.days * 86_400 + elapsed.seconds) * 10**9 + elapsed.microseconds * 1000)
