"""Backfills of a rule, step by step: selection, probabilities, pause, cancel, edits, budgets, late changes."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any

import pytest

from evaluators.judge_server import serving
from evaluators.test_monitor_money import VERDICT, polite
from evaluators.test_monitor_workers import running
from evaluators.watched import Clock, decisions, rule, scores, span, trace_id, until, verdicts, watching, whole
from spanwise.collector.errors import NotFound, Refused, Unavailable
from spanwise.collector.records import Backfill, ClaimResult, Document, Feedback
from spanwise.collector.statistics import get_sampling_position
from spanwise.collector.stores import Store, summarize_rule
from spanwise.evaluators.monitors import Monitor
from spanwise.evaluators.monitors.rule_jobs import row_claim
from spanwise.evaluators.monitors.rule_spending import PacedBudget, Pacer, budget_name

NOW = time.time_ns()
SECOND = 1_000_000_000
HOUR = 3_600 * SECOND


def past(number: int, **fields: Any) -> Any:
    """A trace that started `number` seconds before an hour ago."""
    start = NOW - HOUR - number * SECOND
    return whole(number, **{"start_ns": start, "end_ns": start + 1_000_000, **fields})


@contextmanager
def watched(store: Store, *rules: Any) -> Iterator[tuple[Monitor, Any]]:
    """A monitor, and a function that lets it notice new backfills and do all that is due."""
    clock = Clock()

    with watching(store, *rules, now=clock) as monitor:

        def step() -> None:
            clock.ahead += 5
            monitor.step()

        step()
        yield monitor, step


def start(store: Store, **options: Any) -> Backfill:
    return store.start_backfill("r", **{"since_ns": NOW - 2 * HOUR, "until_ns": NOW, **options})


def decide_a_page(monitor: Monitor) -> None:
    """Let the monitor decide on the first page of a backfill, of which it scores nothing."""
    follower = monitor._follower
    follower._renew_at = 0.0
    follower.step()


def close_rows_over_budget(store: Store) -> None:
    """Close the rows over budget, as the store does after a day."""
    file = store._control._file  # type: ignore[attr-defined]
    file.write(lambda db: db.execute("UPDATE decisions SET due_ns = NULL WHERE verdict = 'over_budget'"))


def job(store: Store, id: str) -> Backfill:
    return next(one for one in store.backfills() if one.id == id)


def test_a_backfill_scores_what_was_there_before_the_rule(store: Store) -> None:
    store.append([past(number) for number in range(1, 501)])
    with watched(store, rule()) as (_, step):
        assert verdicts(store) == {}
        made = start(store)
        step()
    ended = job(store, made.id)
    assert (ended.state, ended.read, ended.matched, ended.sampled, ended.known) == ("done", 500, 500, 500, 0)
    assert (ended.counts, ended.share, ended.waiting) == ({"scored": 500}, 1.0, 0)
    assert scores(store, 7) == {"length": 2.0}
    assert {one.backfill for one in decisions(store)} == {made.id}
    assert {(one.rate, one.probability) for one in decisions(store)} == {(1.0, 1.0)}


def test_only_the_period_the_filter_and_the_rate_are_taken(store: Store) -> None:
    store.append([past(number, name="answer" if number % 2 else "other") for number in range(1, 101)])
    with watched(store, rule(filter="name=answer", sample_rate=0.1)) as (_, step):
        made = start(store, since_ns=NOW - HOUR - 60 * SECOND, until_ns=NOW - HOUR - 20 * SECOND, sample_rate=0.5)
        step()
    taken = [number for number in range(21, 61) if number % 2 and get_sampling_position(trace_id(number)) < 0.5]
    assert sorted(map(int, verdicts(store))) == taken
    ended = job(store, made.id)
    assert (ended.read, ended.matched, ended.sampled) == (40, 20, len(taken))


def test_a_result_of_this_version_is_not_made_again(store: Store) -> None:
    seen: list[str] = []

    def seeing(outputs: str) -> bool:
        return not seen.append(outputs)

    with watched(store, rule(evaluators=[seeing], sample_rate=0.5)) as (_, step):
        store.append([past(number) for number in range(1, 101)])
        step()
        live = len(seen)
        made = start(store, sample_rate=1.0)
        step()
    assert (len(seen), len(set(seen))) == (100, 100)
    ended = job(store, made.id)
    assert (ended.known, ended.sampled, ended.counts) == (live, 100, {"scored": 100 - live})


def test_the_funnel_counts_each_trace_once(store: Store) -> None:
    with watched(store, rule(sample_rate=0.5)) as (_, step):
        store.append([past(number) for number in range(1, 101)])
        step()
        start(store, sample_rate=1.0)
        step()
    (status,) = store.status()
    assert (status.counts["scored"], status.counts["sampled_out"]) == (100, 0)


def test_the_probability_is_that_of_both_samples_together(store: Store) -> None:
    """Live traffic prefers bad answers. A backfill with one rate for all must not count them twice."""
    bad = {number for number in range(1, 401) if number % 10 == 0}

    def good(outputs: str) -> bool:
        return outputs != "bad"

    strata = [({"tags": "disliked"}, 1.0)]
    with watched(store, rule(evaluators=[good], sample_rate=0.1, strata=strata)) as (_, step):
        store.append([past(n, outputs="bad", tags=("disliked",)) if n in bad else past(n) for n in range(1, 401)])
        step()
        start(store, sample_rate=0.5)
        step()
        (mean,) = summarize_rule(store, store.rules()[0])
    for one in decisions(store):
        number = int(one.target.trace_id or "", 16)
        u = get_sampling_position(trace_id(number))
        live = 1.0 if number in bad else 0.1
        assert u < max(live, 0.5)
        assert one.probability == max(live, 0.5)
    found = {score.trace_id: score for score in store.weighted("r")}
    for one in decisions(store):
        score = found[one.target.trace_id]
        number = int(one.target.trace_id or "", 16)
        is_live = number in bad or get_sampling_position(trace_id(number)) < 0.1
        assert score.live_probability == ((1.0 if number in bad else 0.1) if is_live else 0.0)
    assert mean.mean == pytest.approx(0.9, abs=0.03)


def test_a_paused_backfill_bends_no_estimate(store: Store) -> None:
    """The sample of a period counts once it is complete: here a half of it was never scored."""

    def good(outputs: str) -> bool:
        return outputs != "bad"

    strata = [({"tags": "disliked"}, 1.0)]
    with watched(store, rule(evaluators=[good], sample_rate=0.0, strata=strata)) as (monitor, step):
        store.append([past(n, outputs="bad", tags=("disliked",)) if n % 10 == 0 else past(n) for n in range(1, 401)])
        step()
        before = {score.trace_id: score.probability for score in store.weighted("r")}
        made = start(store, sample_rate=1.0)
        decide_a_page(monitor)
        store.change_backfill(made.id, "paused")
        assert job(store, made.id).waiting > 0
        assert {score.trace_id: score.probability for score in store.weighted("r")} == before
        step()
        assert {score.trace_id: score.probability for score in store.weighted("r")} == before
        store.change_backfill(made.id, "running")
        step()
        (mean,) = summarize_rule(store, store.rules()[0])
    assert mean.mean == pytest.approx(0.9)


def test_cancelling_removes_what_waits_and_keeps_what_is_scored(store: Store) -> None:
    store.append([past(number) for number in range(1, 1001)])
    with watched(store, rule()) as (monitor, _):
        made = start(store)
        decide_a_page(monitor)
        leased = store.claim("r", made.version, "here/1", 60, limit=50, backfill=made.id)
        score = Feedback(target=leased[0].target, key="length", score=1.0, evaluator="length", rule="r")
        store.finish(
            *(
                ClaimResult(
                    claim=row_claim(row),
                    verdict="scored",
                    states={"length": {"state": "scored"}},
                    reported=("length",),
                    feedback=(replace(score, target=row.target, claim=row.claim, id=""),),
                    read_change=row.runs_change,
                )
                for row in leased
            )
        )
        ended = store.change_backfill(made.id, "cancelled")
        assert (ended.state, ended.waiting, ended.counts) == ("cancelled", 0, {"scored": 50})
        assert job(store, made.id).ended_ns is not None
        with pytest.raises(Refused, match="is cancelled, and cannot become running"):
            store.change_backfill(made.id, "running")
        assert [score.probability for score in store.weighted("r")] == [1.0] * 50  # the latest: complete up to there


def test_a_lease_that_ends_after_the_cancellation_leaves_nothing_behind(store: Store) -> None:
    store.append([past(number) for number in range(1, 11)])
    with watched(store, rule()) as (monitor, step):
        made = start(store)
        decide_a_page(monitor)
        version = store.rules()[0].version
        leased = store.claim("r", version, "dead/1", 0.05, limit=3, backfill=made.id)
        assert len(leased) == 3
        store.change_backfill(made.id, "cancelled")
        assert job(store, made.id).counts == {"running": 3}
        time.sleep(0.06)
        step()
    assert (job(store, made.id).counts, decisions(store)) == ({}, [])


def test_an_edited_rule_stops_the_backfill_and_says_so(store: Store) -> None:
    store.append([past(number) for number in range(1, 501)])
    with watched(store, rule()) as (monitor, _):
        made = start(store)
        decide_a_page(monitor)

    def other(outputs: str) -> float:
        return 1.0

    with watched(store, rule(evaluators=[other])) as (_, step):
        step()
        found = job(store, made.id)
        assert (found.state, found.version in (found.blocked or "")) == ("running", True)
        assert "was superseded by" in (found.blocked or "")
        assert not list(store.feedbacks(key="other"))
        with pytest.raises(Refused, match="is not in force"):
            start(store, version=made.version)
        store.change_backfill(made.id, "cancelled")
        assert job(store, made.id).state == "cancelled"
        start(store)
        step()
    assert len(list(store.feedbacks(key="other"))) == 500


def test_settings_that_change_meanwhile_do_not_change_the_backfill(store: Store) -> None:
    store.append([past(number) for number in range(1, 501)])
    with watched(store, rule(sample_rate=0.5)) as (monitor, step):
        made = start(store)
        decide_a_page(monitor)
        store.change_rule("r", settings={"sample_rate": 0.01})
        step()
    taken = [number for number in range(1, 501) if get_sampling_position(trace_id(number)) < 0.5]
    assert (made.sample_rate, job(store, made.id).sampled) == (0.5, len(taken))
    assert {one.probability for one in decisions(store)} == {0.5}


def test_a_late_change_of_a_backfilled_trace_keeps_it_in_the_estimates(store: Store) -> None:
    with watched(store, rule(sample_rate=0.0)) as (_, step):
        store.append([past(number) for number in range(1, 6)])
        step()
        start(store, sample_rate=1.0)
        step()
        store.feedback(trace_id(1), "thumbs", 0)
        store.append([past(2, outputs="longer")])
        step()
        step()  # the backfill had ended, and is noticed again
    assert {(one.probability, one.verdict) for one in decisions(store)} == {(1.0, "scored")}
    assert [scores(store, number)["length"] for number in (1, 2)] == [2.0, 6.0]


def test_a_backfilled_trace_that_live_traffic_takes_later_is_its_own(store: Store) -> None:
    strata = [({"feedback": ("thumbs", "=", 0)}, 1.0)]
    with watched(store, rule(sample_rate=0.0, strata=strata)) as (_, step):
        store.append([past(1), past(2)])
        step()
        start(store, sample_rate=1.0)
        step()
        store.feedback(trace_id(1), "thumbs", 0)
        step()
    found = {score.trace_id: score.live_probability for score in store.weighted("r")}
    assert found == {trace_id(1): 1.0, trace_id(2): 0.0}


def test_a_trace_that_no_longer_passes_the_filter_leaves_the_estimates(store: Store) -> None:
    with watched(store, rule(filter={"missing": ("private",)})) as (_, step):
        store.append([past(1), past(2)])
        store.delete_decisions(rule="r")
        start(store)
        step()
        store.feedback(trace_id(1), "private", 1)
        step()
    assert {one.target.trace_id: one.probability for one in decisions(store)} == {trace_id(1): 0.0, trace_id(2): 1.0}


def test_what_live_traffic_gave_up_over_budget_is_scored(store: Store) -> None:
    with serving(lambda request: VERDICT) as server:
        judged = rule(evaluators=[polite(server.url)], budget={"calls_per_day": 2}, pace=False)
        with watched(store, judged) as (_, step):
            store.append([past(number) for number in range(1, 6)])
            step()
            close_rows_over_budget(store)
            start(store, budget={"calls_per_day": 100})
            step()
        assert len(server.requests) == 5
    assert set(verdicts(store).values()) == {"scored"}


def test_a_backfill_spends_its_own_budget(store: Store) -> None:
    store.append([past(number) for number in range(1, 21)])
    with (
        serving(lambda request: VERDICT) as server,
        watched(store, rule(evaluators=[polite(server.url)], budget={"calls_per_day": 1})) as (_, step),
    ):
        made = start(store, budget={"calls_per_day": 7})
        step()
        assert len(server.requests) == 7
        found = job(store, made.id)
        assert (found.state, found.counts["scored"], found.waiting) == ("running", 7, 13)
    spent = {one.budget: one.settled for one in store.booked()}
    assert {name: amount for name, amount in spent.items() if name != "default/r/usd"} == {
        f"default/r/backfill/{made.id}/calls_per_day": 7.0
    }


def test_without_its_own_budget_it_leaves_half_of_the_rules_to_live_traffic(store: Store) -> None:
    store.append([past(number) for number in range(1, 21)])
    with (
        serving(lambda request: VERDICT) as server,
        watched(store, rule(evaluators=[polite(server.url)], budget={"calls_per_day": 10})) as (_, step),
    ):
        start(store)
        step()
        assert len(server.requests) == 5
        store.append([whole(number) for number in range(101, 104)])
        step()
        assert len(server.requests) == 8


def test_spans_documents_and_sessions_are_backfilled(store: Store) -> None:
    document = Document(content="parcel", id="d")
    store.append([past(number, session_id=f"s{number % 3}", started=2) for number in range(1, 10)])
    store.append([span(n, 2, parent=1, kind="retriever", documents=(document,)) for n in range(1, 10)])
    rules = [rule(f"r-{target}", target=target, session_quiet=0.0) for target in ("span", "document", "session")]
    with watched(store, *rules) as (_, step):
        for target in ("span", "document", "session"):
            store.start_backfill(f"r-{target}", since_ns=NOW - 2 * HOUR)
        step()
        counts = {one.rule: (one.state, one.counts) for one in store.backfills()}
    assert counts["r-span"] == ("done", {"scored": 18})
    assert counts["r-document"] == ("done", {"scored": 9})
    assert counts["r-session"] == ("done", {"scored": 3})


def test_several_backfills_of_a_rule_run_one_after_another(store: Store) -> None:
    store.append([past(number) for number in range(1, 101)])
    with watched(store, rule()) as (_, step):
        first, second = start(store, sample_rate=0.2), start(store, sample_rate=0.6)
        step()
        step()
    low = sum(get_sampling_position(trace_id(number)) < 0.2 for number in range(1, 101))
    high = sum(get_sampling_position(trace_id(number)) < 0.6 for number in range(1, 101))
    assert job(store, first.id).counts == {"scored": low}
    assert (job(store, second.id).counts, job(store, second.id).known) == ({"scored": high - low}, low)
    assert {one.probability for one in decisions(store)} == {0.6}


def test_an_empty_period_is_done_at_once(store: Store) -> None:
    with watched(store, rule()) as (_, step):
        made = start(store)
        step()
    assert (job(store, made.id).state, job(store, made.id).share) == ("done", 1.0)


def test_invalid_backfills_are_refused(store: Store) -> None:
    with watched(store, rule()):
        with pytest.raises(NotFound, match="there is no rule 'x'"):
            store.start_backfill("x", since_ns=0)
        with pytest.raises(Refused, match="ends after its start"):
            start(store, until_ns=1)
        for rate in (0.0, 1.5, float("nan")):
            with pytest.raises(Refused, match="sample rate of a backfill"):
                start(store, sample_rate=rate)
        with pytest.raises(Refused, match="unknown budget 'usd'"):
            start(store, budget={"usd": 1})
        with pytest.raises(NotFound, match="there is no backfill 'x'"):
            store.change_backfill("x", "paused")
        made = start(store, id="mine")
        assert start(store, id="mine").id == made.id
        assert len(store.backfills()) == 1
        with pytest.raises(Refused, match="unknown state"):
            store.change_backfill("mine", "done")


def test_a_budget_in_dollars_needs_the_price_of_the_judge(store: Store) -> None:
    store.append([past(1)])
    with serving(lambda request: VERDICT) as server:
        with watched(store, rule(evaluators=[polite(server.url, price=None)])) as (monitor, step):
            made = start(store, budget={"usd_per_day": 1})
            step()
            store.report(*monitor.reports())
            assert "price" in (job(store, made.id).blocked or "")
        assert not server.requests


@pytest.mark.process
def test_estimates_stay_unbiased_where_live_traffic_prefers_bad_answers(store: Store) -> None:
    """A tenth of the answers is bad. Live traffic takes all of them and a twentieth of the others; half of the period is
    backfilled at 0.3. With the rate of each sample alone, the mean is far too high.
    """
    count = 3_000

    def good(outputs: str) -> bool:
        return outputs != "bad"

    with watched(store, rule(evaluators=[good], sample_rate=0.05, strata=[({"tags": "disliked"}, 1.0)])) as (_, step):
        store.append(
            [past(n, outputs="bad", tags=("disliked",)) if n % 10 == 0 else past(n) for n in range(1, count + 1)]
        )
        step()
        start(store, since_ns=NOW - HOUR - count // 2 * SECOND, sample_rate=0.3)
        step()
        (mean,) = summarize_rule(store, store.rules()[0])
        scored = list(store.weighted("r"))
    naive = [(1 / (score.live_probability or 0.3), float(score.score or 0)) for score in scored]
    assert sum(w * y for w, y in naive) / sum(w for w, _ in naive) > 0.92
    assert mean.low is not None
    assert mean.high is not None
    assert mean.low < 0.9 < mean.high
    assert mean.mean == pytest.approx(0.9, abs=0.01)


class Failing:
    """A store that does not answer each third request of a monitor, before or after it has done what was asked.

    It answers a claim of rows whose claims were lost twice: a row whose worker has died three times is failed.
    """

    def __init__(self, store: Store) -> None:
        self._store, self._asked = store, 0

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._store, name)
        if name not in ("decide", "finish", "claim", "heads"):
            return found

        def call(*args: Any, **kwargs: Any) -> Any:
            self._asked += 1
            if self._asked % 6 == 0:
                raise Unavailable("the disk is full")
            answer = found(*args, **kwargs)
            if self._asked % 6 == 3 and not (name == "claim" and any(row.deaths > 1 for row in answer)):
                raise Unavailable("the connection broke")
            return answer

        return call


@pytest.mark.process
def test_a_store_that_fails_now_and_then_doubles_and_loses_nothing(store: Store) -> None:
    seen: list[str] = []

    def seeing(outputs: str) -> bool:
        return not seen.append(outputs)

    store.append([past(number) for number in range(1, 601)])
    clock = Clock()
    with watching(Failing(store), rule(evaluators=[seeing]), now=clock, claim_s=0.2) as monitor:  # type: ignore[arg-type]

        def step() -> None:
            clock.ahead += 5
            with suppress(Unavailable):
                monitor.step()

        until(lambda: step() or store.rules())
        made = start(store)
        until(lambda: step() or job(store, made.id).state == "done")
    assert job(store, made.id).counts == {"scored": 600}
    assert (job(store, made.id).read, job(store, made.id).sampled) == (600, 600)
    assert len(list(store.weighted("r", limit=1000))) == 600
    assert set(seen) == {f"a{number}" for number in range(1, 601)}


def test_pacing_leaves_out_what_a_backfill_spends(store: Store) -> None:
    store.append([past(number) for number in range(1, 21)])
    with serving(lambda request: VERDICT) as server:
        judged = rule(evaluators=[polite(server.url)], budget={"usd_per_day": 1_000_000.0})
        with watched(store, judged) as (_, step):
            start(store)
            step()
    names = (budget_name("default", "r", key) for key in ("usd_per_day", "backfill/usd_per_day"))
    (spent,), (backfilled,) = map(store.booked, names)
    assert spent.settled == backfilled.settled > 0
    (status,) = store.status()
    assert [one.budget for one in status.booked] == ["default/r/usd_per_day"]
    pacer = Pacer(None)
    day = {"limit": 100.0, "start": 0.0, "end": 86_400.0}
    pacer.update(0.0, PacedBudget(spent=0.0, **day))
    # at this speed the rest lasts: with the backfill, it would not
    assert pacer.update(60.0, PacedBudget(spent=0.03, backfilled=45.0, **day)) is None


@pytest.mark.process
def test_workers_share_a_backfill_and_double_nothing(store: Store) -> None:
    seen: list[str] = []

    def seeing(outputs: str) -> bool:
        return not seen.append(outputs)

    store.append([past(number) for number in range(1, 1001)])
    with running(store, rule(evaluators=[seeing], concurrency=2), workers=3):
        made = start(store)
        until(lambda: len(seen) > 100)
        store.change_backfill(made.id, "paused")
        store.append([whole(number) for number in range(2001, 2011)])  # live traffic goes on
        until(lambda: {f"a{number}" for number in range(2001, 2011)} <= set(seen))
        until(lambda: not job(store, made.id).counts.get("running"))
        paused = len(seen)
        assert job(store, made.id).state == "paused"
        assert len(seen) == paused < 1_010
        store.change_backfill(made.id, "running")
        until(lambda: job(store, made.id).state == "done")
    assert (len(seen), len(set(seen))) == (1_010, 1_010)
    assert job(store, made.id).counts == {"scored": 1_000}
