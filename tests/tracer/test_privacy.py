"""No secret leaves: redaction and capture modes, looked at on the bytes of the wire."""

from __future__ import annotations

import gc
import re
from typing import Any

import httpx
import pytest
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.trace import Link

from spanwise.tracer import (
    configure,
    current_run,
    flush,
    instrument,
    span,
    stats,
    tags,
    trace,
    tracer_provider,
    uninstrument,
)
from spanwise.tracer.testing import Spans, capture_spans

from .conftest import Sink

SECRET = "hunter2-zyx"
NUMBER = "4000-1234-5678"


class Login:
    def __init__(self, password: str) -> None:
        self.password = password

    def __repr__(self) -> str:
        return f"Login(password={self.password!r})"


@trace(metadata={"api-key": SECRET}, attributes={"user.password": SECRET})
def work(question: str, login: Login, options: dict[str, Any]) -> dict[str, Any]:
    current_run().feedback("ok", 1, comment=f"card {NUMBER}", metadata={"password": SECRET})
    current_run().feedback(f"paid {NUMBER}", 1)
    current_run().set_documents([{"text": f"pay {NUMBER}", "metadata": {"password": SECRET}}])
    with span(f"charge {NUMBER}", kind="tool") as run:
        run.set_outputs('{"arguments": "{\\"password\\": \\"' + SECRET + '\\"}"}')
    third_party()
    return {"apiKey": SECRET, "answer": f"charged {NUMBER}", NUMBER: [f"x{NUMBER}"]}


def third_party() -> None:
    tracer = tracer_provider().get_tracer(f"openai.{NUMBER}")
    other = tracer.start_span("other")
    other.set_attributes({f"paid.{NUMBER}.with": 1, f"paid.{NUMBER[:-4]}5679.with": 2})
    other.add_event("charged", {f"card {NUMBER}": 1})
    other.add_link(other.get_span_context(), {f"of {NUMBER}": 1})
    with tracer.start_as_current_span("chat", links=[]) as call:
        call.set_attribute("llm.input_messages.0.message.content", f"my card is {NUMBER}")
        call.set_attribute("http.request.header.password", (SECRET,))
        call.set_attribute("body", f'{{"Password": "{SECRET}"}}'.encode())
        call.add_event("gen_ai.choice", {"content": NUMBER, "password": SECRET})
        call.add_link(other.get_span_context(), {"password": SECRET, "note": NUMBER})
        call.set_status(_error(f"declined {NUMBER}, password: {SECRET}"))
    other.end()


def _error(text: str) -> Any:
    from opentelemetry.trace import Status, StatusCode

    return Status(StatusCode.ERROR, text)


@trace
def fails(password: str) -> None:
    raise ValueError(f"bad login: {Login(password)!r} for card {NUMBER}")


def test_no_secret_is_in_the_bytes_on_the_wire(sink: Sink) -> None:
    configure(
        url=sink.url,
        redact=["password", "api_key", re.compile(r"\d{4}-\d{4}-\d{4}")],
        resource={"host.password": SECRET, "card": NUMBER},
    )
    with tags(NUMBER):
        work(f"charge {NUMBER}", Login(SECRET), {"nested": [{"password": SECRET}]})
        with pytest.raises(ValueError):
            fails(SECRET)
    assert flush(60)
    wire = sink.bytes()
    assert len(sink.spans()) == 5
    assert len(sink.logs()) == 2
    assert {"paid.[redacted].with", "paid.[redacted].with~2"} <= {a.key for s in sink.spans() for a in s.attributes}
    assert SECRET.encode() not in wire
    assert NUMBER.encode() not in wire
    assert b"[redacted]" in wire
    assert b"bad login" in wire  # the rest of a text stays


def test_an_instrumentation_of_somebody_else_leaks_nothing_either(sink: Sink) -> None:
    configure(url=sink.url, redact=["password"])
    instrument("httpx")
    try:
        httpx.get(sink.url + f"/x?password={SECRET}", timeout=60)
    finally:
        uninstrument("httpx")
    assert flush(60)
    assert [s.name for s in sink.spans()] == ["GET"]
    assert SECRET.encode() not in sink.bytes()


def test_spilled_bodies_are_redacted_too(tmp_path: Any) -> None:
    configure(url="http://127.0.0.1:9", redact=["password"], spill_dir=str(tmp_path / "s"))
    with pytest.raises(ValueError):
        fails(SECRET)
    assert flush(60).spilled == 1
    (file,) = (tmp_path / "s").glob("*/*.spool")
    assert SECRET.encode() not in file.read_bytes()


@pytest.mark.process
def test_a_joined_provider_leaks_neither_secrets_nor_memory(sink: Sink) -> None:
    provider = TracerProvider(resource=Resource({"host.password": SECRET}), shutdown_on_exit=False)
    configure(url=sink.url, provider=provider, project="p", redact=["password"])
    tracer = provider.get_tracer("web")
    before = sum(type(value) is Resource for value in gc.get_objects())
    for _ in range(300):
        first = tracer.start_span("first", attributes={"password": SECRET})
        link = Link(first.get_span_context(), {"password": SECRET})
        tracer.start_span("GET /", links=[link]).end()
        first.end()
    assert flush(60)
    after = sum(type(value) is Resource for value in gc.get_objects())
    assert len(sink.spans()) == 600
    assert SECRET.encode() not in sink.bytes()
    assert after - before < 50


def test_patterns_match_numbers_inside_values_not_counts(traced: Spans) -> None:
    card = 4000123456789010
    with (
        capture_spans(redact=[re.compile(r"\d{16}")]) as spans,
        span("s", inputs={"card": card, "n": [card, 5]}) as run,
    ):
        run.set_usage(card, 1)
    assert spans.inputs("s") == {"card": "[redacted]", "n": ["[redacted]", 5]}
    assert (spans.one("s").attributes or {})["gen_ai.usage.input_tokens"] == card


def test_a_function_sees_every_key_and_value() -> None:
    def hide(key: str, value: Any) -> Any:
        return "***" if key == "b" else value

    with capture_spans(redact=[hide]) as traced:
        with span("s", inputs={"a": {"b": 1}, "c": [{"b": [2]}]}):
            pass
        assert traced.inputs("s") == {"a": {"b": "***"}, "c": [{"b": "***"}]}


def test_a_failing_redactor_drops_the_value_never_the_span() -> None:
    def broken(key: str, value: Any) -> Any:
        if value == SECRET:
            raise RuntimeError("no")
        return value

    with capture_spans(redact=[broken]) as traced:
        with span("s", inputs=SECRET) as run:
            run.set_outputs("fine")
        assert traced.inputs("s") == "[redacted: the redactor failed]"
        assert traced.outputs("s") == "fine"
        assert stats().errors["redact"] > 0


def test_metadata_only_captures_no_content(sink: Sink) -> None:
    configure(url=sink.url, capture="metadata")
    work(f"charge {NUMBER}", Login(SECRET), {})
    with pytest.raises(ValueError):
        fails(SECRET)
    assert flush(60)
    (chat,) = (s for s in sink.spans() if s.name == "chat")
    assert NUMBER not in str(chat.attributes) + str(chat.events)
    failed = next(s for s in sink.spans() if s.name == "fails")
    assert failed.status.message == "ValueError"
    assert {a.key for a in failed.events[0].attributes} == {"exception.type", "exception.escaped"}
    assert not {"input.value", "output.value"} & {a.key for s in sink.spans() for a in s.attributes}


def test_capture_none_records_nothing(sink: Sink, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPANWISE_CAPTURE", "none")
    monkeypatch.setenv("SPANWISE_URL", sink.url)
    assert work("q", Login("p"), {})["answer"].startswith("charged")
    flush(60)
    assert sink.requests == []


def test_redaction_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPANWISE_REDACT", r"password, /\d{4}-\d{4}-\d{4}/")
    with capture_spans() as traced:
        with span("s", inputs={"password": 1, "card": NUMBER}):
            pass
        assert traced.inputs("s") == {"password": "[redacted]", "card": "[redacted]"}


@pytest.mark.process
def test_keys_that_are_redacted_to_the_same_text_keep_their_values() -> None:
    numbers = [f"4000-{n:04}-5678" for n in range(5_000)]
    with capture_spans(redact=[re.compile(r"\d{4}-\d{4}-\d{4}")]) as traced:
        with span("s", inputs={"paid": {"4000-1234-5678": 1, "[redacted]~2": 2, "4000-1234-5679": 3}}):
            pass
        with span("many", inputs=dict.fromkeys(numbers, 1)):
            pass
        assert traced.inputs("s") == {"paid": {"[redacted]": 1, "[redacted]~2": 2, "[redacted]~3": 3}}
        assert len(traced.inputs("many")) == len(numbers)


def test_settings_that_cannot_be_say_so() -> None:
    with pytest.raises(ValueError, match=r"capture must be one of none, metadata, full, got 'all'"):
        configure(capture="all")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="sample_rate must be between 0 and 1, got 3"):
        configure(sample_rate=3)
    with pytest.raises(ValueError, match="got 'localhost'"):
        configure(url="localhost")


def test_a_users_processor_sees_every_span(traced: Spans) -> None:
    from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider

    seen: list[str] = []

    class Seen(SpanProcessor):
        def on_end(self, span: ReadableSpan) -> None:
            seen.append(span.name)

    provider = tracer_provider()
    assert isinstance(provider, TracerProvider)
    provider.add_span_processor(Seen())
    with span("a"), provider.get_tracer("x").start_as_current_span("b"):
        pass
    assert (seen, traced.names()) == (["b", "a"], ["a", "b"])
