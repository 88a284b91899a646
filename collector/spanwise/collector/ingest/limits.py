"""Limits of requests, JSON bodies, ids, names and texts, and the size thresholds for large requests."""

from __future__ import annotations

import contextlib
import ctypes
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from spanwise.collector.clock_skew import SENT_PREFIX
from spanwise.collector.ingest.ingest_errors import ItemRefused, PermanentError
from spanwise.collector.records import JSON, Feedback, Run, Target, Usage
from spanwise.collector.stores.amendment_merge import FEEDBACK_FIELD, apply_amendment, encode_fields, make_feedback

MIB = 1024 * 1024
MAX_TOKENS, MAX_COST = 2**53, 1e12  # upper bounds: floating-point totals stay exact, and no real cost is higher
# maximum number of groups by resource in a request, and of groups by scope. A group costs about as much as a span
MAX_GROUPS = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits of ingest.

    A span that exceeds `attributes`, `depth` or `value_bytes` is refused alone. Any other limit refuses the request.
    """

    request_bytes: int = 32 * MIB  # of one body, compressed and decompressed
    pending_bytes: int = 48 * MIB  # of all bodies of OTLP and the API that are being read, decoded or written
    stall_seconds: float = 30.0  # wait for the next chunk of a body: a stalled body occupies pending memory
    decode_seconds: float = 15.0  # CPU time for one body in a worker process; a process that exceeds it ends
    spans: int = 50_000  # spans or log records per request
    values: int = 500_000  # attributes, list and map elements, events and links of all spans of a request
    attributes: int = 10_000  # per span, event, link or resource
    depth: int = 32  # of lists and maps within an attribute
    value_bytes: int = 8 * MIB  # of one text or bytes value


class Allowance:
    """Limits of one request, and the number of values that it has used.

    Values are counted because two bytes on the wire can become a hundred in memory.
    """

    __slots__ = ("attributes", "depth", "limits", "used", "value_bytes", "values")

    def __init__(self, limits: Limits) -> None:
        self.limits, self.used, self.values = limits, 0, limits.values
        self.attributes, self.depth, self.value_bytes = limits.attributes, limits.depth, limits.value_bytes

    def use(self, values: int) -> None:
        """Count values. Raises `PermanentError` beyond the limit of a request."""
        self.used += values
        if self.used > self.values:
            raise PermanentError("too_many", f"more than {self.values:,} values in one request: send less")


def check_groups(resources: int, scopes: int) -> None:
    """Raise `PermanentError` if a request has too many groups by resource or by scope."""
    if max(resources, scopes) > MAX_GROUPS:
        raise PermanentError(
            "too_many", f"{max(resources, scopes):,} groups in one request, at most {MAX_GROUPS:,}: send less"
        )


def check_item_count(count: int, maximum: int) -> None:
    """Raise `PermanentError` if a request has too many items."""
    if count > maximum:
        raise PermanentError("too_many", f"{count:,} items in one request, at most {maximum:,}: send less")


INVALID_IDS = ("", "0" * 16, "0" * 32)


def check_ids(trace_id: str, span_id: str, parent_id: str) -> str | None:
    """Return the parent's id, None if there is none. Raises `ItemRefused` for ids that OpenTelemetry calls invalid."""
    if len(trace_id) != 32 or trace_id in INVALID_IDS:
        raise ItemRefused("ids", f"trace id {trace_id[:64]!r} is not 16 bytes other than all zeros")
    if len(span_id) != 16 or span_id in INVALID_IDS:
        raise ItemRefused("ids", f"span id {span_id[:64]!r} is not 8 bytes other than all zeros")
    if parent_id in INVALID_IDS:
        return None
    if len(parent_id) != 16:
        raise ItemRefused("ids", f"parent span id {parent_id[:64]!r} is not 8 bytes")
    return parent_id


LARGE_BODY_BYTES = 512 * 1024  # larger bodies are decoded outside of the event loop, and wait for a lane
# larger bodies use a second lane, and after each one, free memory is returned to the operating system
HUGE_BODY_BYTES = 4 * 1024 * 1024
# Requests with at least this many runs are encoded outside of the event loop and written in batches of this size. It
# also limits a commit of amendments, and of feedback that arrived with runs.
BATCH_SIZE = 250


def release_free_memory() -> None:
    """Return freed memory to the operating system; otherwise the C library keeps it for the next large request."""
    with contextlib.suppress(AttributeError, OSError, TypeError):  # glibc only
        ctypes.CDLL(None).malloc_trim(0)


MAX_JSON_OBJECTS = 600_000  # objects and lists in one body
MAX_JSON_VALUES = 3_000_000  # elements of objects and lists, counted by commas
# a JSON string; an unterminated one matches to the end of the body, so that no input is scanned twice
JSON_STRING = rb'"(?:[^"\\]++|\\.)*+"?'
COUNT_CHUNK_BYTES = 256 * 1024  # bytes counted per step, so that other threads can run in between
_JSON_STRING_PATTERN = re.compile(JSON_STRING, re.DOTALL)


def check_json(body: bytes) -> bytes:
    """Return the body unchanged. Raises `PermanentError` if it has too many objects or values.

    A first, fast count includes brackets and commas within strings. Only if it exceeds a limit, a second count leaves
    them out.
    """
    objects, values = _count_values(body, 0, len(body))
    if (objects > MAX_JSON_OBJECTS or values > MAX_JSON_VALUES) and _exceeds_limits(body):
        raise PermanentError(
            "too_many", f"more than {MAX_JSON_OBJECTS:,} objects or {MAX_JSON_VALUES:,} values in one body: send less"
        )
    return body


def _exceeds_limits(body: bytes) -> bool:
    """Return whether there are too many values outside of strings, without copying the body."""
    objects = values = position = 0
    for string in _JSON_STRING_PATTERN.finditer(body):
        brackets, commas = _count_values(body, position, string.start())
        objects, values, position = objects + brackets, values + commas, string.end()
        if objects > MAX_JSON_OBJECTS or values > MAX_JSON_VALUES:
            return True
    brackets, commas = _count_values(body, position, len(body))
    return objects + brackets > MAX_JSON_OBJECTS or values + commas > MAX_JSON_VALUES


def _count_values(body: bytes, start: int, end: int) -> tuple[int, int]:
    """Return the number of opening brackets, and of commas, in a part of a text."""
    objects = values = 0
    for begin in range(start, end, COUNT_CHUNK_BYTES):
        until = min(begin + COUNT_CHUNK_BYTES, end)
        objects += body.count(b"{", begin, until) + body.count(b"[", begin, until)
        values += body.count(b",", begin, until)
    return objects, values


# maximum characters of a name and of an error text, and maximum number of tags
MAX_NAME_CHARS, MAX_ERROR_CHARS, MAX_TAGS = 2_000, 16_000, 100
NAME_FIELDS = (
    "name",
    "kind",
    "model",
    "session_id",
    "user_id",
    "project",
    "environment",
    "experiment_id",
    "example_id",
    "prompt_name",
    "prompt_version",
    "agent_name",
)


def truncate_fields(run: Run) -> Run:
    """Return the run with long fields truncated, and with their original values in its attributes.

    If no field is too long, return the same object.
    """
    if (
        len(run.name) <= MAX_NAME_CHARS
        and len(run.kind) <= MAX_NAME_CHARS
        and len(run.project) <= MAX_NAME_CHARS
        and len(run.environment) <= MAX_NAME_CHARS
        and (run.model is None or len(run.model) <= MAX_NAME_CHARS)
        and (run.session_id is None or len(run.session_id) <= MAX_NAME_CHARS)
        and (run.user_id is None or len(run.user_id) <= MAX_NAME_CHARS)
        and (run.error is None or len(run.error) <= MAX_ERROR_CHARS)
        and (not run.tags or (len(run.tags) <= MAX_TAGS and max(map(len, run.tags)) <= MAX_NAME_CHARS))
        and (run.experiment_id is None or len(run.experiment_id) <= MAX_NAME_CHARS)
        and (run.example_id is None or len(run.example_id) <= MAX_NAME_CHARS)
        and (run.prompt_name is None or len(run.prompt_name) <= MAX_NAME_CHARS)
        and (run.prompt_version is None or len(run.prompt_version) <= MAX_NAME_CHARS)
        and (run.agent_name is None or len(run.agent_name) <= MAX_NAME_CHARS)
        and (
            not run.finish_reasons
            or (len(run.finish_reasons) <= MAX_TAGS and max(map(len, run.finish_reasons)) <= MAX_NAME_CHARS)
        )
    ):
        return run
    return _truncate(run)


def _truncate(run: Run) -> Run:
    max_chars = {**dict.fromkeys(NAME_FIELDS, MAX_NAME_CHARS), "error": MAX_ERROR_CHARS}
    texts: dict[str, str] = {name: getattr(run, name) or "" for name in max_chars}
    truncated: dict[str, Any] = {
        name: text[: max_chars[name]] for name, text in texts.items() if len(text) > max_chars[name]
    }
    originals: dict[str, Any] = {f"{SENT_PREFIX}{name}": texts[name] for name in truncated}
    for name, listed in (("tags", run.tags), ("finish_reasons", run.finish_reasons)):
        if len(listed) > MAX_TAGS or any(len(text) > MAX_NAME_CHARS for text in listed):
            truncated[name] = tuple(text[:MAX_NAME_CHARS] for text in listed[:MAX_TAGS])
            originals[f"{SENT_PREFIX}{name}"] = list(listed)
    return replace(run, **truncated, attributes={**run.attributes, **originals}) if truncated else run


def check_feedback_names(feedback: Feedback) -> None:
    """Raise `ItemRefused` if a name or an id in the feedback is too long."""
    labels = (feedback.key, feedback.label, feedback.author, feedback.evaluator, feedback.version, feedback.rule)
    for name in (*labels, feedback.id, feedback.target.session_id, feedback.target.experiment_id):
        if name is not None and len(name) > MAX_NAME_CHARS:
            raise ItemRefused(
                "too_long",
                f"feedback {feedback.key[:40]!r} has a name of {len(name):,} characters, at most {MAX_NAME_CHARS:,}:"
                " send longer text as the comment",
            )


def check_amendment(fields: Mapping[str, JSON]) -> None:
    """Raise `ItemRefused` for values that no run may have, `Refused` for fields that runs do not have."""
    run = apply_amendment(_EMPTY_RUN, encode_fields(fields))
    if truncate_fields(run) is not run:
        raise ItemRefused(
            "too_long", f"{', '.join(fields)} of a run: names may have up to {MAX_NAME_CHARS:,} characters"
        )
    if run.cost is not None and not 0 <= run.cost <= MAX_COST:
        raise ItemRefused("value", f"cost must be from 0 to {MAX_COST:,.0f}, got {run.cost!r}")
    for feedback in make_feedback(Target(trace_id="0" * 32), fields.get(FEEDBACK_FIELD) or {}):
        check_feedback_names(feedback)
    usage = run.usage or Usage()
    for tokens in (usage.input_tokens, usage.output_tokens, *usage.details.values()):
        if not 0 <= tokens <= MAX_TOKENS:
            raise ItemRefused("value", f"token counts must be from 0 to 2^53, got {tokens!r}")


_EMPTY_RUN = Run(trace_id="", span_id="", name="", start_ns=0, end_ns=0)
