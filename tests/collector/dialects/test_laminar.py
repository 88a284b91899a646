"""Laminar's spans, from the bytes that its SDK sent."""

from __future__ import annotations

import pytest

from collector.dialects.vendors import ANSWER, QUESTION, Kept, kept, run
from looped_cases import loop_over
from spanwise.collector.records import Document, Usage


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> Kept:
    return kept(tmp_path_factory.mktemp("laminar"), "laminar/rag.jsonl.gz")


def test_inputs_and_outputs(runs):
    assert (runs.one("answer").inputs, runs.one("answer").outputs) == ({"question": QUESTION}, ANSWER)
    assert (runs.one("track").inputs, runs.one("track").outputs) == ({"number": "parcel"}, "on its way")
    assert (runs.one("judge").outputs, runs.one("fails").error) == (0.5, "ValueError: no such parcel")


def test_kinds(runs):
    assert {one.name: one.kind for one in runs} == {
        "answer": "chain",
        "openai.embeddings": "embedding",
        "retrieve": "chain",
        "agent": "chain",
        "openai.chat": "llm",
        "track": "tool",
        "judge": "evaluator",
        "own": "llm",
        "fails": "chain",
    }


def test_documents_that_a_function_returned_have_ids_and_scores(runs):
    assert runs.one("retrieve").documents == (
        Document("Parcels take three days.", "d1", 0.9, {"page": 1}),
        Document("Parcels are insured.", "d2", 0.4, {"page": 7}),
    )


def test_a_models_calls(runs):
    called, told, failed = runs.all("openai.chat")
    assert [(one.model, one.usage) for one in (called, told)] == [("gpt-4o-mini", Usage(21, 9))] * 2
    assert called.inputs[-1] == {"role": "user", "content": QUESTION}
    assert ANSWER in str(told.outputs)
    assert (failed.model, failed.status) == ("broken", "error")


def test_what_a_program_says_of_its_own_call(runs):
    own = runs.one("own")
    assert (own.model, own.usage, own.cost) == ("own-1-2026", Usage(7, 2), 0.75)
    assert (own.inputs, own.outputs) == ({"prompt": "is it so?"}, "yes")


def test_session_and_user_are_on_every_span_tags_and_metadata_on_theirs(runs):
    for one in (one for one in runs if one.name != "fails"):
        assert (one.session_id, one.user_id) == ("conversation-7", "ann")
    assert sorted(runs.one("answer").tags) == ["beta", "eu"]
    assert runs.one("answer").metadata == {"tier": "gold", "limits": {"day": 3}}
    assert runs.one("judge").metadata == {}


def test_events_stay_events(runs):
    assert [event.name for event in runs.one("answer").events] == ["thumbs"]


@loop_over(
    ("name", "value"),
    [
        ("lmnr.span.type", 3),
        ("lmnr.span.type", "DREAM"),
        ("lmnr.span.output", "null"),
        ("lmnr.association.properties.user_id", 7),
        ("lmnr.association.properties.tags", "beta"),
        ("lmnr.association.properties.metadata.", "no name"),
        ("gen_ai.usage.cost", "much"),
    ],
)
def test_nonsense_stays_where_it_is(name, value):
    assert run(**{"lmnr.span.path": ["s"], name: value}).attributes[name] == value


def test_a_default_span_does_not_count_what_its_calls_have_used():
    found = run(lmnr__span__type="DEFAULT", gen_ai__usage__input_tokens=7, gen_ai__usage__cost=0.5)
    assert (found.usage, found.cost, found.attributes["gen_ai.usage.cost"]) == (None, None, 0.5)


def test_a_sum_that_another_convention_names_stays_one():
    found = run(openinference__span__kind="AGENT", llm__token_count__prompt=7, gen_ai__usage__input_tokens=7, **CACHED)
    assert (found.kind, found.usage) == ("agent", None)


CACHED = {"lmnr.span.type": "CACHED", "traceloop.span.kind": "tool"}
