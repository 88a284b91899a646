"""Look at an alert: read the sums of its window, and evaluate the condition for each group."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from math import inf
from typing import NamedTuple, TypeAlias

from spanwise.collector.alert_policy import BASELINE_S, MAX_GROUPS, get_block_s, is_operational
from spanwise.collector.alerts.operational_measures import read_measure
from spanwise.collector.records import Alert, AlertGroup, AlertNumbers, ScoreSums
from spanwise.collector.statistics import (
    WINDOW_BLOCKS,
    AlertCondition,
    AlertLook,
    BlockSums,
    WindowEstimate,
    evaluate_condition,
)
from spanwise.collector.stores import Store

MAX_LEFT_OUT_NAMES = 20
MAX_NAMES_LENGTH = 2_000  # characters of the names of groups in one query, so that its URL is not too long
SETTLED_S = 900  # age of a block after which the traces in it hardly change any more
_SECOND = 1_000_000_000
Blocks: TypeAlias = dict[str | None, dict[int, ScoreSums]]  # sums by group and number of the block


class LookResult(NamedTuple):
    """Numbers of each group, and the groups that were left out because others have more traffic."""

    groups: Mapping[str | None, AlertNumbers]
    left_out_groups: int = 0
    left_out_names: tuple[str, ...] = ()
    rule_version: str = ""


class MeasureCache:
    """Sums of measures of traces that earlier looks have read, by alert, for measures whose sums the store does not keep.

    A look reads again only the blocks that ended less than a quarter of an hour ago. Traces that change later count as they were.
    """

    def __init__(self) -> None:
        self._blocks: dict[tuple[str, str, str], dict[int, list[ScoreSums]]] = {}

    def read(self, store: Store, alert: Alert, since_ns: int, until_ns: int) -> list[ScoreSums]:
        """Return the sums of all blocks between two times."""
        assert alert.measure is not None
        block_ns = get_block_s(alert) * _SECOND
        known = self._blocks.setdefault((alert.project, alert.name, alert.version), {})
        starts = range(since_ns, until_ns, block_ns)
        first = next((start for start in starts if start not in known), None)
        if first is not None:
            for start in range(first, until_ns, block_ns):
                known[start] = []
            for sums in store.measure_sums(
                alert.measure,
                alert.filter,
                project=alert.project,
                since_ns=first,
                until_ns=until_ns,
                block_s=get_block_s(alert),
                by=alert.by,
            ):
                known[sums.start_ns].append(sums)
        found = [sums for start in starts for sums in known[start]]
        settled_ns = until_ns - SETTLED_S * _SECOND
        oldest_ns = until_ns - (int(alert.window_s) + BASELINE_S) * _SECOND
        for start in [start for start in known if start < oldest_ns or start + block_ns > settled_ns]:
            del known[start]
        return found


class SumsHistory:
    """Reader of the sums of an alert's quantity by group and time block.

    `rule_version` is the version in force of the alert's rule, "" for measures of traces, and None if there is no such
    rule; `missing` then says so.
    """

    def __init__(self, store: Store, alert: Alert, cache: MeasureCache | None = None) -> None:
        self._store, self._alert, self._cache = store, alert, cache or MeasureCache()
        self.missing = ""
        self.rule_version: str | None = ""
        if alert.rule is not None:
            rules = [rule for rule in store.rules(project=alert.project) if rule.name == alert.rule]
            # scores of an earlier version came from other evaluators
            self.rule_version = rules[0].version if rules else None
            if not rules:
                self.missing = f"there is no rule {alert.rule!r} in project {alert.project!r}"

    def rank_groups(self, since_ns: int, until_ns: int) -> list[str]:
        """Return the groups with scores in a range of time, that with the most first."""
        alert = self._alert
        assert alert.by is not None
        if alert.rule is None:
            counts: dict[str, int] = defaultdict(int)
            for sums in self._cache.read(self._store, alert, since_ns, until_ns):
                counts[str(sums.group)] += sums.n
            return sorted(counts, key=lambda name: (-counts[name], name))
        if self.rule_version is None:
            return []
        found = self._store.score_groups(
            alert.rule,
            by=alert.by,
            project=alert.project,
            key=alert.key,
            version=self.rule_version,
            since_ns=since_ns,
            until_ns=until_ns,
            live=True,
        )
        return [name for name, count in found.items() if count]

    def read(self, since_ns: int, until_ns: int, groups: Sequence[str] = ()) -> Blocks:
        """Return the sums between two times, of some groups; of an alert without groups, all."""
        found: Blocks = defaultdict(dict)
        if self.rule_version is None or (self._alert.by is not None and not groups):
            return found
        block_ns = get_block_s(self._alert) * _SECOND
        if self._alert.rule is None:
            rows = self._cache.read(self._store, self._alert, since_ns, until_ns)
            wanted = {*groups}
            rows = [each for each in rows if self._alert.by is None or each.group in wanted]
        else:
            rows = [each for some in _split_names(groups) for each in self._read_scores(since_ns, until_ns, some)]
        for each in rows:
            place = (each.start_ns - since_ns) // block_ns
            # of a label that a block lacks, its other labels have the weights: its share is 0
            if each.label == self._alert.label or (
                self._alert.label is not None and each.label is not None and place not in found[each.group]
            ):
                is_own = each.label == self._alert.label
                found[each.group][place] = each if is_own else replace(each, total=0.0, products=0.0, total_squares=0.0)
        return found

    def _read_scores(self, since_ns: int, until_ns: int, groups: Sequence[str]) -> list[ScoreSums]:
        alert = self._alert
        assert alert.rule is not None
        return self._store.score_sums(
            alert.rule,
            project=alert.project,
            key=alert.key,
            version=self.rule_version,
            since_ns=since_ns,
            until_ns=until_ns,
            block_s=get_block_s(alert),
            by=alert.by,
            groups=groups,
            live=True,  # backfills do not change what fires
        )


def _split_names(names: Sequence[str]) -> Iterator[Sequence[str]]:
    """Yield the names in parts that fit into a URL; one empty part for no names."""
    part: list[str] = []
    length = 0
    for name in names:
        length += 3 * len(name.encode("utf-8", "replace")) + 8  # percent-encoded
        if part and length > MAX_NAMES_LENGTH:
            yield part
            part, length = [], 3 * len(name.encode("utf-8", "replace")) + 8
        part.append(name)
    yield part


def look(
    store: Store,
    alert: Alert,
    until_ns: int,
    states: Mapping[str | None, AlertGroup],
    *,
    undecided: int = 0,
    cache: MeasureCache | None = None,
) -> LookResult:
    """Evaluate an alert for the window that ends at `until_ns`, a multiple of its block length.

    `states` are the stored groups: firing ones are evaluated even if others have more traffic, with the baseline that
    they began with. `undecided` is the number of traces without a decision. `cache` has the sums of earlier looks.
    """
    if is_operational(alert):
        return LookResult({None: read_measure(store, alert, until_ns)})
    history = SumsHistory(store, alert, cache)
    since_ns = until_ns - int(alert.window_s) * _SECOND
    firing = [name for name, state in states.items() if state.status == "firing"]
    ranked: list[str | None] = [None]
    names: Sequence[str] = ()
    if alert.by is not None:
        ranked = list(history.rank_groups(since_ns, until_ns))
        ranked += [name for name in firing if name not in ranked]
        kept = ranked[:MAX_GROUPS] + [name for name in firing if name in ranked[MAX_GROUPS:]]
        names = [str(name) for name in kept]
    window = history.read(since_ns, until_ns, names)
    baseline: Blocks = {}
    if alert.drop is not None and history.rule_version is not None:
        # apart from the window, so that a session in both is a cluster in each
        baseline = history.read(since_ns - BASELINE_S * _SECOND, since_ns, names)
    groups = _evaluate_groups(alert, history, window, baseline, names if alert.by is not None else [None], states)
    numbers = {
        name: replace(each, undecided=undecided, since_ns=since_ns, until_ns=until_ns) for name, each in groups.items()
    }
    left_out = [str(name) for name in ranked if name not in numbers]
    return LookResult(numbers, len(left_out), tuple(left_out[:MAX_LEFT_OUT_NAMES]), history.rule_version or "")


def _evaluate_groups(
    alert: Alert,
    history: SumsHistory,
    window: Blocks,
    baseline: Blocks,
    names: Sequence[str | None],
    states: Mapping[str | None, AlertGroup],
) -> dict[str | None, AlertNumbers]:
    """Return the numbers of each group. The permitted error is divided by the number of groups that have data."""
    condition = AlertCondition(below=alert.below, above=alert.above, drop=alert.drop, sure=alert.sure)
    before_blocks = BASELINE_S // get_block_s(alert)

    def evaluate(name: str | None, groups: int) -> AlertLook:
        blocks = _list_blocks(window.get(name, {}), WINDOW_BLOCKS)
        state = states.get(name)
        before: Sequence[BlockSums] | WindowEstimate = ()
        if condition.drop is not None and state is not None and state.status == "firing" and state.baseline:
            mean, variance = state.baseline  # it does not move while the alert fires
            before = WindowEstimate(
                mean=mean, variance=variance, effective_n=inf, n=1, filled_blocks=before_blocks, is_share=False
            )
        elif condition.drop is not None:
            before = _list_blocks(baseline.get(name, {}), before_blocks)
        return evaluate_condition(condition, blocks, seconds=alert.window_s, baseline=before, groups=groups)

    looks = {name: evaluate(name, 1) for name in names}
    with_data = sum(1 for each in looks.values() if each.is_breach is not None)
    if with_data > 1:
        looks = {name: evaluate(name, with_data) for name in names}
    return {
        name: _make_numbers(condition, looks[name], list(window.get(name, {}).values()), history.missing)
        for name in names
    }


def _list_blocks(sums: Mapping[int, ScoreSums], count: int) -> list[BlockSums]:
    """Return the sums of each of `count` blocks; those without scores are 0."""
    blocks = [BlockSums() for _ in range(count)]
    for place, each in sums.items():
        for name in BlockSums.__dataclass_fields__:
            setattr(blocks[place], name, getattr(each, name))
    return blocks


def _make_numbers(condition: AlertCondition, result: AlertLook, sums: Sequence[ScoreSums], reason: str) -> AlertNumbers:
    left_out = sum(each.left_out for each in sums)
    missing = reason or result.missing
    if missing and not result.window.n and left_out:
        missing = (
            f"all {left_out} scores have an unknown sampling probability; their senders do not say how they sample"
        )
    before = result.baseline
    return AlertNumbers(
        value=result.window.mean,
        bound=result.bound,
        threshold=next(value for value in (condition.below, condition.above, condition.drop) if value is not None),
        baseline=before.mean if before is not None else None,
        baseline_variance=before.variance if before is not None and before.mean is not None else None,
        n=result.window.n,
        effective_n=result.window.effective_n,
        filled_blocks=result.window.filled_blocks,
        failed=sum(each.failed for each in sums),
        skipped=sum(each.skipped for each in sums),
        left_out=left_out,
        missing=missing,
        is_breach=result.is_breach,
    )
