"""Do weighted means over a rule's decisions recover the mean of all traffic? Simulated, seeded, through a real store.

Traffic of which the mean is known comes in blocks; a rule decides on it as a monitor does, by the store's feed and its
`decide`, `claim`, `finish`; then each block's scores are read with `weighted`, and its interval holds the known mean or
not. `python benchmarks/monitor_estimates.py [--blocks 1000]` prints a Markdown table; in the short form
`tests/collector/test_estimates_in_store.py` runs the same.

- rate: the sample rate goes from 1.0 to 0.1 while traffic comes in.
- votes: one in ten is sampled, each thumbs-down; the votes come when everything has been decided and scored.
- head: the application's own tracer sends a quarter of its traces, and of the others those with an error.
- paced: a budget lowers the rate more and more over a day on which the answers get worse.
- all: all of these together.
"""

from __future__ import annotations

import argparse
import random
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any

from assay.collector.records import (
    Claim,
    Decided,
    Decision,
    Feedback,
    Finish,
    Head,
    Rule,
    RuleSettings,
    Run,
    Stratum,
    Target,
    WeightedScore,
    feedback_id,
    paged,
)
from assay.collector.rules import filters_of, rate_of
from assay.collector.statistics import sampled_means, u
from assay.collector.stores import Store
from assay.collector.stores.sqlite import SQLiteStore
from assay.tracer import attributes

KEY, HOLDER = "good", "simulation"
AT_ONCE = 1_000
DOWN = Stratum(filter={"feedback": [["thumbs_up", "=", 0.0]]}, rate=1.0)


@dataclass(frozen=True)
class Scenario:
    """`settings` are in force one after the other, each for an equal part of the traffic."""

    name: str
    settings: tuple[RuleSettings, ...]
    votes: bool = False
    head: float = 1.0
    worse: float = 0.0  # how much lower the mean is at the end than at the beginning


PACED = tuple(RuleSettings(sample_rate=0.5, paced=paced) for paced in (1.0, 0.7, 0.45, 0.3, 0.2))
SCENARIOS = (
    Scenario("rate", (RuleSettings(), *(RuleSettings(sample_rate=0.1),) * 3)),
    Scenario("votes", (RuleSettings(sample_rate=0.1, strata=(DOWN,)),), votes=True),
    Scenario("head", (RuleSettings(sample_rate=0.5),), head=0.25),
    Scenario("paced", PACED, worse=0.4),
    Scenario("all", tuple(replace(one, strata=(DOWN,)) for one in PACED), votes=True, head=0.5, worse=0.4),
)


@dataclass
class Traffic:
    """Traces whose answers are good or not, by trace id, of which some come to the store."""

    random: random.Random
    scenario: Scenario
    good: dict[str, bool] = field(default_factory=dict)

    def runs(self, block: int, part: int, count: int) -> Iterator[Run]:
        """Those that the head lets through, of a block's traces in one part of the day."""
        parts = len(self.scenario.settings)
        mean = 0.85 - self.scenario.worse * part / max(1, parts - 1)
        for _ in range(count):
            good = self.random.random() < mean
            failed = self.random.random() < (0.02 if good else 0.4)
            sampled = self.random.random() < self.scenario.head
            id = f"{block:08x}{self.random.getrandbits(96):024x}"
            self.good[id] = good
            if sampled or failed:
                yield _run(id, failed, None if sampled else True, self.scenario.head)

    def votes(self, stored: Iterable[str]) -> Iterator[Feedback]:
        """People's, on some of the answers, rather on bad ones."""
        for id in stored:
            if self.random.random() < (0.05 if self.good[id] else 0.6):
                yield Feedback(target=Target(trace_id=id), key="thumbs_up", score=False, source="human")

    @property
    def mean(self) -> float:
        """The known one: of the population from which all answers come."""
        parts = len(self.scenario.settings)
        return 0.85 - (self.scenario.worse / 2 if parts > 1 else 0)


def _run(id: str, failed: bool, partial: bool | None, head: float) -> Run:
    said = {attributes.LOCAL_ROOT: True, attributes.SAMPLE_RATE: head}
    if partial:  # kept by the head for its error alone
        said = {attributes.LOCAL_ROOT: True, attributes.PARTIAL: True, "otel.trace_state": "ot=th:0"}
    now = time.time_ns()
    status: Any = "error" if failed else "ok"
    return Run(trace_id=id, span_id=id[:16], name="answer", start_ns=now, end_ns=now, status=status, attributes=said)


class Deciding:
    """A monitor without waiting, threads and processes: what is decided, and what is kept of it, is as with one."""

    def __init__(self, store: Store, traffic: Traffic) -> None:
        self._store, self._good = store, traffic.good
        self._rule = Rule(name="simulated", version="1", evaluators=({"key": KEY},))
        self._read: str | None = None  # up to where the feed was read
        self._kept: str | None = None  # the rule's cursor

    def set(self, settings: RuleSettings) -> None:
        """Put settings in force for what changes from now on."""
        if self._read is None:
            self._store.save_rule(replace(self._rule, settings=settings))
            self._read = self._store.changes().cursor
        else:
            self._store.change_rule(self._rule.name, settings=settings)
        self._settings = settings

    def follow(self) -> None:
        """Decide on all that has changed, and score what is taken."""
        own, *strata = filters_of(self._rule, self._settings)
        while (changes := self._store.changes(self._read, limit=AT_ONCE, filters=[own, *strata])).heads:
            rows = tuple(map(self._decided, changes.heads))
            decided = Decided(
                project="default",
                rule=self._rule.name,
                version="1",
                after=self._kept,
                upto=changes.cursor,
                rows=rows,
            )
            assert self._store.decide(decided) == [True]
            self._read = self._kept = changes.cursor
        while taken := self._store.claim(self._rule.name, "1", HOLDER, 60, limit=AT_ONCE):
            self._store.finish(*map(self._scored, taken))

    def _decided(self, head: Head) -> Decision:
        rate, stratum = rate_of(self._settings, head.passes[1:])
        at = u(head.trace_id)
        taken = at < rate
        return Decision(
            rule=self._rule.name,
            version="1",
            target=Target(trace_id=head.trace_id),
            verdict="waiting" if taken else "sampled_out",
            probability=_probability(head, rate) if taken else 0.0,
            u=at,
            rate=rate,
            stratum=stratum,
            change=head.change,
            runs_change=head.runs_change,
        )

    def _scored(self, decision: Decision) -> Finish:
        assert decision.target.trace_id is not None
        claim = Claim(project="default", rule=decision.rule, version="1", target=decision.target, number=decision.claim)
        feedback = Feedback(
            target=decision.target,
            key=KEY,
            score=self._good[decision.target.trace_id],
            rule=decision.rule,
            evaluator=KEY,
            claim=decision.claim,
        )
        return Finish(
            claim=claim,
            verdict="scored",
            states={KEY: {"state": "scored"}},
            reported=(KEY,),
            feedback=(feedback,),
            read_change=decision.runs_change,
        )


def _probability(head: Head, rate: float) -> float | None:
    """What was kept for its error alone stands for nobody: those errors that were sampled stand for it."""
    if head.partial:
        return 0.0
    return None if head.probability is None else head.probability * rate


@dataclass(frozen=True)
class Row:
    """What came of a scenario: how often the interval held the mean, how far the means were off on average."""

    scenario: str
    held: float
    bias: float
    plain: float  # bias of the mean without weights
    width: float
    n: float


def simulate(scenario: Scenario, blocks: int, size: int, seed: int = 1) -> Row:
    """All blocks of one scenario, side by side in one store."""
    traffic = Traffic(random.Random(seed), scenario)
    with tempfile.TemporaryDirectory() as folder, SQLiteStore(Path(folder) / "assay.db") as store:
        deciding = Deciding(store, traffic)
        stored: list[str] = []
        for part, settings in enumerate(scenario.settings):
            deciding.set(settings)
            runs = (run for block in range(blocks) for run in traffic.runs(block, part, size // len(scenario.settings)))
            for some in _slices(runs):
                store.append(some)
                stored += [run.trace_id for run in some]
            deciding.follow()
        if scenario.votes:
            for votes in _slices(traffic.votes(stored)):
                store.add_feedback(votes)
            deciding.follow()
        return _row(scenario, traffic, list(paged(lambda cursor: store.weighted("simulated", cursor=cursor))))


def _slices(items: Iterable[Any]) -> Iterator[Sequence[Any]]:
    rest = iter(items)
    while some := list(islice(rest, AT_ONCE)):
        yield some


def _row(scenario: Scenario, traffic: Traffic, scores: Sequence[WeightedScore]) -> Row:
    by_block: dict[str, list[WeightedScore]] = {}
    for score in scores:
        by_block.setdefault(str(score.trace_id)[:8], []).append(score)
    means = [sampled_means(some)[0] for some in by_block.values()]
    plain = [sum(float(one.score or 0) for one in some) / len(some) for some in by_block.values()]
    held = [mean.low is not None and mean.low <= traffic.mean <= (mean.high or 0) for mean in means]
    return Row(
        scenario.name,
        sum(held) / len(held),
        sum(mean.mean or 0 for mean in means) / len(means) - traffic.mean,
        sum(plain) / len(plain) - traffic.mean,
        sum((mean.high or 0) - (mean.low or 0) for mean in means) / len(means),
        sum(mean.n for mean in means) / len(means),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--blocks", type=int, default=1_000)
    parser.add_argument("--size", type=int, default=600, help="traces of a block")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    print(
        "| scenario | interval holds the mean | bias | bias without weights | width | scores |\n|---|---|---|---|---|---|"
    )
    for scenario in SCENARIOS:
        row = simulate(scenario, arguments.blocks, arguments.size, arguments.seed)
        print(
            f"| {row.scenario} | {row.held:.1%} | {row.bias:+.4f} | {row.plain:+.4f} | {row.width:.3f} | {row.n:.0f} |"
        )


if __name__ == "__main__":
    main()
