"""What leaves: whole, bounded, and of types that OTLP carries."""

from __future__ import annotations

import re
from typing import Any

import orjson
import pytest
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link, SpanKind, Status, StatusCode

from spanwise.tracer import internal_errors, span
from spanwise.tracer.configuration import Settings
from spanwise.tracer.export import SpanSanitizer
from spanwise.tracer.otel.live_span import make_span_context
from spanwise.tracer.testing import Spans

ATTRIBUTES: dict[str, Any] = {"n": 1}


def foreign(**fields: Any) -> ReadableSpan:
    given: dict[str, Any] = {"name": "s", "context": make_span_context(1, 2), "attributes": ATTRIBUTES, **fields}
    return ReadableSpan(**given)


def left(settings: Settings, **attributes: Any) -> dict[str, Any]:
    """The attributes of a span as they leave."""
    finished = SpanSanitizer(settings).span(foreign(attributes=attributes))
    assert finished is not None
    return dict(finished.attributes or {})


def test_a_span_of_others_leaves_as_a_whole() -> None:
    given = foreign(
        parent=make_span_context(1, 3),
        resource=Resource({"r": 1}, "schema"),
        events=(Event("e", ATTRIBUTES, 7),),
        links=(Link(make_span_context(4, 5), ATTRIBUTES),),
        kind=SpanKind.SERVER,
        status=Status(StatusCode.ERROR, "why: so"),
        start_time=8,
        end_time=9,
        instrumentation_scope=InstrumentationScope("scope", "1"),
    )
    finished = SpanSanitizer(Settings()).span(given)
    assert finished is not None
    assert finished.to_json() == given.to_json()
    assert finished.instrumentation_scope == given.instrumentation_scope


class Text(str):
    """A text of a class of its own."""


class Whole(int):
    """A number of a class of its own."""


@pytest.mark.parametrize(
    ("value", "as_it_leaves"),
    [
        (True, True),
        (1.5, 1.5),
        (2**63 - 1, 2**63 - 1),
        (-(2**63), -(2**63)),
        (2**63, str(2**63)),
        (-(2**63) - 1, f'"{-(2**63) - 1}"'),
        (Whole(-(2**63)), Whole(-(2**63))),
        (Whole(2**63), str(2**63)),
        (b"x", b"x"),
        ("é\ud800", "é?"),
        (Text("own"), "own"),
        (["a", "b"], ("a", "b")),
        ([], ()),
        (["a", 1], '["a",1]'),
        ({"a": 1}, '{"a":1}'),
    ],
)
def test_every_value_leaves_as_one_that_otlp_carries(value: Any, as_it_leaves: Any) -> None:
    finished = left(Settings(), key=value)["key"]
    assert (finished, type(finished)) == (as_it_leaves, type(as_it_leaves))


def test_none_is_left_out_and_names_are_text() -> None:
    assert left(Settings(), **{"none": None, "\ud800": 1}) == {"?": 1}


def test_a_long_text_is_cut_but_not_for_the_length_of_its_own_marker() -> None:
    settings = Settings(max_value_bytes=50)
    cut = left(settings, short="x" * 50, marked="x" * 450, long="x" * 451)
    assert (cut["short"], cut["marked"]) == ("x" * 50, "x" * 450)
    assert cut["long"].endswith("characters]")
    assert len(cut["long"]) < 150


@pytest.mark.parametrize("text", ['{"a":"' + "x" * 600 + '"}', '["' + "x" * 600 + '"]'])
def test_a_long_json_text_stays_json(text: str) -> None:
    cut = left(Settings(max_value_bytes=50), long=text)["long"]
    assert "…[cut" in str(orjson.loads(cut))


def test_what_only_looks_like_json_is_cut_as_text() -> None:
    assert "…[cut" in left(Settings(max_value_bytes=50), long="[" + "x" * 600)["long"]


def test_metadata_only_leaves_out_long_texts_under_any_name() -> None:
    settings = Settings(capture="metadata")
    kept = left(settings, short="x" * 1000, long="x" * 1001, metadata="x" * 1001, number=10**18)
    assert kept.keys() == {"short", "metadata", "number"}


@pytest.mark.parametrize(
    ("name", "is_content"),
    [
        ("input.value", True),
        ("output.mime_type", True),
        ("llm.input_messages.0.message.content", True),
        ("gen_ai.prompt.0.content", True),
        ("gen_ai.prompt.name", False),
        ("gen_ai.prompt.version", False),
        ("gen_ai.prompt.name.first", True),
        ("llm.prompt_template.version", False),
        ("llm.prompt_template.template", True),
        ("llm.prompt_template.variables", True),
        ("gen_ai.input.messages", True),
        ("retrieval.documents.0.document.content", True),
        ("spanwise.documents", True),
        ("exception.stacktrace", True),
        ("exception.type", False),
        ("llm.model_name", False),
        ("gen_ai.usage.input_tokens", False),
        ("retrieval.documents.0.document.id", False),
        ("session.id", False),
    ],
)
def test_metadata_only_knows_content_by_its_name(name: str, is_content: bool) -> None:
    assert (name not in left(Settings(capture="metadata"), **{name: "x"})) == is_content
    assert name in left(Settings(), **{name: "x"}) or name == "spanwise.documents"


def test_metadata_only_keeps_the_type_of_an_error() -> None:
    finished = SpanSanitizer(Settings(capture="metadata")).span(
        foreign(status=Status(StatusCode.ERROR, "Type: secret"))
    )
    assert finished is not None
    assert (finished.status.status_code, finished.status.description) == (StatusCode.ERROR, "Type")


@pytest.mark.parametrize(("given", "as_it_leaves"), [("é\ud800", "é?"), ("", ""), (None, None)])
def test_the_text_of_a_status_leaves_as_text(given: str | None, as_it_leaves: str | None) -> None:
    finished = SpanSanitizer(Settings()).span(foreign(status=Status(StatusCode.ERROR, given)))
    assert finished is not None
    assert finished.status.description == as_it_leaves


def test_documents_are_written_beside_outputs_only_if_a_collector_cannot_read_them_there() -> None:
    flat, own = "retrieval.documents.0.document.content", "spanwise.documents"
    retriever = {"openinference.span.kind": "RETRIEVER", "output.value": '["d"]'}
    assert left(Settings(), **retriever) == retriever
    assert left(Settings(), **{own: '["d"]'}) == {own: '["d"]'}
    nodes = {**retriever, "output.value": '{"source_nodes":[{"node":{"text":"d"},"score":0.5}]}'}
    assert left(Settings(), **nodes)[own] == '[{"content":"d","id":null,"score":0.5,"metadata":{}}]'
    assert own not in left(Settings(), **{**nodes, flat: "their own"})
    assert own not in left(Settings(), **{**nodes, "openinference.span.kind": "CHAIN"})


def test_nodes_of_llama_index_in_a_text_are_no_documents() -> None:
    texts = '["<NodeWithScore(node=TextNode(id_=d0), score=0.5)>"]'
    flat = left(Settings(), **{"openinference.span.kind": "RETRIEVER", "output.value": texts})
    assert flat == {"openinference.span.kind": "RETRIEVER", "output.value": texts}


def test_a_resource_is_redacted_once() -> None:
    finisher = SpanSanitizer(Settings(redact=("password",)))
    resources = [Resource({"password": "x", "n": i}, "schema") for i in range(250)]
    clean = [finisher.resource(resource) for resource in resources]
    assert [dict(resource.attributes) for resource in clean] == [
        {"password": "[redacted]", "n": i} for i in range(len(clean))
    ]
    assert (clean[0].schema_url, finisher.resource(resources[-1]) is clean[-1]) == ("schema", True)
    assert len(finisher._resources) <= 100


def test_without_redactors_a_resource_is_left_as_it_is() -> None:
    resource = Resource({"password": "x"})
    assert SpanSanitizer(Settings()).resource(resource) is resource


def test_names_events_and_texts_are_redacted() -> None:
    finisher = SpanSanitizer(Settings(redact=(re.compile("sec.et"),)))
    status = Status(StatusCode.ERROR, "a secret")
    finished = finisher.span(foreign(name="my secret", events=(Event("secret", {}, 5),), status=status))
    assert finished is not None
    assert (finished.name, finished.status.description) == ("my [redacted]", "a [redacted]")
    assert (finished.events[0].name, finished.events[0].timestamp) == ("[redacted]", 5)


def test_a_span_is_finished_once(traced: Spans) -> None:
    with span("s", inputs="x") as run:
        run.set_documents(["d"])
    (first,), (second,) = traced.spans, traced.spans
    assert first is second
    assert dict(first.attributes or {})["spanwise.documents"] == '["d"]'


def test_a_span_that_cannot_be_finished_is_counted() -> None:
    class Name:
        def __str__(self) -> str:
            raise RuntimeError

    internal_errors.strict = False
    assert SpanSanitizer(Settings()).span(foreign(name=Name())) is None
    assert internal_errors.counts == {"finish": 1}
