"""When a trace is taken: as soon as it is whole, after a quiet while, or after the longest wait; across restarts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from evaluators.watched import Clock, decisions, rule, scores, span, trace_id, until, verdicts, watching, whole
from looped_cases import loop_over
from spanwise.collector.filters import Filter
from spanwise.collector.records import Document, RuleSettings, TraceHead
from spanwise.collector.stores import Store
from spanwise.evaluators.monitors import Monitor
from spanwise.evaluators.monitors.rule_decision import trace_readiness
from spanwise.tracer import attribute_names as names

HEAD = TraceHead(
    trace_id=trace_id(1),
    cursor="1",
    change=1,
    runs_change=1,
    changed_ns=0,
    start_ns=0,
    settled=None,
    whole=True,
    rooted=True,
    size=1,
    span_count=1,
    probability=1.0,
    partial=False,
    judgement=False,
    project="default",
    environment="default",
    experiment_id=None,
    session_id=None,
)


def documents(documents: Any) -> float:
    return float(len(documents))


def test_a_retriever_that_comes_after_the_root_is_waited_for(store: Store) -> None:
    with watching(store, rule(evaluators=[documents])) as monitor:
        monitor.step()
        store.append([whole(1, started=2)])
        assert monitor.step() == 1
        assert verdicts(store) == {}
        store.append([span(1, 2, parent=1, kind="retriever", documents=(Document("one"), Document("two")))])
        monitor.step()
    assert scores(store, 1) == {"documents": 2.0}
    assert [one.incomplete for one in decisions(store)] == [False]


def test_anothers_trace_is_taken_when_it_has_been_quiet(store: Store) -> None:
    clock = Clock()
    with watching(store, rule(), now=clock) as monitor:
        monitor.step()
        store.append([span(1)])
        monitor.step()
        clock.ahead = 9
        monitor.step()
        store.append([span(1, 2, parent=1)])
        monitor.step()
        clock.ahead = 18  # nine seconds since the last of its spans
        monitor.step()
        assert verdicts(store) == {}
        clock.ahead = 19.5
        monitor.step()
    assert verdicts(store) == {"1": "scored"}
    assert [one.incomplete for one in decisions(store)] == [False]


def test_quiet_does_not_count_before_a_root_is_here(store: Store) -> None:
    clock = Clock()
    with watching(store, rule(), now=clock) as monitor:
        monitor.step()
        store.append([span(1, 2, parent=1)])
        monitor.step()
        clock.ahead = 60
        monitor.step()
        assert verdicts(store) == {}
        clock.ahead = 601
        monitor.step()
    assert [(one.verdict, one.incomplete) for one in decisions(store)] == [("scored", True)]


def test_a_trace_that_stays_open_is_taken_as_it_is_and_once_more_when_it_is_whole(store: Store) -> None:
    clock = Clock()
    with watching(store, rule(), now=clock) as monitor:
        monitor.step()
        store.append([whole(1, started=2, left_open=1)])
        monitor.step()
        clock.ahead = 601
        monitor.step()
        (kept,) = decisions(store)
        assert (kept.verdict, kept.incomplete) == ("scored", True)
        store.append(
            [
                span(
                    1,
                    2,
                    parent=1,
                    attributes={names.LOCAL_ROOT: f"{1:016x}", names.SPANS_STARTED: 2, names.SPANS_OPEN: 0},
                )
            ]
        )
        monitor.step()
    (kept,) = decisions(store)
    assert (kept.verdict, kept.incomplete, len(store.feedbacks(key="length").items)) == ("scored", False, 1)


@pytest.mark.process
def test_a_trace_that_grows_for_an_hour_is_looked_at_twice_at_most(store: Store) -> None:
    looked = []

    def seeing(trace: Any) -> bool:
        looked.append(len(trace.runs))
        return True

    clock = Clock()
    with watching(store, rule(evaluators=[seeing]), now=clock) as monitor:
        monitor.step()
        store.append([whole(1, started=99, left_open=98)])
        for minute in range(60):
            store.append([span(1, minute + 2, parent=1)])
            monitor.step()
            clock.ahead += 60
        clock.ahead += 601
        monitor.step()
    assert looked == [12, 61]


def test_after_a_restart_the_feed_is_read_again_from_what_waited(store: Store) -> None:
    first = Monitor(store, [rule()])
    first.step()
    store.append([whole(1, started=2), whole(2)])
    first.step()
    first._follower.stop()  # as if it had been killed: what waits in its memory is lost
    assert verdicts(store) == {"2": "scored"}
    with watching(store, rule()) as monitor:
        monitor.step()
        store.append([span(1, 2, parent=1)])
        monitor.step()
    assert verdicts(store) == {"1": "scored", "2": "scored"}
    first.close()


def test_what_is_read_again_after_a_restart_counts_once(store: Store) -> None:
    with watching(store, rule(filter="name=answer")) as monitor:
        monitor.step()
        store.append([whole(1, name="other")])
        monitor.step()
        store.append([whole(2, started=2)])
        store.append([whole(3, name="other")])
        monitor.step()
        assert store.status()[0].counts["filtered"] == 2
    with watching(store, rule(filter="name=answer")) as monitor:
        monitor.step()
        assert store.status()[0].counts["filtered"] == 2
        store.append([span(2, 2, parent=1)])
        monitor.step()
    assert store.status()[0].counts["filtered"] == 2


def test_what_has_no_place_in_memory_waits_in_a_row(store: Store) -> None:
    clock = Clock()
    with watching(store, rule(), now=clock) as monitor:
        monitor.step()
        (one,) = monitor._follower._feeds.values()
        one.waits._most = 2
        store.append([span(number) for number in range(1, 6)])
        monitor.step()
        waiting = decisions(store)
        assert [one.verdict for one in waiting] == ["waiting"] * 3
        assert all(one.next_ns > one.created_ns + 8_000_000_000 for one in waiting)
        clock.ahead = 11
        monitor.step()
    assert sorted(verdicts(store).values()) == ["scored"] * 2 + ["waiting"] * 3


@pytest.mark.process
def test_words_are_waited_for(store: Store) -> None:
    with watching(store, rule(filter="text=parcel")) as monitor:
        monitor.step()
        store.append([whole(1, outputs="your parcel"), whole(2, outputs="nothing")])
        until(lambda: store.changes(filters=[Filter(text="parcel")]).heads[0].passes == (True,))
        monitor.step()
    assert verdicts(store) == {"1": "scored"}


@loop_over(
    ("said", "again", "at", "incomplete"),
    [
        ({"settled": True}, False, 100, False),
        ({"settled": True, "whole": False}, False, 100, True),  # spans were dropped: nothing more will come
        ({"settled": None}, False, 110, False),
        ({"settled": None, "rooted": False}, False, 650, True),
        ({"settled": False}, False, 650, True),
        ({"settled": False}, True, 700, True),
    ],
)
def test_what_tells_that_a_trace_is_ready(said: dict[str, Any], again: bool, at: float, incomplete: bool) -> None:
    head = replace(HEAD, **said)
    assert trace_readiness(head, RuleSettings(), first=50, changed=100, again=again) == (at, incomplete)


def test_anothers_trace_that_never_is_quiet_is_taken_after_the_longest_wait() -> None:
    assert trace_readiness(HEAD, RuleSettings(), first=0, changed=595, again=False) == (600, True)
