"""Alert list with the state of each group, and one alert with its history and failed notifications."""

from __future__ import annotations

import time
from collections.abc import Mapping
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import Response

from spanwise.collector import alerts as alert_texts
from spanwise.collector.errors import NotFound, Refused
from spanwise.collector.filters import parse_duration
from spanwise.collector.pages.components import rendering
from spanwise.collector.stores import Store

EVENTS_PER_PAGE = 50
ACTIONS = ("acknowledge", "snooze", "wake", "pause", "resume", "test", "delete")
SNOOZE_DURATIONS: Mapping[str, str] = {"1h": "1 hour", "4h": "4 hours", "1d": "1 day", "7d": "7 days"}


def alerts(store: Store, request: Request) -> Response:
    """Render the alert list: `GET /alerts?project=`. Firing groups come first."""
    project = request.query_params.get("project") or None
    found = store.alerts(project=project)
    groups = alert_texts.read_groups(store, project=project)
    rows = [(alert, group) for alert in found for group in alert_texts.get_groups(groups, alert)]
    rows.sort(
        key=lambda row: (alert_texts.STATUS_ORDER.index(row[1].status), row[0].project, row[0].name, row[1].group or "")
    )
    return rendering.render_page(
        request,
        "alerts.html",
        rows=rows,
        project=project,
        projects=sorted({alert.project for alert in (store.alerts() if project else found)}),
        texts=alert_texts,
        now=time.time_ns(),
    )


def alert(store: Store, request: Request) -> Response:
    """Render one alert: `GET /alerts/{name}?project=&cursor=`."""
    name, query = request.path_params["name"], request.query_params
    project = query.get("project") or "default"
    found = alert_texts.find_alert(store, name, project)
    sent = store.notifications(alert=name, project=project, limit=EVENTS_PER_PAGE).items
    return rendering.render_page(
        request,
        "alert.html",
        alert=found,
        groups=alert_texts.get_groups(alert_texts.read_groups(store, name, project=project), found),
        events=store.alert_events(
            alert=name, project=project, limit=EVENTS_PER_PAGE, cursor=query.get("cursor") or None
        ),
        failures=[
            (one.notification, delivery)
            for one in sent
            for delivery in one.deliveries
            if delivery.error and delivery.delivered_ns is None
        ],
        durations=SNOOZE_DURATIONS,
        texts=alert_texts,
        now=time.time_ns(),
    )


def change_alert(store: Store, request: Request, fields: Mapping[str, str]) -> str:
    """Acknowledge, snooze, pause, test or delete an alert: `POST /alerts/{name}`.

    `group` names one group of an alert with groups; without it, the action is about all. Returns the URL of the alert,
    or of the list after a deletion. Raises `Refused`.
    """
    name, project, action = request.path_params["name"], fields.get("project") or "default", fields.get("action", "")
    group = fields.get("group")
    if action == "acknowledge":
        store.acknowledge_alert(name, project=project, group=group)
    elif action in ("snooze", "wake"):
        try:
            until_ns = time.time_ns() + parse_duration(fields.get("for", "")) if action == "snooze" else None
        except ValueError as error:
            raise Refused(str(error)) from None
        store.snooze_alert(name, project=project, group=group, until_ns=until_ns)
    elif action in ("pause", "resume"):
        store.change_alert(name, project=project, enabled=action == "resume")
    elif action == "test":
        store.test_alert(name, project=project)
    elif action == "delete":
        if not store.delete_alert(name, project=project):
            raise NotFound(f"there is no alert {name!r} in project {project!r}")
        return "/alerts"
    else:
        raise Refused(f"unknown action {action!r}; expected one of: {', '.join(ACTIONS)}")
    return f"/alerts/{rendering.quote_segment(name)}?{urlencode({'project': project}, errors='replace')}"
