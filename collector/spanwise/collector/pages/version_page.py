"""Comparison of two versions of an application in production, by the scores of one rule."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from spanwise.collector.errors import NotFound, Refused
from spanwise.collector.filters import parse_time
from spanwise.collector.pages.components import rendering
from spanwise.collector.records import Rule
from spanwise.collector.statistics import MIN_VERSION_TRACES
from spanwise.collector.stores import VERSION_FIELDS, RuleVersions, Store, compare_rule_versions

PARAMETERS = ("rule", "project", "by", "a", "b", "key", "since", "until", "margin", "low", "high")
_LISTED_FIELDS = frozenset(VERSION_FIELDS)  # fields whose values the form suggests, besides metadata


def versions(store: Store, request: Request) -> Response:
    """Render the comparison: `GET /versions?rule=&project=&by=&a=&b=&key=&since=&until=&margin=&low=&high=`."""
    fields = {name: (request.query_params.get(name) or "").strip() for name in PARAMETERS}
    project, by = fields["project"] or "default", fields["by"] or "tag"
    rules = store.rules(project=project)
    rule = next((each for each in rules if each.name == fields["rule"]), None)
    if rule is None:
        raise NotFound(f"there is no rule {fields['rule']!r} in project {project!r}")
    found, problem = None, ""
    if fields["a"] and fields["b"]:
        try:
            found = compare(store, rule, by, fields)
        except (Refused, ValueError) as error:
            problem = str(error)
    is_listed = by in _LISTED_FIELDS or by.startswith("metadata.")
    return rendering.render_page(
        request,
        "versions.html",
        status=422 if problem else 200,
        rule=rule,
        by=by,
        fields=fields,
        found=found,
        problem=problem,
        choices=VERSION_FIELDS,
        values=store.values(by, project=project) if is_listed else [],
        least=MIN_VERSION_TRACES,
    )


def compare(store: Store, rule: Rule, by: str, fields: dict[str, str]) -> RuleVersions:
    """Compare the versions that a form names. Raises `Refused` or `ValueError` for an invalid field."""
    numbers: dict[str, float | None] = {}
    for name in ("margin", "low", "high"):
        try:
            numbers[name] = float(fields[name]) if fields[name] else None
        except ValueError:
            raise Refused(f"{name} must be a number, got {fields[name][:100]!r}") from None
    low, high = numbers["low"], numbers["high"]
    if (low is None) != (high is None):
        raise Refused("give both the lowest and the highest possible score, or neither")
    return compare_rule_versions(
        store,
        rule,
        by=by,
        a=fields["a"],
        b=fields["b"],
        key=fields["key"] or None,
        since_ns=parse_time(fields["since"]) if fields["since"] else None,
        until_ns=parse_time(fields["until"]) if fields["until"] else None,
        margin=numbers["margin"],
        scale=None if low is None or high is None else (low, high),
    )
