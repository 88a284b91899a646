"""Status changes of an alert: next state of each group, history events, and the notifications that follow."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import NamedTuple
from urllib.parse import quote, urlencode

from spanwise.collector.alert_policy import MAX_GROUPS, OPERATIONAL_MEASURES, close_group, is_operational
from spanwise.collector.alerts.alert_look import LookResult
from spanwise.collector.alerts.moving_traces import MovingTraces
from spanwise.collector.records import JSON, Alert, AlertEvent, AlertGroup, AlertNumbers, Notification
from spanwise.collector.statistics import AlertState
from spanwise.collector.statistics import AlertStatus as Status

MAX_VANISHED_S = 7 * 86_400  # seconds for which a group without traffic is kept
NO_SCORES = "no scores in the window"
_SECOND = 1_000_000_000


class StatusChanges(NamedTuple):
    """New states of the groups, with the changes of status, notifications, and groups that are no longer kept."""

    groups: tuple[AlertGroup, ...]
    events: tuple[AlertEvent, ...]
    notifications: tuple[Notification, ...]
    dropped: tuple[str, ...]


def apply_look(
    moving: MovingTraces, alert: Alert, states: Mapping[str | None, AlertGroup], result: LookResult, now_ns: int
) -> StatusChanges:
    """Return what follows from a look at `now_ns`. `moving` finds the traces that notifications link to.

    A stored group that the look did not see has no traffic any more. It is without data while it fires, is snoozed, or
    may have to be notified, for a week at most; then it is dropped.
    """
    groups: list[AlertGroup] = []
    events: list[AlertEvent] = []
    notifications: list[Notification] = []
    looked = {**_find_vanished(alert, states, result, now_ns), **result.groups}
    for name, numbers in looked.items():
        before = states.get(name) or _start_group(alert, name, now_ns)
        has_scores = numbers.n > 0
        if reason := _find_closing_reason(alert, before, has_scores, result.rule_version, now_ns):
            event, closing = close_group(alert, before, reason, now_ns)
            events.append(event)
            notifications += [closing] if closing is not None else []
            if name is not None and not has_scores:
                continue
            before = replace(_start_group(alert, name, now_ns), changes=before.changes + 1)
        after, change = advance_group(alert, _limit_times(before, now_ns), numbers, now_ns)
        after = replace(after, rule_version=result.rule_version)
        if change is not None:
            events.append(change)
        if (due := _make_due_notification(moving, alert, before, after, now_ns)) is not None:
            notifications.append(due)
            after = replace(after, notified_event=after.event, notified_ns=now_ns, notified_targets=due.targets)
        groups.append(after)
    kept = {group.group for group in groups}
    dropped = tuple(name for name in states if name is not None and name not in kept)
    return StatusChanges(tuple(groups), tuple(events), tuple(notifications), dropped)


def _start_group(alert: Alert, name: str | None, now_ns: int) -> AlertGroup:
    """Return the state of a group before its first look: without data."""
    event = _derive_event_id(alert, name, "no data", now_ns, 0)
    return AlertGroup(project=alert.project, alert=alert.name, group=name, changed_ns=now_ns, event=event)


def _find_vanished(
    alert: Alert, states: Mapping[str | None, AlertGroup], result: LookResult, now_ns: int
) -> dict[str | None, AlertNumbers]:
    """Return numbers without data for stored groups that the look did not see, if they have to be kept."""
    found: dict[str | None, AlertNumbers] = {}
    for name, state in states.items():
        is_notified_later = (
            alert.no_data_s is not None and now_ns - (state.no_data_ns or now_ns) < MAX_VANISHED_S * _SECOND
        )
        is_snoozed = (state.snoozed_until_ns or 0) > now_ns
        if name not in result.groups and (state.status == "firing" or is_snoozed or is_notified_later):
            found[name] = replace(
                state.numbers, value=None, bound=None, n=0, effective_n=0.0, is_breach=None, missing=NO_SCORES
            )
    # those of which the last scores were seen most recently
    latest = sorted(found, key=lambda name: states[name].no_data_ns or now_ns, reverse=True)
    return {name: found[name] for name in latest if states[name].status == "firing" or name in latest[:MAX_GROUPS]}


def _find_closing_reason(alert: Alert, group: AlertGroup, has_scores: bool, rule_version: str, now_ns: int) -> str:
    """Return why a firing group must be closed; "" if it goes on."""
    if group.status != "firing":
        return ""
    if alert.drop is not None and rule_version and group.rule_version not in ("", rule_version):
        return f"rule {alert.rule} was edited: the scores of its former version are no baseline"
    without_data_ns = now_ns - (group.no_data_ns or now_ns)
    if group.group is not None and not has_scores and without_data_ns > MAX_VANISHED_S * _SECOND:
        return "the group has had no scores for a week"
    return ""


def _limit_times(group: AlertGroup, now_ns: int) -> AlertGroup:
    """Return the state without times in the future, which are from before the clock was set back."""
    return replace(
        group,
        changed_ns=min(group.changed_ns, now_ns),
        notified_ns=min(group.notified_ns, now_ns),
        no_data_ns=None if group.no_data_ns is None else min(group.no_data_ns, now_ns),
    )


def advance_group(
    alert: Alert, before: AlertGroup, numbers: AlertNumbers, now_ns: int
) -> tuple[AlertGroup, AlertEvent | None]:
    """Return the state of a group after a look, and the change of its status, if any."""
    state = AlertState(status=Status(before.status), breaches=before.breaches, clears=before.clears)
    after = state.advance(numbers.is_breach, fire_after=alert.fire_after, resolve_after=alert.resolve_after)
    group = replace(
        before,
        status=after.status.value,
        breaches=after.breaches,
        clears=after.clears,
        numbers=numbers,
        no_data_ns=(before.no_data_ns or now_ns) if numbers.is_breach is None else None,
    )
    if after.status == state.status:
        return group, None
    event = AlertEvent(
        id=_derive_event_id(alert, before.group, after.status.value, now_ns, before.changes + 1),
        project=alert.project,
        alert=alert.name,
        version=alert.version,
        group=before.group,
        before=before.status,
        after=after.status.value,
        at_ns=now_ns,
        numbers=numbers,
        reason=numbers.missing,
    )
    baseline = None
    if after.status is Status.FIRING and numbers.baseline is not None and numbers.baseline_variance is not None:
        baseline = numbers.baseline, numbers.baseline_variance
    return replace(group, changed_ns=now_ns, event=event.id, changes=before.changes + 1, baseline=baseline), event


def _derive_event_id(alert: Alert, group: str | None, status: str, now_ns: int, number: int) -> str:
    """Return the id of a change of status. A look that is repeated after a crash derives the same id."""
    content = repr((alert.project, alert.name, alert.version, alert.created_ns, group, status, now_ns, number))
    return hashlib.sha256(content.encode("utf-8", "replace")).hexdigest()[:32]


def _make_due_notification(
    moving: MovingTraces, alert: Alert, before: AlertGroup, after: AlertGroup, now_ns: int
) -> Notification | None:
    """Return the notification that is due, or None.

    A firing is notified once, and again every `repeat_s` until it is acknowledged; a group without data after
    `no_data_s`. While an alert or group is snoozed, these are not sent; a firing that lasts longer is notified after
    the snooze. That a firing is resolved is always reported to the targets of the firing, so that they can close it.
    """
    is_new = after.notified_event != after.event
    if after.status == "resolved" and before.status == "firing":
        if before.notified_event != before.event or not before.notified_targets:
            return None
        return make_notification(moving, alert, after, now_ns, "resolved", targets=before.notified_targets)
    if not alert.to or max(alert.snoozed_until_ns or 0, after.snoozed_until_ns or 0) > now_ns:
        return None
    if after.status == "firing":
        is_repeated = (
            alert.repeat_s is not None
            and not after.is_acknowledged
            and now_ns - after.notified_ns >= alert.repeat_s * 1e9
        )
        if is_new or is_repeated:
            return make_notification(moving, alert, after, now_ns, "firing", repeated=not is_new)
    is_long_without_data = (
        after.status == "no data"
        and is_new
        and alert.no_data_s is not None
        and now_ns - after.changed_ns >= alert.no_data_s * 1e9
    )
    return make_notification(moving, alert, after, now_ns, "no data") if is_long_without_data else None


def make_notification(
    moving: MovingTraces,
    alert: Alert,
    group: AlertGroup,
    now_ns: int,
    status: str,
    *,
    repeated: bool = False,
    targets: tuple[str, ...] = (),
) -> Notification:
    """Return the notification of a group's status, by default to the targets of the alert.

    Its id is that of the change of status. If it is repeated, the id ends with the time.
    """
    return Notification(
        id=f"{group.event}-{now_ns // 1_000_000_000}" if repeated else group.event,
        project=alert.project,
        alert=alert.name,
        group=group.group,
        status=status,
        headline=describe_status(alert, group, status, repeated=repeated),
        facts=_list_facts(alert, group),
        links=_list_links(moving, alert, group),
        created_ns=now_ns,
        targets=targets or alert.to,
    )


def describe_quantity(alert: Alert) -> str:
    """Return a text for the quantity of an alert, such as "mean of groundedness (rule support)"."""
    if alert.no_score_for_s is not None:
        return f"time since the last score of rule {alert.rule}"
    if alert.measure is not None and is_operational(alert):
        return OPERATIONAL_MEASURES[alert.measure][1] + (f" (rule {alert.rule})" if alert.rule else "")
    if alert.measure is not None:
        return f"share of traces with {alert.measure}"
    of = f"share of {alert.label!r} in {alert.key}" if alert.label is not None else f"mean of {alert.key}"
    return f"{of} (rule {alert.rule})"


def describe_condition(alert: Alert) -> str:
    """Return the condition of an alert, such as "below 0.8 over 24 h"."""
    if alert.no_score_for_s is not None:
        return f"more than {format_duration(alert.no_score_for_s)}"
    if alert.below is not None:
        condition = f"below {alert.below:g}"
    elif alert.above is not None:
        condition = f"above {alert.above:g}"
    elif alert.drop is not None:
        condition = f"more than {alert.drop:g} below the 7 days before"
    else:  # a measure that is true or false
        return ""
    return condition if is_operational(alert) else f"{condition} over {format_duration(alert.window_s)}"


def describe_status(alert: Alert, group: AlertGroup, status: str, *, repeated: bool = False) -> str:
    """Return one sentence that says what an alert has found."""
    name = f"{alert.name} [{group.group}]" if group.group is not None else alert.name
    quantity, numbers = describe_quantity(alert), group.numbers
    if status == "no data":
        return f"{name}: no data ({numbers.missing})"
    value = "unknown" if numbers.value is None else format_value(alert, numbers.value)
    if status == "firing" and not describe_condition(alert):
        return f"{name} {'still ' if repeated else ''}fires: {quantity}"
    if status == "resolved" and not describe_condition(alert):
        return f"{name} is resolved; it was: {quantity}"
    if status == "firing":
        still = "still " if repeated else ""
        return f"{name} {still}fires: the {quantity} is {value}, {_describe_bound(alert, numbers)}"
    if status == "resolved":
        return f"{name} is resolved: the {quantity} is {value}, no longer clearly {describe_condition(alert)}"
    return f"{name}: {status}"


def _describe_bound(alert: Alert, numbers: AlertNumbers) -> str:
    sure = f"{100 * alert.sure:g} % sure"
    if numbers.bound is None or numbers.threshold is None:
        return describe_condition(alert)
    if alert.drop is not None:
        return f"at least {numbers.bound:.3g} below the {numbers.baseline:.3g} of the 7 days before ({sure})"
    word = "at most" if alert.below is not None else "at least"
    return f"{word} {numbers.bound:.3g} ({sure}); the threshold is {numbers.threshold:g}"


def format_value(alert: Alert, value: float) -> str:
    """Return a value with its unit: durations, or a number of three digits."""
    if alert.no_score_for_s is not None or alert.measure == "lag_s":
        return format_duration(value)
    return f"{0.0 if abs(value) < 1e-9 else value:.3g}"


def format_duration(seconds: float) -> str:
    """Return a duration such as "24 h", "90 s" or "3 d"."""
    for unit, size, limit in (("s", 1, 120), ("min", 60, 7_200), ("h", 3_600, 172_800)):
        if seconds < limit:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds / 86_400:.3g} d"


def format_time(ns: int) -> str:
    """Return a time as an ISO text in UTC, to the second."""
    return datetime.fromtimestamp(ns // 1_000_000_000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def _list_facts(alert: Alert, group: AlertGroup) -> Mapping[str, JSON]:
    numbers = group.numbers
    facts: dict[str, JSON] = {
        "alert": alert.name,
        "project": alert.project,
        "group": group.group,
        "quantity": describe_quantity(alert),
        "condition": describe_condition(alert),
        "estimate": numbers.value,
        "bound": numbers.bound,
        "threshold": numbers.threshold,
        "baseline": numbers.baseline,
        "since": format_time(group.changed_ns) if group.changed_ns else None,
        "scores": numbers.n if not is_operational(alert) else None,
        "effective n": round(numbers.effective_n, 1) if numbers.effective_n else None,
        "missing": numbers.missing or None,
        "traces without a decision": numbers.undecided or None,
    }
    return {name: value for name, value in facts.items() if value is not None}


def _list_links(moving: MovingTraces, alert: Alert, group: AlertGroup) -> Mapping[str, str]:
    """Return paths to the alert, to the chart of its window, and to the traces that moved the estimate most."""
    numbers = group.numbers
    links = {"Alert": f"/alerts/{quote(alert.name, safe='')}?{urlencode({'project': alert.project})}"}
    span = urlencode({"project": alert.project, "since": numbers.since_ns, "until": numbers.until_ns})
    if alert.rule is not None:
        period = next(name for name, days in (("24h", 1), ("7d", 7), ("30d", 30)) if alert.window_s <= days * 86_400)
        chart = urlencode({"project": alert.project, "range": period, "until": numbers.until_ns})
        links["Chart"] = f"/rules/{quote(alert.rule, safe='')}?{chart}#scores"
    elif not is_operational(alert):
        links["Chart"] = f"/traces?{span}"
    for number, trace_id in enumerate(moving.find(alert, group), start=1):
        links[f"Trace {number}"] = f"/traces/{quote(trace_id, safe='')}"
    return links
