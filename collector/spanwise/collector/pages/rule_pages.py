"""Rule list with funnels and costs, and one rule: strata, scores over time, spend, decisions with their scores."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import NamedTuple
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import Response

from spanwise.collector import filters, formatting
from spanwise.collector.diagnostics import rule_report
from spanwise.collector.errors import Forbidden, NotFound, Refused
from spanwise.collector.filters import Filter, extend_filter
from spanwise.collector.pages.components import rendering
from spanwise.collector.pages.components.feedback_display import FeedbackChip, get_latest_chips
from spanwise.collector.pages.components.svg_charts import (
    TIME_CHART_WIDTH,
    Slot,
    TimeChart,
    choose_axis,
    make_bands,
    make_dots,
    make_lines,
)
from spanwise.collector.pages.spend_page import read_spend
from spanwise.collector.records import (
    JSON,
    Decision,
    DecisionExplanation,
    Feedback,
    Page,
    Rule,
    RuleStatus,
    Target,
    TraceSummary,
)
from spanwise.collector.rule_policy import build_rule_filter
from spanwise.collector.statistics import CorrectedMean, SampledMean, SampledPercentile
from spanwise.collector.stores import (
    JudgeAgreement,
    ScorePoint,
    Store,
    correct_judge_mean,
    estimate_over_time,
    estimate_percentiles_over_time,
    summarize_rule,
)

# newest outcomes to read for the means: in total, and at least this many per rule
MAX_OUTCOMES, MIN_OUTCOMES = 4_000, 100
_DECISIONS_PER_PAGE = 50
MAX_BACKFILLS = 10  # newest backfills on the page of a rule
ACTIONS = ("pause", "resume", "remove")
_HOUR_NS, _DAY_NS = 3_600 * 10**9, 86_400 * 10**9
# Time ranges of the charts: label, number of buckets, and their width
RANGES: Mapping[str, tuple[str, int, int]] = {
    "24h": ("24 hours", 24, _HOUR_NS),
    "7d": ("7 days", 28, 6 * _HOUR_NS),
    "30d": ("30 days", 30, _DAY_NS),
}
PERCENTILES: Mapping[str, float] = {"p5": 5.0, "p50": 50.0, "p95": 95.0}
MAX_ALERT_EVENTS = 200  # newest changes of each alert that are marked on charts
MAX_CHARTS = 12  # keys and labels of a rule
MAX_PERCENTILE_OUTCOMES = 20_000  # newest outcomes that are read for percentiles
BACKFILL_STATES: Mapping[str, str] = {"pause": "paused", "resume": "running", "cancel": "cancelled"}
_SAMPLED_OUT_PER_PAGE = 25  # traces on one page of those that the sample leaves out
_EXAMINED_PER_PAGE = 100  # traces that pass the filter, of which such a page shows the ones that were sampled out
SAMPLED_OUT = "sampled_out"
VERDICTS = (*rule_report.STORED, SAMPLED_OUT)
_MAX_FEEDBACK = 1000  # rows of feedback that one query reads


# Orders of the list, highest number first, with their labels
ORDERS: Mapping[str, str] = {
    "": "by name",
    "-behind": "most undecided changes first",
    "-lag_s": "longest lag first",
    "-rate": "highest sample rate first",
    "-scored": "most scored first",
    "-failed": "most failed first",
    "-over_budget": "most over budget first",
    "-skipped": "most skipped first",
}


def get_sort_value(status: RuleStatus, order: str) -> float:
    """Return the number by which an order sorts a rule: of its status, or of its outcomes of one kind."""
    name = order.removeprefix("-")
    return status.counts.get(name, 0) if name not in ("behind", "lag_s", "rate") else getattr(status, name)


def rules(store: Store, request: Request) -> Response:
    """Render the rule list: `GET /rules?project=&sort=`."""
    project, sort = request.query_params.get("project") or None, request.query_params.get("sort", "")
    if sort not in ORDERS:
        raise Refused(f"cannot sort by {sort[:100]!r}; expected one of: {', '.join(filter(None, ORDERS))}")
    statuses = sorted(store.status(project=project), key=lambda status: get_sort_value(status, sort), reverse=True)
    most = max(MIN_OUTCOMES, MAX_OUTCOMES // max(1, len(statuses)))
    return rendering.render_page(
        request,
        "rules.html",
        statuses=statuses,
        means=[summarize_rule(store, status.rule, most=most) for status in statuses],
        most=most,
        throughput=rule_report.sum_throughput(
            (worker for status in statuses for worker in status.workers), time.time_ns()
        ),
        project=project,
        sort=sort,
        orders=ORDERS,
        projects=sorted({status.rule.project for status in (store.status() if project else statuses)}),
        verdicts=rule_report,
        traces=build_traces_url,
        now=time.time_ns(),
    )


def rule(store: Store, request: Request) -> Response:
    """Render a rule's decisions, newest first: `GET /rules/{name}?project=&verdict=&cursor=`.

    Stored decisions come with the names of their traces and the rule's scores. Traces that were sampled out have no
    stored decision; the page explains them one by one.
    """
    name, query = request.path_params["name"], request.query_params
    project, verdict = query.get("project") or "default", query.get("verdict") or None
    if verdict is not None and verdict not in VERDICTS:
        raise Refused(f"unknown verdict {verdict!r}; expected one of: {', '.join(VERDICTS)}")
    status = next((status for status in store.status(project=project) if status.rule.name == name), None)
    if status is None:
        raise NotFound(f"there is no rule {name!r} in project {project!r}")
    cursor = query.get("cursor") or None
    sampled_out: list[SampledOutTrace] = []
    page: Page[Decision] = Page(items=(), next=None)
    if verdict == SAMPLED_OUT:
        sampled_out, next_cursor = find_sampled_out(store, status.rule, cursor)
        page = Page(items=(), next=next_cursor)
    else:
        page = store.decisions(rule=name, project=project, verdict=verdict, limit=_DECISIONS_PER_PAGE, cursor=cursor)
    ids = tuple({id for decision in page if (id := decision.target.trace_id) is not None})
    summaries = store.traces(Filter(trace_ids=ids), limit=len(ids)) if ids else ()
    return rendering.render_page(
        request,
        "rule.html",
        rule_status=status,
        rule=status.rule,
        verdict=verdict,
        page=page,
        charts=make_charts(store, status.rule, read_range(query), query.get("quantity", ""), read_end(query)),
        until=query.get("until", ""),
        alerts=[alert for alert in store.alerts(project=project) if alert.rule == name],
        alert_groups=store.alert_groups(project=project),
        range=read_range(query),
        ranges_of_page={name: label for name, (label, *_) in RANGES.items()},
        quantity=query.get("quantity", ""),
        quantities=PERCENTILES,
        backfills=store.backfills(rule=name, project=project)[:MAX_BACKFILLS],
        sampled_out=sampled_out,
        examined=_EXAMINED_PER_PAGE,
        names={summary.trace_id: summary.name for summary in summaries},
        chips=read_scores(store, status.rule, ids, page),
        stratum_traces=lambda stratum: build_conditions_url(status.rule, {**status.rule.filter, **stratum.filter}),
        spend=read_spend(store, group=("evaluator", "model"), project=project, rule=name),
        chart_width=TIME_CHART_WIDTH,
        verdicts=rule_report,
        traces=build_traces_url,
        now=time.time_ns(),
    )


@dataclass(frozen=True, slots=True)
class ChartPoint:
    """Bucket of a chart: its place, its time as text, and its estimate (None without outcomes)."""

    slot: Slot
    start_ns: int
    time: str
    estimate: SampledMean | SampledPercentile | None
    value: float | None


class AlertMark(NamedTuple):
    """Mark of a chart: a change of an alert's status, and its place on the time axis."""

    x: float
    is_firing: bool
    text: str


@dataclass(frozen=True, slots=True)
class ScoreChart:
    """Chart of a key, or of the share of one of its labels, with the estimate of the whole time range."""

    key: str
    label: str | None
    binary: bool
    total: SampledMean | SampledPercentile
    value: float | None  # of `total`
    points: Sequence[ChartPoint]
    chart: TimeChart
    corrected: CorrectedMean | None = None  # mean of human labels
    agreement: str = ""
    marks: Sequence[AlertMark] = ()

    def text(self, value: float | None) -> str:
        """Format a value as a share or a score."""
        if value is None:
            return "–"
        return formatting.percent(value, 1) if self.binary else formatting.number(value)

    def describe(self, estimate: SampledMean | SampledPercentile) -> str:
        """Return interval and counts of an estimate."""
        interval = f"95 %: {self.text(estimate.low)} to {self.text(estimate.high)}" if estimate.low is not None else ""
        words = [
            "too few" if estimate.too_few else interval,
            f"effective n {formatting.count(round(estimate.effective))}",
        ]
        counts = {"failed": estimate.failed, "skipped": estimate.skipped, "left out": estimate.unknown}
        words += [f"{formatting.count(count)} {name}" for name, count in counts.items()]
        return ", ".join(filter(None, words))


def read_range(query: Mapping[str, str]) -> str:
    """Return the time range of a query, by default 24 hours. Raise `Refused` for an unknown one."""
    name = query.get("range") or "24h"
    if name not in RANGES:
        raise Refused(f"unknown range {name[:100]!r}; expected one of: {', '.join(RANGES)}")
    return name


def read_end(query: Mapping[str, str]) -> int:
    """Return the end of the charts, `until` in nanoseconds since 1970; by default now. Raise `Refused`."""
    text = query.get("until", "")
    if text and not (text.isdecimal() and len(text) <= 19 and 0 < int(text) < 2**63):
        raise Refused(f"until must be a time in nanoseconds since 1970, got {text[:100]!r}")
    return int(text) if text else time.time_ns()


def make_charts(store: Store, rule: Rule, period: str, quantity: str, now_ns: int) -> list[ScoreChart]:
    """Return the charts of a rule's keys and labels, up to `now_ns`, with the changes of the rule's alerts.

    `quantity` is "" or one of `PERCENTILES`.
    """
    if quantity and quantity not in PERCENTILES:
        raise Refused(f"unknown quantity {quantity[:100]!r}; expected one of: {', '.join(PERCENTILES)}")
    _, count, width = RANGES[period]
    until = -(-now_ns // width) * width
    since = until - count * width

    def estimate(bucket_ns: int) -> list[ScorePoint]:
        if quantity:
            percent, most = PERCENTILES[quantity], MAX_PERCENTILE_OUTCOMES
            return estimate_percentiles_over_time(
                store, rule, percent, since_ns=since, until_ns=until, bucket_ns=bucket_ns, most=most
            )
        return estimate_over_time(store, rule, since_ns=since, until_ns=until, bucket_ns=bucket_ns)

    by_place: dict[tuple[str, str | None], dict[int, ScorePoint]] = {}
    for point in estimate(width):
        by_place.setdefault((point.estimate.key, point.label), {})[point.start_ns] = point
    marks = find_alert_marks(store, rule, since, until)
    checks = JudgeAgreement(store)
    judged = {str(entry.get("key") or entry.get("id")) for entry in rule.evaluators if entry.get("source") == "model"}
    charts = []
    for total in estimate(count * width)[:MAX_CHARTS]:
        key, label = total.estimate.key, total.label
        points = by_place.get((key, label), {})
        starts = [since + place * width for place in range(count)]
        chart = _draw(total, starts, [points.get(start) for start in starts], width)
        chart = replace(chart, marks=marks.get((key, label), ()))
        if label is None and not quantity and (key in judged or not judged):
            check = checks.of(key)
            if check.pairs:
                corrected = correct_judge_mean(store, check, key)
                chart = replace(chart, corrected=corrected, agreement=str(check.agreement))
        charts.append(chart)
    return charts


def find_alert_marks(
    store: Store, rule: Rule, since_ns: int, until_ns: int
) -> Mapping[tuple[str, str | None], Sequence[AlertMark]]:
    """Return the changes of the rule's alerts in a time range, by key and label: from and to firing."""
    found: dict[tuple[str, str | None], list[AlertMark]] = {}
    for alert in store.alerts(project=rule.project):
        if alert.rule != rule.name or alert.key is None:
            continue
        for event in store.alert_events(project=alert.project, alert=alert.name, limit=MAX_ALERT_EVENTS):
            is_change = "firing" in (event.before, event.after)
            if is_change and since_ns <= event.at_ns <= until_ns:
                x = TIME_CHART_WIDTH * (event.at_ns - since_ns) / (until_ns - since_ns)
                name = alert.name if event.group is None else f"{alert.name} [{event.group}]"
                text = f"{name}: {event.after}, {formatting.date_and_time(event.at_ns)}"
                mark = AlertMark(x, event.after == "firing", text)
                found.setdefault((alert.key, alert.label), []).append(mark)
    return found


def _draw(total: ScorePoint, starts: Sequence[int], points: Sequence[ScorePoint | None], width_ns: int) -> ScoreChart:
    """Return the chart of one key or label, with a point per bucket."""
    step = TIME_CHART_WIDTH / len(starts)
    slots = [Slot(place * step, step) for place in range(len(starts))]
    estimates = [None if point is None else point.estimate for point in points]
    values = [None if one is None else _get_value(one) for one in estimates]
    too_few = [one is not None and one.too_few for one in estimates]
    bands = [
        None if one is None or one.too_few or one.low is None or one.high is None else (one.low, one.high)
        for one in estimates
    ]
    known = [value for value in values if value is not None]
    low, high = min(known, default=0.0), max(known, default=0.0)
    axis = choose_axis(low, 1.0 if low >= 0 and high <= 1 else high)
    certain = [None if is_few else value for value, is_few in zip(values, too_few, strict=True)]
    uncertain = [value if is_few else None for value, is_few in zip(values, too_few, strict=True)]
    chart = replace(
        make_lines(slots, [certain], axis),
        band=make_bands(slots, bands, axis),
        uncertain=make_dots(slots, uncertain, axis),
    )
    return ScoreChart(
        key=total.estimate.key,
        label=total.label,
        binary=total.label is not None or getattr(total.estimate, "binary", False),
        total=total.estimate,
        value=_get_value(total.estimate),
        points=[
            ChartPoint(slot, start, format_bucket(start, width_ns), one, value)
            for slot, start, one, value in zip(slots, starts, estimates, values, strict=True)
        ],
        chart=chart,
    )


def _get_value(estimate: SampledMean | SampledPercentile) -> float | None:
    if isinstance(estimate, SampledPercentile):
        return estimate.value
    return estimate.mean if estimate.mean is not None else estimate.unweighted


def format_bucket(start_ns: int, width_ns: int) -> str:
    """Format the time of a bucket."""
    first, last = (datetime.fromtimestamp(ns / 1e9, UTC) for ns in (start_ns, start_ns + width_ns))
    if width_ns >= _DAY_NS:
        return f"{first:%-d %b}"
    return f"{first:%-d %b %H:%M} – {last:%H:%M} UTC"


class SampledOutTrace(NamedTuple):
    """Trace that the rule's filter selects and its sample leaves out, with the explanation."""

    trace: TraceSummary
    explanation: DecisionExplanation


def find_sampled_out(store: Store, rule: Rule, cursor: str | None) -> tuple[list[SampledOutTrace], str | None]:
    """Return traces that the sample left out, latest first, and the cursor of the next page.

    Only the latest `_EXAMINED_PER_PAGE` traces that pass the rule's filter are examined, so a page may be short.
    """
    filter = extend_filter(build_rule_filter(rule.filter), {"project": rule.project})
    found: list[SampledOutTrace] = []
    for _ in range(_EXAMINED_PER_PAGE // _SAMPLED_OUT_PER_PAGE):
        traces = store.traces(filter, limit=_SAMPLED_OUT_PER_PAGE, cursor=cursor)
        for trace in traces:
            with suppress(NotFound):  # deleted meanwhile
                explanations = store.why(trace.trace_id, rule=rule.name)
                found += [SampledOutTrace(trace, each) for each in explanations if each.verdict == SAMPLED_OUT]
        cursor = traces.next
        if cursor is None or len(found) >= _SAMPLED_OUT_PER_PAGE:
            break
    return found, cursor


def read_scores(
    store: Store, rule: Rule, trace_ids: Sequence[str], decisions: Iterable[Decision]
) -> Mapping[Target, Sequence[FeedbackChip]]:
    """Return the chips of the rule's feedback by target."""
    feedback = list(store.feedbacks(Filter(trace_ids=tuple(trace_ids)), limit=_MAX_FEEDBACK)) if trace_ids else []
    for decision in decisions:
        if decision.target.trace_id is None:  # a session
            with suppress(
                Forbidden
            ):  # a session belongs to no project, so a key of one project does not read its scores
                feedback += store.feedbacks(target=decision.target, limit=_MAX_FEEDBACK)
    by_target: dict[Target, list[Feedback]] = {}
    for each in feedback:
        if each.rule == rule.name:
            by_target.setdefault(each.target, []).append(each)
    return {target: tuple(get_latest_chips(rows).values()) for target, rows in by_target.items()}


def change_rule(store: Store, request: Request, fields: Mapping[str, str]) -> str:
    """Pause, resume or remove a rule, or pause, resume or cancel one of its backfills: `POST /rules/{name}`.

    Returns the URL of the rule, or of the list after a removal. Raises `Refused`.
    """
    name, project, action = request.path_params["name"], fields.get("project") or "default", fields.get("action", "")
    page = f"/rules/{rendering.quote_segment(name)}?{urlencode({'project': project}, errors='replace')}"
    if backfill := fields.get("backfill"):
        if action not in BACKFILL_STATES:
            raise Refused(f"unknown action {action!r}; expected one of: {', '.join(BACKFILL_STATES)}")
        store.change_backfill(backfill, BACKFILL_STATES[action], project=project)
        return page
    if action not in ACTIONS:
        raise Refused(f"unknown action {action!r}; expected one of: {', '.join(ACTIONS)}")
    if action == "remove":
        if not store.delete_rule(name, project=project):
            raise NotFound(f"there is no rule {name!r} in project {project!r}")
        return "/rules"
    store.change_rule(name, project=project, enabled=action == "resume")
    return page


def build_traces_url(rule: Rule, matching: bool = True) -> str:
    """Return the URL of the traces that pass a rule's filter, or of all traces in its scope."""
    return build_conditions_url(rule, rule.filter if matching else {})


def build_conditions_url(rule: Rule, conditions: Mapping[str, JSON]) -> str:
    """Return the URL of the traces of a rule's project and scope that pass conditions."""
    scope = [("traffic", "all")] if rule.scope != "live" else []
    items = [
        ("project", rule.project),
        *scope,
        *(pair for pair in filters.filter_to_items(build_rule_filter(conditions)) if pair[0] != "project"),
    ]
    return f"/traces?{urlencode(items, errors='replace')}"
