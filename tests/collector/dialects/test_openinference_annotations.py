"""OpenInference's annotations: inline, on carriers, of a span, its trace and its session."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from collector.dialects.sent import stored, traces
from spanwise.collector.dialects import RawSpan, read_span
from spanwise.collector.records import Feedback, Link, Target
from spanwise.collector.stores.sqlite import SQLiteStore


@pytest.fixture(scope="module")
def store() -> Iterator[SQLiteStore]:
    with stored("openinference/annotations") as made:
        yield made


def by_key(found: list[Feedback]) -> dict[str, Feedback]:
    return {feedback.key: feedback for feedback in found}


def test_feedback_on_the_span_that_bears_it(store):
    (trace,) = [trace for trace in traces(store) if trace.root.name == "answer"]
    target = Target(trace_id=trace.trace_id, span_id=trace.root.span_id)
    judged = by_key([one for one in trace.feedback if one.target == target])
    hallucination, length, relevance = judged["hallucination"], judged["length"], judged["relevance"]
    assert (hallucination.score, hallucination.label) == (0.0, "factual")
    assert (hallucination.comment, hallucination.evaluator) == ("Both documents say so.", "judge-v2")
    assert (hallucination.source, hallucination.metadata) == ("model", {"rubric": 2})
    assert (length.score, length.source) == (0.25, "code")
    assert (relevance.score, relevance.label) == (None, "relevant")
    assert hallucination.created_ns == trace.root.end_ns


def test_feedback_that_came_later_is_the_linked_spans(store):
    (trace,) = [trace for trace in traces(store) if trace.root.name == "answer"]
    thumbs = [one for one in trace.feedback if one.key == "thumb"]
    assert {(one.target.span_id, one.score, one.source, one.author) for one in thumbs} == {
        (trace.root.span_id, 1.0, "human", "reviewer-42"),
        (None, 1.0, "human", "reviewer-42"),
    }


def test_feedback_on_the_trace_and_on_the_session(store):
    (trace,) = [trace for trace in traces(store) if trace.root.name == "answer"]
    assert [one.score for one in trace.feedback if one.key == "retrieval" and not one.target.span_id] == [0.92]
    session = by_key([one for one in store.feedbacks().items if one.target == Target(session_id="s-1")])
    assert (session["coherence"].label, session["coherence"].source) == ("coherent", "human")
    assert (session["thumb"].score, session["thumb"].author) == (1.0, "reviewer-42")


def test_what_the_span_said_stays_with_it(store):
    (trace,) = [trace for trace in traces(store) if trace.root.name == "answer"]
    assert trace.root.attributes["annotations.0.annotation.name"] == "hallucination"


# what no fixture has

LINK = Link("a" * 32, "b" * 16)


def said(links: tuple[Link, ...] = (), kind: str | None = None, **fields: object) -> list[Feedback | str]:
    """Feedback, or why there is none."""
    named = {f"annotations.0.annotation.{name}": value for name, value in fields.items()}
    return of({"openinference.span.kind": kind} | named if kind else named, links)


def of(attributes: dict[str, object], links: tuple[Link, ...] = ()) -> list[Feedback | str]:
    span = RawSpan(trace_id="1" * 32, span_id="2" * 16, name="s", end_ns=5, attributes=attributes, links=links)
    also = read_span(span, strict).also
    assert all(isinstance(one, Feedback | ValueError) for one in also)
    return [one if isinstance(one, Feedback) else str(one) for one in also]


def strict(dialect: str, error: Exception) -> None:
    raise error


@pytest.mark.parametrize("kind", [None, "EVALUATOR"])
def test_a_carrier_speaks_of_the_span_that_it_links(kind):
    (found,) = said((LINK,), kind, name="k", score=1)
    assert found.target == Target(trace_id="a" * 32, span_id="b" * 16)


@pytest.mark.parametrize("kind", ["LLM", "CHAIN"])
def test_a_step_of_a_program_with_a_link_speaks_of_itself(kind):
    (found,) = said((LINK,), kind, name="k", score=1)
    assert found.target == Target(trace_id="1" * 32, span_id="2" * 16)


def test_a_carrier_with_two_links_speaks_of_nobody():
    (why,) = said((LINK, LINK), "EVALUATOR", name="k", score=1)
    assert why == "span 's' has annotations and 2 links: send exactly one link, to the annotated span"


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"score": 1}, "an annotation has no name; its fields are ['score']"),
        ({"name": "k", "explanation": ""}, "annotation 'k' has neither score, label nor explanation"),
        ({"name": "k", "score": "1"}, "annotation 'k': score '1' is not a number"),
        ({"name": "k", "score": True}, "annotation 'k': score True is not a number"),
        ({"name": "k", "score": 10**400}, f"annotation 'k': score 1{'0' * 199} is not a number"),
    ],
)
def test_one_that_makes_no_sense_says_why(fields, why):
    assert said(**fields) == [why]


def test_one_that_has_nothing_but_an_explanation_is_its_words():
    (found,) = said(name="note", explanation="It asked twice.", annotator_kind="HUMAN", identifier="ann")
    assert (found.key, found.score, found.label) == ("note", None, "explanation")
    assert (found.comment, found.source, found.author) == ("It asked twice.", "human", "ann")


def test_one_bad_among_good_ones_costs_only_itself():
    names = {"annotations.0.annotation.name": "a", "annotations.1.annotation.name": "b"}
    found = of(names | {"annotations.1.annotation.label": "x", "evaluations.0.evaluation.other": 1})
    assert [one.key if isinstance(one, Feedback) else "" for one in found] == ["", "b", ""]


def test_of_a_session_without_a_session():
    names = {"session.annotations.0.annotation.name": "k", "session.annotations.0.annotation.score": 1}
    assert of(names) == ["span 's' has an annotation of its session, but no attribute session.id"]


def test_a_kind_and_fields_of_ones_own_and_broken_metadata_are_kept():
    (found,) = said(name="k", label="x", annotator_kind="ORACLE", metadata="{broken", colour="red")
    assert (found.source, found.created_ns) == ("code", 5)
    assert found.metadata == {"annotator_kind": "ORACLE", "metadata": "{broken", "colour": "red"}


@pytest.mark.parametrize("kind", ["human", ["HUMAN"], 5, ""])
def test_a_kind_that_is_spelled_otherwise_is_code(kind):
    (found,) = said(name="k", score=1, annotator_kind=kind)
    assert (found.source, found.metadata) == ("code", {"annotator_kind": kind})


def test_two_reviewers_votes_are_two_and_one_reviewers_two_spellings_are_one():
    ann = said(name="k", score=1, annotator_kind="HUMAN", identifier="ann")
    bob = said(name="k", score=1, annotator_kind="HUMAN", identifier="bob")
    names = {"evaluation.name": "k", "evaluation.score": 1, "evaluation.annotator_kind": "HUMAN"}
    again = of({f"evaluations.7.{n}": v for n, v in (names | {"evaluation.identifier": "ann"}).items()})
    assert ann[0].id == again[0].id != bob[0].id


@pytest.mark.parametrize("name", ["annotations", "annotations.0.evaluation.name", "annotations.x.annotation.name"])
def test_names_that_only_look_like_annotations_say_nothing(name):
    assert of({name: "k", "trace.annotations.0.annotation": 1, "session.id": "s", "trace.id": "t"}) == []
