"""What every store does with backfills: jobs, steps, leases, probabilities. Each test takes `store` (see conftest.py)."""

from __future__ import annotations

import time
from typing import Any

import pytest

from collector.deciding import on, ruled, slice, traced
from collector.making import run
from spanwise.collector.errors import Refused
from spanwise.collector.filters import Filter
from spanwise.collector.records import (
    Backfill,
    BackfillStep,
    Claim,
    ClaimResult,
    Decision,
    DecisionBatch,
    Feedback,
    Rule,
    RuleSettings,
    Stratum,
    TraceHead,
)
from spanwise.collector.stores import Store

END = time.time_ns() + 3_600_000_000_000


def started(store: Store, **options: Any) -> Backfill:
    return store.start_backfill("r", **{"since_ns": 0, "until_ns": END, **options})


def step(job: Backfill, heads: list[TraceHead], walked: bool = True, **fields: Any) -> DecisionBatch:
    """A step of a backfill that takes all of these."""
    rate = {"probability": 0.5, "rate": 0.5, "u": 0.25}
    return DecisionBatch(
        project="default",
        rule="r",
        version="1",
        after=job.cursor,
        upto=f"{heads[-1].start_ns}.{heads[-1].number}",
        rows=tuple(on(head, **rate) for head in heads),
        outcomes={head.trace_id: (head.number, "taken") for head in heads},
        backfill=BackfillStep(id=job.id, read=len(heads), matched=len(heads), sampled=len(heads), walked=walked),
        **fields,
    )


def done(store: Store, rows: list[Decision]) -> None:
    for row in rows:
        claim = Claim(project="default", rule="r", version="1", target=row.target, number=row.claim)
        score = Feedback(target=row.target, key="concise", score=1.0, evaluator="concise", rule="r", claim=row.claim)
        result = ClaimResult(
            claim=claim,
            verdict="scored",
            states={"concise": {"state": "scored"}},
            reported=("concise",),
            feedback=(score,),
            read_change=row.runs_change,
        )
        assert store.finish(result) == ["finished"]


def probabilities(store: Store) -> dict[str | None, tuple[float | None, float | None]]:
    return {one.trace_id: (one.probability, one.live_probability) for one in store.weighted("r")}


def test_a_backfill_freezes_version_filter_and_rates(store: Store) -> None:
    stratum = Stratum(filter={"status": "error"}, rate=1.0)
    ruled(store, filter={"name": "answer"}, settings=RuleSettings(sample_rate=0.1, strata=(stratum,), paced=0.5))
    job = started(store)
    assert (job.version, job.filter, job.sample_rate, job.strata) == ("1", {"name": "answer"}, 0.1, (stratum,))
    of_one_rate = started(store, sample_rate=0.3, budget={"calls_per_day": 7})
    assert (of_one_rate.sample_rate, of_one_rate.strata, of_one_rate.budget) == (0.3, (), {"calls_per_day": 7})
    assert [one.id for one in store.backfills(rule="r")] == [of_one_rate.id, job.id]
    assert store.backfills(project="other") == []


def test_heads_of_a_period_come_latest_first_and_page_by_page(store: Store) -> None:
    store.append([run(name="a" if number % 2 else "b", start_ns=number, end_ns=number + 1) for number in range(1, 8)])
    first = store.heads(since_ns=2, until_ns=7, limit=3, filters=[Filter(name="a")])
    assert [(head.start_ns, head.passes) for head in first.heads] == [(6, (False,)), (5, (True,)), (4, (False,))]
    rest = store.heads(since_ns=2, until_ns=7, limit=3, after=first.cursor)
    assert [head.start_ns for head in rest.heads] == [3, 2]
    between = store.heads(since_ns=2, until_ns=7, after=first.heads[0].cursor)
    assert [head.start_ns for head in between.heads] == [5, 4, 3, 2]
    assert store.heads(project="other", since_ns=0, until_ns=9).heads == ()


def test_a_step_is_recorded_once(store: Store) -> None:
    ruled(store)
    heads, job = traced(store, 3), started(store)
    assert store.decide(step(job, heads)) == [True]
    assert store.decide(step(job, heads)) == [True]
    [found] = store.backfills()
    assert (found.read, found.sampled, found.counts) == (3, 3, {"waiting": 3})
    assert store.decide(slice(backfill=BackfillStep(id="x", read=0, matched=0, sampled=0), upto="1.1")) == [False]


def test_rows_of_a_backfill_are_leased_apart(store: Store) -> None:
    ruled(store)
    heads = traced(store, 4)
    job = started(store)
    store.decide(step(job, heads[:2]), slice(*(on(head) for head in heads[2:]), upto=heads[-1].cursor))
    live = store.claim("r", "1", "w", 60, limit=10)
    assert {row.target.trace_id for row in live} == {head.trace_id for head in heads[2:]}
    own = store.claim("r", "1", "w", 60, limit=10, backfill=job.id)
    assert {row.target.trace_id for row in own} == {head.trace_id for head in heads[:2]}
    assert {row.backfill for row in own} == {job.id}
    assert store.claim("r", "1", "w", 60, limit=10, backfill="x") == []


def test_a_paused_backfill_yields_and_takes_nothing(store: Store) -> None:
    ruled(store)
    heads = traced(store, 4)
    job = started(store)
    store.decide(step(job, heads[:2], walked=False))
    assert store.change_backfill(job.id, "paused").state == "paused"
    assert store.claim("r", "1", "w", 60, limit=10, backfill=job.id) == []
    [paused] = store.backfills()
    assert store.decide(step(paused, heads[2:])) == [False]
    store.change_backfill(job.id, "running")
    assert store.decide(step(paused, heads[2:])) == [True]
    assert len(store.claim("r", "1", "w", 60, limit=10, backfill=job.id)) == 4


def test_a_backfill_is_done_when_its_last_row_is(store: Store) -> None:
    ruled(store)
    heads = traced(store, 2)
    job = started(store)
    store.decide(step(job, heads))
    done(store, store.claim("r", "1", "w", 60, backfill=job.id))
    assert [one.state for one in store.backfills(active=True)] == ["running"]
    done(store, store.claim("r", "1", "w", 60, backfill=job.id))
    [ended] = store.backfills()
    assert (ended.state, ended.counts, store.backfills(active=True)) == ("done", {"scored": 2}, [])
    with pytest.raises(Refused, match="is done, and cannot become paused"):
        store.change_backfill(job.id, "paused")


def test_draws_count_up_to_the_first_open_row(store: Store) -> None:
    ruled(store)
    heads = traced(store, 3)
    live = [on(head, probability=0.1, rate=0.1, u=0.05) for head in (heads[0], heads[2])]
    store.decide(slice(*live, upto=heads[-1].cursor))
    done(store, store.claim("r", "1", "w", 60, limit=2))
    job = started(store)
    store.decide(step(job, heads))
    ids = [head.trace_id for head in heads]
    assert probabilities(store) == {ids[0]: (0.5, 0.1), ids[2]: (0.1, 0.1)}  # the second waits to be scored
    done(store, store.claim("r", "1", "w", 60, backfill=job.id))
    assert probabilities(store) == {ids[0]: (0.5, 0.1), ids[1]: (0.5, 0.0), ids[2]: (0.5, 0.1)}


def test_a_higher_rate_of_live_traffic_stands(store: Store) -> None:
    ruled(store)
    [head] = traced(store)
    store.decide(slice(on(head, probability=0.9, rate=0.9, u=0.25), upto=head.cursor))
    done(store, store.claim("r", "1", "w", 60))
    store.decide(step(started(store), [head]))
    assert probabilities(store) == {head.trace_id: (0.9, 0.9)}


def test_a_superseded_backfill_says_so_and_takes_nothing(store: Store) -> None:
    ruled(store)
    heads = traced(store, 4)
    job = started(store)
    store.decide(step(job, heads[:2], walked=False))
    ruled(store, "2")
    [blocked] = store.backfills()
    assert (blocked.state, "superseded by 2" in (blocked.blocked or "")) == ("running", True)
    assert store.decide(step(blocked, heads[2:])) == [False]
    with pytest.raises(Refused, match="not in force"):
        store.claim("r", "1", "w", 60, backfill=job.id)
    assert store.change_backfill(job.id, "cancelled").counts == {}


def test_deleted_traces_do_not_hold_a_backfill_up(store: Store) -> None:
    ruled(store)
    heads = traced(store, 2)
    job = started(store)
    store.decide(step(job, heads))
    store.delete(trace_ids=tuple(head.trace_id for head in heads))
    assert store.claim("r", "1", "w", 60, backfill=job.id) == []
    assert store.backfills()[0].state == "done"


def test_a_preview_counts_and_stores_nothing(store: Store) -> None:
    store.save_rule(Rule(name="r", version="1", evaluators=({"key": "concise"},), filter={"name": "a"}))
    store.append([run(name="a" if number % 2 else "b", start_ns=number, end_ns=number + 1) for number in range(1, 8)])
    preview = store.preview_backfill("r", since_ns=2, until_ns=8)
    assert (preview.read, preview.matched, preview.sampled, preview.known, preview.exact) == (6, 3, 3, 0, True)
    assert (preview.usd, preview.seconds, len(preview.newest)) == (None, None, 3)
    assert store.backfills() == []
    [head] = store.heads(since_ns=7, until_ns=8).heads
    store.decide(slice(on(head), upto=head.cursor))
    done(store, store.claim("r", "1", "w", 60))
    assert store.preview_backfill("r", since_ns=2, until_ns=8).scored == 2
