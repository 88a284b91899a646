"""Limits of requests, JSON bodies, names and texts, and the size thresholds for large requests."""

from __future__ import annotations

import contextlib
import ctypes
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from spanwise.collector.clock_skew import SENT_PREFIX
from spanwise.collector.ingest.ingest_errors import ItemRefused, PermanentError
from spanwise.collector.records import JSON, Feedback, Run, Usage
from spanwise.collector.stores.amendment_merge import apply_amendment, encode_fields

MIB = 1024 * 1024
MAX_TOKENS, MAX_COST = 2**53, 1e12  # beyond which sums are no longer exact, and nobody's bill is
MAX_GROUPS = 10_000  # by resource, and by scope, of one request: each costs about as much as a span


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Bounds of what is taken in. Beyond `attributes`, `depth` or `value_bytes` a single span is refused, else all."""

    request_bytes: int = 32 * MIB  # of a body, as sent and as inflated
    pending_bytes: int = 48 * MIB  # of all bodies, OTLP's and the API's, that are read, decoded or written
    stall_seconds: float = 30.0  # for the next piece of a body that has begun: what is pending may hold up others
    decode_seconds: float = 15.0  # of CPU for one body in a process of its own, which then ends
    spans: int = 50_000  # or log records, per request
    values: int = 500_000  # attributes, elements of lists and maps, events, links: of all spans of a request together
    attributes: int = 10_000  # per span, event, link or resource
    depth: int = 32  # of lists and objects within an attribute
    value_bytes: int = 8 * MIB  # of one text or bytes within an attribute


class Allowance:
    """The limits of one request, and what it has used of them: two bytes on the wire can become a hundred here."""

    __slots__ = ("attributes", "depth", "limits", "used", "value_bytes", "values")

    def __init__(self, limits: Limits) -> None:
        self.limits, self.used, self.values = limits, 0, limits.values
        self.attributes, self.depth, self.value_bytes = limits.attributes, limits.depth, limits.value_bytes

    def use(self, values: int) -> None:
        """Count values. Raises `Permanent` beyond what a request may hold."""
        self.used += values
        if self.used > self.values:
            raise PermanentError("too_many", f"more than {self.values:,} values in one request: send less")


LARGE_BODY_BYTES = 512 * 1024  # bytes, from which on a body is decoded beside the event loop, and waits for its turn
HUGE_BODY_BYTES = 4 * 1024 * 1024  # bytes, from which on it waits in the other lane; and memory is given back after it
# Runs, from which on they are encoded beside the event loop, handed over and written in pieces; amendments, or feedback
# with runs, in one commit
BATCH_SIZE = 250


def release_free_memory() -> None:
    """Give freed memory back: the C library keeps it for the next such request, which may never come."""
    with contextlib.suppress(AttributeError, OSError, TypeError):  # elsewhere than with glibc
        ctypes.CDLL(None).malloc_trim(0)


MAX_JSON_OBJECTS = 600_000  # objects and lists of one text
MAX_JSON_VALUES = 3_000_000  # and what stands in them, by the commas
JSON_STRING = rb'"(?:[^"\\]++|\\.)*+"?'  # a string with its escapes, closed or not, so that none is looked at twice
COUNT_CHUNK_BYTES = 256 * 1024  # bytes that are counted before another thread has its turn
_JSON_STRING_PATTERN = re.compile(JSON_STRING, re.DOTALL)


def check_json(body: bytes) -> bytes:
    """The same text. Raises `Permanent` if it holds too much. Brackets within strings are told apart only where they
    matter.
    """
    objects, values = _count_values(body, 0, len(body))
    if (objects > MAX_JSON_OBJECTS or values > MAX_JSON_VALUES) and _exceeds_limits(body):
        raise PermanentError(
            "too_many", f"more than {MAX_JSON_OBJECTS:,} objects or {MAX_JSON_VALUES:,} values in one body: send less"
        )
    return body


def _exceeds_limits(body: bytes) -> bool:
    """Whether there is too much between the strings; they are not copied, as that might cost what this is to save."""
    objects = values = position = 0
    for string in _JSON_STRING_PATTERN.finditer(body):
        more, most = _count_values(body, position, string.start())
        objects, values, position = objects + more, values + most, string.end()
        if objects > MAX_JSON_OBJECTS or values > MAX_JSON_VALUES:
            return True
    more, most = _count_values(body, position, len(body))
    return objects + more > MAX_JSON_OBJECTS or values + most > MAX_JSON_VALUES


def _count_values(body: bytes, start: int, end: int) -> tuple[int, int]:
    """How many objects and lists begin in a part of a text, and how many values follow another one."""
    objects = values = 0
    for begin in range(start, end, COUNT_CHUNK_BYTES):
        until = min(begin + COUNT_CHUNK_BYTES, end)
        objects += body.count(b"{", begin, until) + body.count(b"[", begin, until)
        values += body.count(b",", begin, until)
    return objects, values


MAX_NAME_CHARS, MAX_ERROR_CHARS, MAX_TAGS = 2_000, 16_000, 100  # characters, characters, tags
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
)


def truncate_fields(run: Run) -> Run:
    """The run with what is too long cut, and beside it, in its attributes, what was sent; the same if nothing is."""
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
    ):
        return run
    return _truncate(run)


def _truncate(run: Run) -> Run:
    most = {**dict.fromkeys(NAME_FIELDS, MAX_NAME_CHARS), "error": MAX_ERROR_CHARS}
    texts: dict[str, str] = {name: getattr(run, name) or "" for name in most}
    kept: dict[str, Any] = {name: text[: most[name]] for name, text in texts.items() if len(text) > most[name]}
    sent: dict[str, Any] = {f"{SENT_PREFIX}{name}": texts[name] for name in kept}
    if len(run.tags) > MAX_TAGS or any(len(tag) > MAX_NAME_CHARS for tag in run.tags):
        kept["tags"] = tuple(tag[:MAX_NAME_CHARS] for tag in run.tags[:MAX_TAGS])
        sent[f"{SENT_PREFIX}tags"] = list(run.tags)
    return replace(run, **kept, attributes={**run.attributes, **sent}) if kept else run


def check_feedback_names(feedback: Feedback) -> None:
    """Raises `ItemRefused` for feedback that names something at a length at which nobody reads it."""
    named = (feedback.key, feedback.label, feedback.author, feedback.evaluator, feedback.version, feedback.rule)
    for name in (*named, feedback.id, feedback.target.session_id, feedback.target.experiment_id):
        if name is not None and len(name) > MAX_NAME_CHARS:
            told = f"feedback {feedback.key[:40]!r} has a name of {len(name):,} characters, at most {MAX_NAME_CHARS:,}"
            raise ItemRefused("too_long", f"{told}: what is longer is a comment")


def check_amendment(fields: Mapping[str, JSON]) -> None:
    """Raises `ItemRefused` for what no run could have brought, `Refused` for what no run has."""
    run = apply_amendment(_EMPTY_RUN, encode_fields(fields))
    if truncate_fields(run) is not run:
        raise ItemRefused("too_long", f"{', '.join(fields)} of a run: names have {MAX_NAME_CHARS:,} characters at most")
    if run.cost is not None and not 0 <= run.cost <= MAX_COST:
        raise ItemRefused("value", f"cost is {run.cost!r}: amounts are within 0 and {MAX_COST:,.0f}")
    usage = run.usage or Usage()
    for tokens in (usage.input_tokens, usage.output_tokens, *usage.details.values()):
        if not 0 <= tokens <= MAX_TOKENS:
            raise ItemRefused("value", f"usage says {tokens!r}: tokens are within 0 and 2^53")


_EMPTY_RUN = Run(trace_id="", span_id="", name="", start_ns=0, end_ns=0)
