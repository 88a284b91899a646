"""The rules of monitors: each rule's funnel, what it costs, how it fares; and what it decided lately."""

from __future__ import annotations

import time
from collections.abc import Mapping
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import Response

from spanwise.collector import querystring, verdicts
from spanwise.collector.errors import NotFound, Refused
from spanwise.collector.pages.kit import render
from spanwise.collector.records import Rule, RuleStatus
from spanwise.collector.rules import filter_of
from spanwise.collector.stores import Store, summary

OUTCOMES, FEWEST = 4_000, 100  # that are read for the means of all rules, newest first, and of each at least
_DECISIONS = 50
ACTIONS = ("pause", "resume", "remove")


def rules(store: Store, request: Request) -> Response:
    """`GET /rules?project=`."""
    project = request.query_params.get("project") or None
    found = store.status(project=project)
    most = max(FEWEST, OUTCOMES // max(1, len(found)))
    return render.html(
        request,
        "rules.html",
        statuses=found,
        means=[summary(store, status.rule, most=most) for status in found],
        most=most,
        throughput=verdicts.throughput((worker for status in found for worker in status.workers), time.time_ns()),
        project=project,
        projects=sorted({status.rule.project for status in store.status()} if project else _projects(found)),
        verdicts=verdicts,
        traces=traces,
        now=time.time_ns(),
    )


def rule(store: Store, request: Request) -> Response:
    """`GET /rules/{name}?project=&verdict=&cursor=`: a rule's stored decisions, newest first."""
    name, asked = request.path_params["name"], request.query_params
    project, verdict = asked.get("project") or "default", asked.get("verdict") or None
    if verdict is not None and verdict not in verdicts.STORED:
        raise Refused(f"verdict {verdict!r} is none of {', '.join(verdicts.STORED)}")
    found = next((one for one in store.status(project=project) if one.rule.name == name), None)
    if found is None:
        raise NotFound(f"there is no rule {name!r} in project {project!r}")
    page = store.decisions(
        rule=name, project=project, verdict=verdict, limit=_DECISIONS, cursor=asked.get("cursor") or None
    )
    return render.html(
        request,
        "rule.html",
        found=found,
        rule=found.rule,
        verdict=verdict,
        page=page,
        verdicts=verdicts,
        traces=traces,
        now=time.time_ns(),
    )


def change(store: Store, request: Request, fields: Mapping[str, str]) -> str:
    """`POST /rules/{name}`: pause, resume or remove a rule, then show it, or the other rules. Raises `Refused`."""
    name, project, action = request.path_params["name"], fields.get("project") or "default", fields.get("action", "")
    if action not in ACTIONS:
        raise Refused(f"unknown action {action!r}; expected one of: {', '.join(ACTIONS)}")
    if action == "remove":
        if not store.delete_rule(name, project=project):
            raise NotFound(f"there is no rule {name!r} in project {project!r}")
        return "/rules"
    store.change_rule(name, project=project, enabled=action == "resume")
    return f"/rules/{render.path(name)}?{urlencode({'project': project}, errors='replace')}"


def traces(rule: Rule, matching: bool = True) -> str:
    """The address of the list of traces that pass a rule's filter, or of all that it looks at."""
    scope = [("traffic", "all")] if rule.scope != "live" else []
    conditions = querystring.to_items(filter_of(rule.filter)) if matching else []
    given = [("project", rule.project), *scope, *(pair for pair in conditions if pair[0] != "project")]
    return f"/?{urlencode(given, errors='replace')}"


def _projects(found: list[RuleStatus]) -> set[str]:
    return {status.rule.project for status in found}
