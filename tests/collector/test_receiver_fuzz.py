"""Nothing that anybody sends makes the decoders fail otherwise than by a refusal."""

from __future__ import annotations

import json
import subprocess
import sys
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from collector.otlp import attribute, json_request, json_span, nested, request, request_nested, span
from spanwise.collector.dialects import Dialect, Draft, RawSpan, read_run
from spanwise.collector.dialects.translation import DIALECTS
from spanwise.collector.ingest import otlp_signals
from spanwise.collector.ingest.request_decoder import Codec, Limits, PermanentError, count_by_reason, decode
from spanwise.collector.records import Event
from spanwise.tracer import attribute_names as names

LIMITS = Limits(depth=5, attributes=20, value_bytes=1000, spans=50)
VALID = request(
    span(attributes=[attribute("input.value", "hi"), attribute("list", nested(3))], events=[{"name": "e"}]), span()
)
KNOWN = ["llm.model_name", "llm.token_count.prompt", "llm.cost.total"]
KNOWN += [value for name, value in vars(names).items() if name.isupper() and isinstance(value, str)]
KNOWN += ["retrieval.documents.0.document.content", "llm.input_messages.0.message.role", "gen_ai.input.messages"]
KNOWN += ["llm.output_messages.0.message.tool_calls.0.tool_call.id", "llm.prompts.0.prompt.text", "reranker.query"]
KNOWN += ["annotations.0.annotation.name", "annotations.0.annotation.score", "session.evaluations.0.evaluation.label"]
KNOWN += ["output.documents.0.document.url", "ai.operationId", "ai.response.toolCalls", "ai.documents", "ai.ranking"]
KNOWN += ["haystack.component.type", "haystack.component.output", "haystack.pipeline.metadata"]
KNOWN += ["gen_ai.retrieval.documents", "gen_ai.conversation.id", "gen_ai.tool.call.arguments", "exception.type"]

plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8)
    | st.sampled_from(
        [
            "[]",
            "{}",
            '[{"content": 1}]',
            '{"documents": [null]}',
            "1e999",
            "application/json",
            "RETRIEVER",
            "LLM",
            "ai.generateText.doGenerate",
            "ai.rerank.doRerank",
            "ChatGenerator",
            '{"documents": [{"content": 1, "meta": 2}], "replies": [{"meta": []}], "meta": [null]}',
            "chat",
            "[[",
            "nan",
        ]
    ),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["content", "id", "score", "metadata", "text", "x"]), inner, max_size=3)
    ),
    max_leaves=6,
)
attributes = st.dictionaries(st.sampled_from(KNOWN) | st.text(max_size=10), plain, max_size=8)


def strict(dialect: str, error: Exception) -> None:
    raise error


def outcome(codec: Codec[Any], body: bytes) -> Any:
    """What is kept, None if the whole is refused. Any other exception is a fault, and so is one that was caught."""
    try:
        decoded = decode(codec, body, LIMITS)
    except PermanentError:
        return None
    assert not decoded.faults
    assert "internal" not in count_by_reason(decoded.refused)
    return decoded


@given(st.binary(max_size=200))
def test_any_bytes(body: bytes) -> None:
    for codec in (
        otlp_signals.TRACES_PROTOBUF,
        otlp_signals.TRACES_JSON,
        otlp_signals.LOGS_PROTOBUF,
        otlp_signals.LOGS_JSON,
    ):
        outcome(codec, body)


@given(st.lists(st.tuples(st.integers(0, len(VALID) - 1), st.integers(0, 255)), max_size=4), st.integers(0, len(VALID)))
def test_a_valid_request_with_bytes_changed_or_cut_off(changes: list[tuple[int, int]], end: int) -> None:
    body = bytearray(VALID)
    for place, value in changes:
        body[place] = value
    found = outcome(otlp_signals.TRACES_PROTOBUF, bytes(body[:end]))
    assert found is None or len(found.items) + found.refused_count <= 60


@given(
    st.recursive(
        plain
        | st.dictionaries(
            st.sampled_from(["stringValue", "intValue", "arrayValue", "kvlistValue", "values"]), plain, max_size=2
        ),
        lambda inner: st.dictionaries(st.sampled_from(["key", "value", "arrayValue", "values"]), inner, max_size=2),
        max_leaves=5,
    ),
    st.sampled_from(
        ["traceId", "name", "kind", "startTimeUnixNano", "attributes", "events", "links", "status", "parentSpanId"]
    ),
)
def test_json_of_any_shape_costs_its_own_span_alone(value: Any, key: str) -> None:
    found = outcome(
        otlp_signals.TRACES_JSON, json.dumps(json_request(json_span(**{key: value}), json_span("good"))).encode()
    )
    assert found is not None
    assert found.items[-1].name == "good"
    assert len(found.items) + found.refused_count == 2


@pytest.mark.process
@given(attributes, attributes, st.integers(-2, 5), st.integers(-2, 5))
@settings(suppress_health_check=[HealthCheck.too_slow])
def test_any_attributes_are_read_and_none_is_lost(given_: dict, resource: dict, kind: int, status: int) -> None:
    event = Event("exception", 1, given_)
    raw = RawSpan(
        trace_id="1" * 32,
        span_id="2" * 16,
        name="s",
        kind=kind,
        status=status,
        attributes=given_,
        resource=resource,
        events=(event,),
    )
    run = read_run(raw, strict)
    taken = (
        run.inputs,
        run.outputs,
        run.documents,
        run.model,
        run.usage,
        run.cost,
        run.session_id,
        run.user_id,
        run.tags,
        run.metadata,
        run.experiment_id,
    )
    for name, value in given_.items():
        assert name in run.attributes or name in KNOWN, (name, value, taken)


def fails_after(dialect: Dialect, wrecks: bool) -> Dialect:
    """A dialect that does its work, perhaps more than that, and then raises."""

    def failing(draft: Draft) -> None:
        dialect(draft)
        if wrecks:
            draft.attributes.clear()
            draft.fields["inputs"] = draft.awaits = ("wrecked",)
        raise RuntimeError("after the work was done")

    return failing


scopes = st.sampled_from(["", "spanwise.tracer", "lib"])
spans = st.builds(
    lambda attributes, event, scope, status: RawSpan(
        trace_id="1" * 32,
        span_id="2" * 16,
        name="s",
        status=status,
        attributes=attributes,
        scope=scope,
        events=(Event("exception", 1, event),),
    ),
    attributes,
    attributes,
    scopes,
    st.integers(0, 2),
)


@pytest.mark.process
@given(spans, st.integers(0, len(DIALECTS) - 1), st.booleans())
@settings(suppress_health_check=[HealthCheck.too_slow])
def test_a_dialect_that_fails_leaves_the_span_as_it_was_before_it(span: RawSpan, place: int, wrecks: bool) -> None:
    faults: list[str] = []
    others = [*DIALECTS[:place], *DIALECTS[place + 1 :]]
    failing = fails_after(DIALECTS[place], wrecks)
    before = deepcopy(span)
    found = read_run(
        span, lambda name, error: faults.append(name), [*DIALECTS[:place], failing, *DIALECTS[place + 1 :]]
    )
    assert found == read_run(span, strict, others)
    assert (faults, span) == (["failing"], before)


@pytest.mark.process
@given(spans)
@settings(suppress_health_check=[HealthCheck.too_slow])
def test_a_span_on_which_every_dialect_fails_stays_as_it_came(span: RawSpan) -> None:
    faults: list[str] = []
    failing = [fails_after(dialect, True) for dialect in DIALECTS]
    found = read_run(span, lambda name, error: faults.append(name), failing)
    assert {name: found.attributes[name] for name in span.attributes} == span.attributes
    assert (found.inputs, found.documents, found.kind, len(faults)) == (None, (), "unknown", len(DIALECTS))


def test_depth_is_bounded_in_both_encodings() -> None:
    for depth in (90, 500, 5000):
        body = request_nested(depth)
        assert outcome(otlp_signals.TRACES_PROTOBUF, body + VALID).refused_count == 1
        deep = '{"arrayValue":{"values":[' * depth + "{}" + "]}}" * depth
        one = json.dumps(json_span(attributes=[{"key": "a", "value": "DEEP"}])).replace('"DEEP"', deep)
        outcome(otlp_signals.TRACES_JSON, json.dumps(json_request("ONE")).replace('"ONE"', one).encode())


FUZZ = """
import sys, atheris
from spanwise.collector.ingest import otlp_signals
from spanwise.collector.ingest.request_decoder import count_by_reason, decode
from spanwise.collector.ingest.request_decoder import PermanentError
from spanwise.collector.ingest.request_decoder import Limits

def one(data):
    for codec in (otlp_signals.TRACES_PROTOBUF, otlp_signals.TRACES_JSON, otlp_signals.LOGS_PROTOBUF, otlp_signals.LOGS_JSON):
        try:
            decoded = decode(codec, data, Limits())
        except PermanentError:
            continue
        assert not decoded.faults and "internal" not in count_by_reason(decoded.refused), decoded.refused

atheris.Setup(sys.argv, one)
atheris.Fuzz()
"""


@pytest.mark.slow
def test_a_fuzzer_finds_nothing(tmp_path: Path) -> None:
    pytest.importorskip("atheris")
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    (corpus / "protobuf").write_bytes(VALID)
    (corpus / "json").write_bytes(json.dumps(json_request(json_span())).encode())
    (tmp_path / "fuzz.py").write_text(FUZZ)
    # By a shell in between: Linux hands the most memory that a process had on to what it starts, so that a fuzzer
    # started by a large process of pytest takes itself for as large
    command = ["sh", "-c", '"$0" "$@"; exit $?', sys.executable, "fuzz.py", "corpus"]
    command += ["-max_total_time=20", "-max_len=2000", "-rss_limit_mb=1000"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]
