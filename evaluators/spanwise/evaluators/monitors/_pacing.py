"""Rules whose money is paced: what they have spent is looked at, and their rate in force changed in the store."""

from __future__ import annotations

from collections.abc import Iterable

from spanwise.collector.records import Rule
from spanwise.collector.stores import Store
from spanwise.evaluators.monitors._held import Name, name_of
from spanwise.evaluators.monitors._money import budget_of
from spanwise.evaluators.monitors._pace import DAY, Pacer

KEY = "usd_per_day"
SECOND = 1_000_000_000


class Pacing:
    """For those rules for which this process decides."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._pacers: dict[Name, Pacer] = {}

    def look(self, rules: Iterable[Rule], now: float) -> None:
        """Change rates that no longer fit. `now` is the store's time, in seconds since 1970."""
        paced = {name_of(rule): rule for rule in rules if rule.settings.pace and KEY in rule.settings.budget}
        self._pacers = {name: pacer for name, pacer in self._pacers.items() if name in paced}
        for name, rule in paced.items():
            pacer = self._pacers.setdefault(name, Pacer(rule.settings.paced))
            if pacer.is_due(now):
                self._pace(rule, pacer, now)

    def _pace(self, rule: Rule, pacer: Pacer, now: float) -> None:
        factor = pacer.look(now, self._spent(rule, now), rule.settings.budget[KEY])
        if factor is not None:
            paced = None if factor == 1.0 else factor
            self._store.change_rule(rule.name, project=rule.project, settings={"paced": paced})

    def _spent(self, rule: Rule, now: float) -> float:
        today = int(now // DAY * DAY) * SECOND
        booked = self._store.booked(budget_of(rule.project, rule.name, KEY))
        return sum(one.settled + one.reserved + one.unknown for one in booked if one.period_start_ns == today)
