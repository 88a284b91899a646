"""Summary of an experiment for terminal, notebook and pandas, and its robustness against perturbations."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import asdict, dataclass, field, replace
from html import escape
from io import StringIO
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

from spanwise.collector import statistics
from spanwise.collector.formatting import first_line, number
from spanwise.collector.records import Feedback, FeedbackStats
from spanwise.collector.statistics import TASK_OK, ScoreSample
from spanwise.collector.stores import Flip, KindRobustness
from spanwise.collector.terminal_escaping import TerminalConsole
from spanwise.evaluators.experiments.experiment_progress import ExperimentTally, JudgeCost

if TYPE_CHECKING:
    import pandas


# Summary of an experiment: its table for terminal, notebook and pandas, and the commands to resume or rerun it.

AGREEMENT_COLUMN = "agreement"  # column with a judge's agreement with human feedback
_TEXT_COLUMNS = ("key", "conclusion", AGREEMENT_COLUMN, "model", "perturbation", "prompt")
# Command that resumes an interrupted experiment, set by callers such as the command line interface
resume_command: ContextVar[str | None] = ContextVar("spanwise_go_on", default=None)
# Start of the command that runs one example alone; `--only ID --pdb` is appended to it
rerun_command: ContextVar[str | None] = ContextVar("spanwise_run_again", default=None)


def format_resume_command(experiment_id: str) -> str:
    """Return the command or call that resumes an experiment."""
    return resume_command.get() or f"evaluate(…, resume={experiment_id[:8]!r})"


@dataclass(frozen=True, slots=True, kw_only=True)
class KeySummary(FeedbackStats):
    """Summary of one feedback key over an experiment: aggregates of its scores and their variation over repetitions.

    `passed` is the share of scores that pass the threshold, or None without a threshold. `interval` is the 95 %
    interval of the mean, clustered by example; None if there are too few scores. For a judge's score it is the interval
    of the judge's mean, while `corrected_mean` estimates people's mean.

    With repetitions, `variance` is the variance within examples. `flaky` is the number of examples of which only some
    runs pass or, for scores that neither pass nor fail, whose scores differ. `pass_at` is the probability that at least
    one of all repetitions passes (pass@k), `pass_hat` that all of them pass (pass^k); None for scores that neither pass
    nor fail. See `Experiment.repeats`.

    `task_failed` is the number of failed runs of the experiment. Means leave these runs out, unless the
    evaluator scores failed runs. `failed` counts the evaluator's own errors.
    """

    task_failed: int = 0
    variance: float | None = None
    flaky: int | None = None
    pass_at: float | None = None
    pass_hat: float | None = None
    interval: tuple[float, float] | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return one flat dict, with the ends of the interval as `low` and `high`."""
        values = asdict(self)
        low, high = values.pop("interval") or (None, None)
        return {**values, "low": low, "high": high}


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary(Mapping[str, KeySummary]):
    """Summary of an experiment: its keys by name.

    `overall` holds the feedback of set-level evaluators. Durations are milliseconds.

    `task_ok` is the share of runs whose task ended without an error. Iteration includes it only if a task has failed,
    but `summary["task_ok"]` always works.
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
    repetitions: int = 1
    why: Mapping[str, str] = field(default_factory=dict)  # an error of the task and of each key, if any
    # keys under which every run was skipped, each with one of the reasons
    lacking: Mapping[str, str] = field(default_factory=dict)
    few: Mapping[str, int] = field(default_factory=dict)  # keys with too few scores, each with the required number
    # keys that only some examples have, each with the numbers of these examples and of all
    partial: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    remarks: tuple[str, ...] = ()
    failed_on: str = ""  # the id of an example on which the task failed
    judge_calls: int = 0  # judge calls for the counted feedback; `tokens` and `cost` of the tasks do not include them
    judge_cached: int = 0  # judge replies that came from the cache
    judge_tokens: int = 0
    judge_cost: float | None = None
    judge_unpriced: int = 0  # judge calls of unknown cost
    judge_texts_cut: int = 0  # texts that were truncated for a judge
    arrows: Mapping[str, str] = field(default_factory=dict)  # ↑ or ↓ per key whose better direction is known
    display_names: Mapping[str, str] = field(default_factory=dict)  # names of keys for people
    judged: tuple[str, ...] = ()  # keys that judges score
    # agreement of each judge with human feedback, read when the table is shown
    trust: Callable[[], Mapping[str, str]] = field(default=dict, repr=False, compare=False)

    def __getitem__(self, key: str) -> KeySummary:
        return self.task_ok if key == TASK_OK else self.keys_[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self.keys_)

    def __len__(self) -> int:
        return len(self.keys_)

    def __str__(self) -> str:
        return render_text(self)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield make_text_table(self.title, *self._cells())
        yield from map(Text, self._notes())

    def _repr_html_(self) -> str:
        head, rows = self._cells()
        names = [self.display_names.get(key, "") for key in (*self, *self.overall)]
        table = make_html_table(self.title, head, rows, names)
        return table + "".join(f"<p>{escape(note)}</p>" for note in self._notes())

    def to_pandas(self) -> pandas.DataFrame:
        """Return one row per key. The columns `low` and `high` are the ends of the 95 % interval of the mean."""
        import pandas

        return pandas.DataFrame([row.to_dict() for row in self.values()])

    def _cells(self) -> tuple[list[str], list[list[str]]]:
        has_intervals = any(row.interval is not None for row in self.values())
        head = [
            "key",
            *["examples"] * bool(self.partial),
            "n",
            "mean",
            *["95 %"] * has_intervals,
            *["task failed"] * bool(self.failed),
        ]
        head += ["passed", "failed", "skipped"]
        if self.repetitions > 1:
            head += ["variance", "flaky", f"pass@{self.repetitions}", f"pass^{self.repetitions}"]
        agreement = self.trust()
        head += [AGREEMENT_COLUMN] * bool(agreement)
        rows = []
        for key, row in self.items():
            mean = format_number(row.mean) if row.mean is not None else format_labels(row.labels)
            cells = {
                "examples": "{} of {}".format(*self.partial[key]) if key in self.partial else "all",
                "95 %": format_interval(row.interval),
                "passed": format_share(row.passed),
                "variance": format_number(row.variance),
                "flaky": "" if row.flaky is None else str(row.flaky),
                f"pass@{self.repetitions}": format_share(row.pass_at),
                f"pass^{self.repetitions}": format_share(row.pass_hat),
                AGREEMENT_COLUMN: agreement.get(key, ""),
            }
            rows.append(self._row(head, key, key, row, mean, cells))
        for feedback in self.overall.values():
            stats = statistics.summarize_by_key([feedback])[feedback.key]
            value = feedback.label or "" if feedback.score is None else format_number(float(feedback.score))
            rows.append(self._row(head, feedback.key, f"{feedback.key} (all)", stats, value, {}))
        return head, rows

    def _row(
        self, head: Sequence[str], key: str, name: str, stats: FeedbackStats, mean: str, cells: Mapping[str, str]
    ) -> list[str]:
        """Return the cells of a row, its name with the arrow of the key's better direction if that is known."""
        known = {
            "key": f"{name} {self.arrows.get(key, '')}".rstrip(),
            "n": format_counts(stats),
            "mean": mean,
            "task failed": f"{self.failed} of {self.runs}",
            "failed": str(stats.failed),
            "skipped": str(stats.skipped),
            **cells,
        }
        return [known.get(column, "") for column in head]

    def _notes(self) -> list[str]:
        """Return the lines below the table."""
        parts = [f"{self.runs} runs", f"{self.failed} failed"]
        if self.p50_ms is not None and self.p95_ms is not None:
            parts.append(f"p50 {self.p50_ms:,.1f} ms, p95 {self.p95_ms:,.1f} ms")
        if self.tokens:
            parts.append(f"{self.tokens:,} tokens")
        if self.cost is not None:
            parts.append(f"${self.cost:,.4f}")
        if self.models:
            parts.append(", ".join(self.models))
        judged = JudgeCost(
            calls=self.judge_calls,
            cached=self.judge_cached,
            input_tokens=self.judge_tokens,
            cost=self.judge_cost,
            unpriced=self.judge_unpriced,
            texts_cut=self.judge_texts_cut,
        )
        notes = [" · ".join(parts), *([str(judged)] if judged else []), *self.remarks]
        if any(key in self.keys_ and self.keys_[key].interval is not None for key in self.judged):
            notes.append("the 95 % interval of a judge's score is that of the judge's mean (see corrected_mean)")
        if self.open_spans:
            notes.append(f"{self.open_spans} runs had spans that were still open when their task ended (see span_wait)")
        notes += [f"{key} has too few scores: it requires {n} (min_test_cases)" for key, n in self.few.items()]
        notes += [f"{name} failed, for example: {first_line(error)}" for name, error in self.why.items()]
        if self.failed_on:
            command = rerun_command.get()
            call = f"evaluate(…, only={self.failed_on!r}, raise_errors=True)"
            notes.append(f"run that example alone: {f'{command} --only {self.failed_on} --pdb' if command else call}")
        return notes + [f"{key} skipped every run: {first_line(lacking)}" for key, lacking in self.lacking.items()]


def make_summary(
    title: str,
    tally: ExperimentTally,
    *,
    has_task: bool = False,
    read_agreement: Callable[[], Mapping[str, str]] = dict,
    evaluators: Sequence[Mapping[str, Any]] = (),
) -> Summary:
    """Return the summary of the runs and scores counted so far.

    With `has_task`, the summary names a failed example and how to run it again. `evaluators` are the recorded
    evaluators of the experiment. Those that declare a minimum number of scores (`min_test_cases`) get a note if they
    have fewer.
    """
    p50, p95 = tally.percentiles_ms(50, 95)
    in_order = tally.in_order()
    task_ok = _summarize_key(tally.task_ok, tally.tasks, tally)
    keys = {
        key: _summarize_key(of_key.tally.stats(key), of_key.sample, tally)
        for key, of_key in in_order
        if key != TASK_OK  # reserved name, which feedback from users must not replace
    }
    errors = {"the task": tally.why, **{key: of_key.why for key, of_key in in_order}}
    errors |= {key: feedback.error for key, feedback in tally.overall.items()}
    minimums = {
        metric["key"]: evaluator["min_cases"]
        for evaluator in evaluators
        if evaluator.get("min_cases") and not evaluator.get("summary")
        for metric in evaluator["metrics"]
    }
    partial = {
        metric["key"]: (examples[0], examples[1])
        for evaluator in evaluators
        if (examples := evaluator.get("examples")) and examples[0] < examples[1]
        for metric in evaluator["metrics"]
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
        repetitions=tally.repetitions,
        why={source: error for source, error in errors.items() if error},
        lacking={
            key: of_key.lacking
            for key, of_key in in_order
            if of_key.lacking
            and (
                of_key.tally.skipped == tally.runs
                or (key in partial and not (of_key.tally.n or of_key.tally.labelled or of_key.tally.failed))
            )
        },
        few={key: count for key, count in minimums.items() if (keys[key].n if key in keys else 0) < count},
        partial=partial,
        remarks=tuple(tally.remarks),
        failed_on=tally.failed_on if has_task else "",
        judge_calls=tally.spent.calls,
        judge_cached=tally.spent.cached,
        judge_tokens=tally.spent.tokens,
        judge_cost=tally.spent.known_cost,
        judge_unpriced=tally.spent.unpriced,
        judge_texts_cut=tally.spent.texts_cut,
        arrows=tally.arrows,
        display_names=tally.display_names,
        judged=tuple(tally.judge_versions),
        trust=read_agreement,
    )


def _summarize_key(stats: FeedbackStats, sample: ScoreSample, tally: ExperimentTally) -> KeySummary:
    summary = KeySummary(**asdict(stats), task_failed=tally.failed, interval=sample.interval())
    if tally.repetitions < 2:
        return summary
    repeats, k = tally.repeats(stats.key), tally.repetitions
    return replace(
        summary,
        variance=repeats.within,
        flaky=len(repeats.flaky),
        pass_at=repeats.pass_at(k).value if repeats.can_pass else None,
        pass_hat=repeats.pass_hat(k).value if repeats.can_pass else None,
    )


def format_counts(stats: FeedbackStats) -> str:
    """Return the number of scores and the number of labels without a score: "3", "8 labels" or "3, 8 labels"."""
    labels = f"{stats.labelled} label{'s' * (stats.labelled != 1)}"
    return str(stats.n) if not stats.labelled else labels if not stats.n else f"{stats.n}, {labels}"


def format_number(value: float | None) -> str:
    """Format a number with at most four significant digits; "" for None."""
    return "" if value is None else f"{value:.4g}"


def format_interval(interval: tuple[float, float] | None) -> str:
    """Format an interval, as in "[0.71, 0.912]"; "" for None."""
    return "" if interval is None else "[{}, {}]".format(*map(number, interval))


def format_share(value: float | None) -> str:
    """Format a share as a percentage; "" for None."""
    return "" if value is None else f"{value:.1%}"


def format_labels(counts: Mapping[str, int]) -> str:
    """Return the three most frequent labels with their counts."""
    common = sorted(counts.items(), key=lambda pair: -pair[1])[:3]
    return ", ".join(f"{label} {count}" for label, count in common)


def make_text_table(title: str, head: Sequence[str], rows: Iterable[Iterable[str | Text]]) -> Table:
    """Return a terminal table: text columns left-aligned, numbers right-aligned.

    Cell texts are not parsed as markup.
    """
    table = Table(title=Text(title), title_justify="left")
    for name in head:
        table.add_column(Text(name), justify="left" if name in _TEXT_COLUMNS else "right", no_wrap=name == "key")
    for row in rows:
        table.add_row(*(cell if isinstance(cell, Text) else Text(cell) for cell in row))
    return table


def make_html_table(title: str, head: list[str], rows: list[list[str]], names: Sequence[str] = ()) -> str:
    """Return the table as HTML for notebooks, with every text escaped.

    `names` are the display names of the rows, shown below their first cells; "" shows none.
    """
    top = "".join(f"<th>{escape(name)}</th>" for name in head)
    body = ""
    for row, name in zip_longest(rows, names, fillvalue=""):
        first, *others = map(escape, row)
        first += f"<br><small>{escape(name)}</small>" if name else ""
        body += "<tr>" + "".join(f"<td>{cell}</td>" for cell in (first, *others)) + "</tr>"
    return f"<table><caption>{escape(title)}</caption><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table>"


def render_text(renderable: Any) -> str:
    """Return the plain text that rich would print."""
    text = StringIO()
    # `force_jupyter=False`: in a notebook, rich would display the text instead of writing it to the file
    console = TerminalConsole(file=text, width=120, color_system=None, force_terminal=False, force_jupyter=False)
    console.print(renderable)
    return text.getvalue()


# Robustness of an experiment against perturbations, for terminal, notebook and pandas.

SHOWN_FLIPS = 10
_MAX_TEXT = 200  # characters of inputs
_HEAD = ["key", "kind", "stable", "interval", "base cases", "pass→fail", "fail→pass", "missing", "unscored"]
_FLIP_HEAD = ["key", "kind", "flip", "base", "base inputs", "perturbed", "perturbed inputs"]


class Robustness(Mapping[tuple[str, str], KindRobustness]):
    """Robustness by kind of perturbation and key: `robustness["typos", "exact"].share`."""

    def __init__(self, title: str, results: Mapping[tuple[str, str], KindRobustness]) -> None:
        self.title = title
        self._results = results

    def __getitem__(self, kind_and_key: tuple[str, str]) -> KindRobustness:
        return self._results[kind_and_key]

    def __iter__(self) -> Iterator[tuple[str, str]]:
        return iter(self._results)

    def __len__(self) -> int:
        return len(self._results)

    @property
    def kinds(self) -> list[str]:
        """Return the kinds of perturbation in the experiment."""
        return list(dict.fromkeys(kind for kind, _ in self._results))

    def flips(self, kind: str | None = None, key: str | None = None) -> list[Flip]:
        """Return the flips of one kind and one key, or of all: first those from pass to fail, then from fail to pass."""
        chosen = [
            flip
            for result in self.values()
            if kind in (None, result.kind) and key in (None, result.key)
            for flip in result.flips
        ]
        return sorted(chosen, key=lambda flip: not flip.base_passes)

    def to_rows(self) -> list[dict[str, Any]]:
        """Return one dict per kind and key: share, interval and counts."""
        rows = []
        for result in self.values():
            low, high = result.interval or (None, None)
            counts = {name: value for name, value in asdict(result).items() if name != "flips"}
            flips = {
                "pass_to_fail": sum(flip.base_passes for flip in result.flips),
                "fail_to_pass": sum(not flip.base_passes for flip in result.flips),
            }
            rows.append({**counts, **flips, "share": result.share, "low": low, "high": high})
        return rows

    def to_pandas(self) -> pandas.DataFrame:
        """Return the result of `to_rows` as a DataFrame."""
        import pandas

        return pandas.DataFrame(self.to_rows())

    def __str__(self) -> str:
        return render_text(self)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        if not self:
            yield Text(f"{self.title}: no perturbed examples with scores that pass or fail")
            return
        yield make_text_table(self.title, _HEAD, self._cells())
        flips = self.flips()
        for flip in flips[:SHOWN_FLIPS]:
            yield Text(f"{flip.key}, {flip.kind}: {flip.direction}")
            yield Text(f"  {flip.base_id[:12]}  {_shorten(flip.base_inputs)}  (trace {flip.base_trace_id})")
            yield Text(f"  {flip.example_id[:12]}  {_shorten(flip.inputs)}  (trace {flip.trace_id})")
        if len(flips) > SHOWN_FLIPS:
            yield Text(f"… and {len(flips) - SHOWN_FLIPS} more flips: see flips()")

    def _repr_html_(self) -> str:
        rows = [
            [
                flip.key,
                flip.kind,
                flip.direction,
                f"{flip.base_id[:12]} (trace {flip.base_trace_id})",
                _shorten(flip.base_inputs),
                f"{flip.example_id[:12]} (trace {flip.trace_id})",
                _shorten(flip.inputs),
            ]
            for flip in self.flips()[:SHOWN_FLIPS]
        ]
        table = make_html_table(self.title, _HEAD, self._cells())
        return table + (make_html_table("Flips", _FLIP_HEAD, rows) if rows else "")

    def _cells(self) -> list[list[str]]:
        cells = []
        for row in self.to_rows():
            interval = "" if row["low"] is None else f"{row['low']:.1%} to {row['high']:.1%}"
            counts = [row[name] for name in ("cases", "pass_to_fail", "fail_to_pass", "missing", "unscored")]
            cells.append([row["key"], row["kind"], format_share(row["share"]), interval, *map(str, counts)])
        return cells


def _shorten(value: Any) -> str:
    text = value if isinstance(value, str) else repr(value)
    return text if len(text) <= _MAX_TEXT else f"{text[:_MAX_TEXT]}…"
