"""Rule list with funnels and costs, and one rule: strata, spend, decisions with their scores."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import Response

from spanwise.collector import filters
from spanwise.collector.diagnostics import rule_report
from spanwise.collector.errors import Forbidden, NotFound, Refused
from spanwise.collector.filters import Filter, extend_filter
from spanwise.collector.pages.components import rendering
from spanwise.collector.pages.components.feedback_display import FeedbackChip, get_latest_chips
from spanwise.collector.pages.components.time_chart import WIDTH
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
from spanwise.collector.stores import Store, summarize_rule

# newest outcomes to read for the means: in total, and at least this many per rule
MAX_OUTCOMES, MIN_OUTCOMES = 4_000, 100
_DECISIONS_PER_PAGE = 50
_SAMPLED_OUT_PER_PAGE = 25  # traces on one page of those that the sample leaves out
_EXAMINED_PER_PAGE = 100  # traces that pass the filter, of which such a page shows the ones that were sampled out
ACTIONS = ("pause", "resume", "remove")
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
        sampled_out=sampled_out,
        examined=_EXAMINED_PER_PAGE,
        names={summary.trace_id: summary.name for summary in summaries},
        chips=read_scores(store, status.rule, ids, page),
        stratum_traces=lambda stratum: build_conditions_url(status.rule, {**status.rule.filter, **stratum.filter}),
        spend=read_spend(store, group=("evaluator", "model"), project=project, rule=name),
        chart_width=WIDTH,
        verdicts=rule_report,
        traces=build_traces_url,
        now=time.time_ns(),
    )


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
    """Pause, resume or remove a rule: `POST /rules/{name}`.

    Returns the URL of the rule, or of the list after a removal. Raises `Refused`.
    """
    name, project, action = request.path_params["name"], fields.get("project") or "default", fields.get("action", "")
    if action not in ACTIONS:
        raise Refused(f"unknown action {action!r}; expected one of: {', '.join(ACTIONS)}")
    if action == "remove":
        if not store.delete_rule(name, project=project):
            raise NotFound(f"there is no rule {name!r} in project {project!r}")
        return "/rules"
    store.change_rule(name, project=project, enabled=action == "resume")
    return f"/rules/{rendering.quote_segment(name)}?{urlencode({'project': project}, errors='replace')}"


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
