"""Random histories of scored traces, and a comparison of all sums with the estimates from all rows."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import pytest

from collector.making import run
from spanwise.collector.records import Claim, ClaimResult, Decision, DecisionBatch, Feedback, Rule, ScoreSums, Target
from spanwise.collector.statistics import SampledMean, estimate_sums
from spanwise.collector.stores import summarize_rule, weighted_sums
from spanwise.collector.stores.sqlite import SQLiteStore
from spanwise.collector.stores.sqlite.score_sums import sum_queries, window_sums
from spanwise.collector.stores.weighted_sums import SumsQuery

HOUR, GRAIN = 3_600_000_000_000, 150_000_000_000
FROM, UNTIL = 240 * HOUR, 312 * HOUR  # three whole days
RULES = (("default", "r"), ("default", "s"), ("other", "r"), ("other", "s"))
KEYS = ("good", "kind")
PROBABILITIES = (1.0, 1.0, 0.1, 0.3, 0.001, 1 / 3, None, 0.0)


class History:
    """Random events in a store: each call of `step` is one."""

    def __init__(self, store: SQLiteStore, seed: int) -> None:
        self.store, self.random = store, Random(seed)
        self.traces: dict[str, str] = {}  # project by trace
        self.versions = dict.fromkeys(RULES, 1)
        for project, name in RULES:
            self._save_rule(project, name)

    def _save_rule(self, project: str, name: str) -> None:
        version = str(self.versions[project, name])
        evaluators = tuple({"key": key} for key in KEYS)
        target: Any = "session" if name == "s" else "trace"
        self.store.save_rule(
            Rule(name=name, project=project, version=version, evaluators=evaluators, target=target), activate=True
        )

    def step(self) -> None:
        choices = [self.arrive] * 8 + [self.score] * 20 + [self.draw_again] * 6 + [self.relabel, self.move, self.delete]
        choices += [self.join_session, self.remove_feedback, self.retag, self.forget_decisions]
        if self.random.random() < 0.02:
            choices = [self.edit_rule]
        self.random.choice(choices)()

    def _pick(self) -> str | None:
        return self.random.choice(sorted(self.traces)) if self.traces else None

    def arrive(self) -> None:
        runs = []
        for _ in range(self.random.randint(1, 4)):
            project = self.random.choice(("default", "default", "other"))
            session = self.random.choice((None, "a", "b", "c"))
            tags = tuple(self.random.sample(("x", "y", "z"), self.random.randint(0, 2)))
            start = self.random.choice((FROM, FROM + 5 * HOUR, FROM + 30 * HOUR)) + self.random.randrange(0, HOUR)
            id = f"{self.random.getrandbits(128):032x}"
            one = run(trace_id=id, start_ns=start, project=project, session_id=session, tags=tags)
            self.traces[one.trace_id] = project
            runs.append(one)
        self.store.append(runs)

    def score(self) -> None:
        """A rule decides on a trace (or its session), a worker takes the decision and reports."""
        trace_id = self._pick()
        if trace_id is None:
            return
        project = self.traces[trace_id]
        name = self.random.choice([name for of, name in RULES if of == project])
        [head] = [head for head in self._heads() if head.trace_id == trace_id]
        target = Target(trace_id=trace_id)
        if name == "s":
            [summary] = self.store.traces(trace_ids=(trace_id,))
            if summary.session_id is None:
                return
            target = Target(session_id=summary.session_id)
        probability = self.random.choice(PROBABILITIES[:-1])
        if not self._decide(project, name, target, head, probability=probability):
            return
        version = str(self.versions[project, name])
        for taken in self.store.claim(name, version, "w", 60, project=project, limit=10):
            self._finish(taken)

    def _heads(self) -> list[Any]:
        return list(self.store.changes(limit=1_000).heads)

    def _decide(self, project: str, name: str, target: Target, head: Any, **fields: Any) -> bool:
        version = str(self.versions[project, name])
        row: Any = {
            "project": project,
            "rule": name,
            "version": version,
            "target": target,
            "verdict": "waiting",
            "change": head.change,
            "runs_change": head.runs_change,
            **fields,
        }
        cursor = self.store.cursor(name, version, project=project)
        self._cursors = getattr(self, "_cursors", 0) + 1
        batch = DecisionBatch(
            project=project, rule=name, version=version, after=cursor, upto=f"{self._cursors}", rows=(Decision(**row),)
        )
        return self.store.decide(batch) == [True]

    def _finish(self, taken: Decision) -> None:
        feedback = []
        for key in KEYS:
            kind = self.random.choice(("score", "score", "score", "graded", "label", "error", "skip"))
            given: dict[str, Any] = {"outcome": kind if kind in ("error", "skip") else "score"}
            if kind == "score":
                given |= {"score": self.random.random() < 0.7, "label": self.random.choice((None, "ham", "spam"))}
            elif kind == "graded":
                given |= {"score": self.random.random()}
            elif kind == "label":
                given |= {"label": self.random.choice(("ham", "spam"))}
            elif kind == "error":
                given |= {"error": "ValueError"}
            feedback.append(Feedback(target=taken.target, key=key, rule=taken.rule, claim=taken.claim, **given))
        claim = Claim(
            project=taken.project, rule=taken.rule, version=taken.version, target=taken.target, number=taken.claim
        )
        self.store.finish(
            ClaimResult(
                claim=claim,
                verdict="scored",
                states={key: {"state": "scored"} for key in KEYS},
                reported=KEYS,
                feedback=tuple(feedback),
                inputs_hash=str(self.random.random()),
                read_change=taken.runs_change,
                attempts=1,
            )
        )

    def draw_again(self) -> None:
        """The feedback of a person changes the stratum of a trace: its decision gets another probability."""
        trace_id = self._pick()
        if trace_id is None:
            return
        self.store.add_feedback([Feedback(target=Target(trace_id=trace_id), key="liked", score=0.0)])
        [head] = [head for head in self._heads() if head.trace_id == trace_id]
        probability = self.random.choice(PROBABILITIES)
        verdict = "sampled_out" if probability == 0 else "waiting"
        self._decide(
            self.traces[trace_id], "r", Target(trace_id=trace_id), head, probability=probability, verdict=verdict
        )

    def _pick_feedback(self) -> Feedback | None:
        found = [row for row in self.store.feedbacks(limit=1_000) if row.rule is not None]
        return self.random.choice(found) if found else None

    def relabel(self) -> None:
        row = self._pick_feedback()
        if row is not None:
            self.store.change_feedback({row.id: {"score": self.random.random(), "label": "ham"}})

    def remove_feedback(self) -> None:
        row = self._pick_feedback()
        if row is not None:
            self.store.delete_feedback([row.id])

    def move(self) -> None:
        """A run arrives that started earlier than all others of its trace."""
        trace_id = self._pick()
        if trace_id is not None:
            self.store.append([run(trace_id=trace_id, project=self.traces[trace_id], start_ns=FROM + HOUR)])

    def join_session(self) -> None:
        """The root arrives late, and with it the session."""
        trace_id = self._pick()
        if trace_id is not None:
            project = self.traces[trace_id]
            late = run(trace_id=trace_id, project=project, start_ns=FROM, session_id="late", name="late")
            self.store.append([late])

    def retag(self) -> None:
        trace_id = self._pick()
        if trace_id is not None:
            self.store.append(
                [run(trace_id=trace_id, project=self.traces[trace_id], start_ns=FROM + 2 * HOUR, tags=("y",))]
            )

    def forget_decisions(self) -> None:
        """The rule is told to decide on a trace again; or another program scored it, without a lease."""
        trace_id = self._pick()
        if trace_id is None:
            return
        if self.random.random() < 0.5:
            self.store.delete_decisions(trace_id=trace_id)
        else:
            self.store.add_feedback([Feedback(target=Target(trace_id=trace_id), key="good", score=0.5, rule="r")])

    def delete(self) -> None:
        trace_id = self._pick()
        if trace_id is not None:
            self.store.delete(trace_ids=(trace_id,))
            del self.traces[trace_id]

    def edit_rule(self) -> None:
        rule = self.random.choice(RULES)
        self.versions[rule] += 1
        self._save_rule(*rule)


def compare(store: SQLiteStore) -> int:
    """Compare the sums of all rules with the estimates and the sums from all rows. Returns the number of scores."""
    count = 0
    for rule in store.rules(all_versions=True):
        for since, until in (
            (FROM, UNTIL),
            (FROM + HOUR, FROM + 7 * HOUR),
            (FROM + 30 * HOUR, FROM + 30 * HOUR + GRAIN),
        ):
            expected = summarize_rule(store, rule, since_ns=since, until_ns=until)
            for block_s in {150, 3_600, 86_400, (until - since) // 10**9}:
                sums = store.score_sums(
                    rule.name,
                    project=rule.project,
                    version=rule.version,
                    since_ns=since,
                    until_ns=until,
                    block_s=block_s,
                )
                estimates = estimate_sums(one for one in sums if one.label is None)
                _compare_estimates(estimates, expected)
            count += sum(one.n for one in expected)
    for project, name in RULES:
        for by in (None, "tag", "name"):
            for joined in (True, False):
                query = SumsQuery(name, project, FROM, UNTIL, 7_200, by=by, joined=joined)
                with store._file.read() as reader:
                    from_rows = window_sums.sum_rows(reader.db, query)
                _compare_sums(sum_queries.read_sums(store._file, query), from_rows)
                # as a store of two engines computes them
                _compare_sums(weighted_sums.sum_scores(store._traces, store._control, query), from_rows)
    return count


def _compare_estimates(found: list[SampledMean], expected: list[SampledMean]) -> None:
    expected = [replace(one, outside=0) for one in expected]
    empty = SampledMean(key="", mean=None, low=None, high=None, n=0, effective=0.0)
    expected = [one for one in expected if replace(one, key="") != empty]
    assert [one.key for one in found] == [one.key for one in expected], (found, expected)
    for one, other in zip(found, expected, strict=True):
        for name in ("mean", "low", "high", "effective", "unweighted"):
            value = getattr(other, name)
            assert getattr(one, name) == (None if value is None else pytest.approx(value, rel=1e-6, abs=1e-9)), (
                name,
                one,
                other,
            )
        for name in ("n", "unknown", "failed", "skipped", "binary"):
            assert getattr(one, name) == getattr(other, name), (name, one, other)


def _compare_sums(found: list[ScoreSums], expected: list[ScoreSums]) -> None:
    places, wanted_places = (
        [(one.group, one.key, one.label, one.start_ns) for one in sums] for sums in (found, expected)
    )
    assert places == wanted_places, {*places} ^ {*wanted_places}
    for one, other in zip(found, expected, strict=True):
        for name in ScoreSums.__slots__:
            value = getattr(other, name)
            wanted = pytest.approx(value, rel=1e-6, abs=1e-9) if isinstance(value, float) else value
            assert getattr(one, name) == wanted, (name, one, other)
