"""Experiments side by side: means per key, whether the difference is more than chance, and example by example."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from html import escape
from typing import TYPE_CHECKING, Any

from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from spanwise.collector import statistics
from spanwise.collector.records import paged
from spanwise.collector.statistics import TASK_OK, Contrast, Paired
from spanwise.collector.stores import Store
from spanwise.evaluators.engine._experiment import Experiment
from spanwise.evaluators.engine._summary import KeySummary, counted, html_table, labels, number, rendered, text_table
from spanwise.evaluators.protocol import Location, store_at

if TYPE_CHECKING:
    import pandas

PAGE = 5_000  # runs whose scores are read at once
COLOURS = {"better": "bold green", "worse": "bold red", "higher": "bold", "lower": "bold"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One example under one key: its mean score over the repetitions in the first experiment and in another."""

    example_id: str
    key: str
    before: float
    after: float
    better: bool  # towards the good side of the key


@dataclass(frozen=True, slots=True)
class Comparison:
    """Several experiments next to each other; the first is what the others are compared with."""

    experiments: tuple[Experiment, ...]
    _read: dict[int, statistics.Scores] = field(default_factory=dict, repr=False, compare=False)
    _contrasts: dict[int, Mapping[str, Contrast]] = field(default_factory=dict, repr=False, compare=False)

    @property
    def keys(self) -> list[str]:
        """All feedback keys, in the order in which they first occur; `task_ok` first, where a task has failed."""
        keys = dict.fromkeys(key for experiment in self.experiments for key in experiment.summary())
        return [TASK_OK] * (TASK_OK in keys) + [key for key in keys if key != TASK_OK]

    def changes(self, other: int = 1) -> Iterator[Change]:
        """The examples whose score changed from the first experiment to another, by example and key."""
        before, rising = self._scores(0), self.experiments[other].higher_is_better
        for example_id, scores in self._scores(other).items():
            for key, after in scores.items():
                earlier = before.get(example_id, {}).get(key)
                if earlier is not None and (moved := statistics.direction(after - earlier)):
                    better = (moved > 0) == rising(key)
                    yield Change(example_id=example_id, key=key, before=earlier, after=after, better=better)

    def contrasts(self, other: int = 1) -> Mapping[str, Contrast]:
        """Per key how another experiment differs from the first, example by example; in the order of `keys`."""
        if other not in self._contrasts:
            keys, others = self.keys, len(self.experiments) - 1
            rising = {key: self.experiments[other].higher_is_better(key) for key in keys}
            contrasts = statistics.compare(self._scores(0), self._scores(other), rising, others=others)
            self._contrasts[other] = {key: contrasts[key] for key in keys if key in contrasts}
        return self._contrasts[other]

    def significance(self, other: int = 1) -> Mapping[str, Paired]:
        """Per key the mean difference to the first experiment over the examples that both have scores for, with its
        95 % interval and p-value; see `spanwise.collector.statistics.paired`. Keys without such examples are absent.
        """
        return {key: contrast.test for key, contrast in self.contrasts(other).items() if contrast.test is not None}

    def to_pandas(self) -> pandas.DataFrame:
        """One row per key and experiment; from the second on with the difference to the first."""
        import pandas

        rows = []
        for place, experiment in enumerate(self.experiments):
            contrasts = self.contrasts(place) if place else {}
            for key in self.keys:
                named = {"key": key, "experiment": experiment.name, "experiment_id": experiment.id}
                rows.append({**named, **_numbers(experiment.summary().get(key)), **_change(contrasts.get(key))})
        return pandas.DataFrame(rows)

    def _scores(self, place: int) -> statistics.Scores:
        """Scores by example and key, read back from the store once."""
        if place not in self._read:
            experiment = self.experiments[place]
            self._read[place] = scores_by_example(experiment.store, experiment.id, tasks=self._failing)
        return self._read[place]

    @property
    def _failing(self) -> bool:
        """Whether a task has failed anywhere: then the scores of those that remain are not the whole story."""
        return any(experiment.summary().failed for experiment in self.experiments)

    def to_html(self) -> str:
        """The table as HTML."""
        return self._repr_html_()

    def __str__(self) -> str:
        return rendered(self)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        head, rows = self._cells()
        yield text_table(self._title, head, [_verdicts_coloured(head, row) for row in rows])
        yield from map(Text, self._notes())

    def _repr_html_(self) -> str:
        return html_table(self._title, *self._cells()) + "".join(f"<p>{escape(note)}</p>" for note in self._notes())

    @property
    def _title(self) -> str:
        return " | ".join(f"{experiment.name} ({experiment.id[:8]})" for experiment in self.experiments)

    def _cells(self) -> tuple[list[str], list[list[str]]]:
        others = range(1, len(self.experiments))
        names = _unlike([experiment.name for experiment in self.experiments])
        head = ["key", names[0], *(text for name in names[1:] for text in (name, *CHANGE))]
        trust = [experiment.summary().trust() for experiment in self.experiments]
        rows = [self._row(key, [self.contrasts(other).get(key) for other in others], trust) for key in self.keys]
        return head, rows

    def _row(self, key: str, contrasts: Sequence[Contrast | None], trust: Sequence[Mapping[str, str]]) -> list[str]:
        sides = zip(self.experiments, trust, strict=True)
        base, *others = (_cell(experiment.summary().get(key), said.get(key, "")) for experiment, said in sides)
        pairs = zip(others, contrasts, strict=True)
        return [key, base, *(text for cell, contrast in pairs for text in (cell, *_tested(contrast)))]

    def _notes(self) -> list[str]:
        """What the intervals are, then per other experiment who got better and who worse."""
        others = range(1, len(self.experiments))
        families = {contrast.family for other in others for contrast in self.contrasts(other).values()}
        return [_of_intervals(max(families, default=1)), *map(self._note, others)]

    def _note(self, other: int) -> str:
        contrasts = self.contrasts(other).values()
        better = sum(contrast.better or 0 for contrast in contrasts)
        worse = sum(contrast.worse or 0 for contrast in contrasts)
        name = self.experiments[other].name
        return f"{name}: {better} scores better, {worse} worse than in {self.experiments[0].name}"


def compare(*experiments: Experiment | str, store: Location | None = None) -> Comparison:
    """Put experiments side by side; with a `store` (or its path or URL) they may also be named by id or name.

    Raises `ValueError` with fewer than two, or for names without a store.
    """
    if len(experiments) < 2:
        raise ValueError(f"compare() takes two experiments or more, not {len(experiments)}")
    found = store_at(store) if store is not None else None
    return Comparison(tuple(_loaded(experiment, found) for experiment in experiments))


def scores_by_example(store: Store, experiment_id: str, *, tasks: bool = False) -> statistics.Scores:
    """The mean score per example and key over its repetitions; with `tasks` also the share that ended without error.

    Reads scores alone, not what the runs hold.
    """
    runs = paged(partial(store.scores, experiment_id, limit=PAGE))
    return statistics.by_example(statistics.scores_of(runs, tasks=tasks))


def _loaded(experiment: Experiment | str, store: Store | None) -> Experiment:
    if isinstance(experiment, Experiment):
        return experiment
    if store is None:
        raise ValueError(f"experiment {experiment!r} is a name: say in which store, compare(…, store=…)")
    return Experiment.load(store, experiment)


def _cell(summary: KeySummary | None, trust: str) -> str:
    """The mean, how many scores it has, and below it how far a judge agrees with people."""
    if summary is None:
        return "–"
    value = number(summary.mean) if summary.mean is not None else labels(summary.labels)
    troubles = ((summary.failed, "failed"), (summary.skipped, "skipped"))
    said = ", ".join([f"{value}  n={counted(summary)}", *(f"{count} {what}" for count, what in troubles if count)])
    return f"{said}\n{trust.replace(' (', chr(10) + '(')}" if trust else said


CHANGE = ("change [95 %]", "verdict")


def _tested(contrast: Contrast | None) -> tuple[str, str]:
    """The columns of `CHANGE`, two lines each: three experiments side by side fit a terminal."""
    if contrast is None or contrast.test is None:
        return "", ""
    interval = "" if contrast.interval is None else "\n[{:+.2g}, {:+.2g}]".format(*contrast.interval)
    p = "<0.001" if contrast.test.p < 0.001 else f"{contrast.test.p:.3f}"
    pairs = f"{contrast.pairs} pair{'s' * (contrast.pairs != 1)}"
    return f"{contrast.test.mean:+.3g} over {pairs}{interval}", f"{contrast.verdict}\np {p}"


def _of_intervals(family: int) -> str:
    together = f" for all {family} differences together (Bonferroni)" if family > 1 else ""
    return (
        f"change: the mean over examples that both have scored, with an interval of 95 %{together}; "
        "p: of one key alone; unclear: one of them does not rule out chance"
    )


def _coloured(cell: str) -> Text:
    """A verdict in its colour, with what stands below it in none."""
    word, *rest = cell.splitlines() or [""]
    return Text("\n").join([Text(word, COLOURS.get(word, "")), *map(Text, rest)])


def _verdicts_coloured(head: Sequence[str], row: Sequence[str]) -> list[str | Text]:
    return [_coloured(cell) if name == CHANGE[-1] else cell for name, cell in zip(head, row, strict=True)]


def _numbers(summary: KeySummary | None) -> Mapping[str, Any]:
    if summary is None:
        return {"n": 0, "mean": None, "passed": None, "failed": 0, "skipped": 0}
    return {name: getattr(summary, name) for name in ("n", "mean", "passed", "failed", "skipped")}


def _change(contrast: Contrast | None) -> Mapping[str, Any]:
    if contrast is None or contrast.test is None:
        return {}
    test = contrast.test
    low, high = contrast.interval or (None, None)
    moved = {
        "pairs": contrast.pairs,
        "verdict": contrast.verdict,
        "better": contrast.better,
        "worse": contrast.worse,
        "same": contrast.same,
    }
    return {"change": test.mean, "low": low, "high": high, "p": test.p, **moved}


def _unlike(names: Sequence[str]) -> list[str]:
    """Names that differ, for the head of a table."""
    return [f"{name} ({place})" if names.count(name) > 1 else name for place, name in enumerate(names, 1)]
