"""The rules that a worker holds, and what the store says of them: in force, or why the worker idles for one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias

from spanwise.collector.records import Rule
from spanwise.collector.stores import Store
from spanwise.evaluators.monitors._rule import Monitored
from spanwise.evaluators.protocol import Evaluator

API = "api"  # the owner of rules that came through the API, where the store has them already
UNSAVED, PAUSED = "it is not saved yet", "the rule is paused"
Name: TypeAlias = tuple[str, str]  # project and name


class Held:
    """A rule of this worker. `in_force` is the store's record of it; `idle` says why it is not worked on, or None."""

    def __init__(self, rule: Monitored) -> None:
        self.record = rule.record
        self.evaluators: tuple[Evaluator, ...] = rule.evaluators
        self.in_force = rule.record
        self.idle: str | None = UNSAVED
        self.barred: str | None = None  # why it cannot be worked on as it stands
        self.rests: str | None = None  # why this process leaves it alone, whatever the store says

    @property
    def name(self) -> Name:
        """Project and name."""
        return name_of(self.record)

    @property
    def reported_idle(self) -> str | None:
        """Why it is idle, as reports say it. The store knows itself whether the rule is paused; a report may be old."""
        return None if self.idle == PAUSED else self.idle

    def see(self, current: Rule | None) -> None:
        """What the store has in force under this name by now."""
        if current is None:
            self.idle = "the rule was removed"
        elif current.version != self.record.version:
            self.idle = f"version {self.record.version} was superseded by {current.version}"
        elif not current.enabled:
            self.idle = PAUSED
        else:
            self.idle = self.barred or self.rests
        if current is not None and current.version == self.record.version:
            self.in_force = current


def name_of(rule: Rule) -> Name:
    """Project and name of a rule."""
    return rule.project, rule.name


def by_name(rules: Sequence[Rule]) -> Mapping[Name, Rule]:
    """Rules in force by project and name."""
    return {name_of(rule): rule for rule in rules}


def save(store: Store, held: Sequence[Held], owner: str | None, *, activate: bool) -> None:
    """Put rules in force, those that another version has superseded only if they are to be activated again.

    For such a one the worker idles. Raises `Refused` for a rule that belongs to another owner.
    """
    old = {} if activate else by_name(_superseding(store, held))
    own = [one for one in held if owner is None or one.record.owner != API]  # beside a file's, those are the store's
    if own:
        store.save_rule(*(old.get(one.name, one.record) for one in own), owner=owner, activate=activate)
    refresh(store, held)


def refresh(store: Store, held: Sequence[Held]) -> None:
    """Ask the store what is in force."""
    current = by_name(store.rules())
    for one in held:
        one.see(current.get(one.name))


def _superseding(store: Store, held: Sequence[Held]) -> list[Rule]:
    """What is in force in the place of versions of ours that were in force before."""
    current = by_name(store.rules())
    before = {(*name_of(rule), rule.version) for rule in store.rules(all_versions=True)}
    ours = [one for one in held if one.name in current and current[one.name].version != one.record.version]
    return [replace(current[one.name]) for one in ours if (*one.name, one.record.version) in before]
