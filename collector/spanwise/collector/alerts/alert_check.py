"""Check of an alert: run it over past traffic, and say when it would have fired."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from spanwise.collector.alert_policy import (
    BASELINE_S,
    assign_alert_version,
    get_interval_ns,
    is_operational,
    validate_alert,
)
from spanwise.collector.alerts.alert_look import SumsHistory, evaluate_groups
from spanwise.collector.errors import Refused
from spanwise.collector.records import Alert, AlertCheck, AlertFiring, AlertNumbers
from spanwise.collector.statistics import AlertState
from spanwise.collector.statistics import AlertStatus as Status
from spanwise.collector.stores import Store

CHECKED_DAYS = 30
_SECOND = 1_000_000_000


@dataclass(slots=True)
class _GroupHistory:
    state: AlertState = field(default_factory=AlertState)
    firings: list[AlertFiring] = field(default_factory=list)

    def add(self, alert: Alert, group: str | None, numbers: AlertNumbers, now_ns: int) -> None:
        before = self.state.status
        self.state = self.state.advance(
            numbers.is_breach, fire_after=alert.fire_after, resolve_after=alert.resolve_after
        )
        if self.state.status is Status.FIRING and before is not Status.FIRING:
            self.firings.append(AlertFiring(group=group, since_ns=now_ns, until_ns=None, numbers=numbers))
        elif before is Status.FIRING and self.state.status is not Status.FIRING:
            last = self.firings[-1]
            self.firings[-1] = AlertFiring(group=group, since_ns=last.since_ns, until_ns=now_ns, numbers=last.numbers)

    @property
    def firing_since_ns(self) -> int | None:
        return self.firings[-1].since_ns if self.state.status is Status.FIRING else None


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
    interval_ns, window_ns = get_interval_ns(alert), int(alert.window_s) * _SECOND
    last_ns = until_ns // interval_ns * interval_ns
    first_ns = last_ns - int(days * 86_400) * _SECOND // interval_ns * interval_ns
    before_ns = BASELINE_S * _SECOND if alert.drop is not None else 0
    history = SumsHistory(store, alert)
    history.read(first_ns - window_ns - before_ns, last_ns)
    groups: dict[str | None, _GroupHistory] = {}
    missing: Counter[str] = Counter()
    looks = without_data = 0
    for now_ns in range(first_ns, last_ns + 1, interval_ns):
        firing = {name: since for name, one in groups.items() if (since := one.firing_since_ns) is not None}
        for name, numbers in evaluate_groups(alert, history, now_ns, firing=firing).groups.items():
            groups.setdefault(name, _GroupHistory()).add(alert, name, numbers, now_ns)
            looks += 1
            if numbers.is_breach is None:
                without_data += 1
                missing[numbers.missing] += 1
    firings = sorted((firing for one in groups.values() for firing in one.firings), key=lambda one: one.since_ns)
    return AlertCheck(
        alert=alert.name,
        since_ns=first_ns,
        until_ns=last_ns,
        looks=looks,
        without_data=without_data,
        firings=tuple(firings),
        missing=missing.most_common(1)[0][0] if missing else "no scores",
        groups=len(groups),
    )
