"""What monitors keep."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from assay.collector.records._values import JSON, Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """What a monitor evaluates: which evaluators, on which traces, how often, at what cost."""

    name: str
    version: str
    evaluators: tuple[Mapping[str, JSON], ...]
    sample_rate: float = 1.0
    filter: Mapping[str, JSON] = field(default_factory=dict)
    budget: Mapping[str, float] = field(default_factory=dict)  # {"usd_per_day": 5}
    enabled: bool = True
    metadata: Mapping[str, JSON] = field(default_factory=dict)
    created_ns: int = field(default_factory=time.time_ns)


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What a rule did with a trace, and why. One per (trace, rule): a later one replaces it."""

    trace_id: str
    rule: str
    rule_version: str
    verdict: Verdict
    reason: str = ""
    probability: float = 1.0  # inclusion probability: head × rule × stratum
    attempts: int = 0
    cost: float | None = None
    metadata: Mapping[str, JSON] = field(default_factory=dict)
    created_ns: int = field(default_factory=time.time_ns)


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """A named right to do something, held by one process until `expires_ns`."""

    name: str
    holder: str
    expires_ns: int
