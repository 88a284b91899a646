"""Rules that end workers one after the other rest for a while, so that the other rules go on."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

ENOUGH = 3  # deaths while nothing but this rule ran
FIRST, LONGEST = 60.0, 3600.0  # seconds of rest; each is twice as long as the one before
FORGIVEN = 3600.0  # seconds without a death after which a rule begins anew


@dataclass(slots=True)
class _Record:
    deaths: int = 0
    rests: int = 0
    left: float = 0.0  # seconds of rest
    since: float = 0.0  # seconds since its last death


class Rest:
    """Who rests, and for how long; time passes as it is told."""

    def __init__(self, tell: Callable[[str], Any]) -> None:
        self._tell = tell
        self._rules: dict[tuple[str, str], _Record] = {}

    def names(self) -> list[Sequence[str]]:
        """Project and name of the rules that rest."""
        return [rule for rule, record in self._rules.items() if record.left > 0]

    def blame(self, claims: Iterable[Sequence[str]]) -> None:
        """A worker has died with these claims, (project, rule, target); where one rule alone ran it was that one."""
        rules = {(claim[0], claim[1]) for claim in claims}
        if len(rules) != 1:
            return
        record = self._rules.setdefault(rule := rules.pop(), _Record())
        record.deaths, record.since = record.deaths + 1, 0.0
        if record.deaths >= ENOUGH:
            record.left = min(FIRST * 2.0**record.rests, LONGEST)
            record.deaths, record.rests = 0, record.rests + 1
            self._tell(f"rule {rule[1]!r} has ended {ENOUGH} workers; it rests for {record.left:g} s, the others go on")

    def passed(self, seconds: float) -> bool:
        """Time has passed; whether somebody has rested enough."""
        before = len(self.names())
        for rule, record in list(self._rules.items()):
            record.left, record.since = max(0.0, record.left - seconds), record.since + seconds
            if record.since > FORGIVEN + LONGEST:
                del self._rules[rule]
        return len(self.names()) < before
