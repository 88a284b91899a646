"""Sanitization of ended spans: content removal, redaction of secrets and size limits."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import orjson
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link, Status

from spanwise.tracer import attribute_names as names
from spanwise.tracer import internal_errors
from spanwise.tracer.configuration import Redactor, Settings
from spanwise.tracer.content import model_calls
from spanwise.tracer.content.documents import flatten_documents, normalize_documents, read_document_list
from spanwise.tracer.content.serialization import build_dict, to_json, truncate_text
from spanwise.tracer.export.span_encoding import DOCUMENT_KINDS, FeedbackEvent
from spanwise.tracer.otel.live_span import SCOPE, LiveSpan

_MAX_RESOURCES = 100

# Attributes with content, in every dialect. They are removed if only metadata is captured.
_MIN_CONTENT_LENGTH = 1000  # characters above which any text counts as content
_CONTENT_ATTRIBUTES = re.compile(
    r"^(?!gen_ai\.prompt\.(?:name|version)$|llm\.prompt_template\.version$)"  # which prompt, but nothing of it
    r"(?:(?:in|out)put\.(?:value|mime_type)|(?:.*\.)?(?:in|out)put_messages\b.*|spanwise\.documents"
    r"|llm\.(?:prompts|choices|prompt_template|tools|function_call)\b.*|.*\.document\.(?:content|metadata|url|name)"
    r"|(?:in|out)put\.documents\b.*|embedding\..*(?:text|vector)|reranker\.query|(?:tool\.)?parameters|tool\.(?:json_schema|description)"
    r"|gen_ai\.(?:prompt|completion|input\.messages|output\.messages|system_instructions|tool\.definitions)\b.*"
    r"|gen_ai\.(?:tool\.call\.(?:arguments|result)|tool\.description|retrieval\.(?:query\.text|documents))"
    r"|gen_ai\.event\.content|(?:gen_ai\.)?(?:content|message|body|role)|traceloop\.entity\.(?:input|output)"
    r"|mlflow\.span(?:In|Out)puts|lmnr\.span\.(?:input|output)|langfuse\..*(?:input|output)"
    r"|(?:request|response|all_messages\S*|final_result|db\.(?:statement|query\.text))|exception\.(?:message|stacktrace))$"
)


class SpanSanitizer:
    """Sanitizer that prepares ended spans and feedback for export under one set of settings. Never raises."""

    def __init__(self, settings: Settings) -> None:
        self._limit = settings.max_value_bytes
        self._content = settings.capture == "full"
        self._redaction = Redaction(settings.redact)
        self._scopes: dict[str, InstrumentationScope] = {}
        self._resources: dict[int, tuple[Resource, Resource]] = {}

    def span(self, span: ReadableSpan) -> ReadableSpan | None:
        """Return the span for export, or None if it cannot be sanitized."""
        try:  # runs for every span, and `error_boundary` would take more time
            if isinstance(span, LiveSpan):
                return span if span.finished else self._own(span)
            return self._foreign(span)
        except Exception as error:
            internal_errors.record_error("finish", error)
            return None

    def feedback(self, event: FeedbackEvent) -> FeedbackEvent:
        """Return the feedback event for export."""
        if not self._redaction:
            return event
        key = self._redaction.key(event.attributes.get(names.EVALUATION_NAME, ""))
        known = {names.EVALUATION_NAME: key, names.FEEDBACK_SOURCE: event.attributes.get(names.FEEDBACK_SOURCE)}
        clean = {k: known[k] if k in known else self._redaction.attribute(k, v) for k, v in event.attributes.items()}
        return replace(event, attributes=clean)

    @property
    def redactor(self) -> Callable[[dict[str, Any]], dict[str, Any]] | None:
        """Return the function that redacts derived attributes; None if nothing is redacted."""
        return self._redaction.attributes if self._redaction else None

    def name(self, name: str) -> str:
        """Return the redacted name of a run."""
        return (self._redaction.text(_replace_surrogates(name)) or "") if self._redaction else _replace_surrogates(name)

    def scope(self, scope: InstrumentationScope | None) -> InstrumentationScope | None:
        """Return the scope with a redacted name and attributes."""
        if not self._redaction or scope is None:
            return scope
        name, attributes = self._redaction.key(scope.name), self._redaction.attributes(scope.attributes)
        if name == scope.name and attributes == dict(scope.attributes or {}):
            return scope
        return self._scopes.setdefault(name, InstrumentationScope(name, scope.version, scope.schema_url, attributes))

    def resource(self, resource: Resource) -> Resource:
        """Return the redacted resource. The result is cached."""
        if not self._redaction:
            return resource
        pair = self._resources.get(id(resource))
        if pair is None:
            if len(self._resources) >= _MAX_RESOURCES:
                self._resources.clear()
            clean = Resource(self._redaction.attributes(resource.attributes), resource.schema_url)
            # keep a reference to the original as well, so that its `id()` is not reused
            pair = self._resources[id(resource)] = resource, clean
        return pair[1]

    def _own(self, span: LiveSpan) -> LiveSpan:
        if span.local.dropped and names.LOCAL_ROOT in span._attributes:
            span._attributes[names.SPANS_DROPPED] = span.local.dropped
        scope = span._instrumentation_scope
        if scope is SCOPE:
            span.infer_status()
        if model_calls.is_enabled and scope is not None and scope.name in model_calls.ESTIMATED_SCOPES:
            model_calls.add_usage_estimate(span._attributes)
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
        """Return a sanitized copy of a span of another SDK (joined mode), because other exporters see the original."""
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
        recorded = kept.get(names.DOCUMENTS_JSON)
        documents = (
            kept.get(names.OUTPUT_VALUE) if recorded is None and kept.get(names.KIND) in DOCUMENT_KINDS else recorded
        )
        if isinstance(documents, str):
            if not self._content:  # ids and scores of documents are metadata
                kept = flatten_documents(read_document_list(documents)) | kept
            elif f"{names.DOCUMENTS}.0.document.content" not in kept and (plain := normalize_documents(documents)):
                kept[names.DOCUMENTS_JSON] = plain
        if not self._content:
            # a text of this length is probably content, whatever the name of the attribute
            kept = {
                k: v
                for k, v in kept.items()
                if not _CONTENT_ATTRIBUTES.match(k)
                and (k == names.METADATA or not (isinstance(v, str) and len(v) > _MIN_CONTENT_LENGTH))
            }
        longest, value = self._limit, self._value
        values = {
            _replace_surrogates(k): v if type(v) is str and len(v) <= longest and v.isascii() else value(v)
            for k, v in kept.items()
            if v is not None
        }
        return self._redaction.attributes(values) if self._redaction else values

    def _value(self, value: Any) -> Any:
        """Return a value that OTLP can represent."""
        if type(value) is int and -(2**63) <= value < 2**63:
            return value
        if isinstance(value, str):
            return _replace_surrogates(self._cut(value if type(value) is str else str.__str__(value)))
        if isinstance(value, (bool, float)) or (isinstance(value, int) and -(2**63) <= value < 2**63):
            return value
        if isinstance(value, (tuple, list)) and len({type(v) for v in value}) <= 1:
            return tuple(map(self._value, value))
        return value if isinstance(value, bytes) else to_json(value, self._limit)

    def _cut(self, text: str) -> str:
        """Truncate a long text. JSON remains JSON.

        Spanwise's own texts were truncated before and exceed the limit only by their marker.
        """
        if len(text) <= self._limit + 400:
            return text
        try:
            return to_json(orjson.loads(text), self._limit) if text[0] in "{[" else truncate_text(text, self._limit)
        except orjson.JSONDecodeError:
            return truncate_text(text, self._limit)

    def _event(self, event: Event) -> Event:
        name = self._redaction.text(event.name) if self._redaction else event.name
        return Event(_replace_surrogates(name or ""), self._values(event.attributes or {}), event.timestamp)

    def _link(self, link: Link) -> Link:
        return Link(link.context, self._values(link.attributes or {}))

    def _texts(self, name: str, status: Status) -> tuple[str, Status]:
        name, description = _replace_surrogates(name), status.description and _replace_surrogates(status.description)
        if description and not self._content:
            description = description.partition(":")[0]
        if self._redaction:
            name, description = self._redaction.text(name) or "", self._redaction.text(description)
        return name, status if description == status.description else Status(status.status_code, description)


def _replace_surrogates(text: str) -> str:
    """Return the text without lone surrogates. A value that is not a string, such as a name, is converted."""
    if type(text) is not str:
        text = str.__str__(text) if isinstance(text, str) else str(text)
    if text.isascii():
        return text
    try:
        text.encode()
        return text
    except UnicodeEncodeError:
        return text.encode("utf-8", "replace").decode()


REDACTED_TEXT = "[redacted]"
FAILED_TEXT = "[redacted: the redactor failed]"
_LIST_INDEX = re.compile(r"\d{1,5}")  # key part that is the index of a list, which was flattened into keys
_MAX_REMEMBERED_KEYS = 4_096  # size of the cache of redacted keys


class Redaction:
    """List of redactors that is applied to attributes and texts."""

    def __init__(self, redactors: Sequence[Redactor]) -> None:
        keys = [r for r in redactors if isinstance(r, str)]
        self._keys = frozenset(map(_normalize_key, keys))
        self._patterns = [r for r in redactors if isinstance(r, re.Pattern)]
        self._functions: list[Callable[[str, Any], Any]] = [
            r for r in redactors if not isinstance(r, (str, re.Pattern)) and callable(r)
        ]
        self._assignment_pattern = _compile_assignment_pattern(keys) if keys else None
        self._redacted_keys: dict[str, str] = {}

    def __bool__(self) -> bool:
        return bool(self._keys or self._patterns or self._functions)

    def attributes(self, attributes: Mapping[str, Any] | None) -> dict[str, Any]:
        """Return the attributes with every secret replaced. JSON texts are redacted inside and remain JSON."""
        return build_dict([(self.key(key), self.attribute(key, value)) for key, value in (attributes or {}).items()])

    def key(self, key: str) -> str:
        """Return a key, redacted by the patterns.

        Patterns are applied to the words between the dots. Functions are not applied: a function that hides all texts
        would leave no names to search by.
        """
        if not self._patterns or self._redacted_keys.get(key) == key:
            return key
        if len(self._redacted_keys) > _MAX_REMEMBERED_KEYS:
            self._redacted_keys.clear()
        if key not in self._redacted_keys:
            words = (word if _LIST_INDEX.fullmatch(word) else self._apply_patterns(word) for word in key.split("."))
            self._redacted_keys[key] = ".".join(words)
        return self._redacted_keys[key]

    def _apply_patterns(self, text: str) -> str:
        for pattern in self._patterns:
            text = pattern.sub(REDACTED_TEXT, text)
        return text

    def attribute(self, key: str, value: Any) -> Any:
        """Return the redacted value of one attribute."""
        try:
            if _normalize_key(key) in self._keys or _normalize_key(key.rpartition(".")[2]) in self._keys:
                return REDACTED_TEXT
            if isinstance(value, bytes):
                value = value.decode("utf-8", "replace")
            clean = self._node(key, list(value) if isinstance(value, tuple) else value, top=True)
            scalars = (str, bool, int, float)
            if isinstance(clean, scalars) or (isinstance(clean, list) and all(isinstance(v, scalars) for v in clean)):
                return clean
            return orjson.dumps(clean, default=repr).decode()
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # also catches `SystemExit`: if a redactor fails, the value is withheld
            internal_errors.record_user_error("redact", error)
            return FAILED_TEXT

    def text(self, text: str | None) -> str | None:
        """Return a redacted text, such as a name or a status description."""
        if not text:
            return text
        clean = self.attribute("", text)
        return clean if isinstance(clean, str) else FAILED_TEXT

    def _node(self, key: str, value: Any, top: bool = False) -> Any:
        for function in self._functions:
            value = function(key, value)
        if isinstance(value, str):
            inner = _decode_json(value)
            if inner is not None:
                return orjson.dumps(self._node(key, inner), default=repr).decode()
            value = self._apply_patterns(value)
            return (
                self._assignment_pattern.sub(rf"\g<1>{REDACTED_TEXT}", value)
                if self._assignment_pattern is not None
                else value
            )
        if isinstance(value, Mapping):
            return build_dict(
                [
                    (self._apply_patterns(k), REDACTED_TEXT if _normalize_key(k) in self._keys else self._node(k, v))
                    for k, v in ((str(k), v) for k, v in value.items())
                ]
            )
        if isinstance(value, (list, tuple)):
            return [self._node(key, v) for v in value]
        # Patterns apply to integers inside a value, for example to a card number. They do not apply to attributes
        # that are numbers, because those are counts.
        if top or type(value) is not int:
            return value
        text = str(value)
        return REDACTED_TEXT if any(pattern.search(text) for pattern in self._patterns) else value


def _normalize_key(key: str) -> str:
    """Return the key in lower case without separators: `api_key`, `apiKey` and `API-Key` are the same key."""
    return key.lower().replace("_", "").replace("-", "").replace(" ", "")


def _compile_assignment_pattern(keys: Sequence[str]) -> re.Pattern[str]:
    """Compile a pattern for `password='x'` and `"password": "x"` in free text, such as reprs and stack traces."""
    parts = "|".join("[-_ ]?".join(map(re.escape, re.split(r"[-_ ]", key))) for key in keys)
    value = r"""(?:"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'|[^\s,;)}\]&]+)"""
    return re.compile(rf"""((?<![A-Za-z0-9])(?:{parts})["']?\s*[:=]\s*)(?:Bearer\s+|Basic\s+)?{value}""", re.IGNORECASE)


def _decode_json(text: str) -> Any:
    """Return the list or dict that a JSON text represents, or None."""
    start = text[:64].lstrip()[:1]
    if start not in ("{", "["):
        return None
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        return None
