"""`spanwise monitor status`: each rule's funnel, how far it is behind, what it has spent, its means and last errors."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

import typer
from rich.console import Group
from rich.table import Table
from rich.text import Text

from spanwise.cli._common import console, emit, notes, on_a_line, opened
from spanwise.cli._options import JsonOption, StoreOption
from spanwise.collector import format, verdicts
from spanwise.collector.records import RuleStatus
from spanwise.collector.statistics import SampledMean
from spanwise.collector.stores import Store, summary

Project = Annotated[str | None, typer.Option(help="Rules of this project alone.")]
Once = Annotated[bool, typer.Option("--once", help="Show it once; else it is kept up to date until Ctrl-C.")]
Every = Annotated[float, typer.Option(min=0.1, help="Seconds between two looks.")]
MEANS = 5_000  # scores of a rule of which the mean is shown, newest first
_MEANS_EVERY_S = 10.0  # they are read anew less often than the rest


@dataclass
class _Look:
    """What is shown, read from a store: counts each time, means now and then."""

    store: Store
    project: str | None
    means: dict[tuple[str, str, str], list[SampledMean]] = field(default_factory=dict)
    read: float = float("-inf")

    def take(self) -> list[tuple[RuleStatus, list[SampledMean]]]:
        found = self.store.status(project=self.project)
        if time.monotonic() - self.read > _MEANS_EVERY_S:
            self.means = {_of(one): summary(self.store, one.rule, most=MEANS) for one in found}
            self.read = time.monotonic()
        return [(one, self.means.get(_of(one), [])) for one in found]


def _of(status: RuleStatus) -> tuple[str, str, str]:
    return status.rule.project, status.rule.name, status.rule.version


def status(
    project: Project = None, once: Once = False, every: Every = 2.0, at: StoreOption = None, as_json: JsonOption = False
) -> None:
    """Each rule's funnel, lag, rate, spend, weighted means and last errors; live in a terminal.

    Example: `spanwise monitor status --once`
    """
    with opened(at) as store:
        look = _Look(store, project)
        if as_json:
            emit(map(_plain, look.take()))
        elif once or not console.is_terminal:
            console.print(shown(look.take()), soft_wrap=not console.is_terminal)
        else:
            _live(look, every)


def _live(look: _Look, every: float) -> None:
    from rich.live import Live

    try:
        with Live(shown(look.take()), console=console, auto_refresh=False) as live:
            while True:
                time.sleep(every)
                live.update(shown(look.take()), refresh=True)
    except KeyboardInterrupt:
        notes.print("stopped")


def _plain(found: tuple[RuleStatus, list[SampledMean]]) -> dict[str, Any]:
    import msgspec

    return {**msgspec.to_builtins(found[0]), "means": msgspec.to_builtins(found[1])}


def shown(found: Sequence[tuple[RuleStatus, list[SampledMean]]]) -> Group:
    """All rules, one below the other."""
    if not found:
        return Group(
            Text("no rules yet: write some with spanwise.evaluators.monitor(…), then `spanwise monitor rules.py`")
        )
    now_ns = time.time_ns()
    finished, decided = verdicts.throughput((worker for status, _ in found for worker in status.workers), now_ns)
    head = Text(f"{format.number(finished)} finished and {format.number(decided)} decided a second", "dim")
    return Group(head, *(part for one in found for part in _rule(*one, now_ns)))


def _rule(status: RuleStatus, means: list[SampledMean], now_ns: int) -> Iterator[Text | Table]:
    standing, right = verdicts.standing(status, now_ns)
    name = (on_a_line(status.rule.name), "bold")
    yield Text.assemble(name, f"  {on_a_line(status.rule.project)}  ", (standing, "green" if right else "yellow"))
    counts = [f"{stage.name} {format.count(stage.count)}" for stage in verdicts.funnel(status)]
    others = [name for name in verdicts.STORED if name != "scored" and status.counts.get(name)]
    yield Text("  " + " → ".join(counts))
    if others:
        yield Text("  " + ", ".join(f"{verdicts.WORDS[name]} {format.count(status.counts[name])}" for name in others))
    yield Text(f"  rate {verdicts.rate(status)}; {verdicts.behind(status)}")
    for line in _below(status, now_ns):
        yield Text(f"  {on_a_line(line)}")
    for error in status.errors[:3]:
        yield Text(f"  error: {on_a_line(format.first_line(error))}", "red")
    if means:
        yield _table(means)


def _below(status: RuleStatus, now_ns: int) -> Iterator[str]:
    yield from (f"budget: {one}" for one in verdicts.spending(status.rule, status.booked))
    yield from (f"{one.key}: {one}" for one in verdicts.work(status, now_ns))
    yield from (said for worker in status.workers for said in verdicts.idle(worker, status.rule.name))


def _table(means: Sequence[SampledMean]) -> Table:
    table = Table(
        "key", "estimated mean", "95 %", "n", "effective n", "failed", "skipped", "left out", box=None, padding=(0, 1)
    )
    for mean in means:
        interval = "–" if mean.low is None else f"{format.number(mean.low)}–{format.number(mean.high)}"
        counts = (mean.n, round(mean.effective), mean.failed, mean.skipped, mean.unknown + mean.outside)
        table.add_row(Text(on_a_line(mean.key)), _mean(mean), interval, *map(format.count, counts))
    return table


def _mean(mean: SampledMean) -> str:
    if mean.unweighted is None:
        return format.number(mean.mean)
    return f"– ({format.number(mean.unweighted)} unweighted)"
