"""Conventions of exported spans: Spanwise's compact form, OpenInference, and OpenTelemetry GenAI.

Spans are recorded once, in the same way for every destination. Here, the delivery thread derives the attributes of the
conventions from a sanitized span, so that a redacted value has no second, unredacted copy.

- The compact form, for Spanwise's collectors, leaves out what the collector derives: MIME types, attributes of
  documents that the outputs contain, and counts with their usual values.
- `openinference` adds these.
- `gen_ai` adds the names of OpenTelemetry's GenAI conventions. Alone, it replaces OpenInference's names by them,
  where both carry the same content.

An attribute that the application or an instrumentation has set is never replaced.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import orjson
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, SpanKind
from opentelemetry.trace.span import TraceState

from spanwise.tracer import attribute_names as names
from spanwise.tracer import internal_errors
from spanwise.tracer.content.chat_messages import find_provider, read_model_request, read_model_response
from spanwise.tracer.content.documents import DocumentFields, flatten_documents, read_document_list
from spanwise.tracer.export.otlp_encoding import FeedbackEvent
from spanwise.tracer.otel.head_sampling import TRACESTATE_KEY
from spanwise.tracer.otel.live_span import SCOPE, LiveSpan

Attributes = dict[str, Any]
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
        self._responses: dict[tuple[int, int], str] = {}  # (trace id, span id) → response id

    def attributes(self, span: ReadableSpan) -> Attributes:
        """Return the attributes of a sanitized span for the destination. Never raises."""
        attributes = dict(span._attributes or {})
        try:
            kind, scope = attributes.get(names.KIND), span.instrumentation_scope
            is_own = scope is not None and scope.name == SCOPE.name
            derived: Attributes = {}
            documents = self._take_documents(attributes, derived, kind)
            superseded: list[str] = []
            if self._is_genai and kind in OPERATIONS:
                superseded = self._derive_genai(attributes, derived, span, kind, documents)
            if derived and self._redact is not None:
                derived = self._redact(derived)
            written = {**derived, **attributes}
            if is_own:
                self._shorten(written, span, superseded)
            if self._is_genai and isinstance(response := written.get(names.RESPONSE_ID), str):
                self._remember_response(span, response)
            return written
        except Exception as error:
            internal_errors.record_error("conventions", error)
            return attributes

    def span_kind(self, span: ReadableSpan) -> SpanKind:
        """Return the span kind. In the GenAI conventions, calls of models and retrievers are clients."""
        if self._is_genai and span.kind is SpanKind.INTERNAL:
            kind = (span._attributes or {}).get(names.KIND)
            return SpanKind.CLIENT if kind in _CLIENT_KINDS else span.kind
        return span.kind

    def scope(self, scope: InstrumentationScope | None) -> InstrumentationScope | None:
        """Return the scope with the schema URL of the GenAI conventions, if it has none and they are written."""
        if not self._is_genai or scope is None or scope.schema_url or scope.name != SCOPE.name:
            return scope
        if scope not in self._scopes:
            self._scopes[scope] = InstrumentationScope(
                scope.name, scope.version, names.GENAI_SCHEMA_URL, scope.attributes
            )
        return self._scopes[scope]

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

    def _take_documents(self, attributes: Attributes, derived: Attributes, kind: Any) -> list[DocumentFields]:
        """Write the documents of a span in the destination's form, and return them for the GenAI conventions."""
        if not self.names:
            return []
        recorded = text = attributes.get(names.DOCUMENTS_JSON)
        if recorded is None and kind in DOCUMENT_KINDS:
            text = attributes.get(names.OUTPUT_VALUE)
        if not isinstance(text, str):
            return []
        if f"{names.DOCUMENTS}.0.document.content" in attributes:  # an instrumentation has written them
            return read_document_list(text) if self._is_genai else []
        documents = read_document_list(text)
        if self._is_openinference or kind not in DOCUMENT_KINDS:
            derived.update(flatten_documents(documents))
        if documents:
            attributes.pop(names.DOCUMENTS_JSON, None)
        return documents

    def _derive_genai(
        self,
        attributes: Attributes,
        derived: Attributes,
        span: ReadableSpan,
        kind: str,
        documents: list[DocumentFields],
    ) -> list[str]:
        """Add the names of the GenAI conventions to `derived`. Return the names that they supersede."""

        def add(name: str, value: Any, superseded: str | None = None) -> None:
            if value is None or value == [] or value == "":
                return
            if name not in attributes:
                derived[name] = value if isinstance(value, (str, int, float)) else orjson.dumps(value).decode()
                if superseded is not None:
                    replaced.append(superseded)

        replaced: list[str] = []
        add(names.OPERATION, OPERATIONS[kind], names.KIND if kind in _IMPLIED_KINDS else None)
        for name in attributes.keys() & _EQUIVALENTS.keys():
            add(_EQUIVALENTS[name], attributes[name], name)
        if kind == "CHAIN":
            return replaced
        inputs = _read_content(attributes, names.INPUT_VALUE, names.INPUT_MIME)
        if kind == "TOOL":
            add(names.TOOL_NAME, derived.get(names.TOOL_NAME) or span.name)
            if isinstance(inputs, dict):
                call_id = next((inputs[key] for key in _CALL_ID_ARGUMENTS if isinstance(inputs.get(key), str)), None)
                add(names.TOOL_CALL_ID, call_id)
            add(names.TOOL_ARGUMENTS, attributes.get(names.INPUT_VALUE), names.INPUT_VALUE)
            add(names.TOOL_RESULT, attributes.get(names.OUTPUT_VALUE), names.OUTPUT_VALUE)
        elif kind in DOCUMENT_KINDS:
            query, is_complete = _find_query(inputs)
            add(names.QUERY_TEXT, query, names.INPUT_VALUE if is_complete else None)
            kept = [{k: v for k, v in document.items() if v not in (None, {})} for document in documents]
            add(names.RETRIEVED_DOCUMENTS, kept, names.OUTPUT_VALUE)
        elif kind in ("LLM", "AGENT"):
            outputs = _read_content(attributes, names.OUTPUT_VALUE, names.OUTPUT_MIME)
            if kind == "AGENT":
                add(names.AGENT_NAME, derived.get(names.AGENT_NAME) or span.name)
            self._derive_messages(attributes, derived, add, kind, inputs, outputs)
        elif kind == "EMBEDDING":
            model = attributes.get(names.REQUEST_MODEL) or derived.get(names.REQUEST_MODEL)
            add(names.PROVIDER, find_provider(model, attributes))
        return replaced

    def _derive_messages(
        self, attributes: Attributes, derived: Attributes, add: Callable[..., None], kind: str, inputs: Any, outputs: Any
    ) -> None:
        request, response = read_model_request(inputs), read_model_response(outputs)
        add(names.INPUT_MESSAGES, request.messages, names.INPUT_VALUE)
        add(names.OUTPUT_MESSAGES, response.messages, names.OUTPUT_VALUE)
        if kind != "LLM":
            return
        add(names.REQUEST_MODEL, request.model)
        add(names.RESPONSE_MODEL, response.model)
        model = next(
            (
                each[name]
                for name in (names.REQUEST_MODEL, names.RESPONSE_MODEL)
                for each in (attributes, derived)
                if name in each
            ),
            None,
        )
        add(names.PROVIDER, find_provider(model, attributes))
        add(names.RESPONSE_ID, response.id)
        if response.finish_reasons and names.FINISH_REASONS not in attributes:
            derived[names.FINISH_REASONS] = tuple(response.finish_reasons)
        add(names.TOOL_DEFINITIONS, request.tools)
        for name, value in request.parameters.items():
            add(f"gen_ai.request.{name}", value)

    def _shorten(self, written: Attributes, span: ReadableSpan, superseded: list[str]) -> None:
        """Leave out what the destination derives from the other attributes of a span of Spanwise."""
        context_id = span.span_id if isinstance(span, LiveSpan) else span.context.span_id
        if written.get(names.LOCAL_ROOT) == f"{context_id:016x}" and names.SPANS_STARTED in written:
            del written[names.LOCAL_ROOT]
        if written.get(names.SPANS_OPEN) == 0:
            del written[names.SPANS_OPEN]
        if not self._is_openinference:
            for name in superseded:
                written.pop(name, None)
            for value, mime in ((names.INPUT_VALUE, names.INPUT_MIME), (names.OUTPUT_VALUE, names.OUTPUT_MIME)):
                if value not in written:
                    written.pop(mime, None)
                elif not self.names:
                    _shorten_mime(written, value, mime)

    def _remember_response(self, span: ReadableSpan, response: str) -> None:
        if len(self._responses) >= _MAX_RESPONSE_IDS:
            self._responses.clear()
        context = span.context
        self._responses[context.trace_id, context.span_id] = response


def _read_content(attributes: Attributes, value: str, mime: str) -> Any:
    text = attributes.get(value)
    if attributes.get(mime) != JSON_MIME or not isinstance(text, str):
        return text
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        return text


def _find_query(inputs: Any) -> tuple[str | None, bool]:
    """Return the query among the arguments of a retriever, and whether it is the only argument."""
    if not isinstance(inputs, dict):
        return (inputs, True) if isinstance(inputs, str) else (None, False)
    texts = {key: value for key, value in inputs.items() if isinstance(value, str)}
    named = next((texts[name] for name in _QUERY_ARGUMENTS if name in texts), None)
    return named or next(iter(texts.values()), None), len(inputs) == 1


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
