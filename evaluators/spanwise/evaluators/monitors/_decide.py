"""What a rule makes of a trace that changed: out, or in with which probability. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Literal, NamedTuple, TypeAlias

from spanwise.collector.filters import Filter, normal_form
from spanwise.collector.records import Head, Rule, RuleSettings, Setting, canonical
from spanwise.collector.rules import filters_of, outside, rate_of, unit_of
from spanwise.collector.statistics import u

Verdict: TypeAlias = Literal["outside", "filtered", "sampled_out", "taken"]


class Drawn(NamedTuple):
    """What became of a trace: `outside` is no rule's business and counted nowhere."""

    verdict: Verdict
    u: float | None = None
    rate: float | None = None
    stratum: int | None = None
    probability: float | None = None  # inclusion probability: head × rate; None where the head's is unknown


_OUTSIDE, _FILTERED = Drawn("outside"), Drawn("filtered")


class Questions:
    """The filters of all rules and strata of a process: each, by its normal form, is asked once in a slice."""

    def __init__(self) -> None:
        self.filters: list[Filter] = []
        self._places: dict[bytes, int] = {}

    def place(self, filter: Filter) -> int | None:
        """Where the answer to a filter stands in `Head.passes`; None for one without conditions, which all pass."""
        form = normal_form(filter)
        if not form:
            return None
        place = self._places.setdefault(canonical(form), len(self.filters))
        if place == len(self.filters):
            self.filters.append(filter)
        return place


class InForce(NamedTuple):
    """A rule under one of its settings, with the places of its filters."""

    rule: Rule
    settings: RuleSettings
    from_change: int
    places: tuple[int | None, ...]  # of its own filter, then of its strata


def in_force(rule: Rule, setting: Setting, questions: Questions) -> InForce:
    """Raises `Refused` for a filter that no rule can have."""
    places = tuple(map(questions.place, filters_of(rule, setting.settings)))
    return InForce(rule, setting.settings, setting.from_change, places)


def draw(of: InForce, head: Head) -> Drawn:
    """What a rule makes of a head. An answer that is not told yet (`awaits`) counts as no."""
    if outside(of.rule, head) is not None:
        return _OUTSIDE
    passes = _answers(of, head)
    if not passes[0] or (of.rule.target == "session" and head.session_id is None):
        return _FILTERED
    rate, stratum = rate_of(of.settings, passes[1:])
    at = u_of(unit_of(of.rule, head))
    if at >= rate:
        return Drawn("sampled_out", at, rate, stratum)
    return Drawn("taken", at, rate, stratum, probability(of.rule, head, rate))


def awaits(of: InForce, head: Head) -> bool:
    """Whether it cannot be told yet what becomes of a trace: its text is not indexed."""
    return outside(of.rule, head) is None and any(answer is None for answer in _answers(of, head))


def probability(rule: Rule, head: Head, rate: float) -> float | None:
    """The chance that a target was looked at. Of a session whose turns were sampled one by one nobody knows it.

    0 for a trace that the head kept for its error alone: errors that it sampled stand for this one already.
    """
    if head.partial:
        return 0.0
    if head.probability is None or (rule.target == "session" and head.probability < 1):
        return None
    return head.probability * rate


def _answers(of: InForce, head: Head) -> Sequence[bool | None]:
    passes: Any = head.passes
    return [True if place is None else passes[place] for place in of.places]


u_of = lru_cache(maxsize=4096)(u)  # several rules ask of the same trace in turn
