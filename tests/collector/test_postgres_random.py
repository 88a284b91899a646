"""Random control operations, in the same order on SQLite and on PostgreSQL: all results are equal."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from collector import test_claims_machine
from spanwise.collector.errors import Refused
from spanwise.collector.records import (
    Backfill,
    BackfillStep,
    Claim,
    ClaimResult,
    Decision,
    DecisionBatch,
    Rule,
    RuleSettings,
    Target,
)
from spanwise.collector.stores import CombinedStore
from spanwise.collector.stores.backends import DecisionQuery, DeletedTraces
from spanwise.collector.stores.postgres import PostgresControl
from spanwise.collector.stores.sqlite import DatabaseFile, SQLiteStore, SQLiteTraces

TARGETS = [
    *(Target(trace_id=f"t{number}") for number in range(6)),
    *(Target(trace_id=f"t{number}", span_id="s1") for number in range(3)),
    Target(trace_id="odd id/", span_id="%", document=2),
    Target(session_id="one", project="default"),
    Target(session_id="two/", project="default"),
]
TIMES = ("created_ns", "updated_ns", "until_ns", "next_ns", "paused_ns", "ended_ns")
STEPS = 120
LONG_S = 1000.0  # longer than a script takes: how due rows are ordered must not depend on the speed of the machine


class Script:
    """Random operations. Two scripts with the same seed ask the same, as long as the answers are the same."""

    def __init__(self, control: Any, seed: int) -> None:
        self.control, self.random = control, random.Random(seed)
        self.change, self.version, self.jobs = 1, 1, 0
        self.claims: list[Decision] = []
        self.numbers: dict[int, int] = {0: 0}  # lease number: its place in the order of leases

    def run(self) -> Iterator[Any]:
        self.save()
        operations = [self.decide] * 4 + [self.lease] * 5 + [self.finish] * 6 + [self.backfill, self.step, self.step]
        operations += [self.renew, self.save, self.change_state, self.delete, self.look, self.look]
        for number in range(STEPS):
            operation = self.random.choice(operations)
            try:
                found = operation()
            except Refused as refused:
                found = f"refused: {type(refused).__name__}"
            yield number, operation.__name__, found
        yield "all", self.shown(self.control.list_decisions(DecisionQuery(limit=1_000)).items)

    def shown(self, records: Any) -> list[Any]:
        """Records without times, and with the places of leases for their numbers."""
        found = []
        for one in records:
            fields = {name: getattr(one, name) is not None for name in TIMES if hasattr(one, name)}
            if isinstance(one, Decision):
                one = replace(one, claim=self.numbers[one.claim])
            found.append((replace(one, **dict.fromkeys(fields, 0)), sorted(fields.items())))
        return found

    def save(self) -> Any:
        self.version += self.random.random() < 0.3
        version, rate = str(self.random.choice([self.version, self.version, 1])), self.random.choice([1.0, 0.5])
        rule = Rule(name="r", version=version, evaluators=({"key": "k"},), settings=RuleSettings(sample_rate=rate))
        self.control.save_rules([rule], None, self.random.random() < 0.8, self.change)
        return [(one.name, one.version, one.active_from) for one in self.control.rules(all_versions=True)]

    @property
    def in_force(self) -> str:
        return str(self.control.rules()[0].version)

    def decision(self, target: Target, verdict: str) -> Decision:
        self.change += 1
        return Decision(
            rule="r",
            version=self.in_force,
            verdict=verdict,
            target=target,
            change=self.change,
            runs_change=self.change if self.random.random() < 0.7 else 1,
            probability=self.random.choice([0.0, 0.25, 1.0, None]),
            rate=self.random.choice([0.5, 1.0, None]),
            u=0.5,
            incomplete=self.random.random() < 0.5,
        )

    def decide(self) -> Any:
        version = self.in_force
        verdicts = ("waiting", "waiting", "throttled", "over_budget", "sampled_out", "filtered", "skipped", "failed")
        rows = [self.decision(one, self.random.choice(verdicts)) for one in self.random.sample(TARGETS, 4)]
        outcomes = {
            f"t{number}": (number + 1, self.random.choice(["filtered", "sampled_out", "taken"]))
            for number in self.random.sample(range(6), 3)
        }
        after = self.control.cursor("r", version, project="default")
        after = after if self.random.random() < 0.9 else "stale"
        batch = DecisionBatch(
            project="default",
            rule="r",
            version=version,
            after=after,
            upto=str(self.change),
            rows=rows,
            outcomes=outcomes,
        )
        return self.control.record_decisions([batch])

    def lease(self) -> Any:
        backfill = f"job{self.random.randrange(self.jobs)}" if self.jobs and self.random.random() < 0.4 else None
        over_budget, seconds = self.random.choice([None, 0, 2]), self.random.choice([LONG_S, LONG_S, -LONG_S])
        limit, version = self.random.randint(1, 4), self.in_force
        leased = self.control.lease_decisions("r", version, "w", seconds, "default", limit, over_budget, backfill)
        for one in sorted(leased, key=lambda one: one.claim):
            self.numbers[one.claim] = len(self.numbers)
        self.claims += sorted(leased, key=lambda one: self.numbers[one.claim])
        return self.shown(leased)

    def some_claims(self) -> list[Decision]:
        return self.random.sample(self.claims[-8:], min(len(self.claims[-8:]), self.random.randint(1, 3)))

    def finish(self) -> Any:
        finishes = [
            ClaimResult(
                claim=claim_of(one),
                verdict=self.random.choice(["scored", "scored", "failed", "skipped", "waiting", "over_budget"]),
                states={"k": {"state": self.random.choice(["scored", "failed", "waiting"])}},
                reported=self.random.choice([(), ("k",)]),
                inputs_hash=self.random.choice("ab"),
                read_change=one.runs_change,
                cost=self.random.choice([None, 0.25]),
                again_s=self.random.choice([0.0, 0.0, LONG_S]),
            )
            for one in self.some_claims()
        ]
        plans = self.control.plan_finish(finishes)
        answers = self.control.finish_leases(finishes)
        return [(plan.answer is None, plan.whole) for plan in plans], [answer[:14] for answer in answers]

    def renew(self) -> Any:
        return self.control.renew([claim_of(one) for one in self.some_claims()], "w", LONG_S)

    def backfill(self) -> Any:
        self.jobs += 1
        job = Backfill(id=f"job{self.jobs - 1}", rule="r", version=self.in_force, since_ns=0, until_ns=100)
        return self.shown([self.control.create_backfill(job)])

    def step(self) -> Any:
        if not self.jobs:
            return None
        id = f"job{self.random.randrange(self.jobs)}"
        [job] = [one for one in self.control.list_backfills(None, None, False) if one.id == id]
        rows = [self.decision(one, "waiting") for one in self.random.sample(TARGETS, 3)]
        walked = BackfillStep(id=id, read=5, matched=4, sampled=3, walked=self.random.random() < 0.3)
        batch = DecisionBatch(
            project="default",
            rule="r",
            version=job.version,
            after=job.cursor,
            upto=f"c{self.change}",
            rows=rows,
            backfill=walked,
        )
        return self.control.record_decisions([batch])

    def change_state(self) -> Any:
        id = f"job{self.random.randrange(self.jobs)}" if self.jobs else "none"
        return self.shown([self.control.change_backfill(id, self.random.choice(["paused", "running", "cancelled"]))])

    def delete(self) -> Any:
        if self.random.random() < 0.5:
            return self.control.delete_references(DeletedTraces([f"t{self.random.randrange(6)}"], ["one"]))
        where = self.random.choice([{"trace_id": "t1"}, {"trace_id": "t2", "rule": "r"}, {"rule": "x"}])
        return self.control.delete_decisions(**where)

    def look(self) -> Any:
        rule = self.control.rules()[0]
        verdict = self.random.choice([None, "waiting", "scored", "superseded", "over_budget", "failed"])
        pages, cursor = [], None
        while True:
            page = self.control.list_decisions(DecisionQuery(verdict=verdict, limit=3, cursor=cursor))
            pages.append(self.shown(page.items))
            if (cursor := page.next) is None:
                break
        asked = [(one.target, one.claim) for one in self.claims[-10:]] + [(TARGETS[6], 0)]
        version = self.random.choice([None, rule.version])
        return (
            pages,
            self.shown(self.control.list_decisions(DecisionQuery(trace_id="t1", session=("default", "one"))).items),
            self.control.find_probabilities("r", "default", version, asked),
            sorted(self.control.count_outcomes(rule).items()),
            self.control.count_open_decisions(rule, 2**62),
            self.shown(self.control.list_failures(rule)),
            self.shown(self.control.list_backfills("r", None, self.random.random() < 0.5)),
            sorted(map(repr, self.control.find_results(rule, TARGETS))),
        )


def claim_of(one: Decision) -> Claim:
    return Claim(project=one.project, rule=one.rule, version=one.version, target=one.target, number=one.claim)


@pytest.mark.parametrize(
    "seeds",
    [pytest.param(range(3), marks=pytest.mark.process), pytest.param(range(3, 40), marks=pytest.mark.slow)],
    ids=["few", "many"],
)
def test_random_operations_have_the_same_results(
    postgres: Any, reused_database: str, tmp_path: Path, seeds: range
) -> None:
    for seed in seeds:
        PostgresControl(reused_database).close()
        postgres.empty_database(reused_database)
        control = PostgresControl(reused_database)
        with SQLiteStore(tmp_path / f"{seed}.db") as beside:
            for ours, theirs in zip(Script(control, seed).run(), Script(beside, seed).run(), strict=True):
                assert ours == theirs, seed
        control.close()


@pytest.mark.process
def test_whatever_workers_do_the_newest_claim_stands(
    postgres: Any, reused_database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def open_store(path: Path) -> Any:
        PostgresControl(reused_database).close()
        postgres.empty_database(reused_database)
        return CombinedStore(SQLiteTraces(DatabaseFile(path)), PostgresControl(reused_database))

    monkeypatch.setattr(test_claims_machine, "SQLiteStore", open_store)
    test_claims_machine.test_whatever_workers_do_the_newest_claim_stands_and_no_budget_is_passed(5)
