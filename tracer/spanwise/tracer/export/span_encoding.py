"""Encoding of spans: conventions of their attributes, and OTLP protobuf of spans, feedback and process events."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from struct import Struct
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import orjson
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link, SpanContext, SpanKind
from opentelemetry.trace.span import TraceState

from spanwise.tracer import attribute_names as names
from spanwise.tracer import internal_errors
from spanwise.tracer.content.documents import DocumentList, flatten_documents, read_document_list
from spanwise.tracer.content.model_calls import find_provider, read_model_request, read_model_response
from spanwise.tracer.content.serialization import to_json
from spanwise.tracer.otel.live_span import SCOPE, TRACESTATE_KEY, LiveSpan

if TYPE_CHECKING:
    from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
    from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord


# OTLP protobuf encoding of spans, feedback and process events.
#
# The standard encoder creates a message object per attribute, which costs the process four times as much CPU as the
# traced call itself (`benchmarks/tracer.py`). A test compares the messages of both encoders. Field numbers:
# opentelemetry-proto, `trace/v1/trace.proto` and `common/v1/common.proto`.

TRACES_PATH, LOGS_PATH = "/v1/traces", "/v1/logs"


@dataclass(frozen=True, slots=True)
class FeedbackEvent:
    """OTLP log event to be exported, in most cases the feedback of `current_run().feedback(…)`."""

    trace_id: int
    span_id: int
    time_ns: int
    attributes: Mapping[str, Any]
    resource: Mapping[str, Any] = field(default_factory=dict)
    event: str = names.EVALUATION_EVENT  # name of the log event: feedback, or a process event


class SpanWriter(Protocol):
    """Form in which spans and feedback are written; `Conventions`."""

    def attributes(self, span: ReadableSpan) -> Mapping[str, Any]:
        """Return the attributes of a span."""

    def span_kind(self, span: ReadableSpan) -> SpanKind:
        """Return the kind of a span."""

    def scope(self, scope: InstrumentationScope | None) -> InstrumentationScope | None:
        """Return the scope of spans."""


def encode_events(events: Iterable[FeedbackEvent]) -> bytes:
    """Return the body of a request to `/v1/logs`. All events come from one process and have the same resource."""
    from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
    from opentelemetry.proto.common.v1.common_pb2 import InstrumentationScope
    from opentelemetry.proto.logs.v1.logs_pb2 import ResourceLogs, ScopeLogs
    from opentelemetry.proto.resource.v1.resource_pb2 import Resource

    listed = list(events)
    records = [_encode_record(event) for event in listed]
    scope = ScopeLogs(scope=InstrumentationScope(name="spanwise"), log_records=records)
    resource = Resource(attributes=_encode_pairs(listed[0].resource)) if listed else Resource()
    body: bytes = ExportLogsServiceRequest(
        resource_logs=[ResourceLogs(resource=resource, scope_logs=[scope])]
    ).SerializeToString()
    return body


def _encode_record(event: FeedbackEvent) -> LogRecord:
    from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord

    return LogRecord(
        time_unix_nano=event.time_ns,
        observed_time_unix_nano=event.time_ns,
        event_name=event.event,
        trace_id=event.trace_id.to_bytes(16, "big") if event.trace_id else b"",
        # empty if the feedback is on the trace as a whole
        span_id=event.span_id.to_bytes(8, "big") if event.span_id else b"",
        attributes=_encode_pairs(event.attributes),
    )


def _encode_pairs(attributes: Mapping[str, Any]) -> list[KeyValue]:
    from opentelemetry.proto.common.v1.common_pb2 import KeyValue

    return [KeyValue(key=k, value=_encode_log_value(v)) for k, v in attributes.items() if v is not None]


def _encode_log_value(value: Any) -> AnyValue:
    from opentelemetry.proto.common.v1.common_pb2 import AnyValue

    if isinstance(value, bool):
        return AnyValue(bool_value=value)
    if isinstance(value, int) and -(2**63) <= value < 2**63:
        return AnyValue(int_value=value)
    if isinstance(value, float):
        return AnyValue(double_value=value)
    text = value if isinstance(value, str) else to_json(value, 1 << 20)
    return AnyValue(string_value=text.encode("utf-8", "replace").decode())


def parse_rejections(path: str, body: bytes) -> tuple[int, str]:
    """Return the number of items that a successful response rejects, and the server's reason (may be empty)."""
    from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceResponse
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse

    try:
        if path == TRACES_PATH:
            spans = ExportTraceServiceResponse.FromString(body).partial_success
            return spans.rejected_spans, spans.error_message
        logs = ExportLogsServiceResponse.FromString(body).partial_success
        return logs.rejected_log_records, logs.error_message
    except Exception:  # some servers do not respond in protobuf
        return 0, ""


_fixed64, _fixed32, _double = Struct("<Q").pack, Struct("<I").pack, Struct("<d").pack
# bits of OTLP's SpanFlags: it is known whether the parent is remote; the parent is remote
_HAS_REMOTE, _IS_REMOTE = 0x100, 0x200


def _encode_varint(value: int) -> bytes:
    digits = bytearray()
    while value > 0x7F:
        digits.append(value & 0x7F | 0x80)
        value >>= 7
    digits.append(value)
    return bytes(digits)


_SMALL_VARINTS = [_encode_varint(i) for i in range(4096)]


def _encode_length(length: int) -> bytes:
    return _SMALL_VARINTS[length] if length < 4096 else _encode_varint(length)


def _encode_field(tag: bytes, body: bytes) -> bytes:
    """Return a length-delimited field."""
    return tag + _encode_length(len(body)) + body


def _encode_text(text: str) -> bytes:
    return text.encode("utf-8", "replace")


@functools.lru_cache(maxsize=4096)
def _encode_key(key: str) -> bytes:
    return _encode_field(b"\x0a", _encode_text(key))


def _encode_any_value(value: Any) -> bytes:
    """Return an AnyValue."""
    if isinstance(value, str):
        return _encode_field(b"\x0a", _encode_text(value))
    if isinstance(value, bool):
        return b"\x10\x01" if value else b"\x10\x00"
    if isinstance(value, int):
        return b"\x18" + _encode_varint(value & 0xFFFF_FFFF_FFFF_FFFF)
    if isinstance(value, float):
        return b"\x21" + _double(value)
    if isinstance(value, bytes):
        return _encode_field(b"\x3a", value)
    return _encode_field(b"\x2a", b"".join([_encode_field(b"\x0a", _encode_any_value(v)) for v in value]))


def _encode_attributes(tag: bytes, attributes: Mapping[str, Any] | None) -> list[bytes]:
    """Return the parts of the attributes, to be joined. Short texts, many of which recur, are cached."""
    parts: list[bytes] = []
    for key, value in (attributes or {}).items():
        if type(value) is not str:
            pair = _encode_key(key) + _encode_field(b"\x12", _encode_any_value(value))
            parts += (tag, _encode_length(len(pair)), pair)
        elif len(value) <= _MAX_CACHED_TEXT:
            parts.append(_encode_short_attribute(tag, key, value))
        else:
            parts += _encode_text_attribute(tag, key, value)
    return parts


def _encode_text_attribute(tag: bytes, key: str, value: str) -> tuple[bytes, ...]:
    """Return the parts of an attribute with a text, without copying the text."""
    name, text = _encode_key(key), _encode_text(value)
    length = _encode_length(len(text))
    inner = 1 + len(length) + len(text)  # the AnyValue: a tag, the length and the text
    inner_length = _encode_length(inner)
    total = len(name) + 1 + len(inner_length) + inner
    return tag, _encode_length(total), name, b"\x12", inner_length, b"\x0a", length, text


_MAX_CACHED_TEXT = 24  # characters


@functools.lru_cache(maxsize=4096)
def _encode_short_attribute(tag: bytes, key: str, value: str) -> bytes:
    return b"".join(_encode_text_attribute(tag, key, value))


def _encode_ids(span: ReadableSpan) -> list[bytes]:
    """Return the fields trace id, span id, trace state, parent span id and flags."""
    if isinstance(span, LiveSpan):
        flags = _HAS_REMOTE | (_IS_REMOTE if span.parent_id and span.parent_remote else 0)
        parent = b"\x22\x08" + span.parent_id.to_bytes(8, "big") if span.parent_id else b""
        own = b"\x0a\x10" + span.local.trace_id.to_bytes(16, "big") + b"\x12\x08" + span.span_id.to_bytes(8, "big")
        return [own, _encode_sampling_member(span.ot), parent, b"\x85\x01", _fixed32(flags)]
    context, above = span.context, span.parent
    own = b"\x0a\x10" + context.trace_id.to_bytes(16, "big") + b"\x12\x08" + context.span_id.to_bytes(8, "big")
    state = _encode_field(b"\x1a", _encode_text(context.trace_state.to_header())) if context.trace_state else b""
    parent = b"\x22\x08" + above.span_id.to_bytes(8, "big") if above else b""
    return [own, state, parent, b"\x85\x01", _fixed32(_HAS_REMOTE | (_IS_REMOTE if above and above.is_remote else 0))]


@functools.lru_cache(maxsize=64)
def _encode_sampling_member(member: str) -> bytes:
    return _encode_field(b"\x1a", _encode_text(f"{TRACESTATE_KEY}={member}")) if member else b""


def _encode_span(span: ReadableSpan, form: SpanWriter | None) -> bytes:
    kind, attributes = (span.kind, span._attributes) if form is None else (form.span_kind(span), form.attributes(span))
    parts = _encode_ids(span)
    parts.append(_encode_field(b"\x2a", _encode_text(span.name)))
    parts.append(b"\x30" + _SMALL_VARINTS[kind.value + 1])
    parts.append(b"\x39" + _fixed64(span.start_time or 0) + b"\x41" + _fixed64(span.end_time or 0))
    parts += _encode_attributes(b"\x4a", attributes)
    if span.dropped_attributes:
        parts.append(b"\x50" + _encode_varint(span.dropped_attributes))
    for event in span.events:
        body = b"\x09" + _fixed64(event.timestamp) + _encode_field(b"\x12", _encode_text(event.name))
        parts.append(_encode_field(b"\x5a", body + b"".join(_encode_attributes(b"\x1a", event.attributes))))
    if span.dropped_events:
        parts.append(b"\x60" + _encode_varint(span.dropped_events))
    parts += [_encode_field(b"\x6a", _encode_link(link)) for link in span.links]
    status = span.status
    body = _encode_field(b"\x12", _encode_text(status.description)) if status.description else b""
    if status.status_code.value:
        body += b"\x18" + _SMALL_VARINTS[status.status_code.value]
    parts.append(_encode_field(b"\x7a", body))
    return b"".join(parts)


def _encode_link(link: Link) -> bytes:
    context = link.context
    ids = b"\x0a\x10" + context.trace_id.to_bytes(16, "big") + b"\x12\x08" + context.span_id.to_bytes(8, "big")
    flags = b"\x35" + _fixed32(_HAS_REMOTE | (_IS_REMOTE if context.is_remote else 0))
    return ids + b"".join(_encode_attributes(b"\x22", link.attributes)) + flags


def encode_spans(spans: Iterable[ReadableSpan], form: SpanWriter | None = None) -> bytes:
    """Return an ExportTraceServiceRequest, grouped by resource and scope.

    Without a `form`, the spans are written as they are.
    """
    groups: dict[int, tuple[Resource, dict[int, tuple[InstrumentationScope | None, list[bytes]]]]] = {}
    for span in spans:
        resource = span.resource
        _, scopes = groups.setdefault(id(resource), (resource, {}))
        scope = span.instrumentation_scope if form is None else form.scope(span.instrumentation_scope)
        scopes.setdefault(id(scope), (scope, []))[1].append(_encode_field(b"\x12", _encode_span(span, form)))
    return b"".join(_encode_field(b"\x0a", _encode_resource_spans(*group)) for group in groups.values())


def _encode_resource_spans(
    resource: Resource, scopes: dict[int, tuple[InstrumentationScope | None, list[bytes]]]
) -> bytes:
    fields = [_encode_field(b"\x0a", b"".join(_encode_attributes(b"\x0a", resource.attributes)))]
    for scope, spans in scopes.values():
        head = schema = b""
        if scope is not None:
            head = _encode_field(b"\x0a", _encode_text(scope.name))
            if scope.version:
                head += _encode_field(b"\x12", _encode_text(scope.version))
            head += b"".join(_encode_attributes(b"\x1a", scope.attributes))
            if scope.schema_url:
                schema = _encode_field(b"\x1a", _encode_text(scope.schema_url))
        fields.append(_encode_field(b"\x12", _encode_field(b"\x0a", head) + b"".join(spans) + schema))
    if resource.schema_url:
        fields.append(_encode_field(b"\x1a", _encode_text(resource.schema_url)))
    return b"".join(fields)


# Conventions of exported spans: Spanwise's compact form, OpenInference, and OpenTelemetry GenAI.
#
# Spans are recorded once, in the same way for every destination. Here, the delivery thread derives the attributes of
# the conventions from a sanitized span, so that a redacted value has no second, unredacted copy.
#
# - The compact form, for Spanwise's collectors, leaves out what the collector derives: MIME types, attributes of
#   documents that the outputs contain, and counts with their usual values.
# - `openinference` adds these.
# - `gen_ai` adds the names of OpenTelemetry's GenAI conventions. Alone, it replaces OpenInference's names by them,
#   where both carry the same content.
#
# An attribute that the application or an instrumentation has set is never replaced.

Attributes: TypeAlias = dict[str, Any]
_NO_DOCUMENTS = DocumentList()
JSON_MIME = "application/json"
DOCUMENT_KINDS = ("RETRIEVER", "RERANKER")
_MAX_RESPONSE_IDS = 4096  # latest responses whose feedback gets `gen_ai.response.id`
# Kind → operation. The last three are not defined by the conventions, which allow other values
OPERATIONS = {
    "LLM": "chat",
    "EMBEDDING": "embeddings",
    "RETRIEVER": "retrieval",
    "TOOL": "execute_tool",
    "AGENT": "invoke_agent",
    "CHAIN": "invoke_workflow",
    "RERANKER": "rerank",
    "GUARDRAIL": "guardrail",
    "EVALUATOR": "evaluate",
}
# Kinds that the name of the operation implies
_IMPLIED_KINDS = frozenset(("LLM", "EMBEDDING", "RETRIEVER", "TOOL", "AGENT", "CHAIN", "RERANKER"))
_CLIENT_KINDS = ("LLM", "EMBEDDING", "RETRIEVER")
# OpenInference's names of model calls, which instrumentations set → GenAI names
_EQUIVALENTS = {
    "llm.model_name": names.REQUEST_MODEL,
    "embedding.model_name": names.REQUEST_MODEL,
    "llm.request.model_name": names.REQUEST_MODEL,
    "llm.response.model_name": names.RESPONSE_MODEL,
    "llm.token_count.prompt": names.INPUT_TOKENS,
    "llm.token_count.completion": names.OUTPUT_TOKENS,
    "llm.token_count.prompt_details.cache_read": "gen_ai.usage.cache_read.input_tokens",
    "llm.token_count.prompt_details.cache_write": "gen_ai.usage.cache_creation.input_tokens",
    "llm.token_count.completion_details.reasoning": "gen_ai.usage.reasoning.output_tokens",
    "tool.id": names.TOOL_CALL_ID,
    "tool_call.id": names.TOOL_CALL_ID,
    "tool.name": names.TOOL_NAME,
    "agent.name": names.AGENT_NAME,
    names.SESSION: names.CONVERSATION,
    names.COST: names.TOTAL_COST,
}
# Derived name → name that carries the same content for OpenInference
_SUPERSEDED = {
    **{new: old for old, new in _EQUIVALENTS.items()},
    names.CONVERSATION: names.SESSION,
    names.OPERATION: names.KIND,
    names.INPUT_MESSAGES: names.INPUT_VALUE,
    names.OUTPUT_MESSAGES: names.OUTPUT_VALUE,
    names.TOOL_ARGUMENTS: names.INPUT_VALUE,
    names.TOOL_RESULT: names.OUTPUT_VALUE,
    names.QUERY_TEXT: names.INPUT_VALUE,
    names.RETRIEVED_DOCUMENTS: names.OUTPUT_VALUE,
}
_QUERY_ARGUMENTS = ("query", "question", "query_text", "text", "q", "search_query", "input")
_CALL_ID_ARGUMENTS = ("tool_call_id", "call_id")


class Conventions:
    """Conventions in which spans are written for one destination. `names` holds `openinference`, `gen_ai`, or both; if
    it is empty, spans are written in the compact form.
    """

    def __init__(self, conventions: Iterable[str], redact: Callable[[Attributes], Attributes] | None = None) -> None:
        """Create the conventions. `redact` is applied to derived attributes: a redactor may apply to their names."""
        self.names = frozenset(conventions)
        self._redact = redact
        self._is_genai, self._is_openinference = "gen_ai" in self.names, "openinference" in self.names
        self._scopes: dict[InstrumentationScope, InstrumentationScope] = {}
        self._latest_scope: tuple[InstrumentationScope, InstrumentationScope] = SCOPE, SCOPE
        if self._is_genai:
            self._latest_scope = SCOPE, InstrumentationScope(SCOPE.name, SCOPE.version, names.GENAI_SCHEMA_URL)
            self._scopes[SCOPE] = self._latest_scope[1]
        self._responses: dict[tuple[int, int], str] = {}  # (trace id, span id) → response id

    def attributes(self, span: ReadableSpan) -> Attributes:
        """Return the attributes of a sanitized span for the destination. Never raises."""
        attributes = dict(span._attributes or {})
        try:
            kind, scope = attributes.get(names.KIND), span.instrumentation_scope
            derived: Attributes = {}
            documents = self._take_documents(attributes, derived, kind) if self.names else _NO_DOCUMENTS
            if self._is_genai and kind in OPERATIONS:
                self._derive_genai(attributes, derived, span, kind, documents)
                if self._redact is not None:
                    derived = self._redact(derived)
            elif derived and self._redact is not None:
                derived = self._redact(derived)
            written = {**derived, **attributes}
            if scope is SCOPE or (scope is not None and scope.name == SCOPE.name):
                self._shorten(written, attributes, derived, span)
            if self._is_genai and (response := written.get(names.RESPONSE_ID)) is not None:
                self._remember_response(span, response)
            return written
        except Exception as error:
            internal_errors.record_error("conventions", error)
            return attributes

    def span_kind(self, span: ReadableSpan) -> SpanKind:
        """Return the span kind. In the GenAI conventions, calls of models and retrievers are clients."""
        kind = span._kind
        if self._is_genai and kind is SpanKind.INTERNAL and (span._attributes or {}).get(names.KIND) in _CLIENT_KINDS:
            return SpanKind.CLIENT
        return kind

    def scope(self, scope: InstrumentationScope | None) -> InstrumentationScope | None:
        """Return the scope with the schema URL of the GenAI conventions, if it has none and they are written."""
        if not self._is_genai or scope is None:
            return scope
        if scope is self._latest_scope[0]:
            return self._latest_scope[1]
        found = scope
        if not scope.schema_url and scope.name == SCOPE.name:
            if scope not in self._scopes:
                self._scopes[scope] = InstrumentationScope(
                    scope.name, scope.version, names.GENAI_SCHEMA_URL, scope.attributes
                )
            found = self._scopes[scope]
        self._latest_scope = scope, found
        return found

    def feedback(self, event: FeedbackEvent) -> FeedbackEvent:
        """Return a feedback event with the id of the response that it is about, if that was written before."""
        response = self._responses.get((event.trace_id, event.span_id))
        if response is None:
            return event
        return replace(event, attributes={names.RESPONSE_ID: response, **event.attributes})

    def readable(self, span: ReadableSpan) -> ReadableSpan:
        """Return a span of the OpenTelemetry SDK for an exporter, independent of the recorded span."""
        context, parent = span.context, span.parent
        if isinstance(span, LiveSpan):  # its own context counts calls to other processes when it is serialized
            state = TraceState([(TRACESTATE_KEY, span.ot)] if span.ot else [])
            context = SpanContext(context.trace_id, context.span_id, False, context.trace_flags, state)
        return ReadableSpan(
            name=span.name,
            context=context,
            parent=parent,
            resource=span.resource,
            attributes=self.attributes(span),
            events=tuple(span.events),
            links=tuple(span.links),
            kind=self.span_kind(span),
            status=span.status,
            start_time=span.start_time,
            end_time=span.end_time,
            instrumentation_scope=self.scope(span.instrumentation_scope),
        )

    def _take_documents(self, attributes: Attributes, derived: Attributes, kind: Any) -> DocumentList:
        """Write the documents of a span for OpenInference, and return them for the GenAI conventions."""
        recorded = text = attributes.get(names.DOCUMENTS_JSON)
        if recorded is None and kind in DOCUMENT_KINDS:
            text = attributes.get(names.OUTPUT_VALUE)
        if not isinstance(text, str):
            return _NO_DOCUMENTS
        documents = read_document_list(text)
        if f"{names.DOCUMENTS}.0.document.content" in attributes:  # an instrumentation has written them
            return documents
        if self._is_openinference or kind not in DOCUMENT_KINDS:
            derived.update(flatten_documents(documents))
        if documents:
            attributes.pop(names.DOCUMENTS_JSON, None)
        return documents

    def _derive_genai(
        self, attributes: Attributes, derived: Attributes, span: ReadableSpan, kind: str, documents: DocumentList
    ) -> None:
        """Add the names of the GenAI conventions to `derived`."""
        derived[names.OPERATION] = OPERATIONS[kind]
        for name in attributes:
            if name in _EQUIVALENTS:
                derived[_EQUIVALENTS[name]] = attributes[name]
        if kind in ("LLM", "AGENT"):
            self._derive_messages(attributes, derived, span, kind)
        elif kind == "TOOL":
            derived.setdefault(names.TOOL_NAME, span.name)
            arguments, result = attributes.get(names.INPUT_VALUE), attributes.get(names.OUTPUT_VALUE)
            if arguments is not None:
                derived[names.TOOL_ARGUMENTS] = arguments
                if "call_id" in str(arguments) and (call_id := _find_call_id(attributes)):
                    derived.setdefault(names.TOOL_CALL_ID, call_id)
            if result is not None:
                derived[names.TOOL_RESULT] = result
        elif kind in DOCUMENT_KINDS:
            query, _ = _find_query(attributes)
            if query:
                derived[names.QUERY_TEXT] = query
            if documents:
                derived[names.RETRIEVED_DOCUMENTS] = (
                    documents.text
                    or orjson.dumps(
                        [{k: v for k, v in document.items() if v is not None and v != {}} for document in documents]
                    ).decode()
                )
        elif kind == "EMBEDDING":
            model = attributes.get(names.REQUEST_MODEL) or derived.get(names.REQUEST_MODEL)
            if provider := find_provider(model, attributes):
                derived[names.PROVIDER] = provider

    def _derive_messages(self, attributes: Attributes, derived: Attributes, span: ReadableSpan, kind: str) -> None:
        """Add messages and, for a model call, what the request and the response say about it."""
        request = read_model_request(_read_content(attributes, names.INPUT_VALUE, names.INPUT_MIME))
        response = read_model_response(_read_content(attributes, names.OUTPUT_VALUE, names.OUTPUT_MIME))
        if request.messages:
            derived[names.INPUT_MESSAGES] = orjson.dumps(request.messages).decode()
        if response.messages:
            derived[names.OUTPUT_MESSAGES] = orjson.dumps(response.messages).decode()
        if kind == "AGENT":
            derived.setdefault(names.AGENT_NAME, span.name)
            return
        if request.model:
            derived.setdefault(names.REQUEST_MODEL, request.model)
        if response.model:
            derived.setdefault(names.RESPONSE_MODEL, response.model)
        model = attributes.get(names.REQUEST_MODEL) or derived.get(names.REQUEST_MODEL) or response.model
        if provider := find_provider(model, attributes):
            derived[names.PROVIDER] = provider
        if response.id:
            derived[names.RESPONSE_ID] = response.id
        if response.finish_reasons:
            derived[names.FINISH_REASONS] = tuple(response.finish_reasons)
        if request.tools:
            derived[names.TOOL_DEFINITIONS] = orjson.dumps(request.tools).decode()
        for name, value in request.parameters.items():
            derived[f"gen_ai.request.{name}"] = value

    def _shorten(self, written: Attributes, attributes: Attributes, derived: Attributes, span: ReadableSpan) -> None:
        """Leave out what the destination derives from the other attributes of a span of Spanwise."""
        if names.SPANS_STARTED in written:
            own_id = span.span_id if isinstance(span, LiveSpan) else span.context.span_id
            if written.get(names.LOCAL_ROOT) == f"{own_id:016x}":
                del written[names.LOCAL_ROOT]
            if written.get(names.SPANS_OPEN) == 0:
                del written[names.SPANS_OPEN]
        if self._is_openinference:
            return
        for name in derived:
            if name in _SUPERSEDED and name not in attributes:
                written.pop(_SUPERSEDED[name], None)
        if self._is_genai:
            if attributes.get(names.KIND) not in _IMPLIED_KINDS or names.OPERATION in attributes:
                written[names.KIND] = attributes.get(names.KIND)
            if names.QUERY_TEXT in derived and names.INPUT_VALUE in attributes and not _find_query(attributes)[1]:
                written[names.INPUT_VALUE] = attributes[names.INPUT_VALUE]
        for value, mime in ((names.INPUT_VALUE, names.INPUT_MIME), (names.OUTPUT_VALUE, names.OUTPUT_MIME)):
            if value not in written:
                written.pop(mime, None)
            elif not self.names:
                _shorten_mime(written, value, mime)

    def _remember_response(self, span: ReadableSpan, response: Any) -> None:
        if not isinstance(response, str):
            return
        if len(self._responses) >= _MAX_RESPONSE_IDS:
            self._responses.clear()
        if isinstance(span, LiveSpan):  # creating its context would take longer
            self._responses[span.local.trace_id, span.span_id] = response
        else:
            self._responses[span.context.trace_id, span.context.span_id] = response


def _read_content(attributes: Attributes, value: str, mime: str) -> Any:
    text = attributes.get(value)
    if attributes.get(mime) != JSON_MIME or not isinstance(text, str):
        return text
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        return text


def _find_query(attributes: Attributes) -> tuple[str | None, bool]:
    """Return the query among the arguments of a retriever, and whether it is the only argument."""
    inputs = _read_content(attributes, names.INPUT_VALUE, names.INPUT_MIME)
    if not isinstance(inputs, dict):
        return (inputs, True) if isinstance(inputs, str) else (None, False)
    texts = {key: value for key, value in inputs.items() if isinstance(value, str)}
    named = next((texts[name] for name in _QUERY_ARGUMENTS if name in texts), None)
    return named or next(iter(texts.values()), None), len(inputs) == 1


def _find_call_id(attributes: Attributes) -> str | None:
    """Return the id of a tool call, if it is an argument of the tool."""
    inputs = _read_content(attributes, names.INPUT_VALUE, names.INPUT_MIME)
    given = (inputs.get(name) for name in _CALL_ID_ARGUMENTS) if isinstance(inputs, dict) else ()
    return next((id for id in given if isinstance(id, str)), None)


_JSON_STARTS = frozenset('{["-0123456789 \t\r\n')
_JSON_WORDS = ("true", "false", "null")


def _shorten_mime(written: Attributes, value: str, mime: str) -> None:
    """Leave out the MIME type of a content if Spanwise's collector infers it: JSON, or a text that is not JSON."""
    text, given = written[value], written.get(mime)
    if not isinstance(text, str):
        return
    may_be_json = text[:1] in _JSON_STARTS or text.strip() in _JSON_WORDS
    if given == JSON_MIME:
        if text != "null":  # stays in the stored attributes, as the mark of a call that returned None
            del written[mime]
    elif given is None and may_be_json:
        written[mime] = "text/plain"
    elif given is not None and not may_be_json:
        del written[mime]
