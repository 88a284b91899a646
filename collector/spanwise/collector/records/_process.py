"""Processes that send spans, and what they say of all of theirs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessReport:
    """What has become of all spans of a process since its start, as it said at `reported_ns`; later ones say more."""

    instance: str  # `service.instance.id`, which no two processes share
    reported_ns: int
    started: int = 0
    open: int = 0
    delivered: int = 0  # answered for by a collector
    spilled: int = 0  # on disk, to be sent later
    pending: int = 0  # ended, and in memory
    dropped: Mapping[str, int] = field(default_factory=dict)  # by reason
    pid: int | None = None
    service: str | None = None
    project: str = "default"
    environment: str = "default"


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """A process as a store knows it. Without a report it ended before its first, or its SDK makes none."""

    instance: str
    stored: int  # spans of it that were ever kept here, each once, deleted ones among them
    seen_ns: int  # when spans or a report of it were kept last
    service: str | None
    project: str
    environment: str
    pid: int | None
    report: ProcessReport | None
