"""`spanwise alerts`: list, show, check, test, acknowledge and snooze alerts."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated, Any

import typer

from spanwise.cli.command_io import JsonOption, StoreOption, emit, error_console, open_store, print_line, print_table
from spanwise.collector.alerts import (
    GroupsByAlert,
    check_alert,
    describe_condition,
    describe_quantity,
    describe_status,
    find_alert,
    format_duration,
    format_time,
    format_value,
    get_groups,
    read_groups,
)
from spanwise.collector.errors import Refused
from spanwise.collector.filters import parse_duration
from spanwise.collector.records import Alert, AlertCheck, AlertGroup
from spanwise.collector.terminal_escaping import escape_line

app = typer.Typer(
    help="Alerts on live traffic: list, show, check on past traffic, test, acknowledge, snooze.",
    no_args_is_help=True,
    epilog="Example: `spanwise alerts check rules.py`",
)
Name = Annotated[str, typer.Argument(metavar="ALERT", help="Name of an alert.")]
Project = Annotated[
    str | None, typer.Option(help="Project of the alert; required if several projects have an alert of this name.")
]
OfProject = Annotated[str | None, typer.Option("--project", help="Only alerts of this project.")]
Group = Annotated[str | None, typer.Option(help="Only this group of the alert.")]
RulesFile = Annotated[
    str, typer.Argument(metavar="RULES.PY", help="Python file that calls spanwise.evaluators.alert(…).")
]
Days = Annotated[float, typer.Option(min=1, max=90, help="Days of past traffic.")]
OnlyAlert = Annotated[str | None, typer.Option("--alert", help="Only this alert of the file.")]
For = Annotated[
    str | None,
    typer.Option("--for", metavar="DURATION", help="Duration of the snooze: 30m, 4h, 2d. Without it, the snooze ends."),
]


@app.command("list")
def list_(project: OfProject = None, at: StoreOption = None, as_json: JsonOption = False) -> None:
    """List the alerts with status, estimate and condition, one line for each group.

    Example: `spanwise alerts list`
    """
    with open_store(at) as store:
        alerts, groups = store.alerts(project=project), read_groups(store, project=project)
    if as_json:
        emit(_alert_to_dict(alert, groups) for alert in alerts)
    elif alerts:
        print_table(("alert", "project", "status", "value", "condition", "since"), _list_rows(alerts, groups))
    else:
        error_console.print("there are no alerts; define them with alert(…) in the file of `spanwise monitor rules.py`")


@app.command()
def show(name: Name, project: Project = None, at: StoreOption = None, as_json: JsonOption = False) -> None:
    """Show an alert: definition, the state and numbers of each group, history, and notifications that failed.

    Example: `spanwise alerts show grounded`
    """
    with open_store(at) as store:
        alert = find_alert(store, name, project)
        groups = read_groups(store, alert.name, project=alert.project)
        events = store.alert_events(alert=alert.name, project=alert.project, limit=20).items
        sent = store.notifications(alert=alert.name, project=alert.project, limit=20).items
    if as_json:
        import msgspec

        emit(
            [
                {
                    **_alert_to_dict(alert, groups),
                    "events": msgspec.to_builtins(events),
                    "notifications": msgspec.to_builtins(sent),
                }
            ]
        )
        return
    for line in _describe_alert(alert, get_groups(groups, alert)):
        print_line(line)
    for event in events:
        group = f" [{event.group}]" if event.group is not None else ""
        reason = f": {event.reason}" if event.reason else ""
        print_line(escape_line(f"  {format_time(event.at_ns)}{group} {event.before} → {event.after}{reason}"))
    for one in sent:
        for delivery in one.deliveries:
            if delivery.error and delivery.delivered_ns is None:
                state = "gave up" if delivery.gave_up_ns is not None else f"{delivery.attempts} attempts"
                print_line(escape_line(f"  not delivered to {delivery.target} ({state}): {delivery.error}"))


@app.command()
def check(
    file: RulesFile, days: Days = 30, only: OnlyAlert = None, at: StoreOption = None, as_json: JsonOption = False
) -> None:
    """Run the alerts of a file over past traffic: when each would have fired, and how long it had no data.

    It stores and sends nothing. Use it to choose thresholds and windows.

    Example: `spanwise alerts check rules.py`
    """
    from spanwise.evaluators.monitors import load_file

    alerts = [alert for alert in load_file(file).alerts if only in (None, alert.name)]
    if not alerts:
        raise Refused(
            f"{file!r} defines no alert{'' if only is None else f' {only!r}'}; call spanwise.evaluators.alert(…) in it"
        )
    with open_store(at) as store:
        for alert in alerts:
            try:
                found = check_alert(store, alert, until_ns=time.time_ns(), days=days)
            except Refused as error:
                error_console.print(escape_line(str(error)), markup=False)
                continue
            if as_json:
                import msgspec

                emit([msgspec.to_builtins(found)])
                continue
            for line in _describe_check(alert, found, days):
                print_line(line)


@app.command("test")
def send_test(name: Name, project: Project = None, at: StoreOption = None) -> None:
    """Send a notification that says it is a test to the targets of an alert.

    Example: `spanwise alerts test grounded`
    """
    with open_store(at) as store:
        alert = find_alert(store, name, project)
        store.test_alert(alert.name, project=alert.project)
    print_line(escape_line(f"queued a test for {', '.join(alert.to)}; `spanwise alerts show {name}` shows failures"))


@app.command()
def ack(name: Name, group: Group = None, project: Project = None, at: StoreOption = None) -> None:
    """Acknowledge a firing alert, so that it is not notified again until its status changes.

    Example: `spanwise alerts ack grounded`
    """
    with open_store(at) as store:
        alert = find_alert(store, name, project)
        for one in store.acknowledge_alert(alert.name, project=alert.project, group=group):
            print_line(escape_line(f"acknowledged: {describe_status(alert, one, one.status)}"))


@app.command()
def snooze(
    name: Name, duration: For = None, group: Group = None, project: Project = None, at: StoreOption = None
) -> None:
    """Send no notifications of an alert for a time. What still fires then is notified.

    Example: `spanwise alerts snooze grounded --for 4h`
    """
    until_ns = None if duration is None else time.time_ns() + parse_duration(duration)
    with open_store(at) as store:
        alert = find_alert(store, name, project)
        store.snooze_alert(alert.name, project=alert.project, group=group, until_ns=until_ns)
    until = "no longer snoozed" if until_ns is None else f"snoozed until {format_time(until_ns)}"
    print_line(escape_line(f"{name} is {until}"))


def _alert_to_dict(alert: Alert, groups: GroupsByAlert) -> Mapping[str, Any]:
    import msgspec

    own = groups.get((alert.project, alert.name), ())
    return {**msgspec.to_builtins(alert), "groups": msgspec.to_builtins(own)}


def _list_rows(alerts: Iterable[Alert], groups: GroupsByAlert) -> Iterator[tuple[str, ...]]:
    for alert in alerts:
        condition = f"{describe_quantity(alert)} {describe_condition(alert)}"
        for group in get_groups(groups, alert):
            numbers = group.numbers
            name = alert.name if group.group is None else f"{alert.name} [{group.group}]"
            value = "" if numbers.value is None else format_value(alert, numbers.value)
            since = format_time(group.changed_ns) if group.changed_ns else ""
            yield name, alert.project, _describe_state(alert, group), value, condition, since


def _describe_state(alert: Alert, group: AlertGroup) -> str:
    """Return the status, and why nothing is sent."""
    notes = []
    if not alert.enabled:
        notes.append("paused")
    if group.is_acknowledged:
        notes.append(f"acknowledged by {group.acknowledged_by}")
    until_ns = max(alert.snoozed_until_ns or 0, group.snoozed_until_ns or 0)
    if until_ns > time.time_ns():
        notes.append(f"snoozed until {format_time(until_ns)}")
    return f"{group.status} ({', '.join(notes)})" if notes else group.status


def _describe_alert(alert: Alert, groups: Iterable[AlertGroup]) -> Iterator[str]:
    yield escape_line(f"{alert.name} (project {alert.project}, version {alert.version}, from {alert.owner})")
    yield escape_line(f"  {describe_quantity(alert)} {describe_condition(alert)}")
    yield escape_line(f"  notifies: {', '.join(alert.to) or 'no target'}")
    if alert.left_out_groups:
        yield escape_line(
            f"  {alert.left_out_groups} groups with less traffic are left out: {', '.join(alert.left_out_names)}"
        )
    for group in groups:
        yield escape_line(f"  {_describe_state(alert, group)}: {describe_status(alert, group, group.status)}")
        numbers = group.numbers
        if numbers.n:
            yield escape_line(
                f"    {numbers.n:,} scores, effective n {numbers.effective_n:.0f}, {numbers.failed:,} failed,"
                f" {numbers.skipped:,} skipped, {numbers.left_out:,} left out"
            )
        if numbers.missing:
            yield escape_line(f"    {numbers.missing}")


def _describe_check(alert: Alert, found: AlertCheck, days: float) -> Iterator[str]:
    yield escape_line(
        f"{alert.name}: {describe_quantity(alert)} {describe_condition(alert)}, over the last {days:g} days"
    )
    if not found.looks:
        yield "  no scores"
        return
    groups = f" in {found.groups} groups" if alert.by is not None else ""
    times = "once" if len(found.firings) == 1 else f"{len(found.firings)} times"
    yield f"  would have fired {times if found.firings else 'never'}{groups}"
    for firing in found.firings:
        group = f" [{firing.group}]" if firing.group is not None else ""
        until = (
            "still firing"
            if firing.until_ns is None
            else f"for {format_duration((firing.until_ns - firing.since_ns) / 1e9)}"
        )
        numbers = firing.numbers
        value = "" if numbers.value is None else f", value {format_value(alert, numbers.value)}"
        bound = "" if numbers.bound is None else f", bound {numbers.bound:.3g}"
        yield escape_line(f"    {format_time(firing.since_ns)}{group}, {until}{value}{bound}")
    yield escape_line(
        f"  no data in {100 * found.share_without_data:.0f} % of {found.looks:,} looks"
        + (f" (most often: {found.missing})" if found.without_data else "")
    )
