"""Claims, finishes and decisions in any order, by several workers: what must hold whatever they do."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    initialize,
    invariant,
    multiple,
    rule,
    run_state_machine_as_test,
)

from collector.conformance_claims import finish
from collector.deciding import on, ruled, slice, traced
from collector.making import child
from spanwise.collector.errors import Refused
from spanwise.collector.records import Booking, Decision
from spanwise.collector.stores.sqlite import SQLiteStore

LIMIT = 4.0
VERDICTS = ("scored", "failed", "skipped", "waiting", "throttled", "over_budget")


class Workers(RuleBasedStateMachine):
    """Of three traces, under one rule whose version changes now and then."""

    taken = Bundle("taken")

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.store = SQLiteStore(self.folder / "spanwise.db")
        self.version = 1
        self.newest: dict[Any, int] = {}  # claim of each target
        self.accepted: dict[Any, int] = {}  # the last claim whose feedback was kept
        self.answers: dict[int, str] = {}
        self.done: set[tuple[Any, int]] = set()
        self.booked = 0

    def teardown(self) -> None:
        self.store.close()
        shutil.rmtree(self.folder)

    @initialize()
    def begin(self) -> None:
        ruled(self.store, "1")
        self.ids = [head.trace_id for head in traced(self.store, 3)]
        self.decide(0)

    @rule(back=st.integers(0, 2))
    def decide(self, back: int) -> None:
        """All there is, by one who has read the cursor, and by one who has an old one."""
        changes = self.store.changes()
        version = str(self.version)
        cursor = self.store.cursor("r", version)
        rows = [on(head, version=version, verdict="sampled_out" if back == 2 else "waiting") for head in changes.heads]
        made = slice(*rows, after=cursor, upto=changes.cursor, version=version)
        assert self.store.decide(made, made) == [True, True]
        stale = slice(*rows, after="1", upto="2", version=version)
        assert self.store.decide(stale) == [cursor == "1" == changes.cursor]

    @rule(place=st.integers(0, 2), what=st.sampled_from(["change", "change", "change", "delete", "supersede"]))
    def disturb(self, place: int, what: str) -> None:
        if what == "change":
            self.store.append([child(one.root) for one in self.store.many([self.ids[place]])])
        elif what == "delete":
            self.store.delete(trace_ids=(self.ids[place],))
        else:
            self.version += 1
            ruled(self.store, str(self.version))
        self.decide(0)

    @rule(target=taken, limit=st.integers(1, 3), seconds=st.sampled_from([-1, 60]), late=st.just(False) | st.booleans())
    def claim(self, limit: int, seconds: float, late: bool) -> Any:
        version = str(self.version - late)
        try:
            claims = self.store.claim("r", version, "w", seconds, limit=limit)
        except Refused:
            assert version != str(self.version)
            return multiple()
        assert len({one.target for one in claims}) == len(claims) <= limit
        assert len(claims) == 1 or not any(one.deaths for one in claims)
        for one in claims:
            assert one.claim > self.newest.get(one.target, 0)
            self.newest[one.target] = one.claim
        return multiple(*claims)

    @rule(one=taken)
    def finish_as_it_should_be(self, one: Decision) -> None:
        self.finish(one, "scored", "a")

    @rule(one=taken, verdict=st.sampled_from(VERDICTS), hash=st.sampled_from("ab"))
    def finish(self, one: Decision, verdict: str, hash: str) -> None:
        made = finish(one, float(one.claim), verdict=verdict, inputs_hash=hash, again_s=0.0)
        [answer] = self.store.finish(made)
        known = self.answers.get(one.claim)
        if known is None and not answer.startswith("refused"):
            assert one.claim == self.newest[one.target]
            assert one.version == str(self.version)
            self.accepted[one.target] = one.claim
            self.answers[one.claim] = answer
        elif known is None:
            self.answers[one.claim] = "refused"
        elif known == "refused":
            assert answer.startswith("refused")

    @rule(
        amounts=st.lists(st.sampled_from([0.5, 1.0, 3.0]), min_size=1, max_size=3),
        actual=st.sampled_from([0, 0.5, None]),
    )
    def spend(self, amounts: list[float], actual: float | None) -> None:
        made = [
            Booking(id=f"{self.booked}.{n}", budget="b", amount=each, limit=LIMIT) for n, each in enumerate(amounts)
        ]
        self.booked += 1
        kept = self.store.book(*made)
        assert [now for now, before in zip(self.store.book(*made), kept, strict=True) if before] == [True] * sum(kept)
        if actual is not None:
            self.store.settle({one.id: min(one.amount, actual) for one in made})

    @invariant()
    def of_each_target_the_feedback_of_the_last_claim_stands(self) -> None:
        for trace in self.store.many(getattr(self, "ids", [])):
            kept = [one for one in trace.feedback if one.rule == "r"]
            assert len(kept) <= 1
            for one in kept:
                assert one.outcome == "error" or one.claim == self.accepted[one.target] == one.score

    @invariant()
    def of_each_target_and_version_there_is_one_decision(self) -> None:
        rows = [(one.target, one.version) for one in self.store.decisions()]
        assert len(rows) == len(set(rows))
        there = {trace.trace_id for trace in self.store.many(getattr(self, "ids", []))}
        assert {target.trace_id for target, _ in rows} <= there

    @invariant()
    def no_budget_is_passed(self) -> None:
        assert all(one.settled + one.reserved <= LIMIT * 1.000001 for one in self.store.booked())


@pytest.mark.parametrize("examples", [3, pytest.param(40, marks=pytest.mark.slow)])
def test_whatever_workers_do_the_newest_claim_stands_and_no_budget_is_passed(examples: int) -> None:
    run_state_machine_as_test(
        Workers,
        settings=settings(
            max_examples=examples,
            stateful_step_count=20,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            database=None,
            derandomize=True,
        ),
    )
