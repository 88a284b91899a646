"""Look at an alert: read the sums of its window, and evaluate the condition for each group."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from spanwise.collector.alert_policy import BASELINE_S, MAX_GROUPS, get_block_s, is_operational
from spanwise.collector.alerts.operational_measures import read_measure
from spanwise.collector.records import Alert, AlertGroup, AlertNumbers, ScoreSums
from spanwise.collector.statistics import (
    WINDOW_BLOCKS,
    AlertCondition,
    AlertLook,
    BlockSums,
    evaluate_condition,
)
from spanwise.collector.stores import Store

MAX_LEFT_OUT_NAMES = 20
_SECOND = 1_000_000_000


class LookResult(NamedTuple):
    """Numbers of each group, and the groups that were left out because others have more traffic."""

    groups: Mapping[str | None, AlertNumbers]
    left_out_groups: int = 0
    left_out_names: tuple[str, ...] = ()


class SumsHistory:
    """Sums of an alert's quantity by group and time block. Blocks start at multiples of their length before now."""

    def __init__(self, store: Store, alert: Alert) -> None:
        self._store, self._alert = store, alert
        self._block_ns = get_block_s(alert) * _SECOND
        self._sums: dict[str | None, dict[int, ScoreSums]] = defaultdict(dict)
        self.missing = ""  # reason why there are no sums at all
        self._version: str | None = None
        if alert.rule is not None:
            rules = [rule for rule in store.rules(project=alert.project) if rule.name == alert.rule]
            if not rules:
                self.missing = f"there is no rule {alert.rule!r} in project {alert.project!r}"
                return
            self._version = rules[0].version  # scores of an earlier version came from other evaluators

    def rank_groups(self, since_ns: int, until_ns: int) -> list[str]:
        """Return the groups with scores in a range of time, that with the most first."""
        if self._alert.rule is None or self._alert.by is None or self.missing:
            return []
        counts = self._store.score_groups(
            self._alert.rule,
            by=self._alert.by,
            project=self._alert.project,
            key=self._alert.key,
            version=self._version,
            since_ns=since_ns,
            until_ns=until_ns,
            live=True,
        )
        return [name for name, count in counts.items() if count]

    def read(self, since_ns: int, until_ns: int, groups: Sequence[str] = ()) -> None:
        """Read the sums of a range of time, of some groups or of all, in addition to those that were read before."""
        if self.missing or since_ns >= until_ns:
            return
        alert, block_s = self._alert, get_block_s(self._alert)
        if alert.rule is None:
            assert alert.measure is not None
            sums = self._store.measure_sums(
                alert.measure,
                alert.filter,
                project=alert.project,
                since_ns=since_ns,
                until_ns=until_ns,
                block_s=block_s,
                by=alert.by,
            )
        else:
            sums = self._store.score_sums(
                alert.rule,
                project=alert.project,
                key=alert.key,
                version=self._version,
                since_ns=since_ns,
                until_ns=until_ns,
                block_s=block_s,
                by=alert.by,
                groups=groups,
                live=True,  # backfills do not change what fires
            )
        for each in sums:
            if alert.rule is None or each.label == alert.label:
                self._sums[each.group][each.start_ns] = each

    @property
    def groups(self) -> Iterable[str | None]:
        """Return the groups that have sums in the range."""
        return self._sums.keys()

    def count_scores(self, group: str | None, since_ns: int) -> int:
        """Return the number of a group's scores since a time."""
        return sum(sums.n for start, sums in self._sums[group].items() if start >= since_ns)

    def read_blocks(self, group: str | None, since_ns: int, until_ns: int) -> tuple[list[BlockSums], AlertNumbers]:
        """Return the sums of each block between two times, and the counts of scores that are not among them."""
        of_group, blocks = self._sums.get(group, {}), []
        failed = skipped = left_out = 0
        for start in range(since_ns, until_ns, self._block_ns):
            block = BlockSums()
            if (sums := of_group.get(start)) is not None:
                for name in BlockSums.__dataclass_fields__:
                    setattr(block, name, getattr(sums, name))
                failed, skipped, left_out = failed + sums.failed, skipped + sums.skipped, left_out + sums.left_out
            blocks.append(block)
        return blocks, AlertNumbers(
            failed=failed, skipped=skipped, left_out=left_out, since_ns=since_ns, until_ns=until_ns
        )


def look(
    store: Store, alert: Alert, until_ns: int, states: Mapping[str | None, AlertGroup], *, undecided: int = 0
) -> LookResult:
    """Evaluate an alert for the window that ends at `until_ns`, a multiple of its block length.

    `states` are the stored groups: a firing one is evaluated even if others have more traffic, and its baseline ends
    before the window with which the firing began. `undecided` is the number of traces without a decision.
    """
    if is_operational(alert):
        return LookResult({None: read_measure(store, alert, until_ns)})
    window_ns = int(alert.window_s) * _SECOND
    fired = {group: state.fired_ns for group, state in states.items() if state.fired_ns is not None}
    before_ns = BASELINE_S * _SECOND if alert.drop is not None else 0
    history = SumsHistory(store, alert)
    start_ns = until_ns - window_ns - before_ns
    ranked = history.rank_groups(until_ns - window_ns, until_ns)
    read = [*ranked[:MAX_GROUPS], *(group for group in fired if group is not None)]
    if read or alert.by is None or alert.rule is None:
        history.read(start_ns, until_ns, read)
        for end_ns in {time - window_ns for time in fired.values()} if before_ns else ():
            history.read(end_ns - before_ns, min(end_ns, start_ns), read)
    return evaluate_groups(alert, history, until_ns, firing=fired, undecided=undecided, ranked=ranked)


def evaluate_groups(
    alert: Alert,
    history: SumsHistory,
    until_ns: int,
    *,
    firing: Mapping[str | None, int],
    undecided: int = 0,
    ranked: Sequence[str | None] = (),
) -> LookResult:
    """Evaluate the condition on each group's window that ends at `until_ns`.

    `firing` has the groups that fire, with the time since which their baseline does not move. `ranked` are all groups
    by traffic; without them, they are ranked by the sums that were read.
    """
    condition = AlertCondition(below=alert.below, above=alert.above, drop=alert.drop, sure=alert.sure)
    since_ns = until_ns - int(alert.window_s) * _SECOND
    if alert.by is None:
        names: list[str | None] = [None]
        left_out = []
    else:
        if not ranked:
            traffic = {name: count for name in history.groups if (count := history.count_scores(name, since_ns))}
            ranked = sorted(traffic, key=lambda name: (-traffic[name], str(name)))
        names = [*ranked[:MAX_GROUPS], *(name for name in firing if name not in ranked[:MAX_GROUPS])]
        left_out = [str(name) for name in ranked[MAX_GROUPS:] if name not in firing]
    inputs = {}
    for name in names:
        blocks, numbers = history.read_blocks(name, since_ns, until_ns)
        baseline: list[BlockSums] = []
        if condition.drop is not None:
            end = firing.get(name, until_ns) - int(alert.window_s) * _SECOND
            baseline = history.read_blocks(name, end - BASELINE_S * _SECOND, end)[0]
        inputs[name] = blocks, baseline, numbers
    looks = {name: _evaluate(alert, condition, *inputs[name][:2], groups=1) for name in names}
    if (with_data := sum(1 for each in looks.values() if each.is_breach is not None)) > 1:
        looks = {name: _evaluate(alert, condition, *inputs[name][:2], groups=with_data) for name in names}
    groups = {
        name: _make_numbers(condition, looks[name], replace(inputs[name][2], undecided=undecided), history.missing)
        for name in names
    }
    return LookResult(groups, len(left_out), tuple(left_out[:MAX_LEFT_OUT_NAMES]))


def _evaluate(
    alert: Alert, condition: AlertCondition, blocks: list[BlockSums], baseline: list[BlockSums], *, groups: int
) -> AlertLook:
    assert len(blocks) == WINDOW_BLOCKS
    return evaluate_condition(condition, blocks, seconds=alert.window_s, baseline=baseline, groups=groups)


def _make_numbers(condition: AlertCondition, result: AlertLook, counts: AlertNumbers, reason: str) -> AlertNumbers:
    missing = reason or result.missing
    if missing and not result.window.n and counts.left_out:
        missing = f"all {counts.left_out} scores have an unknown sampling probability; their senders do not say how they sample"
    threshold = next(value for value in (condition.below, condition.above, condition.drop) if value is not None)
    return replace(
        counts,
        value=result.window.mean,
        bound=result.bound,
        threshold=threshold,
        baseline=result.baseline.mean if result.baseline is not None else None,
        n=result.window.n,
        effective_n=result.window.effective_n,
        filled_blocks=result.window.filled_blocks,
        missing=missing,
        is_breach=result.is_breach,
    )
