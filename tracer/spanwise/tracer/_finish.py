"""What happens to a span after it has ended, away from the caller's thread: it leaves whole, bounded and redacted."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import orjson
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link, Status

from spanwise.tracer import _errors, token_estimates
from spanwise.tracer import attributes as names
from spanwise.tracer._documents import flatten
from spanwise.tracer._encode import FeedbackEvent
from spanwise.tracer._json import cut_text, to_json
from spanwise.tracer._redact import Redaction
from spanwise.tracer._settings import Settings
from spanwise.tracer._span import SCOPE, LiveSpan

_MAX_RESOURCES = 100
_WITH_DOCUMENTS = ("RETRIEVER", "RERANKER")

# What people said, in every dialect: left out when only metadata is captured.
_CONTENT = re.compile(
    r"^(?:(?:in|out)put\.(?:value|mime_type)|(?:.*\.)?(?:in|out)put_messages\b.*|spanwise\.documents"
    r"|llm\.(?:prompts|choices|prompt_template|tools|function_call)\b.*|.*\.document\.(?:content|metadata|url|name)"
    r"|(?:in|out)put\.documents\b.*|embedding\..*(?:text|vector)|reranker\.query|(?:tool\.)?parameters|tool\.(?:json_schema|description)"
    r"|gen_ai\.(?:prompt|completion|input\.messages|output\.messages|system_instructions|tool\.definitions)\b.*"
    r"|gen_ai\.(?:tool\.call\.(?:arguments|result)|tool\.description|retrieval\.(?:query\.text|documents))"
    r"|gen_ai\.event\.content|(?:gen_ai\.)?(?:content|message|body|role)|traceloop\.entity\.(?:input|output)"
    r"|mlflow\.span(?:In|Out)puts|lmnr\.span\.(?:input|output)|langfuse\..*(?:input|output)"
    r"|(?:request|response|all_messages\S*|final_result|db\.(?:statement|query\.text))|exception\.(?:message|stacktrace))$"
)


class Finisher:
    """Turns ended spans and feedback into what leaves, under one set of settings. Never raises."""

    def __init__(self, settings: Settings) -> None:
        self._limit = settings.max_value_bytes
        self._content = settings.capture == "full"
        self._redaction = Redaction(settings.redact)
        self._scopes: dict[str, InstrumentationScope] = {}
        self._resources: dict[int, tuple[Resource, Resource]] = {}

    def span(self, span: ReadableSpan) -> ReadableSpan | None:
        """The span as it leaves; None if it cannot be made safe to leave."""
        try:  # every span passes here: not `ours`, which costs something
            if isinstance(span, LiveSpan):
                return span if span.finished else self._own(span)
            return self._foreign(span)
        except Exception as error:
            _errors.note("finish", error)
            return None

    def feedback(self, event: FeedbackEvent) -> FeedbackEvent:
        """The feedback as it leaves."""
        if not self._redaction:
            return event
        key = self._redaction.key(event.attributes.get(names.EVALUATION_NAME, ""))
        known = {names.EVALUATION_NAME: key, names.FEEDBACK_SOURCE: event.attributes.get(names.FEEDBACK_SOURCE)}
        clean = {k: known[k] if k in known else self._redaction.attribute(k, v) for k, v in event.attributes.items()}
        return replace(event, attributes=clean)

    def name(self, name: str) -> str:
        """The name of a run, redacted."""
        return (self._redaction.text(_utf8(name)) or "") if self._redaction else _utf8(name)

    def scope(self, scope: InstrumentationScope | None) -> InstrumentationScope | None:
        """The scope, its name redacted."""
        if not self._redaction or scope is None:
            return scope
        name, attributes = self._redaction.key(scope.name), self._redaction.attributes(scope.attributes)
        if name == scope.name and attributes == dict(scope.attributes or {}):
            return scope
        return self._scopes.setdefault(name, InstrumentationScope(name, scope.version, scope.schema_url, attributes))

    def resource(self, resource: Resource) -> Resource:
        """The resource, redacted once."""
        if not self._redaction:
            return resource
        pair = self._resources.get(id(resource))
        if pair is None:
            if len(self._resources) >= _MAX_RESOURCES:
                self._resources.clear()
            clean = Resource(self._redaction.attributes(resource.attributes), resource.schema_url)
            pair = self._resources[id(resource)] = resource, clean  # the first is kept, so that its id stays its own
        return pair[1]

    def _own(self, span: LiveSpan) -> LiveSpan:
        if span.local.dropped and names.LOCAL_ROOT in span._attributes:
            span._attributes[names.SPANS_DROPPED] = span.local.dropped
        scope = span._instrumentation_scope
        if scope is SCOPE:
            span.infer_status()
        if token_estimates.is_enabled and scope is not None and scope.name in token_estimates.SCOPES:
            token_estimates.add_estimate(span._attributes)
        span._attributes = self._values(span._attributes)
        if span._events:
            span._events = tuple(map(self._event, span._events))
        if span._links:
            span._links = tuple(map(self._link, span._links))
        span._name, span._status = self._texts(span._name, span._status)
        if self._redaction:
            span._instrumentation_scope = self.scope(span._instrumentation_scope)
        span.finished = True
        return span

    def _foreign(self, span: ReadableSpan) -> ReadableSpan:
        """A span of another SDK's making (joined mode): others see it too, so what leaves is a copy."""
        name, status = self._texts(span.name, span.status)
        return ReadableSpan(
            name=name,
            context=span.context,
            parent=span.parent,
            resource=self.resource(span.resource),
            attributes=self._values(dict(span.attributes or {})),
            events=tuple(map(self._event, span.events)),
            links=tuple(map(self._link, span.links)),
            kind=span.kind,
            status=status,
            start_time=span.start_time,
            end_time=span.end_time,
            instrumentation_scope=self.scope(span.instrumentation_scope),
        )

    def _values(self, attributes: Mapping[str, Any]) -> dict[str, Any]:
        kept = dict(attributes)
        _add_documents(kept)
        if not self._content:
            kept = {k: v for k, v in kept.items() if not (_CONTENT.match(k) or (_is_long(v) and k != names.METADATA))}
        longest, value = self._limit, self._value
        values = {
            _utf8(k): v if type(v) is str and len(v) <= longest and v.isascii() else value(v)
            for k, v in kept.items()
            if v is not None
        }
        return self._redaction.attributes(values) if self._redaction else values

    def _value(self, value: Any) -> Any:
        """A value that OTLP can carry."""
        if type(value) is int and -(2**63) <= value < 2**63:
            return value
        if isinstance(value, str):
            return _utf8(self._cut(value if type(value) is str else str.__str__(value)))
        if isinstance(value, (bool, float)) or (isinstance(value, int) and -(2**63) <= value < 2**63):
            return value
        if isinstance(value, (tuple, list)) and len({type(v) for v in value}) <= 1:
            return tuple(map(self._value, value))
        return value if isinstance(value, bytes) else to_json(value, self._limit)

    def _cut(self, text: str) -> str:
        """Cut a long text; JSON stays JSON. Ours have been cut before, and are over by no more than their marker."""
        if len(text) <= self._limit + 400:
            return text
        try:
            return to_json(orjson.loads(text), self._limit) if text[0] in "{[" else cut_text(text, self._limit)
        except orjson.JSONDecodeError:
            return cut_text(text, self._limit)

    def _event(self, event: Event) -> Event:
        name = self._redaction.text(event.name) if self._redaction else event.name
        return Event(_utf8(name or ""), self._values(event.attributes or {}), event.timestamp)

    def _link(self, link: Link) -> Link:
        return Link(link.context, self._values(link.attributes or {}))

    def _texts(self, name: str, status: Status) -> tuple[str, Status]:
        name, description = _utf8(name), status.description and _utf8(status.description)
        if description and not self._content:
            description = description.partition(":")[0]
        if self._redaction:
            name, description = self._redaction.text(name) or "", self._redaction.text(description)
        return name, status if description == status.description else Status(status.status_code, description)


def _utf8(text: str) -> str:
    """The text without lone surrogates; of what is no text but should be (a name), its text."""
    if type(text) is not str:
        text = str.__str__(text) if isinstance(text, str) else str(text)
    if text.isascii():
        return text
    try:
        text.encode()
        return text
    except UnicodeEncodeError:
        return text.encode("utf-8", "replace").decode()


def _is_long(value: Any) -> bool:
    """Whether a text is long enough to be what somebody said, under whatever name."""
    return isinstance(value, str) and len(value) > 1000


def _add_documents(attributes: dict[str, Any]) -> None:
    """Documents in OpenInference's flat form."""
    documents = attributes.pop(names.DOCUMENTS_JSON, None)
    if documents is None and attributes.get(names.KIND) in _WITH_DOCUMENTS:
        documents = attributes.get(names.OUTPUT_VALUE)
    if isinstance(documents, str) and f"{names.DOCUMENTS}.0.document.content" not in attributes:
        attributes.update(flatten(documents))
