"""What a sender can do about what is missing of its spans, in a sentence each."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from spanwise.collector.senders import CALLING, RETRIEVING, Sender
from spanwise.collector.terminal import on_a_line

FEW = 3  # names that are told
# Of which words a name consists that may hold what is missing
LOOKS: Mapping[str, re.Pattern[str]] = {
    name: re.compile(words, re.IGNORECASE)
    for name, words in {
        "documents": "document|retriev|context|chunk|passage|source|citation",
        "inputs": "input|prompt|query|question|request|message|argument",
        "outputs": "output|completion|response|answer|result|return",
        "model": "model|deployment",
        "tokens": "token|usage",
        "session": "session|conversation|thread|chat_id",
    }.items()
}
LIKE_RETRIEVAL = re.compile("retriev|search|vector|rerank|lookup", re.IGNORECASE)
# What instrumentations need to be told before they send contents, by how their scopes begin; the first that fits
CONTENT: Mapping[str, str] = {
    "opentelemetry.instrumentation.openai_v2": "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT=true",
    "opentelemetry.instrumentation.": "TRACELOOP_TRACE_CONTENT=true (OpenLLMetry)",
    "opentelemetry.util.genai": "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT=SPAN_ONLY",
    "openinference.instrumentation": "OPENINFERENCE_HIDE_INPUTS and OPENINFERENCE_HIDE_OUTPUTS unset",
    "haystack": "HAYSTACK_CONTENT_TRACING_ENABLED=true",
    "pydantic-ai": "InstrumentationSettings(include_content=True)",
    "ai ": "experimental_telemetry: {recordInputs: true, recordOutputs: true}",
    "spanwise": "SPANWISE_CAPTURE=full, and no capture_inputs=False",
}
DOCUMENTS = (
    "what a retriever returns is read as documents if it is a list of texts, or of objects with content, id, score and"
    " metadata; set_documents(…) says them where they are not what is returned"
)
KIND = "kind='retriever' of @trace and span(), openinference.span.kind=RETRIEVER, gen_ai.operation.name=retrieval"


def advised(senders: Sequence[Sender]) -> tuple[Sender, ...]:
    """The senders, each with its hints. What another part of a service holds is missing of none."""
    retrieving = {one.who.service for one in senders if one.shares["documents"].have}
    return tuple(replace(one, hints=tuple(_hints(one, one.who.service in retrieving))) for one in senders)


def _hints(one: Sender, retrieves: bool) -> Iterator[str]:
    if one.awaiting:
        yield f"{one.awaiting:,} spans wait for content that comes in log records: send these to /v1/logs, too"
    yield from _documents(one, retrieves)
    for name in ("inputs", "outputs"):
        if _lacks(one, name):
            need = next((way for scope, way in CONTENT.items() if f"{one.who.scope} ".startswith(scope)), None)
            yield _missing(one, name) + (f"; contents need {need}" if need else "")
    for name in ("model", "tokens"):
        if _lacks(one, name):
            streamed = "; streamed answers tell them if asked: stream_options={'include_usage': True}"
            yield _missing(one, name) + (streamed if name == "tokens" else "")
    if one.shares["session"].have == 0 and _alike(one.unread, LOOKS["session"]):
        yield f"no span has a session{_looks(one, 'session')}; it is read from session.id, gen_ai.conversation.id"
    if 2 * one.kinds.get("unknown", 0) > one.spans:
        yield f"{one.kinds['unknown']:,} of {one.spans:,} spans do not say of which kind they are: {KIND}"


def _documents(one: Sender, retrieves: bool) -> Iterator[str]:
    have, of = one.shares["documents"]
    if have < of:
        yield f"{of - have:,} of {of:,} spans that retrieve have no documents{_looks(one, 'documents')}; {DOCUMENTS}"
    elif not of and not retrieves and set(one.kinds) - set(CALLING):
        kinds = ", ".join(f"{kind} {count:,}" for kind, count in one.kinds.items())
        named = _alike(one.names, LIKE_RETRIEVAL)
        like = f"; spans named {named} look like one" if named else ""
        yield (
            f"no span is of kind {' or '.join(RETRIEVING)} (kinds: {kinds}), so that evaluators of retrieval skip:"
            f" no documents{_looks(one, 'documents')}{like}: {KIND}"
        )


def _lacks(one: Sender, name: str) -> bool:
    have, of = one.shares[name]
    return of > 0 and 2 * have < of


def _missing(one: Sender, name: str) -> str:
    have, of = one.shares[name]
    return f"{of - have:,} of {of:,} spans have no {name}{_looks(one, name)}"


def _looks(one: Sender, name: str) -> str:
    """Unread attributes that may hold it."""
    found = _alike(one.unread, LOOKS[name])
    return f"; attributes that nobody reads and that look like it: {found}" if found else ""


def _alike(names: Iterable[str], pattern: re.Pattern[str]) -> str:
    return ", ".join(repr(on_a_line(name, 80)) for name in [one for one in names if pattern.search(one)][:FEW])
