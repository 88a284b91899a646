"""A store that has records of every kind, for copies between databases."""

from __future__ import annotations

from typing import Any

from collector.deciding import on, outcomes, ruled, slice
from collector.making import SECOND, START, child, run
from collector.odd_records import odd_feedback, odd_runs
from spanwise.collector.alerts import AlertRunner
from spanwise.collector.records import (
    Alert,
    Amendment,
    Booking,
    Claim,
    ClaimResult,
    Example,
    Experiment,
    Feedback,
    Key,
    Notification,
    OpenRun,
    ProcessReport,
    QueueItem,
    Retention,
    Spender,
    Target,
    WorkerReport,
)
from spanwise.collector.stores import Store

DAY = 86_400 * SECOND


def fill(store: Store, traces: int = 30) -> None:
    """Fill a store: odd and plain traces over several days, feedback of all kinds, and control records of all tables."""
    store.append(odd_runs(), odd_feedback())
    store.append([child(run(start_ns=START), inputs="late")] * 2)
    for number in range(traces):
        root = run(f"answer {number}", start_ns=START + number % 3 * DAY + number, session_id=f"s-{number % 4}")
        store.append([root, child(root, kind="llm", model="m", cost=0.01), child(root, "late")])
    _fill_sender_records(store)
    _fill_datasets(store)
    decide(store)
    store.feedback(Target(session_id="s-1"), "helpful", True, author="ann")
    _fill_administration(store)
    _fill_alerts(store)


def decide(store: Store) -> None:
    """Decide on all traces by two versions of a rule, and finish some of the leases."""
    ruled(store, name="r", version="1")
    heads = store.changes(limit=1000).heads
    fields: dict[str, Any] = {"probability": 0.5, "u": 0.25, "rate": 0.5}
    rows = [on(head, **fields) for head in heads[:20]]
    told = outcomes(*heads[20:], filtered=5, sampled_out=len(heads) - 25)
    store.decide(slice(*rows, upto=heads[-1].cursor, outcomes=told))
    leased = store.claim("r", "1", "worker", 60, limit=12)
    for place, decision in enumerate(leased[:8]):
        claim = Claim(project="default", rule="r", version="1", target=decision.target, number=decision.claim)
        feedback = Feedback(target=decision.target, key="concise", score=place / 8, evaluator="concise", source="code")
        states = {"concise": {"state": "scored"}}
        result = {"verdict": "scored", "reported": ("concise",), "read_change": decision.runs_change}
        store.finish(ClaimResult(claim=claim, feedback=(feedback,), states=states, **result))  # type: ignore[arg-type]
    store.change_rule("r", settings={"sample_rate": 0.25})
    store.start_backfill("r", since_ns=START - DAY, until_ns=START + DAY, id="b" * 12)


def _fill_sender_records(store: Store) -> None:
    store.add_amendments([Amendment("7" * 32, "8" * 16, {"outputs": "waits"})])
    [first, *_] = store.traces()
    store.amend(first.trace_id, store.trace(first.trace_id).root.span_id, {"metadata": {"plan": "gold"}, "cost": 0.75})
    store.add_running([OpenRun(trace_id="a" * 32, span_id="b" * 16, name="runs", start_ns=START)])
    store.add_reports([ProcessReport(instance="i-1", reported_ns=START, service="shop", started=4, delivered=3)])
    store.append([gone := run("deleted")])
    store.delete(trace_ids=(gone.trace_id,))


def _fill_datasets(store: Store) -> None:
    store.save_examples("faq", [Example(inputs={"q": 1}, id="x1", reference_outputs="2"), Example(inputs="ü", id="x2")])
    store.save_examples("faq", [Example(inputs={"q": 2}, id="x1")], remove=["x2"])
    store.save_experiment(Experiment(id="e" * 32, name="first", dataset="faq"))


def _fill_administration(store: Store) -> None:
    store.save_key(Key(id="k", name="a key", sha256="0" * 64, scopes=("read",)))
    store.enqueue([QueueItem(queue="review", target=Target(trace_id="1" * 32), id="q-1")])
    store.set_retention(Retention(project=None, max_age_ns=3650 * DAY))
    store.set_retention(Retention(project="p", max_bytes=10**12))
    store.report(WorkerReport(holder="h", project="default", rules={"r": "1"}, data={"finished": 1}))
    spender = Spender(project="default", rule="r", evaluator="concise", model="m")
    store.book(
        Booking(id="b-1", budget="usd", period="day", amount=0.1, limit=1.0, spender=spender),
        Booking(id="b-2", budget="usd", period="day", amount=0.2, limit=1.0),
    )
    store.settle({"b-1": 0.05})
    assert store.acquire("feed", "holder", 60) is not None


def _fill_alerts(store: Store) -> None:
    store.save_alert(Alert(name="low", version="1", rule="r", key="concise", below=0.9, by="name", to=("log",)))
    store.save_alert(Alert(name="silent", version="1", rule="r", no_score_for_s=60, fire_after=1, to=("ops",)))
    now = START + 2 * DAY
    runner = AlertRunner(store, now=lambda: now)
    for _ in range(6):
        now += 3600 * SECOND
        runner.step()
    notification = Notification(id="n-1", alert="low", status="firing", headline="It is low.", targets=("log", "ops"))
    store.add_notifications([notification])  # type: ignore[attr-defined]
