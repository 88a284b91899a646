"""Comparison of experiments: means per key, significance of differences, changed examples."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from html import escape
from typing import TYPE_CHECKING, Any

from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from spanwise.collector import statistics
from spanwise.collector.records import iterate_pages
from spanwise.collector.statistics import TASK_OK, Contrast, PairedTest
from spanwise.collector.stores import Store
from spanwise.evaluators.experiments.experiment_results import Experiment
from spanwise.evaluators.experiments.experiment_summary import (
    KeySummary,
    format_counts,
    format_labels,
    format_number,
    make_html_table,
    make_text_table,
    render_text,
)
from spanwise.evaluators.interface import StoreLocation, resolve_store

if TYPE_CHECKING:
    import pandas


SCORE_PAGE = 5_000  # runs per page of scores
COLOURS = {"better": "bold green", "worse": "bold red", "higher": "bold", "lower": "bold"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """Changed mean score of one example under one key, in the first and in another experiment."""

    example_id: str
    key: str
    before: float
    after: float
    better: bool  # whether the score changed in the direction that is better for this key


@dataclass(frozen=True, slots=True)
class Comparison:
    """Comparison of several experiments with the first of them, the baseline."""

    experiments: tuple[Experiment, ...]
    _read: dict[int, statistics.Scores] = field(default_factory=dict, repr=False, compare=False)
    _contrasts: dict[int, Mapping[str, Contrast]] = field(default_factory=dict, repr=False, compare=False)

    @property
    def keys(self) -> list[str]:
        """Return all feedback keys in order of first occurrence; `task_ok` comes first if a task has failed."""
        keys = dict.fromkeys(key for experiment in self.experiments for key in experiment.summary())
        return [TASK_OK] * (TASK_OK in keys) + [key for key in keys if key != TASK_OK]

    def changes(self, other: int = 1) -> Iterator[Change]:
        """Yield the examples whose score changed from the first experiment to another, by example and key."""
        before, rising = self._scores(0), self.experiments[other].higher_is_better
        for example_id, scores in self._scores(other).items():
            for key, after in scores.items():
                earlier = before.get(example_id, {}).get(key)
                if earlier is not None and (moved := statistics.get_direction(after - earlier)):
                    better = (moved > 0) == rising(key)
                    yield Change(example_id=example_id, key=key, before=earlier, after=after, better=better)

    def contrasts(self, other: int = 1) -> Mapping[str, Contrast]:
        """Return per key how another experiment differs from the first, paired by example, in the order of `keys`."""
        if other not in self._contrasts:
            keys, others = self.keys, len(self.experiments) - 1
            rising = {key: self.experiments[other].higher_is_better(key) for key in keys}
            contrasts = statistics.compare_scores(self._scores(0), self._scores(other), rising, others=others)
            self._contrasts[other] = {key: contrasts[key] for key in keys if key in contrasts}
        return self._contrasts[other]

    def significance(self, other: int = 1) -> Mapping[str, PairedTest]:
        """Return per key the mean difference to the first experiment with its 95 % interval and p-value.

        It is computed over the examples that both experiments have scores for; keys without such examples are absent.
        See `spanwise.collector.statistics.paired_test`.
        """
        return {key: contrast.test for key, contrast in self.contrasts(other).items() if contrast.test is not None}

    def to_pandas(self) -> pandas.DataFrame:
        """Return one row per key and experiment.

        From the second experiment on, rows include the difference to the first.
        """
        import pandas

        rows = []
        for index, experiment in enumerate(self.experiments):
            contrasts = self.contrasts(index) if index else {}
            summary = experiment.summary()
            for key in self.keys:
                row: dict[str, Any] = {"key": key, "experiment": experiment.name, "experiment_id": experiment.id}
                row |= {"n": 0, "mean": None, "passed": None, "failed": 0, "skipped": 0}
                if key in summary:
                    row |= {name: getattr(summary[key], name) for name in ("n", "mean", "passed", "failed", "skipped")}
                rows.append({**row, **_list_contrast_values(contrasts.get(key))})
        return pandas.DataFrame(rows)

    def _scores(self, index: int) -> statistics.Scores:
        """Return scores by example and key, read from the store once."""
        if index not in self._read:
            experiment = self.experiments[index]
            # if a task has failed in any experiment, the other scores cover only some of the runs
            tasks = any(each.summary().failed for each in self.experiments)
            self._read[index] = read_scores_by_example(experiment.store, experiment.id, tasks=tasks)
        return self._read[index]

    def to_html(self) -> str:
        """Return the table as HTML."""
        notes = "".join(f"<p>{escape(note)}</p>" for note in self._notes())
        return make_html_table(self._title, *self._cells()) + notes

    _repr_html_ = to_html  # for notebooks

    def __str__(self) -> str:
        return render_text(self)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        head, rows = self._cells()
        colored = [
            [
                _color_conclusion(cell) if name == CHANGE_COLUMNS[-1] else cell
                for name, cell in zip(head, row, strict=True)
            ]
            for row in rows
        ]
        yield make_text_table(self._title, head, colored)
        yield from map(Text, self._notes())

    @property
    def _title(self) -> str:
        return " | ".join(f"{experiment.name} ({experiment.id[:8]})" for experiment in self.experiments)

    def _cells(self) -> tuple[list[str], list[list[str]]]:
        names = [experiment.name for experiment in self.experiments]
        # columns have unique names: repeated experiment names get their position appended
        names = [f"{name} ({index})" if names.count(name) > 1 else name for index, name in enumerate(names, 1)]
        head = ["key", names[0], *(text for name in names[1:] for text in (name, *CHANGE_COLUMNS))]
        summaries = [experiment.summary() for experiment in self.experiments]
        agreement = [summary.trust() for summary in summaries]
        rows = []
        for key in self.keys:
            row = [key]
            for index, summary in enumerate(summaries):
                row.append(_format_cell(summary.get(key), agreement[index].get(key, "")))
                if index:
                    row += _format_contrast(self.contrasts(index).get(key))
            rows.append(row)
        return head, rows

    def _notes(self) -> list[str]:
        """Return the explanation of the intervals, then the counts of better and worse scores per other experiment."""
        family, counts = 1, []
        for other in range(1, len(self.experiments)):
            contrasts = self.contrasts(other).values()
            family = max([family, *(contrast.family for contrast in contrasts)])
            better = sum(contrast.better or 0 for contrast in contrasts)
            worse = sum(contrast.worse or 0 for contrast in contrasts)
            name = self.experiments[other].name
            counts.append(f"{name}: {better} scores better, {worse} worse than in {self.experiments[0].name}")
        together = f" for all {family} differences together (Bonferroni)" if family > 1 else ""
        explanation = (
            f"change: mean difference over the examples scored in both, with its 95 % interval{together}; "
            "p: of one key alone; unclear: the interval or p does not rule out chance"
        )
        return [explanation, *counts]


def compare(*experiments: Experiment | str, store: StoreLocation | None = None) -> Comparison:
    """Compare experiments; with a `store` (an open store, a path or a URL) they may also be given by id or name.

    Raises `ValueError` for fewer than two experiments, or for names without a store.
    """
    if len(experiments) < 2:
        raise ValueError(f"compare() requires two or more experiments, got {len(experiments)}")
    opened = resolve_store(store) if store is not None else None

    def load(experiment: Experiment | str) -> Experiment:
        if isinstance(experiment, Experiment):
            return experiment
        if opened is None:
            raise ValueError(f"experiment {experiment!r} is a name: pass its store, compare(…, store=…)")
        return Experiment.load(opened, experiment)

    return Comparison(tuple(map(load, experiments)))


def read_scores_by_example(store: Store, experiment_id: str, *, tasks: bool = False) -> statistics.Scores:
    """Return the mean score per example and key; with `tasks` also the share of runs without an error.

    Only scores are read, not the contents of the runs.
    """
    runs = iterate_pages(partial(store.scores, experiment_id, limit=SCORE_PAGE))
    return statistics.mean_by_example(statistics.iterate_scores(runs, tasks=tasks))


def _format_cell(summary: KeySummary | None, agreement: str) -> str:
    """Return the mean with its number of scores, and on the next line a judge's agreement with human feedback."""
    if summary is None:
        return "–"
    value = format_number(summary.mean) if summary.mean is not None else format_labels(summary.labels)
    cell = f"{value}  n={format_counts(summary)}"
    cell += f", {summary.failed} failed" if summary.failed else ""
    cell += f", {summary.skipped} skipped" if summary.skipped else ""
    return f"{cell}\n{agreement.replace(' (', chr(10) + '(')}" if agreement else cell


CHANGE_COLUMNS = ("change [95 %]", "verdict")


def _format_contrast(contrast: Contrast | None) -> tuple[str, str]:
    """Return the cells of `CHANGE_COLUMNS`, each as two lines of text, so that three experiments fit a terminal."""
    if contrast is None or contrast.test is None:
        return "", ""
    interval = "" if contrast.interval is None else "\n[{:+.2g}, {:+.2g}]".format(*contrast.interval)
    p = "<0.001" if contrast.test.p < 0.001 else f"{contrast.test.p:.3f}"
    pairs = f"{contrast.pairs} pair{'s' * (contrast.pairs != 1)}"
    return f"{contrast.test.mean:+.3g} over {pairs}{interval}", f"{contrast.verdict}\np {p}"


def _color_conclusion(cell: str) -> Text:
    """Return a cell with its first line, the conclusion, in colour."""
    conclusion, *lines = cell.splitlines() or [""]
    return Text("\n").join([Text(conclusion, COLOURS.get(conclusion, "")), *map(Text, lines)])


def _list_contrast_values(contrast: Contrast | None) -> Mapping[str, Any]:
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
