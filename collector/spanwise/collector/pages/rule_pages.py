"""Rule list with funnels and costs, and the decisions of one rule."""

from __future__ import annotations

import time
from collections.abc import Mapping
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import Response

from spanwise.collector import filters
from spanwise.collector.diagnostics import rule_report
from spanwise.collector.errors import NotFound, Refused
from spanwise.collector.pages.components import rendering
from spanwise.collector.pages.components.time_chart import WIDTH
from spanwise.collector.pages.spend_page import read_spend
from spanwise.collector.records import Rule, RuleStatus
from spanwise.collector.rule_policy import build_rule_filter
from spanwise.collector.stores import Store, summarize_rule

# newest outcomes to read for the means: in total, and at least this many per rule
MAX_OUTCOMES, MIN_OUTCOMES = 4_000, 100
_DECISIONS_PER_PAGE = 50
ACTIONS = ("pause", "resume", "remove")


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
    """Render a rule's stored decisions, newest first: `GET /rules/{name}?project=&verdict=&cursor=`."""
    name, query = request.path_params["name"], request.query_params
    project, verdict = query.get("project") or "default", query.get("verdict") or None
    if verdict is not None and verdict not in rule_report.STORED:
        raise Refused(f"unknown verdict {verdict!r}; expected one of: {', '.join(rule_report.STORED)}")
    status = next((status for status in store.status(project=project) if status.rule.name == name), None)
    if status is None:
        raise NotFound(f"there is no rule {name!r} in project {project!r}")
    page = store.decisions(
        rule=name, project=project, verdict=verdict, limit=_DECISIONS_PER_PAGE, cursor=query.get("cursor") or None
    )
    return rendering.render_page(
        request,
        "rule.html",
        rule_status=status,
        rule=status.rule,
        verdict=verdict,
        page=page,
        spend=read_spend(store, group=("evaluator", "model"), project=project, rule=name),
        chart_width=WIDTH,
        verdicts=rule_report,
        traces=build_traces_url,
        now=time.time_ns(),
    )


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
    scope = [("traffic", "all")] if rule.scope != "live" else []
    conditions = filters.filter_to_items(build_rule_filter(rule.filter)) if matching else []
    items = [("project", rule.project), *scope, *(pair for pair in conditions if pair[0] != "project")]
    return f"/traces?{urlencode(items, errors='replace')}"
