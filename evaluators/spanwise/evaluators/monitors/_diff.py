"""A rule beside the one that is tried in its place: what changed on the targets of both, and what it costs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import islice
from statistics import fmean

from spanwise.collector.errors import NotFound, Refused
from spanwise.collector.records import Decision, Page, Rule, WeightedScore, paged
from spanwise.collector.statistics import SampledMean, sampled_means
from spanwise.collector.stores import Store
from spanwise.evaluators.monitors._outcome import SHADOW
from spanwise.evaluators.protocol import Location, opened_store

COMPARED = 50_000  # scores of each rule, the newest
_Place = tuple[str | None, str | None, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """Under one key, on the traces (sessions) that both rules have scored: both means, and that of new minus old."""

    key: str
    old: SampledMean
    new: SampledMean
    change: SampledMean

    @property
    def beyond_chance(self) -> bool:
        """Whether the 95 % interval of the change leaves out 0."""
        low, high = self.change.low, self.change.high
        return low is not None and high is not None and not low <= 0 <= high


@dataclass(frozen=True, slots=True, kw_only=True)
class Diff:
    """Two rules on the same targets. `cost_old` and `cost_new` are US dollars per target, None where none is known.

    `only_old` and `only_new` are traces (sessions) that one of them alone has scored, or failed to.
    """

    old: Rule
    new: Rule
    both: int
    only_old: int
    only_new: int
    differences: tuple[Difference, ...]
    cost_old: float | None
    cost_new: float | None


def diff(store: Location, rule: str, shadow: str | None = None, *, project: str = "default") -> Diff:
    """What a rule and its shadow say of the same targets; `shadow` names the one that is meant, where it has several.

    `store` may be a path or URL. Raises `NotFound` for a rule that there is not, `Refused` where it has no shadow, or
    several.
    """
    with opened_store(store) as found:
        return _diff(found, *_rules(found, rule, shadow, project))


def _diff(store: Store, old: Rule, new: Rule) -> Diff:
    said, anew = _scores(store, old), _scores(store, new)
    shared = [place for place in said if place in anew]
    of_old, of_new = {place[:2] for place in said}, {place[:2] for place in anew}
    return Diff(
        old=old,
        new=new,
        both=len(of_old & of_new),
        only_old=len(of_old - of_new),
        only_new=len(of_new - of_old),
        differences=tuple(_differences([said[place] for place in shared], [anew[place] for place in shared])),
        cost_old=_cost(store, old),
        cost_new=_cost(store, new),
    )


def _rules(store: Store, rule: str, shadow: str | None, project: str) -> tuple[Rule, Rule]:
    rules = {one.name: one for one in store.rules(project=project)}
    names = [shadow] if shadow else sorted(name for name, one in rules.items() if one.shadow_of == rule)
    for name in (rule, *names):
        if name not in rules:
            raise NotFound(f"there is no rule {name!r} in project {project!r}; it has {', '.join(rules) or 'none'}")
    if len(names) != 1:
        told = (
            f"has the shadows {', '.join(names)}: name one"
            if names
            else f"has no shadow: another rule with shadow_of={rule!r} is one"
        )
        raise Refused(f"rule {rule!r} {told}")
    return rules[rule], rules[names[0]]


def _scores(store: Store, rule: Rule) -> dict[_Place, WeightedScore]:
    """By trace, session and key the mean score of its targets there."""
    found: dict[_Place, list[WeightedScore]] = {}
    for one in _stored(store, rule):
        if one.score is not None:
            key = one.key.removeprefix(SHADOW)
            found.setdefault((one.trace_id, one.session_id, key), []).append(replace(one, key=key))
    return {place: replace(all[0], score=fmean(float(one.score or 0) for one in all)) for place, all in found.items()}


def _stored(store: Store, rule: Rule) -> Iterator[WeightedScore]:
    def ask(cursor: str | None) -> Page[WeightedScore]:
        return store.weighted(rule.name, version=rule.version, project=rule.project, cursor=cursor)

    return islice(paged(ask), COMPARED)


def _differences(said: list[WeightedScore], anew: list[WeightedScore]) -> Iterator[Difference]:
    changes = [replace(b, score=float(b.score or 0) - float(a.score or 0)) for a, b in zip(said, anew, strict=True)]
    means = zip(sampled_means(said), sampled_means(anew), sampled_means(changes), strict=True)
    return (Difference(key=old.key, old=old, new=new, change=change) for old, new, change in means)


def _cost(store: Store, rule: Rule) -> float | None:
    def ask(cursor: str | None) -> Page[Decision]:
        return store.decisions(
            rule=rule.name, version=rule.version, project=rule.project, verdict="scored", cursor=cursor
        )

    return _mean(decision.cost for decision in islice(paged(ask), COMPARED))


def _mean(costs: Iterable[float | None]) -> float | None:
    known = [cost for cost in costs if cost is not None]
    return fmean(known) if known else None
