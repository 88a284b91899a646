"""Do weighted means over a rule's decisions recover the mean of all traffic? Simulated, seeded, with the real monitor.

Traffic of which the mean is known comes in blocks into a SQLite store; the monitor follows its feed, decides, scores,
finishes. The traces of a block start in one hour. Then the weighted chart is read, with a point per hour: its interval
holds the known mean or not. Each point must equal the summary of the rule over the same hour.
`python benchmarks/monitor_estimates.py [--blocks 500]` prints a Markdown table; `tests/evaluators/test_monitor_estimates.py`
runs it with fewer blocks.

- rate: the sample rate goes from 1.0 to 0.1 while traffic comes in.
- votes: one in ten is sampled, each thumbs-down; the votes come when everything has been decided and scored.
- head: the application's own tracer sends a quarter of its traces, and of the others those with an error.
- paced: a budget lowers the rate more and more over a day on which the answers get worse.
- all: the last three together.
- sessions: all is scored; five traces in a row are turns of one session, whose shares of good answers differ.
"""

from __future__ import annotations

import argparse
import random
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from math import isclose
from pathlib import Path
from typing import Any

from spanwise.collector.records import (
    Feedback,
    Rule,
    RuleSettings,
    Run,
    Stratum,
    Target,
    WeightedScore,
    iterate_pages,
)
from spanwise.collector.statistics import SampledMean, estimate_means
from spanwise.collector.stores import Store, estimate_over_time
from spanwise.collector.stores.sqlite import SQLiteStore
from spanwise.evaluators.monitors import Monitor, monitor
from spanwise.tracer import attribute_names

NAME, AT_ONCE = "simulated", 1_000
HOUR_NS = 3_600 * 10**9
FIRST_NS = 490_000 * HOUR_NS  # start of the first block's hour
MEAN = 0.85  # share of good answers, before it gets worse
DOWN = Stratum(filter={"feedback": [["thumbs_up", "=", 0.0]]}, rate=1.0)
THRESHOLDS = {1.0: "0", 0.5: "8", 0.25: "c"}  # of head sampling, in the tracestate


@dataclass(frozen=True)
class Scenario:
    """`settings` are in force one after the other, each for an equal part of the traffic."""

    name: str
    settings: tuple[RuleSettings, ...]
    votes: bool = False
    head: float = 1.0
    worse: float = 0.0  # how much lower the mean is at the end than at the beginning
    turns: int = 1  # traces of one session

    @property
    def mean(self) -> float:
        """The known one: of the population that all answers come from."""
        return MEAN - self.worse / 2


PACED = tuple(RuleSettings(sample_rate=0.5, paced=paced) for paced in (1.0, 0.7, 0.45, 0.3, 0.2))
SCENARIOS = (
    Scenario("rate", (RuleSettings(), *(RuleSettings(sample_rate=0.1),) * 3)),
    Scenario("votes", (RuleSettings(sample_rate=0.1, strata=(DOWN,)),), votes=True),
    Scenario("head", (RuleSettings(sample_rate=0.5),), head=0.25),
    Scenario("paced", PACED, worse=0.4),
    Scenario("all", tuple(replace(one, strata=(DOWN,)) for one in PACED), votes=True, head=0.5, worse=0.4),
    Scenario("sessions", (RuleSettings(),), turns=5),
)
ALIKE = 2.0  # how alike the turns of a session are: its share of good answers is drawn from Beta(mean·2, (1 − mean)·2)


@dataclass
class Traffic:
    """Traces whose answers are good or bad; bad ones fail, and are voted down, more often."""

    scenario: Scenario
    random: random.Random
    good: dict[str, bool] = field(default_factory=dict)  # those that came to the store

    def runs(self, block: int, part: int, count: int) -> Iterator[Run]:
        """Those of a block's traces in one part of the day that the head lets through."""
        mean = MEAN - self.scenario.worse * part / max(1, len(self.scenario.settings) - 1)
        share, session = mean, None
        for turn in range(count):
            if self.scenario.turns > 1 and turn % self.scenario.turns == 0:
                share, session = self.random.betavariate(mean * ALIKE, (1 - mean) * ALIKE), f"{block}/{part}/{turn}"
            good = self.random.random() < share
            failed = self.random.random() < (0.02 if good else 0.4)
            sampled = self.random.random() < self.scenario.head
            id = f"{block:08x}{self.random.getrandbits(96):024x}"
            start_ns = FIRST_NS + block * HOUR_NS + int((part + turn / count) / len(self.scenario.settings) * HOUR_NS)
            if sampled or failed:
                self.good[id] = good
                yield replace(_run(id, good, self.scenario.head, sampled, start_ns), session_id=session)

    def votes(self) -> Iterator[Feedback]:
        """People's."""
        for id, good in self.good.items():
            if self.random.random() < (0.05 if good else 0.6):
                yield Feedback(target=Target(trace_id=id), key="thumbs_up", score=False, source="human")


def _run(id: str, good: bool, head: float, sampled: bool, start_ns: int) -> Run:
    """A whole trace of our own tracer; an error in it would be that of a call that it survived."""
    said: dict[str, Any] = {
        attribute_names.LOCAL_ROOT: id[:16],
        attribute_names.SPANS_STARTED: 1,
        attribute_names.SPANS_OPEN: 0,
    }
    if sampled:
        said["otel.trace_state"] = f"ot=th:{THRESHOLDS[head]}"
    else:  # kept for its error alone
        said |= {"otel.trace_state": "ot=th:0", attribute_names.PARTIAL: True}
    return Run(
        trace_id=id,
        span_id=id[:16],
        name="answer",
        start_ns=start_ns,
        end_ns=start_ns,
        outputs="good" if good else "bad",
        attributes=said,
    )


class Clock:
    """Time as the monitor measures it."""

    def __init__(self) -> None:
        self.ahead = 0.0

    def __call__(self) -> float:
        return time.monotonic() + self.ahead


def good(outputs: str) -> bool:
    """What the rule's evaluator finds."""
    return outputs == "good"


@dataclass(frozen=True)
class Row:
    """What came of a scenario: how often the interval held the mean, how far the means were off on average."""

    scenario: str
    held: float
    bias: float
    plain: float  # bias of the mean without weights
    width: float
    n: float


def simulate(scenario: Scenario, blocks: int, size: int = 600, seed: int = 1) -> Row:
    """All blocks of one scenario, side by side in one store."""
    traffic = Traffic(scenario, random.Random(seed))
    with tempfile.TemporaryDirectory() as folder, SQLiteStore(Path(folder) / "spanwise.db") as store:
        rule = monitor(NAME, evaluators=[good])
        store.save_rule(rule.record)
        clock = Clock()
        watching = Monitor(store, [rule], now=clock)
        for part, settings in enumerate(scenario.settings):
            store.change_rule(NAME, settings=settings)
            runs = (run for block in range(blocks) for run in traffic.runs(block, part, size // len(scenario.settings)))
            for some in _slices(runs):
                store.append(some)
            _catch_up(watching, store, clock)
        if scenario.votes:
            for votes in _slices(traffic.votes()):
                store.add_feedback(votes)
            _catch_up(watching, store, clock)
        watching.close()
        return _row(scenario, store, rule.record, blocks)


def _catch_up(watching: Monitor, store: Store, clock: Clock) -> None:
    while watching.step() or store.status()[0].behind:
        clock.ahead += 5.0  # whatever the monitor would wait for has come


def _slices(items: Iterable[Any]) -> Iterator[Sequence[Any]]:
    rest = iter(items)
    while some := list(islice(rest, AT_ONCE)):
        yield some


def _row(scenario: Scenario, store: Store, rule: Rule, blocks: int) -> Row:
    by_block: dict[int, list[WeightedScore]] = {}
    for score in iterate_pages(partial(store.weighted, NAME)):
        by_block.setdefault((score.start_ns - FIRST_NS) // HOUR_NS, []).append(score)
    plain = [sum(float(one.score or 0) for one in some) / len(some) for some in by_block.values()]
    window = {"since_ns": FIRST_NS, "until_ns": FIRST_NS + blocks * HOUR_NS, "bucket_ns": HOUR_NS}
    means = []
    for point in estimate_over_time(store, rule, **window):
        [summary] = estimate_means(by_block[(point.start_ns - FIRST_NS) // HOUR_NS])
        mean = point.estimate
        assert isinstance(mean, SampledMean)
        assert isclose(mean.mean or 0, summary.mean or 0), (mean, summary)
        assert isclose(mean.low or 0, summary.low or 0, rel_tol=1e-6), (mean, summary)
        assert isclose(mean.high or 0, summary.high or 0, rel_tol=1e-6), (mean, summary)
        means.append(mean)
    held = [mean.low is not None and mean.low <= scenario.mean <= (mean.high or 0) for mean in means]
    return Row(
        scenario.name,
        sum(held) / len(held),
        sum(mean.mean or 0 for mean in means) / len(means) - scenario.mean,
        sum(plain) / len(plain) - scenario.mean,
        sum((mean.high or 0) - (mean.low or 0) for mean in means) / len(means),
        sum(mean.n for mean in means) / len(means),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--blocks", type=int, default=500)
    parser.add_argument("--size", type=int, default=600, help="traces of a block")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    print("| scenario | interval holds the mean | bias | without weights | width | scores of a block |")
    print("|---|---|---|---|---|---|")
    for scenario in SCENARIOS:
        row = simulate(scenario, arguments.blocks, arguments.size, arguments.seed)
        print(
            f"| {row.scenario} | {row.held:.1%} | {row.bias:+.4f} | {row.plain:+.4f} | {row.width:.3f} | {row.n:.0f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
