"""Experiments side by side: means per key, whether the difference is more than chance, and example by example."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import TYPE_CHECKING, Any

from rich.console import Console, ConsoleOptions, RenderResult

from assay.collector.statistics import Paired, paired
from assay.collector.stores import Store
from assay.evaluators.engine._experiment import Experiment, Row
from assay.evaluators.engine._summary import KeySummary, html_table, labels, number, rendered, text_table

if TYPE_CHECKING:
    import pandas


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
    _read: dict[int, Mapping[str, Mapping[str, float]]] = field(default_factory=dict, repr=False, compare=False)

    @property
    def keys(self) -> list[str]:
        """All feedback keys, in the order in which they first occur."""
        return list(dict.fromkeys(key for one in self.experiments for key in one.summary()))

    def changes(self, other: int = 1) -> Iterator[Change]:
        """The examples whose score changed from the first experiment to another, by example and key."""
        changed = self.experiments[other]
        before = self._scores(0)
        for example, scores in self._scores(other).items():
            for key, after in scores.items():
                earlier = before.get(example, {}).get(key)
                if earlier is not None and earlier != after:
                    rising = (after > earlier) == changed.higher_is_better(key)
                    yield Change(example_id=example, key=key, before=earlier, after=after, better=rising)

    def significance(self, other: int = 1) -> Mapping[str, Paired]:
        """Per key the mean difference to the first experiment over the examples that both have scores for, with its
        95 % interval and p-value; see `assay.collector.statistics.paired`. Keys without such examples are absent.
        """
        before, after = self._scores(0), self._scores(other)
        found: dict[str, list[float]] = {}
        for example in before.keys() & after.keys():
            for key in before[example].keys() & after[example].keys():
                found.setdefault(key, []).append(after[example][key] - before[example][key])
        return {key: paired(sorted(found[key])) for key in self.keys if key in found}

    def to_pandas(self) -> pandas.DataFrame:
        """One row per key and experiment; from the second on with the difference to the first."""
        import pandas

        rows = []
        for place, one in enumerate(self.experiments):
            tests = self.significance(place) if place else {}
            for key in self.keys:
                test = tests.get(key)
                named = {"key": key, "experiment": one.name, "experiment_id": one.id}
                change = {"change": test.mean, "low": test.low, "high": test.high, "p": test.p} if test else {}
                rows.append({**named, **_numbers(one.summary().get(key)), **change})
        return pandas.DataFrame(rows)

    def _scores(self, place: int) -> Mapping[str, Mapping[str, float]]:
        """Scores by example and key, read back from the store once."""
        if place not in self._read:
            self._read[place] = scores_by_example(self.experiments[place].rows())
        return self._read[place]

    def to_html(self) -> str:
        """The table as HTML."""
        return self._repr_html_()

    def __str__(self) -> str:
        return rendered(self)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        head, rows = self._cells()
        yield text_table(self._title, head, rows)
        yield from self._notes()

    def _repr_html_(self) -> str:
        return html_table(self._title, *self._cells()) + "".join(f"<p>{escape(note)}</p>" for note in self._notes())

    @property
    def _title(self) -> str:
        return " | ".join(f"{one.name} ({one.id[:8]})" for one in self.experiments)

    def _cells(self) -> tuple[list[str], list[list[str]]]:
        others = range(1, len(self.experiments))
        tests = [self.significance(other) for other in others]
        names = _unlike([one.name for one in self.experiments])
        head = ["key", names[0], *(text for name in names[1:] for text in (name, "change [95 %]", "p"))]
        return head, [self._row(key, [test.get(key) for test in tests]) for key in self.keys]

    def _row(self, key: str, tests: Sequence[Paired | None]) -> list[str]:
        base, *others = (_cell(one.summary().get(key)) for one in self.experiments)
        return [key, base, *(text for cell, test in zip(others, tests, strict=True) for text in (cell, *_tested(test)))]

    def _notes(self) -> list[str]:
        """Who got better and who worse, per other experiment."""
        return [self._note(other) for other in range(1, len(self.experiments))]

    def _note(self, other: int) -> str:
        changes = list(self.changes(other))
        better = sum(change.better for change in changes)
        name = self.experiments[other].name
        return f"{name}: {better} scores better, {len(changes) - better} worse than in {self.experiments[0].name}"


def compare(*experiments: Experiment | str, store: Store | None = None) -> Comparison:
    """Put experiments side by side; with a `store` they may also be named by id or name.

    Raises `ValueError` with fewer than two, or for names without a store.
    """
    if len(experiments) < 2:
        raise ValueError(f"compare() takes two experiments or more, not {len(experiments)}")
    return Comparison(tuple(_loaded(one, store) for one in experiments))


def scores_by_example(rows: Iterator[Row]) -> dict[str, dict[str, float]]:
    """The mean score per example and key, over its repetitions."""
    found: dict[str, dict[str, list[float]]] = {}
    for row in rows:
        scores = found.setdefault(row.example_id, {})
        for key, one in row.feedback.items():
            if one.score is not None:
                scores.setdefault(key, []).append(float(one.score))
    return {
        example: {key: sum(values) / len(values) for key, values in scores.items()} for example, scores in found.items()
    }


def _loaded(one: Experiment | str, store: Store | None) -> Experiment:
    if isinstance(one, Experiment):
        return one
    if store is None:
        raise ValueError(f"experiment {one!r} is a name: say in which store, compare(…, store=…)")
    return Experiment.load(store, one)


def _cell(one: KeySummary | None) -> str:
    if one is None:
        return "–"
    value = number(one.mean) if one.mean is not None else labels(one.labels)
    trouble = [f"{count} {what}" for count, what in ((one.failed, "failed"), (one.skipped, "skipped")) if count]
    return ", ".join([f"{value}  n={one.n}", *trouble])


def _tested(test: Paired | None) -> tuple[str, str]:
    if test is None:
        return "", ""
    interval = "" if test.low is None or test.high is None else f" [{test.low:+.2g}, {test.high:+.2g}]"
    return f"{test.mean:+.3g}{interval}", "<0.001" if test.p < 0.001 else f"{test.p:.3f}"


def _numbers(one: KeySummary | None) -> Mapping[str, Any]:
    if one is None:
        return {"n": 0, "mean": None, "passed": None, "failed": 0, "skipped": 0}
    return {"n": one.n, "mean": one.mean, "passed": one.passed, "failed": one.failed, "skipped": one.skipped}


def _unlike(names: Sequence[str]) -> list[str]:
    """Names that differ, for the head of a table."""
    return [f"{name} ({place})" if names.count(name) > 1 else name for place, name in enumerate(names, 1)]
