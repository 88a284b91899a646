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
from typing import Any, TypeAlias

import orjson
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, SpanKind
from opentelemetry.trace.span import TraceState

from spanwise.tracer import attribute_names as names
from spanwise.tracer import internal_errors
from spanwise.tracer.content.chat_messages import find_provider, read_model_request, read_model_response
from spanwise.tracer.content.documents import DocumentList, flatten_documents, read_document_list
from spanwise.tracer.export.otlp_encoding import FeedbackEvent
from spanwise.tracer.otel.head_sampling import TRACESTATE_KEY
from spanwise.tracer.otel.live_span import SCOPE, LiveSpan

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
