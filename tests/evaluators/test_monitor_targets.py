"""Spans, documents and sessions as targets."""

from __future__ import annotations

from typing import Any

import pytest

from evaluators.watched import Clock, decisions, rule, scores, span, trace_id, verdicts, watching, whole
from spanwise.collector.records import Document
from spanwise.collector.statistics import get_sampling_position
from spanwise.collector.stores import Store


def words(outputs: str) -> float:
    return float(len(outputs.split()))


def relevance(documents: Any) -> float:
    (document,) = documents
    return float(len(document.content))


def turns(history: Any) -> float:
    return float(len(history))


def test_spans_of_a_kind_are_scored_each(store: Store) -> None:
    with watching(store, rule(evaluators=[words], target="span", kind="llm")) as monitor:
        monitor.step()
        spans = [span(1, place, parent=1, kind="llm", outputs="word " * place) for place in (2, 3)]
        store.append([whole(1, started=4), *spans, span(1, 4, parent=1, kind="tool")])
        monitor.step()
    found = {one.target.span_id: one.score for one in store.trace(trace_id(1)).feedback}
    assert found == {f"{2:016x}": 2.0, f"{3:016x}": 3.0}
    assert {one.probability for one in decisions(store)} == {1.0}


def test_documents_are_scored_each_and_wait_for_their_trace(store: Store) -> None:
    with watching(store, rule(evaluators=[relevance], target="document")) as monitor:
        monitor.step()
        found = span(1, 2, parent=1, kind="retriever", documents=(Document("a"), Document("bbb")))
        store.append([found])
        monitor.step()
        assert decisions(store) == []
        store.append([whole(1, started=2)])
        monitor.step()
    kept = {one.target.document: one.score for one in store.trace(trace_id(1)).feedback}
    assert kept == {0: 1.0, 1: 3.0}


@pytest.mark.process
def test_of_many_spans_a_hundred_are_chosen_and_that_is_in_the_probability(store: Store) -> None:
    with watching(store, rule(evaluators=[words], target="span", kind="llm", sample_rate=1.0)) as monitor:
        monitor.step()
        store.append([whole(1, started=401), *(span(1, place, parent=1, kind="llm") for place in range(2, 402))])
        monitor.step()
        monitor.step()
    rows = decisions(store)
    assert (len(rows), {one.probability for one in rows}) == (100, {0.25})
    highest = max(get_sampling_position(f"{trace_id(1)}/{one.target.span_id}/None") for one in rows)
    assert highest < 0.4


def test_a_trace_without_such_spans_says_so(store: Store) -> None:
    with watching(store, rule(evaluators=[words], target="span", kind="llm")) as monitor:
        monitor.step()
        store.append([whole(1)])
        monitor.step()
    (kept,) = decisions(store)
    assert (kept.verdict, kept.reason) == ("skipped", "no span of kind 'llm'")


def test_spans_of_a_trace_that_falls_outside_leave_the_estimates(store: Store) -> None:
    strata = [({"feedback": ("thumbs", "=", 1)}, 0.0)]
    with watching(store, rule(evaluators=[words], target="span", strata=strata)) as monitor:
        monitor.step()
        store.append([whole(1, started=2), span(1, 2, parent=1)])
        monitor.step()
        store.feedback(trace_id(1), "thumbs", 1)
        monitor.step()
    assert [(one.verdict, one.probability) for one in decisions(store)] == [("scored", 0.0)] * 2


def test_a_session_is_scored_when_it_has_been_quiet(store: Store) -> None:
    clock = Clock()
    with watching(store, rule(evaluators=[turns], target="session"), now=clock) as monitor:
        monitor.step()
        store.append([whole(1, session_id="s")])
        monitor.step()
        clock.ahead = 599
        monitor.step()
        store.append([whole(2, session_id="s"), whole(3)])
        monitor.step()
        clock.ahead = 1190
        monitor.step()
        assert decisions(store) == []
        clock.ahead = 1200
        monitor.step()
    (kept,) = decisions(store)
    assert (kept.target.session_id, kept.verdict, kept.probability) == ("s", "scored", 1.0)
    assert kept.u == get_sampling_position("default/s")
    (given,) = store.feedbacks(key="turns").items
    assert (given.target.session_id, given.score) == ("s", 4.0)


def test_a_later_turn_opens_a_session_anew_once_a_day(store: Store) -> None:
    clock = Clock()
    with watching(store, rule(evaluators=[turns], target="session"), now=clock) as monitor:
        monitor.step()
        for number in range(1, 5):
            store.append([whole(number, session_id="s")])
            monitor.step()
            clock.ahead += 601
            monitor.step()
    assert [one.reopened for one in decisions(store)] == [1]
    assert [one.score for one in store.feedbacks(key="turns")] == [4.0]


@pytest.mark.parametrize(("days", "reopened"), [(0, 1), (1, 2), (2, 2)])
def test_the_day_after_a_session_may_be_opened_again(store: Store, days: int, reopened: int) -> None:
    clock = Clock()
    with watching(store, rule(evaluators=[turns], target="session"), now=clock) as monitor:
        monitor.step()
        for number in range(1, 4):
            if number == 3:
                _make_older(store, days)
            store.append([whole(number, session_id="s")])
            monitor.step()
            clock.ahead += 601
            monitor.step()
    assert [one.reopened for one in decisions(store)] == [reopened]


def _make_older(store: Any, days: int) -> None:
    day = 86_400 * 1_000_000_000
    store._control._file.write(lambda db: db.execute("UPDATE decisions SET created_ns = created_ns - ?", (days * day,)))


def test_turns_of_another_project_are_another_session(store: Store) -> None:
    clock = Clock()
    with watching(store, rule(evaluators=[turns], target="session"), now=clock) as monitor:
        monitor.step()
        store.append([whole(1, session_id="s"), whole(2, session_id="s", project="other")])
        monitor.step()
        clock.ahead = 601
        monitor.step()
    assert [one.score for one in store.feedbacks(key="turns")] == [2.0]


def test_a_session_of_which_the_head_left_out_turns_has_no_probability(store: Store) -> None:
    clock = Clock()
    with watching(store, rule(evaluators=[turns], target="session"), now=clock) as monitor:
        monitor.step()
        store.append([whole(1, session_id="s", attributes={"otel.trace_state": "ot=th:8"})])
        monitor.step()
        clock.ahead = 601
        monitor.step()
    (kept,) = decisions(store)
    assert (kept.verdict, kept.probability) == ("scored", None)


def test_the_heads_probability_is_in_that_of_a_trace(store: Store) -> None:
    with watching(store, rule(sample_rate=1.0)) as monitor:
        monitor.step()
        store.append([whole(1, attributes={"otel.trace_state": "ot=th:8"})])
        monitor.step()
    assert [one.probability for one in decisions(store)] == [0.5]
    assert scores(store, 1) == {"length": 2.0}
    assert verdicts(store) == {"1": "scored"}
