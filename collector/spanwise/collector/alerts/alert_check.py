"""Check of an alert: run it over past traffic, and say when it would have fired."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from spanwise.collector.alert_policy import assign_alert_version, get_interval_ns, is_operational, validate_alert
from spanwise.collector.alerts.alert_look import MeasureCache, look
from spanwise.collector.alerts.status_changes import advance_group
from spanwise.collector.errors import Refused
from spanwise.collector.records import Alert, AlertCheck, AlertFiring, AlertGroup
from spanwise.collector.stores import Store

CHECKED_DAYS = 30
_SECOND = 1_000_000_000


def check_alert(store: Store, alert: Alert, *, until_ns: int, days: float = CHECKED_DAYS) -> AlertCheck:
    """Run an alert over the `days` before `until_ns`, with the looks and the rules of live evaluation.

    It reads the scores as they are now: a score that came late counts at each look since the start of its trace.
    Nothing is stored or notified. Raises `Refused` for an invalid definition, and for operational alerts, whose
    measures have no history.
    """
    alert = assign_alert_version(alert)
    validate_alert(alert)
    if is_operational(alert):
        raise Refused(f"alert {alert.name!r} reads the present state of the operation, which has no history to check")
    interval_ns = get_interval_ns(alert)
    last_ns = until_ns // interval_ns * interval_ns
    first_ns = last_ns - int(days * 86_400) * _SECOND // interval_ns * interval_ns
    states: dict[str | None, AlertGroup] = {}
    firings: list[AlertFiring] = []
    open_firings: dict[str | None, int] = {}  # places in `firings`, by group
    missing: Counter[str] = Counter()
    looks = without_data = 0
    cache = MeasureCache()
    for now_ns in range(first_ns, last_ns + 1, interval_ns):
        for name, numbers in look(store, alert, now_ns, states, cache=cache).groups.items():
            before = states.get(name) or AlertGroup(project=alert.project, alert=alert.name, group=name)
            states[name], change = advance_group(alert, before, numbers, now_ns)
            if change is not None and change.after == "firing":
                open_firings[name] = len(firings)
                firings.append(AlertFiring(group=name, since_ns=now_ns, until_ns=None, numbers=numbers))
            elif change is not None and change.before == "firing":
                place = open_firings.pop(name)
                firings[place] = replace(firings[place], until_ns=now_ns)
            looks += 1
            if numbers.is_breach is None:
                without_data += 1
                missing[numbers.missing] += 1
    return AlertCheck(
        alert=alert.name,
        since_ns=first_ns,
        until_ns=last_ns,
        looks=looks,
        without_data=without_data,
        firings=tuple(firings),
        missing=missing.most_common(1)[0][0] if missing else "no scores",
        groups=len(states),
    )
