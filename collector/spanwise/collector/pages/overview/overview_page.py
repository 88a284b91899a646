"""Overview page: time range, aggregates, charts and groups."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta, tzinfo
from functools import partial
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from spanwise.collector.errors import Refused
from spanwise.collector.filters import Filter
from spanwise.collector.pages.components import filter_form, preferences, rendering, svg_charts
from spanwise.collector.pages.components.filter_form import FilterQuery
from spanwise.collector.pages.components.svg_charts import (
    TIME_CHART_WIDTH,
    Slot,
    TimeChart,
    choose_axis,
    make_bands,
    make_bars,
    make_dots,
    make_lines,
)
from spanwise.collector.pages.overview.bucket_measures import (
    COST,
    ERRORS,
    MEASURES,
    P50,
    P95,
    P99,
    TOKENS,
    TRACES,
    Change,
    Measure,
    MeasuredBucket,
    find_changes,
    get_extent,
    list_feedback_measures,
)
from spanwise.collector.records import Bucket
from spanwise.collector.stores import Store

_PARAMETERS = frozenset(("project", "environment", "since", "until", "group", "key"))
RANGES: Mapping[str, tuple[str, int]] = {  # time ranges of the form: label, and length in hours
    "1h": ("hour", 1),
    "24h": ("24 hours", 24),
    "7d": ("7 days", 7 * 24),
    "30d": ("30 days", 30 * 24),
}
# By name in the address: label, field of `aggregate`, and the conditions that select a group
GROUPS: Mapping[str, tuple[str, str, Callable[[str], Sequence[tuple[str, str]]]]] = {
    "project": ("project", "project", lambda group: [("project", group)]),
    "environment": ("environment", "environment", lambda group: [("environment", group)]),
    "name": ("name", "name", lambda group: [("name", group)]),
    "model": ("model", "model", lambda group: [("model", group)]),
    "tag": ("tag", "tag", lambda group: [("tags", group)]),
    "user": ("user", "user", lambda group: [("user", group)]),
    "version": ("version", "version", lambda group: [("version", group)]),
    "prompt": ("prompt version", "prompt_version", lambda group: select_prompt(group)),
}
MAX_KEY_CHARTS = 8
MAX_GROUPS = 12
MAX_KEYS_OF_GROUP = 3
MAX_COUNTED_TRACES = 30_000  # newest traces that are counted if rollups do not apply; takes about 0.1 s
MAX_GROUPED_TRACES = 10_000  # the same for groups, which take three aggregates
_HOUR_NS, _SECOND_NS = 3_600 * 10**9, 10**9


def select_prompt(group: str) -> list[tuple[str, str]]:
    """Return the conditions that select the group `name@version` of a prompt."""
    prompt, at, version = group.rpartition("@")
    return [("prompt", prompt), ("prompt_version", version)] if at else [("prompt", group)]


@dataclass(frozen=True, slots=True)
class Period:
    """Time range of the page, and the length of the period before, which ends where this one begins."""

    since_ns: int
    until_ns: int
    range: str  # one of `RANGES`, or "" for other times

    @property
    def before_ns(self) -> int:
        """Return the start of the period before."""
        return max(self.since_ns - (self.until_ns - self.since_ns), -(2**63), 0 if self.since_ns >= 0 else -(2**63))

    @property
    def label_before(self) -> str:
        """Return the name of the period before."""
        return f"{RANGES[self.range][0]} before" if self.range else "period before"


@dataclass(frozen=True, slots=True)
class Interval:
    """Bucket of the charts: its place on the axis, what tooltips call it, and the address of its traces."""

    slot: Slot
    start_ns: int
    label: str
    address: str
    at: MeasuredBucket


@dataclass(frozen=True, slots=True)
class Panel:
    """Chart of one or several measures, with their values in the whole period."""

    title: str
    measures: Sequence[Measure]
    chart: TimeChart


@dataclass(frozen=True, slots=True)
class GroupRow:
    """Numbers of one group, and its chart. `before` is empty if the group had no traces, or too many to count."""

    name: str
    conditions: Sequence[tuple[str, str]]  # () for traces without a value, which no filter selects
    now: MeasuredBucket
    before: MeasuredBucket
    charts: Sequence[TimeChart]
    keys: Sequence[Measure]


@dataclass(frozen=True, slots=True)
class GroupTable:
    """The groups with the most traces."""

    rows: Sequence[GroupRow]
    count: int
    newest: int | None  # number of traces that were counted; None if all were


def overview(store: Store, request: Request) -> Response:
    """Render the overview: `GET /`.

    The trace list had this address before. A query that has other conditions redirects there.
    """
    params = request.query_params.multi_items()
    if any(name not in _PARAMETERS for name, _ in params):
        return RedirectResponse(f"{filter_form.TRACE_LIST}?{request.url.query}", headers=rendering.SECURITY_HEADERS)
    zone = preferences.read_preferences(request).time_zone
    fields = {name: text for name, text in params if text.strip()}
    if fields.get("since") in RANGES:  # "until" belongs to a range that was chosen before
        params = [item for item in params if item[0] != "until"]
    query = filter_form.read_query(params, others=("group", "key"), zone=zone)
    problems = list(query.problems)
    if "group" in fields and fields["group"] not in GROUPS:
        problems.append(f"unknown group {fields['group'][:100]!r}; expected one of: {', '.join(GROUPS)}")
    latest = next(iter(store.traces(replace(query.filter, since_ns=None, until_ns=None), limit=1)), None)
    period = choose_period(query.filter, fields.get("since", ""), latest.start_ns if latest else None)
    page = Overview(store, query, period, zone, fields)
    return rendering.render_page(
        request,
        "overview.html",
        status=422 if problems else 200,
        page=page,
        fields=fields,
        period=period,
        problems=problems,
        latest=latest,
        chart_width=TIME_CHART_WIDTH,
        table_measures=MEASURES,
        ranges_of_page={name: label for name, (label, _) in RANGES.items()},
        groups_of_page={name: label for name, (label, *_) in GROUPS.items()},
        environments=store.values("environment"),
        empty=latest is None and not store.traces(limit=1).items,
    )


def choose_period(filter: Filter, since: str, latest_ns: int | None) -> Period:
    """Return the time range: the requested one, else the shortest of `RANGES` from a day on that has traces.

    Ranges of a day and more begin with a full hour, which rollups count. All others have whole seconds.
    """
    now = -(-time.time_ns() // _SECOND_NS) * _SECOND_NS
    if filter.since_ns is not None and since not in RANGES:
        until = filter.until_ns if filter.until_ns is not None else max(now, filter.since_ns + _SECOND_NS)
        return Period(filter.since_ns, until, "")
    if filter.until_ns is not None:
        return Period(max(filter.until_ns - 24 * _HOUR_NS, -(2**63)), filter.until_ns, "")
    if since not in RANGES:
        age = now - latest_ns if latest_ns is not None else 0
        since = next((name for name in ("24h", "7d", "30d") if age < RANGES[name][1] * _HOUR_NS), "30d")
    start = now - RANGES[since][1] * _HOUR_NS
    return Period(start if since == "1h" else start // _HOUR_NS * _HOUR_NS, now, since)


class Overview:
    """View model of the page. Reads the store when it is created."""

    def __init__(
        self,
        store: Store,
        query: FilterQuery,
        period: Period,
        zone: tzinfo,
        fields: Mapping[str, str],
    ) -> None:
        self._store, self._period, self._zone = store, period, zone
        self._filter = replace(query.filter, since_ns=period.since_ns, until_ns=period.until_ns)
        self._filter_before = replace(self._filter, since_ns=period.before_ns, until_ns=period.since_ns)
        self._fields = {name: text for name, text in fields.items() if name in _PARAMETERS}
        self._scope = [item for item in query.items if item[0] not in ("since", "until", "range")]
        self._window = choose_window(period)
        self.now = self._total(self._filter)
        self.before = self._total(self._filter_before)
        self.intervals = self._intervals() if self.now.bucket.traces else []
        keys = list_feedback_measures(self.now.bucket)
        chosen = [measure for measure in keys if measure.key and measure.key[0] == fields.get("key")]
        self.keys = list(dict.fromkeys([*chosen, *keys]))
        self.panels = self._panels() if self.intervals else []
        self.key_panels = [self._line_panel(one.label, [one]) for one in self.keys[:MAX_KEY_CHARTS] if self.intervals]
        group = GROUPS.get(fields.get("group", ""))
        self.group = group[0] if group else ""
        self.groups = self._groups(group[1], group[2]) if group and self.intervals else None

    @property
    def newest(self) -> int | None:
        """Return how many traces were counted if there are more, else None."""
        return self.now.bucket.newest

    @property
    def comparable(self) -> bool:
        """Return whether all traces of both periods were counted, and the period before has traces."""
        return bool(self.before.bucket.traces) and not self.now.bucket.newest and not self.before.bucket.newest

    def difference(
        self, measure: Measure, now: MeasuredBucket | None = None, before: MeasuredBucket | None = None
    ) -> str:
        """Return the difference of a measure to the period before, of all traces or of a group; "" if unknown."""
        if not self.comparable:
            return ""
        return measure.difference(measure.value(now or self.now), measure.value(before or self.before))

    @property
    def changes(self) -> list[Change]:
        """Return what changed most."""
        if not self.comparable:
            return []
        rows = self.groups.rows if self.groups and not self.groups.newest else ()
        return find_changes(self.now, self.before, {row.name: (row.now, row.before) for row in rows})

    def address(self, *conditions: Sequence[tuple[str, str]], before: bool = False) -> str:
        """Return the address of the traces of the period, or of the one before, that meet conditions."""
        since, until = self._period.since_ns, self._period.until_ns
        if before:
            since, until = self._period.before_ns, since
        return self._address(since, until, [pair for pairs in conditions for pair in pairs])

    def group_conditions(self, name: str | None) -> Sequence[tuple[str, str]]:
        """Return the conditions that select a group by its name."""
        rows = self.groups.rows if self.groups else ()
        return next((row.conditions for row in rows if row.name == name), ())

    @property
    def ticks(self) -> list[tuple[int, str]]:
        """Return the times below the charts, at the start, in the middle and at the end, with their texts."""
        since, until = self._period.since_ns, self._period.until_ns
        is_long = until - since > 3 * 24 * _HOUR_NS
        times = (since, (since + until) // 2 // _SECOND_NS * _SECOND_NS, until)
        texts = [format_tick(ns // (60 * _SECOND_NS) * 60 * _SECOND_NS, self._zone) for ns in times]
        return [(ns, text.rpartition(" ")[0] if is_long else text) for ns, text in zip(times, texts, strict=True)]

    def here(self, **changes: str | None) -> str:
        """Return the address of this page with some fields changed; None removes a field."""
        fields = self._fields | changes
        return filter_form.build_address("/", [(name, text) for name, text in fields.items() if text])

    def suffix(self, measure: Measure) -> str:
        """Return what the address of an interval needs to show the traces of a measure."""
        return "".join(f"&{pair}" for pair in [urlencode(measure.conditions, errors="replace")] if pair)

    def numbers(self, chart: TimeChart, measures: Sequence[Measure]) -> str:
        """Return the numbers of a chart as JSON, for the script that draws it on a canvas."""
        return json.dumps(
            {
                "series": self._series(measures),
                "low": chart.axis[0],
                "high": chart.axis[2],
                "bars": not chart.lines,
            }
        )

    def stats_address(self, measure: Measure, outcome: str) -> str:
        """Return the address of the traces for which a key has an outcome, "failed" or "skipped"."""
        return self.address([(outcome, measure.key[0] if measure.key else "")])

    def _address(self, since_ns: int, until_ns: int, conditions: Sequence[tuple[str, str]]) -> str:
        times = [("since", format_time(since_ns, self._zone)), ("until", format_time(until_ns, self._zone))]
        scope = [item for item in self._scope if item[0] not in dict(conditions)]
        return filter_form.build_address(filter_form.TRACE_LIST, [*scope, *times, *conditions])

    def _total(self, filter: Filter) -> MeasuredBucket:
        found = next(iter(self._store.aggregate(filter, newest=MAX_COUNTED_TRACES)), None)
        return MeasuredBucket(found or Bucket(start_ns=filter.since_ns or 0, width_ns=1))

    def _intervals(self) -> list[Interval]:
        found = self._store.aggregate(self._filter, bucket_ns=self._window.width_ns, newest=MAX_COUNTED_TRACES)
        since, until = self._period.since_ns, self._period.until_ns
        intervals = []
        for bucket in svg_charts.fill_buckets(found, self._window):
            start, end = max(bucket.start_ns, since), min(bucket.start_ns + bucket.width_ns, until)
            intervals.append(
                Interval(
                    Slot(
                        (start - since) / (until - since) * TIME_CHART_WIDTH,
                        (end - start) / (until - since) * TIME_CHART_WIDTH,
                    ),
                    start,
                    f"{format_tick(start, self._zone)} – {format_tick(end, self._zone, after=start)}",
                    self._address(start, end, ()),
                    MeasuredBucket(bucket),
                )
            )
        return intervals

    def _panels(self) -> list[Panel]:
        panels = [
            self._bar_panel("Traces", TRACES),
            self._line_panel("Errors", [ERRORS]),
            self._line_panel("Latency", [P50, P95, P99]),
        ]
        if TOKENS.value(self.now):
            panels.append(self._bar_panel("Tokens", TOKENS))
        if COST.value(self.now):
            panels.append(self._bar_panel("Cost", COST))
        return panels

    def _bar_panel(self, title: str, measure: Measure) -> Panel:
        values = [measure.value(interval.at) for interval in self.intervals]
        smallest = 2.0 if measure.unit in ("traces", "tokens") else 0.0
        chart = make_bars(self._slots(), values, choose_axis(0.0, get_extent(values)[1], smallest))
        return Panel(title, [measure], chart)

    def _line_panel(self, title: str, measures: Sequence[Measure]) -> Panel:
        values = [measure.value(interval.at) for interval in self.intervals for measure in measures]
        low, high = get_extent(values)
        if measures[0].key and low >= 0 and high <= 1:  # shares and scores of feedback; errors are mostly few
            high = 1.0
        axis = choose_axis(low, high)
        chart = make_lines(self._slots(), self._series(measures), axis)
        uncertain = [measures[0].value(one.at) if measures[0].too_few(one.at) else None for one in self.intervals]
        chart = replace(
            chart,
            band=make_bands(self._slots(), [measures[0].band(one.at) for one in self.intervals], axis),
            uncertain=make_dots(self._slots(), uncertain, axis),
        )
        return Panel(title, measures, chart)

    def _series(self, measures: Sequence[Measure]) -> list[list[float | None]]:
        """Return the values of each measure, without those of too few scores."""
        return [
            [None if measure.too_few(one.at) else measure.value(one.at) for one in self.intervals]
            for measure in measures
        ]

    def _slots(self) -> list[Slot]:
        return [interval.slot for interval in self.intervals]

    def _groups(self, field: str, select: Callable[[str], Sequence[tuple[str, str]]]) -> GroupTable:
        aggregate = partial(self._store.aggregate, group_by=field, newest=MAX_GROUPED_TRACES)
        totals = sorted(aggregate(self._filter), key=lambda bucket: -bucket.traces)
        newest = next((bucket.newest for bucket in totals if bucket.newest), None)
        before: dict[str | None, Bucket] = {}
        if self.comparable and not newest:
            before = {bucket.group: bucket for bucket in aggregate(self._filter_before)}
            newest = next((bucket.newest for bucket in before.values() if bucket.newest), None)
        shown = totals[:MAX_GROUPS]
        series: dict[str | None, list[Bucket]] = {bucket.group: [] for bucket in shown}
        # charts would end in the middle if not all traces were counted
        with suppress(Refused):  # so many groups that their buckets exceed the limit of an answer: no charts
            for bucket in [] if newest else aggregate(self._filter, bucket_ns=self._window.width_ns):
                if bucket.group in series:
                    series[bucket.group].append(bucket)
        filled = {
            group: list(map(MeasuredBucket, svg_charts.fill_buckets(buckets, self._window)))
            for group, buckets in series.items()
        }
        every = [at for buckets in filled.values() for at in buckets]
        axes = [choose_axis(0.0, get_extent(list(map(measure.value, every)))[1]) for measure in (TRACES, ERRORS, P95)]
        rows = []
        for bucket in shown:
            charts = [
                make_bars(self._slots(), [measure.value(at) for at in filled[bucket.group]], axis)
                for measure, axis in zip((TRACES, ERRORS, P95), axes, strict=True)
            ]
            earlier = before.get(bucket.group) or Bucket(start_ns=self._period.before_ns, width_ns=1)
            rows.append(
                GroupRow(
                    bucket.group if bucket.group is not None else "none",
                    select(bucket.group) if bucket.group else (),
                    MeasuredBucket(bucket),
                    MeasuredBucket(earlier),
                    charts if series[bucket.group] else (),
                    list_feedback_measures(bucket)[:MAX_KEYS_OF_GROUP],
                )
            )
        return GroupTable(rows, len(totals), newest)


def choose_window(period: Period) -> svg_charts.Window:
    """Return the window of whole buckets that covers a period."""
    window = svg_charts.choose_window(period.since_ns, period.until_ns)
    if window.until_ns - window.width_ns >= period.until_ns:  # the period ends where a bucket does
        return replace(window, until_ns=window.until_ns - window.width_ns)
    return window


def format_time(ns: int, zone: tzinfo) -> str:
    """Format a time for an address, with its offset from UTC, as "2026-11-21T14:30+01:00".

    A time that the calendar lacks, or with a fraction of a second, is formatted as its nanoseconds.
    """
    moment = None if ns % _SECOND_NS else _to_datetime(ns, zone)
    if moment is None:
        return str(ns)
    text = moment.isoformat(timespec="seconds" if moment.second else "minutes")
    return text.replace("+00:00", "Z") if zone is UTC else text


def format_tick(ns: int, zone: tzinfo, *, after: int | None = None) -> str:
    """Format a time as "21 Nov 14:00", without the date if `after` is a time of the same day."""
    moment, earlier = _to_datetime(ns, zone), None if after is None else _to_datetime(after, zone)
    if moment is None:
        return f"{ns} ns"
    clock = f"{moment:%H:%M:%S}" if moment.second else f"{moment:%H:%M}"
    return clock if earlier and earlier.date() == moment.date() else f"{moment.day} {moment:%b} {clock}"


def _to_datetime(ns: int, zone: tzinfo) -> datetime | None:
    """Return a time to the second; None if the calendar lacks it."""
    try:
        return (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=ns // _SECOND_NS)).astimezone(zone)
    except OverflowError:
        return None
