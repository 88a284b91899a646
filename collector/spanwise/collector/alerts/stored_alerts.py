"""Lookup of stored alerts: by name, and with the states of their groups."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

from spanwise.collector.errors import NotFound, Refused
from spanwise.collector.records import Alert, AlertGroup
from spanwise.collector.stores import Store

GroupsByAlert: TypeAlias = Mapping[tuple[str, str], Sequence[AlertGroup]]  # by project and name
STATUS_ORDER = ("firing", "no data", "resolved", "ok")  # those that need attention first


def find_alert(store: Store, name: str, project: str | None) -> Alert:
    """Return the alert of this name. Raise `NotFound`, and `Refused` if several projects have one."""
    matching = [alert for alert in store.alerts(project=project) if alert.name == name]
    if not matching:
        known = ", ".join(sorted({alert.name for alert in store.alerts(project=project)})[:20])
        raise NotFound(f"there is no alert {name!r}; the alerts are: {known or '(none)'}")
    if len(matching) > 1:
        projects = ", ".join(alert.project for alert in matching)
        raise Refused(f"several projects have an alert {name!r}; choose one of these projects: {projects}")
    return matching[0]


def read_groups(store: Store, name: str | None = None, *, project: str | None = None) -> GroupsByAlert:
    """Return the groups of one alert or of all, those that fire first."""
    found: dict[tuple[str, str], list[AlertGroup]] = {}
    for group in store.alert_groups(name, project=project):
        found.setdefault((group.project, group.alert), []).append(group)
    for groups in found.values():
        groups.sort(key=lambda group: (STATUS_ORDER.index(group.status), group.group or ""))
    return found


def get_groups(groups: GroupsByAlert, alert: Alert) -> Sequence[AlertGroup]:
    """Return the groups of an alert. Before the first look, it has one group without data."""
    return groups.get((alert.project, alert.name)) or [AlertGroup(project=alert.project, alert=alert.name)]
