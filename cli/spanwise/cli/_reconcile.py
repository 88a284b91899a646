"""What processes say that they have started, against what is here: stored, on disk, dropped, in memory, open."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from spanwise.collector import format
from spanwise.collector.records import OpenRun, Process, ProcessReport
from spanwise.tracer import attributes as names
from spanwise.tracer import spool

FRESH_NS = 60 * 10**9  # a live process whose spans come and go says so every ten seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Balance:
    """The spans of one process. What is not known is None."""

    instance: str
    service: str | None
    project: str
    pid: int | None
    reported_ns: int | None
    started: int | None
    stored: int
    spooled: int | None  # on this machine
    dropped: Mapping[str, int] = field(default_factory=dict)
    pending: int | None = None
    open: int
    unaccounted: int | None
    verdict: str


def balance(process: Process, spooled: int | None, begun: int, now_ns: int | None = None) -> Balance:
    """Set off what there is against what was started; `begun` runs are open as far as the store has heard."""
    report, now = process.report, time.time_ns() if now_ns is None else now_ns
    return Balance(
        instance=process.instance,
        service=process.service,
        project=process.project,
        pid=process.pid,
        reported_ns=report.reported_ns if report else None,
        started=report.started if report else None,
        stored=process.stored,
        spooled=spooled,
        dropped=report.dropped if report else {},
        pending=report.pending if report else None,
        open=report.open if report else begun,
        unaccounted=_unaccounted(process, report, spooled or 0, now) if report else None,
        verdict=_verdict(process, report, spooled or 0, begun, now),
    )


def _unaccounted(process: Process, report: ProcessReport, spooled: int, now: int) -> int:
    """What was in memory of a process that is silent since is there no more: it has come by now, or is lost."""
    pending = report.pending if _is_live(process, now) else 0
    accounted = process.stored + spooled + sum(report.dropped.values()) + report.open + pending
    return max(0, report.started - accounted)


def _is_live(process: Process, now: int) -> bool:
    """By the store's clock: the process's own may be wrong."""
    return now - process.seen_ns < FRESH_NS


def _verdict(process: Process, report: ProcessReport | None, spooled: int, begun: int, now: int) -> str:
    if report is None:
        still = f", {_runs(begun)} open" if begun else ""
        return f"unknown: it ended before its first report, or its SDK makes none; {process.stored:,} stored{still}"
    missing = _unaccounted(process, report, spooled, now)
    told = [_missing(process, report, missing, spooled, now) if missing else "all accounted for"]
    if lost := sum(report.dropped.values()):
        told.append(f"{lost:,} dropped by the process")
    if spooled:
        told.append(f"{spooled:,} wait on this machine's disk")
    if report.open:
        told.append(f"{_runs(report.open)} open at its last report{_perhaps_dead(process, now)}")
    if process.stored + spooled > report.started:
        told.append("more has come since its last report")
    return "; ".join(told)


def _missing(process: Process, report: ProcessReport, missing: int, spooled: int, now: int) -> str:
    reasons = []
    if report.pending and not _is_live(process, now):
        reasons.append(f"{report.pending:,} were in its memory {format.ago(process.seen_ns)}: perhaps it was killed")
    if report.spilled > spooled:
        reasons.append(f"{report.spilled - spooled:,} more were on its machine's disk than are on this one's")
    return f"{missing:,} unaccounted for" + (f" ({', and '.join(reasons)})" if reasons else "")


def _perhaps_dead(process: Process, now: int) -> str:
    if _is_live(process, now):
        return ""
    return f", {format.ago(process.seen_ns)}: they run, or ended with the process; what it began since, nobody knows"


def _runs(count: int) -> str:
    return "1 run" if count == 1 else f"{count:,} runs"


def by_process(runs: Sequence[OpenRun]) -> Counter[str]:
    """How many runs are open, by process."""
    return Counter(run.instance for run in runs if run.instance is not None)


def spooled_by_process() -> Counter[str] | None:
    """How many spans wait on this machine's disk, by process; None where nothing is kept there, or it is not for us."""
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest as Request

    place = spool.place()
    if place is None or (place.exists() and not os.access(place, os.R_OK | os.X_OK)):
        return None
    counts = Counter[str]()
    for folder in spool.waiting(place):
        for body in spool.spans(folder.folder):
            for group in Request.FromString(body).resource_spans:
                known = {pair.key: pair.value.string_value for pair in group.resource.attributes}
                counts[known.get(names.INSTANCE, "")] += sum(len(part.spans) for part in group.scope_spans)
    return counts
