"""Why a rule cannot run now: one reason for `why`, `check`, `status` and the page of the rule."""

from __future__ import annotations

from collections.abc import Iterable

from spanwise.collector.records import Rule, WorkerReport

SILENT_NS = 60_000_000_000  # a worker that has reported nothing for so long is taken for gone


def blocked(rule: Rule, workers: Iterable[WorkerReport], now_ns: int) -> str | None:
    """Return why a rule cannot run; None where some worker runs it."""
    if not rule.enabled:
        return "the rule is paused"
    living = [worker for worker in workers if now_ns - worker.seen_ns < SILENT_NS]
    serving = [worker for worker in living if worker.project == rule.project and rule.name in worker.rules]
    running = [worker for worker in serving if worker.rules[rule.name] == rule.version]
    if not running:
        broken = next((said for worker in living if (said := broken_file(rule, worker))), None)
        other = "running workers have another version of this rule" if serving else "no worker runs this rule"
        return broken or other
    reasons = [idle(worker, rule.name) for worker in running]
    return reasons[0] if all(reasons) else None


def broken_file(rule: Rule, worker: WorkerReport) -> str | None:
    """Return why the rule's file does not load, where a worker has reported that."""
    said = worker.data.get("broken")
    return f"its file does not load: {said}" if said and worker.data.get("file") == rule.owner else None


def idle(worker: WorkerReport, rule: str) -> str | None:
    """Return why a worker does nothing for a rule."""
    reasons = worker.data.get("idle")
    return str(reasons[rule]) if isinstance(reasons, dict) and reasons.get(rule) else None
