"""A vote that comes after the decision moves a trace into its stratum: a server, a monitor on its own threads, people."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from evaluators.watched import rule, trace_id, until, watching, whole
from spanwise.collector import connect
from spanwise.collector.records import Decision, Feedback, Target
from spanwise.collector.server import Server
from spanwise.collector.statistics import get_sampling_position
from spanwise.collector.stores import Store
from spanwise.collector.stores import summarize_rule as read
from spanwise.collector.stores.sqlite import SQLiteStore
from spanwise.evaluators.monitors import Monitor, MonitoredRule, summary

NUMBERS, RATE = range(1, 60), 0.2
DISLIKED = ("feedback=thumbs_up=0", 1.0)
SAMPLED = [number for number in NUMBERS if get_sampling_position(trace_id(number)) < RATE]
OTHERS = [number for number in NUMBERS if number not in SAMPLED]


@contextmanager
def running(store: Store, made: MonitoredRule) -> Iterator[None]:
    """A monitor that follows the feed by itself, until the end."""
    owned = MonitoredRule(replace(made.record, owner="rules.py"), made.evaluators)
    monitor = Monitor(store, [owned])
    thread = threading.Thread(target=monitor.run)
    thread.start()
    try:
        until(store.rules, "the rule")
        yield
    finally:
        monitor.stop(1.0)
        thread.join()


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Any]:
    """A server with traffic of which a fifth was scored."""
    with SQLiteStore(tmp_path / "spanwise.db") as kept, Server(kept) as server:
        store = connect(server.url)
        with running(store, rule(sample_rate=RATE, strata=[DISLIKED])):
            store.append([whole(number) for number in NUMBERS])
            until(lambda: sorted(scored(store)) == SAMPLED, "what is sampled")
            yield store
        store.close()


def scored(store: Store) -> dict[int, Decision]:
    found = store.decisions(rule="r", verdict="scored")
    return {int(one.target.trace_id or "0", 16): one for one in found}


@pytest.mark.process
def test_what_was_sampled_out_is_scored_then(store: Store) -> None:
    late = OTHERS[0]
    assert store.why(trace_id(late))[0].verdict == "sampled_out"
    store.feedback(trace_id(late), "thumbs_up", 0, author="ann")
    made = until(lambda: scored(store).get(late), "the late one")
    assert (made.probability, made.rate, made.stratum) == (1.0, 1.0, 0)
    assert [one.score for one in store.feedbacks(key="length", trace_ids=(trace_id(late),))] == [float(len(f"a{late}"))]


@pytest.mark.process
def test_what_was_scored_is_not_scored_again_and_stands_for_itself_alone(store: Store) -> None:
    early = SAMPLED[0]
    before = scored(store)[early]
    store.feedback(trace_id(early), "thumbs_up", 0, author="ann")
    made = until(lambda: (one := scored(store)[early]).probability == 1.0 and one, "the other probability")
    assert (before.probability, made.stratum, made.claim) == (RATE, 0, before.claim)


@pytest.mark.process
def test_a_vote_that_is_taken_back_leaves_the_sample_as_it_was(store: Store) -> None:
    late = OTHERS[0]
    given = store.feedback(trace_id(late), "thumbs_up", 0, author="ann")
    until(lambda: late in scored(store), "the late one")
    store.change_feedback({given.id: {"score": 1}})
    until(lambda: scored(store)[late].probability == 0.0, "its leaving the estimates")
    [mean] = summary("r", store=store)
    assert (mean.n, mean.outside) == (len(SAMPLED), 1)


def test_a_dislike_that_arrives_late_counts_for_the_day_of_its_trace(tmp_path: Path) -> None:
    """The votes on day 1 arrive on day 2: the mean of day 2 is that of the traces that started on day 2."""
    day, first, second = 86_400 * 10**9, range(1, 41), range(41, 81)
    with SQLiteStore(tmp_path / "spanwise.db") as store:
        made = rule(sample_rate=0.5, strata=[DISLIKED])
        monitor = Monitor(store, [made])
        for at, numbers in ((day, first), (2 * day, second)):
            store.append([replace(whole(number), start_ns=at, end_ns=at + 1) for number in numbers])
            while monitor.step():
                pass
        store.add_feedback(
            [Feedback(target=Target(trace_id=trace_id(n)), key="thumbs_up", score=False, source="human") for n in first]
        )
        while monitor.step():
            pass
        monitor.close()
        [of_first] = summary("r", until=2 * day, store=store)
        [of_second] = summary("r", since=2 * day, store=store)
        assert of_first.n == len(first)
        assert of_second.n == sum(get_sampling_position(trace_id(number)) < 0.5 for number in second)
        newest = read(store, store.rules()[0], most=of_second.n)
        assert newest == [of_second]


def test_a_trace_that_a_vote_has_decided_again_counts_once(tmp_path: Path) -> None:
    with SQLiteStore(tmp_path / "spanwise.db") as store, watching(store, rule(sample_rate=0.5)) as monitor:
        store.append([whole(number) for number in NUMBERS])
        while monitor.step():
            pass
        for number in NUMBERS:
            store.feedback(trace_id(number), "thumbs_up", 1, author="ann")
        while monitor.step():
            pass
        counts = store.status()[0].counts
        assert sum(counts.values()) == len(NUMBERS)
        assert counts["sampled_out"] == sum(get_sampling_position(trace_id(number)) >= 0.5 for number in NUMBERS)
