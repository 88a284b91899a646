"""Weighted sums next to backfills: of all scores for charts, and of live traffic alone for alerts."""

import pytest

from collector.alerting import BELOW, HOUR_NS, NOW, RULE, Traffic, shares
from collector.conformance_backfills import done, probabilities, started, step
from collector.deciding import on, ruled, slice, traced
from collector.scoring import make_run
from spanwise.collector.records import (
    Alert,
    BackfillStep,
    Claim,
    ClaimResult,
    Decision,
    DecisionBatch,
    Feedback,
    Target,
)
from spanwise.collector.stores.sqlite import SQLiteStore

DAY_NS = 24 * HOUR_NS


def total_weight(store, *, live):
    until = max(trace.start_ns for trace in store.traces()) // DAY_NS * DAY_NS + DAY_NS
    found = store.score_sums("r", since_ns=until - 400 * DAY_NS, until_ns=until, block_s=86_400, live=live)
    return sum(sums.weight for sums in found)


def expected(store, place):
    return pytest.approx(sum(1 / each[place] for each in probabilities(store).values() if each[place]))


@pytest.fixture
def store(tmp_path):
    with SQLiteStore(tmp_path / "a.db") as opened:
        yield opened


def test_sums_follow_the_probabilities_of_a_backfill_and_live_sums_do_not(store):
    ruled(store)
    heads = traced(store, 3)
    live = [on(head, probability=0.1, rate=0.1, u=0.05) for head in (heads[0], heads[2])]
    store.decide(slice(*live, upto=heads[-1].cursor))
    done(store, store.claim("r", "1", "w", 60, limit=2))
    assert total_weight(store, live=False) == total_weight(store, live=True) == pytest.approx(20)
    job = started(store)
    store.decide(step(job, heads))
    assert total_weight(store, live=False) == expected(store, 0) == pytest.approx(12)
    assert total_weight(store, live=True) == expected(store, 1) == pytest.approx(20)
    done(store, store.claim("r", "1", "w", 60, backfill=job.id))
    assert total_weight(store, live=False) == expected(store, 0) == pytest.approx(6)
    assert total_weight(store, live=True) == expected(store, 1) == pytest.approx(20)


def test_sums_follow_a_cancelled_backfill(store):
    ruled(store)
    heads = traced(store, 3)
    job = started(store)
    store.decide(step(job, heads))
    done(store, store.claim("r", "1", "w", 60, backfill=job.id, limit=1))
    store.change_backfill(job.id, "cancelled")
    assert total_weight(store, live=False) == expected(store, 0)
    assert total_weight(store, live=True) == 0


def test_a_backfill_fires_no_alert(store):
    store.save_rule(RULE)
    store.save_alert(BELOW, Alert(name="by name", rule=RULE.name, key=BELOW.key, below=0.8, by="name"))
    traffic = Traffic(store)
    traffic.score(shares(0.95, 200), probability=0.1)
    traffic.look()
    before = {(group.alert, group.group): group.numbers for group in store.alert_groups()}
    bad = [make_run(10_000 + number, NOW - DAY_NS + number * DAY_NS // 300) for number in range(300)]
    store.append(bad)
    job = store.start_backfill(RULE.name, since_ns=NOW - DAY_NS, until_ns=NOW, sample_rate=1.0)
    rows = tuple(
        Decision(
            rule=RULE.name,
            version="1",
            target=Target(trace_id=run.trace_id),
            verdict="waiting",
            probability=1.0,
            rate=1.0,
            change=10**9,
        )
        for run in bad
    )
    batch = DecisionBatch(
        project="default",
        rule=RULE.name,
        version="1",
        after=job.cursor,
        upto="1.1",
        rows=rows,
        token=store.acquire(f"decide {RULE.name}", "me", 600).token,
        backfill=BackfillStep(id=job.id, read=300, matched=300, sampled=300, walked=True),
    )
    assert store.decide(batch) == [True]
    while claimed := store.claim(RULE.name, "1", "me", 600, limit=500, backfill=job.id):
        store.finish(*(finish(row) for row in claimed))
    traffic.look(1)
    after = {(group.alert, group.group): group.numbers for group in store.alert_groups()}
    charted = store.score_sums(RULE.name, since_ns=NOW - DAY_NS, until_ns=NOW, block_s=86_400)
    assert sum(sums.n for sums in charted) == 500
    for key, numbers in after.items():
        assert numbers.value == pytest.approx(before[key].value, abs=0.03)
        assert numbers.n <= 200
        assert not numbers.is_breach


def finish(row):
    claim = Claim(project="default", rule=row.rule, version="1", target=row.target, number=row.claim)
    return ClaimResult(
        claim=claim,
        verdict="scored",
        states={"quality": {"state": "scored"}},
        reported=("quality",),
        feedback=(Feedback(target=row.target, key="quality", rule=row.rule, claim=row.claim, score=0.0),),
        read_change=10**9,
    )
