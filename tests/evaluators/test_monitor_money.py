"""What judges of a rule may spend: held to the call over all workers, re-offered when there is money again."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import pytest
from openinference.instrumentation.openai import OpenAIInstrumentor
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor

from evaluators.judge_server import Reply, serving
from evaluators.watched import decisions, rule, scores, trace_id, until, verdicts, watching, whole
from lazy_modules import LazyModule
from spanwise.collector.records import Booking
from spanwise.collector.server import Server
from spanwise.collector.stores import Store
from spanwise.evaluators import Judge, judge
from spanwise.evaluators.monitors import Monitor, rule_jobs
from spanwise.evaluators.monitors.rule_spending import budget_name

openai = LazyModule("openai")

VERDICT = {"rationale": "short", "rating": "yes"}


def polite(url: str, **options: Any) -> Any:
    given = {"price": (1_000_000.0, 0.0), **options}
    return judge(
        "polite",
        "Is it polite?\n{outputs}",
        scale=("yes", "no"),
        judge=Judge(model="m", base_url=url, api_key="k", **given),
    )


@contextmanager
def exporting_to(url: str) -> Iterator[TracerProvider]:
    """OpenInference's instrumentation of the model's client, whose spans go to a collector."""
    provider = TracerProvider()
    exporter = OTLPSpanExporter(f"{url}/v1/traces")
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    OpenAIInstrumentor().instrument(tracer_provider=provider)
    try:
        yield provider
    finally:
        OpenAIInstrumentor().uninstrument()
        provider.shutdown()


@contextmanager
def running(store: Store, *rules: Any, workers: int = 1) -> Iterator[list[Monitor]]:
    made = [Monitor(store, rules) for _ in range(workers)]
    threads = [threading.Thread(target=one.run) for one in made]
    for thread in threads:
        thread.start()
    try:
        until(lambda: store.rules())
        yield made
    finally:
        for one in made:
            one.stop()
        for thread in threads:
            thread.join()


def test_calls_are_booked_before_and_settled_after(store: Store) -> None:
    with (
        serving(lambda request: VERDICT) as server,
        watching(store, rule(evaluators=[polite(server.url)], budget={"calls_per_day": 10})) as monitor,
    ):
        monitor.step()
        store.append([whole(1), whole(2)])
        monitor.step()
    (booked,) = store.booked(budget_name("default", "r", "calls_per_day"))
    assert (booked.settled, booked.reserved) == (2.0, 0.0)
    assert scores(store, 1) == {"polite": True}


@pytest.mark.process
def test_a_call_whose_connection_breaks_stays_booked_as_cost_unknown(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (
        serving([Reply(body=VERDICT, cut=5), VERDICT]) as server,
        watching(store, rule(evaluators=[polite(server.url)], budget={"calls_per_day": 10})) as monitor,
    ):
        monitor.step()
        store.append([whole(1)])
        monitor.step()
    assert scores(store, 1) == {"polite": True}
    monkeypatch.setattr("spanwise.collector.stores.control.budgets.UNKNOWN_AFTER_NS", 0)
    (booked,) = store.booked(budget_name("default", "r", "calls_per_day"))
    assert (booked.settled, booked.reserved, booked.unknown) == (1.0, 0.0, 1.0)


def test_what_there_is_no_money_for_is_over_budget_and_told_why(store: Store) -> None:
    with serving(lambda request: VERDICT) as server:
        with watching(store, rule(evaluators=[polite(server.url)], budget={"calls_per_day": 3})) as monitor:
            monitor.step()
            store.append([whole(number) for number in range(1, 9)])
            monitor.step()
        assert len(server.requests) == 3
    kept = list(verdicts(store).values())
    assert (kept.count("scored"), kept.count("over_budget")) == (3, 5)
    (one, *_) = decisions(store, verdict="over_budget")
    assert "calls_per_day=3" in one.reason
    assert one.next_ns is not None


def test_free_evaluators_go_on_without_money(store: Store) -> None:
    def free(outputs: str) -> bool:
        return True

    with serving(lambda request: VERDICT) as server:
        evaluators = [polite(server.url), free]
        with watching(store, rule(evaluators=evaluators, budget={"calls_per_day": 1})) as monitor:
            monitor.step()
            store.append([whole(number) for number in range(1, 5)])
            monitor.step()
        assert len(server.requests) == 1
    assert [scores(store, number)["free"] for number in range(1, 5)] == [True] * 4


@pytest.mark.process
def test_a_budget_is_held_to_the_call_by_four_workers(store: Store) -> None:
    with serving(lambda request: VERDICT) as server:
        made = rule(evaluators=[polite(server.url)], budget={"calls_per_day": 17})
        with running(store, made, workers=4):
            store.append([whole(number) for number in range(1, 61)])
            until(
                lambda: (
                    sorted(set(verdicts(store).values())) == ["over_budget", "scored"] and len(verdicts(store)) == 60
                )
            )
        assert len(server.requests) == 17
    assert list(verdicts(store).values()).count("scored") == 17
    assert len(store.feedbacks(key="polite", limit=100).items) == 17


@pytest.mark.process
def test_a_judge_that_refuses_for_a_while_loses_and_doubles_nothing(store: Store) -> None:
    with serving(lambda request: VERDICT, allows=10, per=0.5) as server:
        with running(store, rule(evaluators=[polite(server.url)], retries=0), workers=2):
            store.append([whole(number) for number in range(1, 31)])
            until(lambda: list(verdicts(store).values()).count("scored") == 30)
        assert server.refused > 0
        assert len(server.requests) - server.refused == 30
    assert len(store.feedbacks(key="polite", limit=100).items) == 30


def test_dollars_are_booked_at_the_most_and_settled_at_what_it_was(store: Store) -> None:
    with serving(lambda request: VERDICT) as server:
        price = (10.0, 10.0)  # dollars per million tokens
        made = rule(evaluators=[polite(server.url, price=price)], budget={"usd_per_day": 1.0})
        with watching(store, made) as monitor:
            monitor.step()
            store.append([whole(1)])
            monitor.step()
    (booked,) = store.booked(budget_name("default", "r", "usd_per_day"))
    (kept,) = decisions(store)
    assert booked.reserved == 0.0
    assert 0 < booked.settled < 0.01
    assert kept.cost == booked.settled


def test_a_budget_in_dollars_that_cannot_be_kept_idles_with_the_reason(store: Store) -> None:
    unknown = polite("http://127.0.0.1:1/v1", price=None)
    with watching(store, rule(evaluators=[unknown], budget={"usd_per_day": 1})) as monitor:
        monitor.step()
        assert "the price of 'm' is unknown" in monitor.idle["r"]


def test_a_budget_that_is_raised_counts_at_once(store: Store) -> None:
    with serving(lambda request: VERDICT) as server:
        made = rule(evaluators=[polite(server.url)], budget={"calls_per_day": 1})
        with watching(store, made) as monitor:
            monitor.step()
            store.append([whole(1), whole(2)])
            monitor.step()
            store.change_rule("r", settings={"budget": {"calls_per_day": 9}})
            store.append([whole(3)])
            monitor.step()
    assert set(verdicts(store).values()) == {"scored"}


@pytest.mark.process
def test_what_another_has_reserved_is_waited_for_only_a_moment(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rule_jobs, "FIRST_BUDGET_PROBE_S", 0.2)
    made = Booking(id="x", budget=budget_name("default", "r", "calls_per_day"), amount=3, limit=3, period="day")
    store.book(made)
    with (
        serving(lambda request: VERDICT) as server,
        running(store, rule(evaluators=[polite(server.url)], budget={"calls_per_day": 3})),
    ):
        store.append([whole(1)])
        until(lambda: verdicts(store) == {"1": "over_budget"})
        store.settle({"x": 0.0})
        until(lambda: verdicts(store) == {"1": "scored"})


@pytest.mark.process
def test_an_empty_budget_is_probed_by_one_target_at_a_time(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rule_jobs, "FIRST_BUDGET_PROBE_S", 0.1)
    dead = Booking(id="x", budget=budget_name("default", "r", "calls_per_day"), amount=3, limit=3, period="day")
    store.book(dead)
    with (
        serving(lambda request: VERDICT) as server,
        running(store, rule(evaluators=[polite(server.url)], budget={"calls_per_day": 3})),
    ):
        store.append([whole(number) for number in range(1, 41)])
        until(lambda: list(verdicts(store).values()) == ["over_budget"] * 40)
        first = sorted(one.claim for one in decisions(store))
        until(lambda: max(one.claim for one in decisions(store)) >= first[-1] + 3)
        claims = [one.claim for one in decisions(store)]
        assert len(set(first) - set(claims)) <= max(claims) - first[-1] <= 5
        store.settle({"x": 0.0})
        until(lambda: list(verdicts(store).values()).count("scored") == 3)


def test_waits_between_probes_grow_to_minutes_while_nothing_is_settled() -> None:
    money, budget, now = rule_jobs.BudgetBreaker(), {"calls_per_day": 3.0}, 0.0
    waits = []
    for _ in range(9):
        now += money.refused("full", settled=1.0, left=80_000.0, end_ns=10**18, budget=budget, now=now)
        waits.append(money.until)
    assert [later - sooner for sooner, later in pairwise(waits)] == [4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 300.0]
    assert money.refused("full", settled=1.5, left=80_000.0, end_ns=10**18, budget=budget, now=now) == 2.0
    assert money.refused("full", settled=1.5, left=0.5, end_ns=10**18, budget=budget, now=now + 2) == 0.5


def test_after_a_jump_of_the_clock_over_midnight_the_new_days_budget_is_used(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = time.time_ns
    with (
        serving(lambda request: VERDICT) as server,
        watching(store, rule(evaluators=[polite(server.url)], budget={"calls_per_day": 1})) as monitor,
    ):
        monitor.step()
        store.append([whole(1), whole(2)])
        monitor.step()
        assert sorted(verdicts(store).values()) == ["over_budget", "scored"]
        monkeypatch.setattr(time, "time_ns", lambda: clock() + 86_400 * 10**9)
        store.append([whole(3)])
        monitor.step()
    assert sorted(verdicts(store).values()) == ["over_budget", "scored", "scored"]


def test_a_judgement_is_a_trace_that_no_rule_takes(store: Store) -> None:
    with serving(lambda request: VERDICT) as server, watching(store, rule(evaluators=[polite(server.url)])) as monitor:
        monitor.step()
        store.append([whole(1)])
        monitor.step()
        while monitor.step():
            pass
    (given,) = store.feedbacks(key="polite").items
    judgement = store.trace(given.judge_trace_id or "")
    assert judgement.root.resource["spanwise.monitor"] is True
    assert verdicts(store) == {"1": "scored"}
    assert Reply
    store.delete(trace_ids=[trace_id(1)])
    assert store.many([judgement.trace_id]) == []


def test_a_judgement_whose_finish_is_refused_is_not_kept(store: Store) -> None:
    def deleting(request: Any) -> Any:
        store.delete(trace_ids=[trace_id(1)])
        return VERDICT

    with serving(deleting) as server, watching(store, rule(evaluators=[polite(server.url)])) as monitor:
        monitor.step()
        store.append([whole(1)])
        monitor.step()
        assert monitor.reports()[0].data["refused"] == 1
        assert len(server.requests) == 1
    assert list(store.traces(any_kind="evaluator").items) == []


@pytest.mark.slow  # a judge's server asks for two seconds
def test_of_judgements_that_are_made_again_the_last_one_alone_is_kept(store: Store) -> None:
    replies = iter([Reply(status=429, headers={"Retry-After": "2"})])
    with serving(lambda request: next(replies, VERDICT)) as server:
        asked = polite(server.url, deadline=1.5)
        with running(store, rule(evaluators=[asked], timeout=60)):
            store.append([whole(1)])
            until(lambda: verdicts(store) == {"1": "scored"})
        assert len(server.requests) > 1
    (given,) = store.feedbacks(key="polite").items
    assert [one.trace_id for one in store.traces(any_kind="evaluator").items] == [given.judge_trace_id]


def test_an_instrumented_client_in_the_monitors_process_starts_no_loop(store: Store) -> None:
    """Neither a judge's nor one that an evaluator calls by hand, whose spans come to the collector as any do."""
    with (
        serving(lambda request: VERDICT) as server,
        Server(store) as collector,
        exporting_to(collector.url) as provider,
        openai.OpenAI(base_url=server.url, api_key="k") as model,
    ):

        def by_hand(outputs: str) -> bool:
            return bool(model.chat.completions.create(model="m", messages=[{"role": "user", "content": outputs}]))

        with running(store, rule(evaluators=[by_hand, polite(server.url)], quiet=0)):
            store.append([whole(1)])
            until(lambda: verdicts(store).get("1") == "scored")
            assert provider.force_flush()
            until(lambda: store.status()[0].behind == 0)
        assert len(server.requests) == 2
    assert set(verdicts(store)) == {"1"}
    (call,) = store.traces(name="ChatCompletion").items
    assert call.trace_id != trace_id(1)
