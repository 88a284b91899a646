"""Backfill records: jobs that score the traces of a past period by a rule."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from spanwise.collector.records.control_records import Stratum
from spanwise.collector.records.json_values import JSON, BackfillState


@dataclass(frozen=True, slots=True, kw_only=True)
class Backfill:
    """Job that scores the traces of a past period by one version of a rule.

    It covers the traces that started in [`since_ns`, `until_ns`), latest first. Version, filter, rate and strata are
    those of the rule when the job was started. `budget` has the limits of a rule's budget for this job alone; without
    limits the job shares the budget of its rule.

    `read` traces were compared with the filter so far, `matched` pass it, and `sampled` are in the job's sample.
    `known` targets had a result of this version before, and are not scored again. `counts` has the number of the
    job's own targets by verdict. `cost` is the cost of their judges in US dollars.

    A job that runs may be unable to continue: `blocked` is the reason, such as a newer version of the rule.
    """

    id: str
    rule: str
    version: str
    since_ns: int
    until_ns: int
    project: str = "default"
    filter: Mapping[str, JSON] = field(default_factory=dict)
    sample_rate: float = 1.0
    strata: tuple[Stratum, ...] = ()
    budget: Mapping[str, float] = field(default_factory=dict)
    state: BackfillState = "running"
    blocked: str | None = None
    cursor: str | None = None  # position in the range; None: nothing was read
    walked: bool = False  # True: the whole range was read
    read: int = 0
    matched: int = 0
    sampled: int = 0
    known: int = 0
    counts: Mapping[str, int] = field(default_factory=dict)
    cost: float = 0.0
    created_ns: int = field(default_factory=time.time_ns)
    ended_ns: int | None = None

    @property
    def waiting(self) -> int:
        """Return the number of targets that wait for a worker or are being evaluated."""
        return sum(self.counts.get(verdict, 0) for verdict in ("waiting", "throttled", "over_budget", "running"))

    @property
    def share(self) -> float:
        """Return the share of the period that was read, from 0 to 1."""
        if self.walked:
            return 1.0
        reached = self.until_ns if self.cursor is None else int(self.cursor.partition(".")[0])
        return min(1.0, max(0.0, (self.until_ns - reached) / max(1, self.until_ns - self.since_ns)))


@dataclass(frozen=True, slots=True, kw_only=True)
class BackfillPreview:
    """Dry run of a backfill: `matched` of the `read` traces of its period pass the filter, and `sampled` are in its
    sample. `known` of these have a result of the version and are not scored again.

    If the period has more than 100,000 traces, the numbers are extrapolated from the latest, and `exact` is False.
    `usd_per_target` is the mean cost of the latest results of the version, and `seconds_per_target` the time that its
    evaluators took, as the workers report. Both are None if unknown. `newest` has the latest traces to be scored.
    """

    rule: str
    version: str
    since_ns: int
    until_ns: int
    project: str = "default"
    sample_rate: float = 1.0
    read: int = 0
    matched: int = 0
    sampled: int = 0
    known: int = 0
    exact: bool = True
    usd_per_target: float | None = None
    seconds_per_target: float | None = None
    concurrency: int = 1
    newest: tuple[str, ...] = ()

    @property
    def scored(self) -> int:
        """Return the number of traces that the backfill would score."""
        return self.sampled - self.known

    @property
    def usd(self) -> float | None:
        """Return the cost in US dollars, for one target per trace."""
        return None if self.usd_per_target is None else self.scored * self.usd_per_target

    @property
    def seconds(self) -> float | None:
        """Return the duration at the rule's concurrency, for one target per trace."""
        return None if self.seconds_per_target is None else self.scored * self.seconds_per_target / self.concurrency
