"""Langfuse's spans, on the path that its SDKs fix, from the bytes that they sent: 5, and 3."""

from __future__ import annotations

import gzip
from base64 import b64encode
from hashlib import sha256

import httpx
import pytest

from collector.dialects.vendors import ANSWER, QUESTION, SENT, Kept, kept, run
from collector.otlp import JSON, PROTOBUF, rejected, request, span
from fixtures.dialects.capture import load
from looped_cases import loop_over
from spanwise.collector.ingest import Limits
from spanwise.collector.records import Document, Key, Usage
from spanwise.collector.server import Server
from spanwise.collector.stores.sqlite import SQLiteStore

PATH = "/api/public/otel/v1/traces"


@pytest.fixture(scope="module", params=["langfuse/rag.jsonl.gz", "langfuse/old.jsonl.gz"])
def runs(request, tmp_path_factory) -> Kept:
    return kept(tmp_path_factory.mktemp("langfuse"), request.param)


def test_it_was_sent_to_langfuses_own_path():
    for sent in ("rag", "old"):
        assert next(load(SENT / "langfuse" / f"{sent}.jsonl.gz")).path == PATH


def test_inputs_are_arguments_and_outputs_results(runs):
    assert (runs.one("answer").inputs, runs.one("answer").outputs) == (QUESTION, ANSWER)
    assert (runs.one("track").inputs, runs.one("track").outputs) == ({"number": "parcel"}, "on its way")
    assert (runs.one("polite").outputs, runs.one("judge").outputs) == (True, 0.5)


def test_kinds(runs):
    assert {one.name: one.kind for one in runs} == {
        "answer": "chain",
        "embed": "embedding",
        "retrieve": "retriever",
        "agent": "agent",
        "OpenAI-generation": "llm",
        "track": "tool",
        "polite": "guardrail",
        "judge": "evaluator",
        "own": "llm",
        "cache miss": "chain",
        "fails": "chain",
    }


def test_documents_have_ids_and_scores(runs):
    assert runs.one("retrieve").documents == (
        Document("Parcels take three days.", "d1", 0.9, {"page": 1}),
        Document("Parcels are insured.", "d2", 0.4, {"page": 7}),
    )


def test_a_models_calls(runs):
    called, told, failed = runs.all("OpenAI-generation")
    assert [(one.model, one.usage) for one in (called, told)] == [("gpt-4o-mini", Usage(21, 9))] * 2
    assert called.inputs["messages"] == [{"role": "user", "content": QUESTION}]
    assert called.outputs["tool_calls"][0]["function"]["name"] == "track"
    assert told.outputs == ANSWER
    assert (failed.model, failed.status, failed.error) == ("broken", "error", "Error code: 400 - no such model")


def test_parts_of_usage_stand_beside_its_sums(runs):
    """Langfuse's `input` is without what came from a cache; the total, which was sent, tells."""
    own = runs.one("own")
    assert own.usage == Usage(10, 3, {"cache_read.input_tokens": 3, "reasoning.output_tokens": 1})
    assert own.cost == 0.75
    assert '"temperature": 0.5' in own.attributes["langfuse.observation.model.parameters"]


def test_tokens_are_counted_once(runs):
    assert sum(one.usage.total_tokens for one in runs if one.usage) == 30 + 30 + 13 + 4
    assert (runs.one("agent").usage, runs.one("answer").usage) == (None, None)


def test_session_user_tags_and_environment(runs):
    for one in (one for one in runs if one.name != "fails"):
        assert (one.session_id, one.user_id, one.tags) == ("conversation-7", "ann", ("beta", "eu"))
    assert {(one.project, one.environment) for one in runs} == {("shop", "staging")}


def test_metadata_of_trace_and_span_and_texts_that_look_like_numbers(runs):
    assert runs.one("answer").metadata == {"tier": "gold", "code": "12", "shop": "eu"}
    own = {"attempt": 1, "text": "123", "nested": {"day": 3}}
    assert runs.one("own").metadata == {"tier": "gold", "code": "12", **own}


def test_what_has_no_field_stays(runs):
    own = runs.one("own").attributes
    assert (own["langfuse.observation.level"], own["langfuse.observation.status_message"]) == ("WARNING", "slow")


def test_what_was_said_of_the_trace_is_its_roots():
    said = {"langfuse.trace.input": '{"q": 1}', "langfuse.observation.input": '{"args": [], "kwargs": {"x": 2}}'}
    assert run(**said).inputs == {"q": 1}
    assert run(**said).attributes["langfuse.observation.input"] == said["langfuse.observation.input"]
    assert run(parent="3" * 16, **said).inputs == {"x": 2}


@pytest.mark.parametrize(
    ("said", "inputs"),
    [
        ('{"args": ["a"], "kwargs": {}}', "a"),
        ('{"args": [], "kwargs": {}}', {}),
        ('{"args": ["a", "b"], "kwargs": {}}', {"args": ["a", "b"], "kwargs": {}}),
        ('{"args": ["a"], "kwargs": {"b": 1}}', {"args": ["a"], "kwargs": {"b": 1}}),
        ('{"args": 1, "kwargs": []}', {"args": 1, "kwargs": []}),
    ],
)
def test_arguments(said, inputs):
    assert run(langfuse__observation__input=said).inputs == inputs


@loop_over("text", ["340434188193733201234567", "1.50", "007", "1e400", "NaN", "{broken", "[" * 5000])
def test_a_text_that_only_looks_like_json_stays_a_text(text):
    assert run(langfuse__observation__output=text).outputs == text


def test_what_a_model_says_is_a_text():
    assert run(langfuse__observation__type="generation", langfuse__observation__output="42").outputs == "42"
    assert run(langfuse__observation__type="tool", langfuse__observation__output="42").outputs == 42


@loop_over(
    ("said", "usage"),
    [
        ('{"input": 7, "output": 2}', Usage(7, 2)),
        (
            '{"input": 7, "input_cached_tokens": 3, "output": 2, "total": 9}',
            Usage(7, 2, {"cache_read.input_tokens": 3}),
        ),
        (
            '{"prompt_tokens": 7, "prompt_tokens_details": {"cached_tokens": 3}}',
            Usage(7, 0, {"cache_read.input_tokens": 3}),
        ),
        ('{"input": -1}', None),
        ("[1]", None),
        ("{broken", None),
    ],
)
def test_usage(said, usage):
    found = run(langfuse__observation__type="generation", langfuse__observation__usage_details=said)
    assert found.usage == usage
    assert usage == Usage(7, 2) or found.attributes["langfuse.observation.usage_details"] == said


COST = "langfuse.observation.cost_details"


@pytest.mark.parametrize(
    ("said", "kept"), [('{"total": 0.75}', False), ('{"input": 0.25, "output": 0.5, "total": 0.75}', True)]
)
def test_parts_of_a_cost_are_kept(said, kept):
    found = run(langfuse__observation__type="generation", **{COST: said})
    assert (found.cost, COST in found.attributes) == (0.75, kept)


@pytest.mark.parametrize("kind", ["agent", "chain", "span"])
def test_what_stands_around_calls_does_not_cost_the_same_again(kind):
    found = run(langfuse__observation__type=kind, **{COST: '{"total": 0.75}'})
    assert (found.cost, found.attributes[COST]) == (None, '{"total": 0.75}')


@loop_over(
    ("name", "value"),
    [
        ("langfuse.observation.type", 3),
        ("langfuse.observation.type", "dream"),
        ("langfuse.trace.tags", '["a", 1]'),
        ("langfuse.trace.tags", {}),
        ("langfuse.observation.cost_details", '{"total": "much"}'),
        ("langfuse.observation.model.name", ""),
        ("langfuse.trace.metadata", '"a text"'),
        ("langfuse.trace.metadata.", "no name"),
    ],
)
def test_nonsense_stays_where_it_is(name, value):
    assert run(**{name: value}).attributes[name] == value


def test_one_name_in_both_metadata_keeps_both():
    found = run(**{"langfuse.observation.metadata.k": "span", "langfuse.trace.metadata.k": "trace"})
    assert (found.metadata, found.attributes["langfuse.observation.metadata.k"]) == ({"k": "trace"}, "span")


# its path: the same intake, limits and scopes


@pytest.fixture
def server(tmp_path):
    with SQLiteStore(tmp_path / "a.db") as store, Server(store, limits=Limits(spans=3)) as made:
        yield made


def send(server: Server, path: str, body: bytes, kind: str = PROTOBUF, **headers: str) -> httpx.Response:
    return httpx.post(f"{server.url}{path}", content=body, headers={"content-type": kind, **headers}, timeout=60)


@pytest.mark.parametrize("path", [PATH, PATH + "/"])
def test_langfuses_path_takes_spans(server, path):
    answer = send(server, path, gzip.compress(request(span())), **{"content-encoding": "gzip"})
    assert (answer.status_code, server.store.count()["traces"]) == (200, 1)


def test_langfuses_path_has_the_same_limits(server):
    answers = [send(server, path, request(*[span() for _ in range(4)])) for path in (PATH, "/v1/traces")]
    assert [(answer.status_code, answer.content) for answer in answers[1:]] == [
        (answers[0].status_code, answers[0].content)
    ]
    assert send(server, PATH, b"\xff").status_code == send(server, "/v1/traces", b"\xff").status_code == 400
    assert send(server, PATH, b"{nope", JSON).status_code == 400
    assert httpx.get(f"{server.url}{PATH}").status_code == 405


def test_beside_langfuses_path_is_nothing_and_that_is_told_in_the_senders_encoding(server):
    answer = send(server, "/api/public/otel/v1/profiles", b"")
    assert (answer.status_code, answer.headers["content-type"]) == (404, PROTOBUF)
    assert rejected(send(server, PATH, request(span(trace_id=b""))).content)[0] == 1


def test_langfuses_path_asks_for_the_same_keys_and_scopes(tmp_path):
    with SQLiteStore(tmp_path / "a.db") as store:
        for scope in ("ingest", "read"):
            store.save_key(Key(id=scope, name=scope, sha256=sha256(scope.encode()).hexdigest(), scopes=(scope,)))
        with Server(store, host="0.0.0.0", api_key="secret") as server:
            refused = send(server, PATH, request(span()))
            assert (refused.status_code, refused.headers["content-type"]) == (401, PROTOBUF)
            for password, status in (("secret", 200), ("ingest", 200), ("read", 403), ("wrong", 401)):
                said = b64encode(f"pk-lf-any:{password}".encode()).decode()
                answer = send(server, PATH, request(span()), authorization=f"Basic {said}")
                assert answer.status_code == status
        assert store.count()["traces"] == 2
