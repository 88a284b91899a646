"""Spend of rules on judge calls: chart over time, table by rule, evaluator, model or project, and budgets."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import NamedTuple

from starlette.requests import Request
from starlette.responses import Response

from spanwise.collector.diagnostics import rule_report
from spanwise.collector.errors import Refused
from spanwise.collector.pages.components import rendering
from spanwise.collector.pages.components.svg_charts import TIME_CHART_WIDTH, Slot, TimeChart, choose_axis, make_bars
from spanwise.collector.records import Spend, SpendGroup
from spanwise.collector.stores import Store

_HOUR_NS = 3_600_000_000_000
MAX_GROUPS = 50  # rows of the table
TICKS = 4  # intervals of the time axis between two labels
# Fields by which the table groups, with the fields that identify a group
GROUPS: Mapping[str, tuple[SpendGroup, ...]] = {
    "rule": ("project", "rule"),
    "evaluator": ("evaluator",),
    "model": ("model",),
    "project": ("project",),
}


class Range(NamedTuple):
    """Time range of the page: its label, its length and the length of a bar in hours."""

    label: str
    hours: int
    bar: int


RANGES: Mapping[str, Range] = {
    "24h": Range("24 hours", 24, 1),
    "7d": Range("7 days", 168, 24),
    "30d": Range("30 days", 720, 24),
    "90d": Range("90 days", 2160, 24),
    "365d": Range("12 months", 8760, 24),
}
DEFAULT_RANGE = "30d"


@dataclass(frozen=True, slots=True)
class SpendReport:
    """Spend in a time range: one total per bar, and one row per group, the largest first.

    The bars of `charts` are drawn over each other: settled, reserved and unknown; settled and reserved; settled.
    """

    period: str
    buckets: Sequence[Spend]
    groups: Sequence[Spend]
    group_count: int
    total: Spend
    charts: Sequence[TimeChart]
    slots: Sequence[Slot]

    @property
    def hourly(self) -> bool:
        """Return whether a bar is an hour, not a day."""
        return RANGES[self.period].bar == 1

    def label(self, start_ns: int) -> str:
        """Format the start of a bar in UTC, as "27 Nov" or "27 Nov 14:00"."""
        start = datetime.fromtimestamp(start_ns // 10**9, UTC)
        return f"{start.day} {start:%b %H:%M}" if self.hourly else f"{start.day} {start:%b}"

    @property
    def ticks(self) -> list[int]:
        """Return the times on the time axis."""
        last = len(self.buckets) - 1
        return [self.buckets[round(number * last / TICKS)].start_ns for number in range(TICKS + 1)]


def read_spend(
    store: Store,
    *,
    group: Sequence[SpendGroup],
    period: str = DEFAULT_RANGE,
    project: str | None = None,
    rule: str | None = None,
) -> SpendReport:
    """Return the spend of a time range up to now. Bars of a day are days in UTC, as the periods of budgets are."""
    width = RANGES[period].bar * _HOUR_NS
    last = time.time_ns() // width * width
    first = last - (RANGES[period].hours // RANGES[period].bar - 1) * width
    found = store.spend(bucket_ns=width, project=project, rule=rule, since_ns=first)
    by_start = {bucket.start_ns: bucket for bucket in found}
    starts = [first + number * width for number in range((last - first) // width + 1)]
    buckets = [by_start.get(start, Spend(start_ns=start)) for start in starts]
    groups = store.spend(by=group, project=project, rule=rule, since_ns=first)
    groups = sorted(groups, key=lambda each: each.total, reverse=True)
    slot = TIME_CHART_WIDTH / len(buckets)
    slots = [Slot(number * slot, slot) for number in range(len(buckets))]
    axis = choose_axis(0.0, max(bucket.total for bucket in buckets))
    layers = (
        [bucket.total for bucket in buckets],
        [bucket.settled + bucket.reserved for bucket in buckets],
        [bucket.settled for bucket in buckets],
    )
    return SpendReport(
        period=period,
        buckets=buckets,
        groups=groups[:MAX_GROUPS],
        group_count=len(groups),
        total=Spend(
            start_ns=first,
            settled=sum(bucket.settled for bucket in buckets),
            reserved=sum(bucket.reserved for bucket in buckets),
            unknown=sum(bucket.unknown for bucket in buckets),
            unpriced=sum(bucket.unpriced for bucket in buckets),
        ),
        charts=[make_bars(slots, layer, axis) for layer in layers],
        slots=slots,
    )


def spend(store: Store, request: Request) -> Response:
    """Render the spend: `GET /spend?project=&rule=&by=&since=`."""
    query = request.query_params
    project, rule = query.get("project") or None, query.get("rule") or None
    group, since = query.get("by") or "rule", query.get("since") or DEFAULT_RANGE
    for name, value, expected in (("by", group, GROUPS), ("since", since, RANGES)):
        if value not in expected:
            raise Refused(f"unknown value {value[:100]!r} of {name!r}; expected one of: {', '.join(expected)}")
    statuses = [status for status in store.status(project=project) if rule in (None, status.rule.name)]
    return rendering.render_page(
        request,
        "spend.html",
        report=read_spend(store, group=GROUPS[group], period=since, project=project, rule=rule),
        budgets=[(status.rule, rule_report.spending(status.rule, status.booked)) for status in statuses],
        group=group,
        groups=tuple(GROUPS),
        ranges=RANGES,
        project=project,
        rule=rule,
        rules=sorted({status.rule.name for status in statuses}),
        chart_width=TIME_CHART_WIDTH,
    )
