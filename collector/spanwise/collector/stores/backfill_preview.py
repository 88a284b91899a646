"""Dry run of a backfill: traces of its period that a rule would sample, their cost and the time that they take."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from statistics import fmean

from spanwise.collector.records import Backfill, BackfillPreview, ChangePage, Rule, Target, TraceHead
from spanwise.collector.rule_policy import (
    build_rule_filters,
    find_exclusion_reason,
    get_backfill_rule,
    get_sampling_rate,
    get_sampling_unit,
)
from spanwise.collector.statistics import get_sampling_position
from spanwise.collector.stores.backends import ControlBackend, DecisionQuery

PAGE_TRACES = 1_000
MAX_READ = 100_000  # traces that are read; the numbers of longer periods are extrapolated
MAX_PRICED = 500  # latest results whose mean cost is used
NEWEST = 50  # ids of traces in a preview


def preview_backfill(
    read_heads: Callable[..., ChangePage], control: ControlBackend, rule: Rule, job: Backfill, now_ns: int
) -> BackfillPreview:
    """Return the dry run of a backfill. `read_heads` is `TraceStore.heads`."""
    applied = get_backfill_rule(rule, job)
    filters, is_session = build_rule_filters(applied, applied.settings), rule.target == "session"
    read = matched = 0
    sampled: dict[str, TraceHead] = {}  # by sampling unit: a session counts once
    known: set[Target] = set()
    cursor, is_last = None, False
    while not is_last and read < MAX_READ:
        page = read_heads(
            project=job.project,
            since_ns=job.since_ns,
            until_ns=job.until_ns,
            after=cursor,
            limit=PAGE_TRACES,
            filters=filters,
        )
        cursor, is_last = page.cursor, len(page.heads) < PAGE_TRACES
        read += len(page.heads)
        for head in page.heads:
            is_outside = find_exclusion_reason(applied, head) or (is_session and head.session_id is None)
            if is_outside or not head.passes[0]:
                continue
            matched += 1
            unit = get_sampling_unit(applied, head)
            if get_sampling_position(unit) < get_sampling_rate(applied.settings, head.passes[1:])[0]:
                sampled.setdefault(unit, head)
    targets = {
        unit: Target(session_id=head.session_id, project=rule.project) if is_session else Target(trace_id=head.trace_id)
        for unit, head in sampled.items()
    }
    known = control.find_results(rule, targets.values())
    # beyond the latest traces, the numbers are extrapolated over the period
    reached = job.until_ns if cursor is None else int(cursor.partition(".")[0])
    scale = 1.0 if is_last else (job.until_ns - job.since_ns) / max(1, job.until_ns - reached)
    costs = [
        decision.cost
        for decision in control.list_decisions(
            DecisionQuery(
                rule=rule.name, version=rule.version, project=rule.project, verdict="scored", limit=MAX_PRICED
            )
        )
        if decision.cost is not None
    ]
    preview = BackfillPreview(
        rule=rule.name,
        version=rule.version,
        project=rule.project,
        since_ns=job.since_ns,
        until_ns=job.until_ns,
        sample_rate=job.sample_rate,
        read=round(read * scale),
        matched=round(matched * scale),
        sampled=round(len(sampled) * scale),
        known=round(len(known) * scale),
        exact=is_last,
        usd_per_target=fmean(costs) if costs else None,
        concurrency=rule.settings.concurrency,
        newest=tuple([head.trace_id for unit, head in sampled.items() if targets[unit] not in known][:NEWEST]),
    )
    return replace(preview, seconds_per_target=_find_duration(control, rule))


def _find_duration(control: ControlBackend, rule: Rule) -> float | None:
    """Return the time that the evaluators of a rule take together for one target, as its workers report it."""
    durations = []
    for worker in control.workers():
        by_rule = worker.data.get("evaluators")
        of_rule = by_rule.get(rule.name) if isinstance(by_rule, dict) and worker.project == rule.project else None
        if of_rule and worker.rules.get(rule.name) == rule.version:
            durations.append(sum(float(each.get("mean_s", each.get("p95_s", 0.0))) for each in of_rule.values()))
    return fmean(durations) if durations else None
