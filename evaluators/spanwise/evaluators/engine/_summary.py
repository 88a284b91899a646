"""The table of an experiment: per key n, mean, passed, failed, skipped; as text, HTML and data."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from html import escape
from io import StringIO
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

from spanwise.collector import statistics
from spanwise.collector.format import first_line
from spanwise.collector.records import Feedback, FeedbackStats
from spanwise.collector.statistics import TASK_OK
from spanwise.collector.terminal import TerminalConsole
from spanwise.evaluators.engine._progress import alone
from spanwise.evaluators.engine._spent import Spent
from spanwise.evaluators.engine._spread import Spread
from spanwise.evaluators.engine._tally import Tallies

if TYPE_CHECKING:
    import pandas


PEOPLE = "people"  # the column that says how far a judge agrees with them
_WORDS = ("key", "verdict", PEOPLE)  # columns that hold no numbers


@dataclass(frozen=True, slots=True, kw_only=True)
class KeySummary(FeedbackStats):
    """One feedback key over an experiment: what every aggregate says, and how its repetitions differ.

    `passed` is the share of scores on the good side of the threshold, None where there is none. With repetitions,
    `variance` is the mean over examples of the variance between an example's repetitions, and `flaky` how many examples
    did not always come out alike (on the same side of the threshold, if there is one).

    `task_failed` is how many runs of the experiment failed: no mean says anything of them, unless the evaluator looks
    at failed runs. `failed` are the evaluator's own errors.
    """

    task_failed: int = 0
    variance: float | None = None
    flaky: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary(Mapping[str, KeySummary]):
    """All keys of an experiment, by name; `overall` is what set-level evaluators said. Durations are milliseconds.

    `task_ok`, the share of runs whose task came to an end without an error, is among the keys where one has failed, and
    can always be asked for.
    """

    title: str
    keys_: Mapping[str, KeySummary]
    task_ok: KeySummary
    overall: Mapping[str, Feedback]
    runs: int
    failed: int
    open_spans: int
    p50_ms: float | None
    p95_ms: float | None
    tokens: int
    cost: float | None
    models: tuple[str, ...] = ()
    repeats: bool = False
    why: Mapping[str, str] = field(default_factory=dict)  # what failed, and one of its errors
    lacking: Mapping[str, str] = field(default_factory=dict)  # who scored nothing at all, and what it lacked
    few: Mapping[str, int] = field(default_factory=dict)  # keys with too few scores, and how many it takes
    remarks: tuple[str, ...] = ()
    failed_on: str = ""  # the id of an example on which the task failed
    judge_calls: int = 0  # what judges were asked for the feedback that counts: no part of the tasks' tokens and cost
    judge_cached: int = 0  # answers that were known before
    judge_tokens: int = 0
    judge_cost: float | None = None
    judge_unpriced: int = 0  # calls whose cost is not known
    judge_texts_cut: int = 0  # texts of which a judge saw a part
    trust: Callable[[], Mapping[str, str]] = field(default=dict, repr=False, compare=False)  # how far each judge agrees
    # with people, read when it is shown

    def __getitem__(self, key: str) -> KeySummary:
        return self.task_ok if key == TASK_OK else self.keys_[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self.keys_)

    def __len__(self) -> int:
        return len(self.keys_)

    def __str__(self) -> str:
        return rendered(self)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield self._table()
        yield from map(Text, self._notes())

    def _repr_html_(self) -> str:
        return html_table(self.title, *self._cells()) + "".join(f"<p>{escape(note)}</p>" for note in self._notes())

    def to_pandas(self) -> pandas.DataFrame:
        """One row per key."""
        import pandas

        return pandas.DataFrame([asdict(row) for row in self.values()])

    def _table(self) -> Table:
        head, rows = self._cells()
        return text_table(self.title, head, rows)

    def _cells(self) -> tuple[list[str], list[list[str]]]:
        head = ["key", "n", "mean", *["task failed"] * bool(self.failed), "passed", "failed", "skipped"]
        head += ["variance", "flaky"] * self.repeats
        rows = [self._row(row) for row in self.values()]
        rows += [self._of_the_set(feedback) for feedback in self.overall.values()]
        if trust := self.trust():
            head.append(PEOPLE)
            rows = [[*row, trust.get(row[0], "")] for row in rows]
        return head, rows

    def _row(self, row: KeySummary) -> list[str]:
        mean = number(row.mean) if row.mean is not None else labels(row.labels)
        failed = [f"{row.task_failed} of {self.runs}"] * bool(self.failed)
        cells = [row.key, counted(row), mean, *failed, share(row.passed), str(row.failed), str(row.skipped)]
        return cells + [number(row.variance), "" if row.flaky is None else str(row.flaky)] * self.repeats

    def _of_the_set(self, feedback: Feedback) -> list[str]:
        stats = statistics.summarise([feedback])[feedback.key]
        value = feedback.label or "" if feedback.score is None else number(float(feedback.score))
        failed = [f"{self.failed} of {self.runs}"] * bool(self.failed)
        cells = [f"{feedback.key} (all)", counted(stats), value, *failed, "", str(stats.failed), str(stats.skipped)]
        return cells + ["", ""] * self.repeats

    def _notes(self) -> list[str]:
        """What stands below the table."""
        parts = [f"{self.runs} runs", f"{self.failed} failed"]
        if self.p50_ms is not None and self.p95_ms is not None:
            parts.append(f"p50 {self.p50_ms:,.1f} ms, p95 {self.p95_ms:,.1f} ms")
        if self.tokens:
            parts.append(f"{self.tokens:,} tokens")
        if self.cost is not None:
            parts.append(f"${self.cost:,.4f}")
        if self.models:
            parts.append(", ".join(self.models))
        judged = Spent(
            calls=self.judge_calls,
            cached=self.judge_cached,
            input_tokens=self.judge_tokens,
            cost=self.judge_cost,
            unpriced=self.judge_unpriced,
            texts_cut=self.judge_texts_cut,
        )
        notes = [" · ".join(parts), *([str(judged)] if judged else []), *self.remarks]
        if self.open_spans:
            notes.append(
                f"{self.open_spans} runs had spans that were still open when their task was over (see span_wait)"
            )
        notes += [f"{key} is of no use yet: it takes {n} scores (min_test_cases)" for key, n in self.few.items()]
        notes += [f"{what} failed, as with {first_line(error)}" for what, error in self.why.items()]
        notes += [f"run that example alone: {alone(self.failed_on)}"] * bool(self.failed_on)
        return notes + [f"{key} skipped every run: {first_line(lacking)}" for key, lacking in self.lacking.items()]


def summarise(
    title: str,
    tally: Tallies,
    repeats: bool,
    task: str | None = None,
    trust: Callable[[], Mapping[str, str]] = dict,
    least: Mapping[str, int] = MappingProxyType({}),
) -> Summary:
    """The summary of what has been counted so far. A `task` can be run again on an example on which it failed.

    `least` says per key from how many scores on a mean is of use.
    """
    p50, p95 = tally.percentiles_ms(50, 95)
    task_ok = _summary(tally.task_ok, tally.ends.values(), tally, repeats)
    keys = {
        key: _summary(of_key.tally.stats(key), of_key.spreads.values(), tally, repeats)
        for key, of_key in tally.in_order()
        if key != TASK_OK  # of that name there is one, whatever a task says of itself
    }
    return Summary(
        title=title,
        keys_={TASK_OK: task_ok, **keys} if tally.failed else keys,
        task_ok=task_ok,
        overall=dict(tally.overall),
        runs=tally.runs,
        failed=tally.failed,
        open_spans=tally.open,
        p50_ms=p50,
        p95_ms=p95,
        tokens=tally.input_tokens + tally.output_tokens,
        cost=tally.cost,
        models=tuple(sorted(tally.models)),
        repeats=repeats,
        why=_why(tally),
        lacking=_lacking(tally),
        few={key: count for key, count in least.items() if (keys[key].n if key in keys else 0) < count},
        remarks=tuple(tally.remarks),
        failed_on=tally.failed_on if task else "",
        judge_calls=tally.spent.calls,
        judge_cached=tally.spent.cached,
        judge_tokens=tally.spent.tokens,
        judge_cost=tally.spent.known_cost,
        judge_unpriced=tally.spent.unpriced,
        judge_texts_cut=tally.spent.texts_cut,
        trust=trust,
    )


def least_of(evaluators: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """Per key of evaluators of single cases how many scores it takes (`min_test_cases`), where that is said."""
    said = [evaluator for evaluator in evaluators if evaluator.get("min_cases") and not evaluator.get("summary")]
    return {metric["key"]: evaluator["min_cases"] for evaluator in said for metric in evaluator["metrics"]}


def _why(tally: Tallies) -> dict[str, str]:
    """One error of the task and one of each key; `Experiment.errors()` has them all."""
    errors = {"the task": tally.why, **{key: of_key.why for key, of_key in tally.in_order()}}
    errors |= {key: feedback.error for key, feedback in tally.overall.items()}
    return {what: error for what, error in errors.items() if error}


def _lacking(tally: Tallies) -> dict[str, str]:
    keys = tally.in_order()
    return {key: of_key.lacking for key, of_key in keys if of_key.lacking and of_key.tally.skipped == tally.runs}


def _summary(stats: FeedbackStats, spreads: Collection[Spread], tally: Tallies, repeats: bool) -> KeySummary:
    variances = [spread.variance for spread in spreads if spread.variance is not None]
    return KeySummary(
        **asdict(stats),
        task_failed=tally.failed,
        variance=sum(variances) / len(variances) if variances else None,
        flaky=sum(spread.is_flaky for spread in spreads) if repeats else None,
    )


def counted(stats: FeedbackStats) -> str:
    """How many scores, and how many labels without one: "3", "8 labels" or "3, 8 labels"."""
    told = f"{stats.labelled} label{'s' * (stats.labelled != 1)}"
    return str(stats.n) if not stats.labelled else told if not stats.n else f"{stats.n}, {told}"


def number(value: float | None) -> str:
    """Four digits at most; empty for None."""
    return "" if value is None else f"{value:.4g}"


def share(value: float | None) -> str:
    """A share in percent; empty for None."""
    return "" if value is None else f"{value:.1%}"


def labels(counts: Mapping[str, int]) -> str:
    """The commonest labels with their counts."""
    common = sorted(counts.items(), key=lambda pair: -pair[1])[:3]
    return ", ".join(f"{label} {count}" for label, count in common)


def text_table(title: str, head: Sequence[str], rows: Iterable[Iterable[str | Text]]) -> Table:
    """A table for terminals: words left, numbers right. Texts are no markup, whatever brackets are in them."""
    table = Table(title=Text(title), title_justify="left")
    for name in head:
        table.add_column(Text(name), justify="left" if name in _WORDS else "right", no_wrap=name == "key")
    for row in rows:
        table.add_row(*(cell if isinstance(cell, Text) else Text(cell) for cell in row))
    return table


def html_table(title: str, head: list[str], rows: list[list[str]]) -> str:
    """The same table for notebooks, every text escaped."""
    top = "".join(f"<th>{escape(name)}</th>" for name in head)
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table><caption>{escape(title)}</caption><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table>"


def rendered(renderable: Any) -> str:
    """What rich would print, as plain text."""
    text = StringIO()  # also in a notebook, where a console of rich displays things instead of writing them
    TerminalConsole(file=text, width=120, color_system=None, force_terminal=False, force_jupyter=False).print(
        renderable
    )
    return text.getvalue()
