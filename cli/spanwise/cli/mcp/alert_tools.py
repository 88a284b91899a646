"""MCP tools on alerts: list, show, check on past traffic, test, acknowledge, snooze."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Annotated, Any

from pydantic import Field

from spanwise.cli.mcp.tool_results import limit_rows, make_result, shorten_name, untrusted_text
from spanwise.collector import alerts, formatting
from spanwise.collector.errors import Refused
from spanwise.collector.filters import parse_duration
from spanwise.collector.records import Alert
from spanwise.collector.stores import Store

AlertName = Annotated[str, Field(description="Name of the alert, as `list_alerts` shows it.")]
Project = Annotated[str | None, Field(description="Project, if several have an alert of this name.")]
Group = Annotated[str | None, Field(description="Only this group of the alert.")]


def list_alerts(store: Store, project: Project = None) -> dict[str, Any]:
    """List the alerts on live traffic with the status, estimate and bound of each group."""
    groups = alerts.read_groups(store, project=project)
    rows = [row for alert in store.alerts(project=project) for row in _alert_rows(alert, groups)]
    return make_result(alerts=limit_rows(rows))


def show_alert(store: Store, alert: AlertName, project: Project = None) -> dict[str, Any]:
    """Show one alert: the state of its groups, its changes of status, and notifications that failed."""
    found = alerts.find_alert(store, alert, project)
    events = store.alert_events(alert=found.name, project=found.project, limit=50).items
    sent = store.notifications(alert=found.name, project=found.project, limit=20).items
    return make_result(
        alerts=limit_rows(_alert_rows(found, alerts.read_groups(store, found.name, project=found.project))),
        events=limit_rows(
            {
                "at": formatting.utc(event.at_ns),
                "before": event.before,
                "after": event.after,
                "untrusted": {"group": shorten_name(event.group), "reason": untrusted_text(event.reason)},
            }
            for event in events
        ),
        not_delivered=limit_rows(
            {
                "target": shorten_name(delivery.target),
                "attempts": delivery.attempts,
                "untrusted": {"error": untrusted_text(delivery.error)},
            }
            for one in sent
            for delivery in one.deliveries
            if delivery.error and delivery.delivered_ns is None
        ),
    )


def check_alert(
    store: Store,
    alert: AlertName,
    project: Project = None,
    threshold: Annotated[float | None, Field(description="Another threshold to try.")] = None,
    window: Annotated[str | None, Field(description="Another window to try, such as 6h or 3d.")] = None,
    days: Annotated[float, Field(ge=1, le=90, description="Days of past traffic.")] = 30,
) -> dict[str, Any]:
    """Run an alert over past traffic: when it would have fired, and how long it had no data. Nothing is stored."""
    found = alerts.find_alert(store, alert, project)
    if threshold is not None:
        name = next((name for name in ("below", "above", "drop") if getattr(found, name) is not None), None)
        if name is None:
            raise Refused(f"alert {alert!r} has no threshold")
        found = replace(found, **{name: threshold})  # type: ignore[arg-type]
    if window is not None:
        found = replace(found, window_s=parse_duration(window) / 1e9)
    result = alerts.check_alert(store, found, until_ns=time.time_ns(), days=days)
    return make_result(
        condition=alerts.describe_condition(found),
        looks=result.looks,
        share_without_data=round(result.share_without_data, 3),
        firings=limit_rows(
            {
                "since": formatting.utc(firing.since_ns),
                "until": None if firing.until_ns is None else formatting.utc(firing.until_ns),
                "value": firing.numbers.value,
                "bound": firing.numbers.bound,
                "untrusted": {"group": shorten_name(firing.group)},
            }
            for firing in result.firings[:100]
        ),
        missing=result.missing or None,
    )


def acknowledge_alert(store: Store, alert: AlertName, project: Project = None, group: Group = None) -> dict[str, Any]:
    """Acknowledge a firing alert, so that it is not notified again until its status changes."""
    found = alerts.find_alert(store, alert, project)
    groups = store.acknowledge_alert(found.name, project=found.project, group=group)
    return make_result(acknowledged=len(groups))


def snooze_alert(
    store: Store,
    alert: AlertName,
    duration: Annotated[str | None, Field(description="30m, 4h, 2d; without it, the snooze ends.")] = None,
    project: Project = None,
    group: Group = None,
) -> dict[str, Any]:
    """Send no notifications of an alert for a time. What still fires then is notified."""
    found = alerts.find_alert(store, alert, project)
    until_ns = None if duration is None else time.time_ns() + parse_duration(duration)
    store.snooze_alert(found.name, project=found.project, group=group, until_ns=until_ns)
    return make_result(snoozed_until=None if until_ns is None else formatting.utc(until_ns))


def send_test_alert(store: Store, alert: AlertName, project: Project = None) -> dict[str, Any]:
    """Send a notification that says it is a test to the targets of an alert."""
    found = alerts.find_alert(store, alert, project)
    store.test_alert(found.name, project=found.project)
    return make_result(targets=[shorten_name(target) for target in found.to])


ALERT_TOOLS = (list_alerts, show_alert, check_alert)
ALERT_WRITE_TOOLS = (acknowledge_alert, snooze_alert, send_test_alert)


def _alert_rows(alert: Alert, groups: alerts.GroupsByAlert) -> Iterator[dict[str, Any]]:
    for group in alerts.get_groups(groups, alert):
        numbers = group.numbers
        yield {
            "status": group.status,
            "since": formatting.utc(group.changed_ns) if group.changed_ns else None,
            "value": numbers.value,
            "bound": numbers.bound,
            "threshold": numbers.threshold,
            "n": numbers.n,
            "effective_n": round(numbers.effective_n, 1),
            "acknowledged": group.is_acknowledged,
            "untrusted": {
                "name": shorten_name(alert.name),
                "project": shorten_name(alert.project),
                "group": shorten_name(group.group),
                "condition": untrusted_text(f"{alerts.describe_quantity(alert)} {alerts.describe_condition(alert)}"),
                "missing": untrusted_text(numbers.missing) if numbers.missing else None,
            },
        }
