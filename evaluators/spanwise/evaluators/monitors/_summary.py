"""What a rule says of all traffic, by its scores of some of it."""

from __future__ import annotations

import os

from spanwise.collector.errors import NotFound
from spanwise.collector.querystring import moment
from spanwise.collector.records import Rule
from spanwise.collector.statistics import SampledMean
from spanwise.collector.stores import Store
from spanwise.collector.stores import summary as read
from spanwise.evaluators.scoring._calibrate import opened


def summary(
    rule: str,
    *,
    key: str | None = None,
    project: str | None = None,
    since: str | int | None = None,
    until: str | int | None = None,
    store: Store | str | None = None,
) -> list[SampledMean]:
    """Per key the mean of all that a rule could have looked at, with its 95 % interval, by the version in force.

    Scores are weighted by the inverse of the probability with which their target was sampled. `since` and `until`
    (`"7d"`, an ISO date) bound when the traces started, whenever they were scored. `project` is SPANWISE_PROJECT, else
    "default". Raises `NotFound`.
    """
    place = project or os.environ.get("SPANWISE_PROJECT") or "default"
    with opened(store) as at:
        assert at is not None
        return read(at, _named(at, rule, place), key=key, since_ns=_moment(since), until_ns=_moment(until))


def _named(store: Store, name: str, project: str) -> Rule:
    rules = store.rules(project=project)
    found = next((rule for rule in rules if rule.name == name), None)
    if found is None:
        there = ", ".join(repr(rule.name) for rule in rules) or "none"
        raise NotFound(f"there is no rule {name!r} in project {project!r}; rules there: {there}")
    return found


def _moment(given: str | int | None) -> int | None:
    return moment(given) if isinstance(given, str) else given
