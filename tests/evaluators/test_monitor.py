"""A rule on live traces, from the feed to the feedback."""

from __future__ import annotations

import time

from evaluators.watched import decisions, rule, scores, span, trace_id, verdicts, watching, whole
from spanwise.collector.statistics import get_sampling_position
from spanwise.collector.stores import Store


def test_a_trace_is_scored_once(store: Store) -> None:
    with watching(store, rule()) as monitor:
        monitor.step()
        store.append([whole(1)])
        assert monitor.step() > 0
        assert monitor.step() == 0
    assert scores(store, 1) == {"length": 2.0}
    (kept,) = store.feedbacks(key="length")
    (decision,) = decisions(store)
    assert (kept.rule, kept.claim, kept.evaluator) == ("r", decision.claim, "length")
    assert verdicts(store) == {"1": "scored"}


def test_what_came_before_the_activation_is_not_taken(store: Store) -> None:
    store.append([whole(1)])
    with watching(store, rule()) as monitor:
        monitor.step()
        store.append([whole(2)])
        monitor.step()
    assert verdicts(store) == {"2": "scored"}


def test_since_takes_older_traces_too(store: Store) -> None:
    store.append([whole(1), whole(2, start_ns=5)])
    with watching(store, rule(since=10)) as monitor:
        monitor.step()
    assert verdicts(store) == {"1": "scored"}


def test_a_worker_that_starts_anew_scores_nothing_twice(store: Store) -> None:
    seen = []

    def seeing(outputs: str) -> bool:
        return bool(seen.append(outputs)) or True

    for number in (1, 2):
        with watching(store, rule(evaluators=[seeing])) as monitor:
            monitor.step()
            store.append([whole(number)])
            monitor.step()
    with watching(store, rule(evaluators=[seeing])) as monitor:
        monitor.step()
    assert seen == ["a1", "a2"]


def test_only_what_passes_and_is_drawn_is_scored_and_the_rest_is_counted(store: Store) -> None:
    with watching(store, rule(filter="name=answer", sample_rate=0.5)) as monitor:
        monitor.step()
        store.append([whole(number, name="answer" if number % 2 else "other") for number in range(1, 101)])
        monitor.step()
    (status,) = store.status()
    drawn = [number for number in range(1, 101, 2) if get_sampling_position(trace_id(number)) < 0.5]
    assert sorted(verdicts(store)) == sorted(map(str, drawn))
    assert {one.probability for one in decisions(store)} == {0.5}
    assert (status.counts["filtered"], status.counts["sampled_out"]) == (50, 50 - len(drawn))


def test_errors_are_a_stratum_of_their_own(store: Store) -> None:
    with watching(store, rule(sample_rate=0.0, strata=[("status=error", 1.0)])) as monitor:
        monitor.step()
        store.append([whole(1), whole(2, status="error", error="ValueError: boom")])
        monitor.step()
    (kept,) = decisions(store)
    assert (kept.target.trace_id, kept.stratum, kept.rate, kept.probability) == (trace_id(2), 0, 1.0, 1.0)


def test_a_thumbs_down_that_comes_later_is_decided_anew(store: Store) -> None:
    down = {"feedback": ("thumbs", "=", 0)}
    with watching(store, rule(sample_rate=0.5, strata=[(down, 1.0)])) as monitor:
        monitor.step()
        store.append([whole(number) for number in range(1, 9)])
        monitor.step()
        before = verdicts(store)
        for number in range(1, 9):
            store.feedback(trace_id(number), "thumbs", 0)
        monitor.step()
    assert 0 < len(before) < 8
    assert verdicts(store) == {str(number): "scored" for number in range(1, 9)}
    assert {(one.stratum, one.probability) for one in decisions(store)} == {(0, 1.0)}
    assert {one.claim for one in store.feedbacks(key="length")} == {one.claim for one in decisions(store)}


def test_what_falls_outside_later_keeps_its_score_and_leaves_the_estimates(store: Store) -> None:
    with watching(store, rule(sample_rate=1.0, strata=[({"feedback": ("thumbs", "=", 1)}, 0.0)])) as monitor:
        monitor.step()
        store.append([whole(1)])
        monitor.step()
        store.feedback(trace_id(1), "thumbs", 1)
        monitor.step()
    (kept,) = decisions(store)
    assert (kept.verdict, kept.probability) == ("scored", 0.0)
    assert scores(store, 1)["length"] == 2.0


def test_a_change_that_leaves_what_is_seen_as_it_was_scores_nothing(store: Store) -> None:
    looked = []

    def seeing(outputs: str) -> bool:
        looked.append(outputs)
        return True

    with watching(store, rule(evaluators=[seeing])) as monitor:
        monitor.step()
        store.append([whole(1, started=2), span(1, 2, parent=1)])
        monitor.step()
        store.append([span(1, 3, parent=1, name="late")])
        monitor.step()
        assert looked == ["a1"]
        store.append([whole(1, started=2, outputs="more", end_ns=time.time_ns() + 9_000_000_000)])
        monitor.step()
    assert looked == ["a1", "more"]
    (kept,) = decisions(store)
    assert kept.reopened == 1


def test_two_rules_and_their_strata_share_one_reading_of_the_feed(store: Store) -> None:
    rules = [rule(f"r{number}", filter="name=answer", strata=[("status=error", 1.0)]) for number in range(3)]
    with watching(store, *rules) as monitor:
        monitor.step()
        store.append([whole(1)])
        monitor.step()
    assert {one.rule for one in decisions(store)} == {"r0", "r1", "r2"}
    assert len(store.trace(trace_id(1)).feedback) == 3


def test_experiments_are_of_rules_that_ask_for_them(store: Store) -> None:
    rules = [rule(scope, scope=scope) for scope in ("live", "experiments", "both")]
    with watching(store, *rules) as monitor:
        monitor.step()
        store.append([whole(1), whole(2, experiment_id="e" * 32)])
        monitor.step()
    of = {name: set(verdicts(store, rule=name)) for name in ("live", "experiments", "both")}
    assert of == {"live": {"1"}, "experiments": {"2"}, "both": {"1", "2"}}


def test_rules_look_at_their_project_alone(store: Store) -> None:
    with watching(store, rule(project="a")) as monitor:
        monitor.step()
        store.append([whole(1, project="a"), whole(2, project="b")])
        monitor.step()
    assert verdicts(store) == {"1": "scored"}
