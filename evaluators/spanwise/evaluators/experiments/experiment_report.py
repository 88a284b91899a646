"""Report of an experiment: summary table for terminal, notebook and pandas, and the HTML page."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from html import escape
from io import StringIO
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import orjson
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

from spanwise.collector import statistics
from spanwise.collector.formatting import first_line
from spanwise.collector.records import Feedback, FeedbackStats
from spanwise.collector.statistics import TASK_OK
from spanwise.collector.terminal_escaping import TerminalConsole
from spanwise.evaluators.experiments.experiment_progress import format_rerun_command
from spanwise.evaluators.experiments.experiment_totals import ExperimentTally, JudgeCost, RepetitionStats
from spanwise.evaluators.interface import get_parameters

if TYPE_CHECKING:
    import pandas

    from spanwise.evaluators.experiments.experiment_results import Experiment, Row


AGREEMENT_COLUMN = "people"  # column with a judge's agreement with human feedback
_TEXT_COLUMNS = ("key", "verdict", AGREEMENT_COLUMN)  # text columns


@dataclass(frozen=True, slots=True, kw_only=True)
class KeySummary(FeedbackStats):
    """Summary of one feedback key over an experiment: aggregates of its scores and their variation over repetitions.

    `passed` is the share of scores that pass the threshold, or None without a threshold. With repetitions, `variance`
    is computed for each example over its repetitions, and averaged over the examples. `flaky` is the number of
    examples whose repetitions have different scores or, with a threshold, of which only some pass.

    `task_failed` is the number of failed runs of the experiment. Means leave these runs out, unless the
    evaluator scores failed runs. `failed` counts the evaluator's own errors.
    """

    task_failed: int = 0
    variance: float | None = None
    flaky: int | None = None


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
    repeats: bool = False
    why: Mapping[str, str] = field(default_factory=dict)  # an error of the task and of each key, if any
    # keys under which every run was skipped, each with one of the reasons
    lacking: Mapping[str, str] = field(default_factory=dict)
    few: Mapping[str, int] = field(default_factory=dict)  # keys with too few scores, each with the required number
    remarks: tuple[str, ...] = ()
    failed_on: str = ""  # the id of an example on which the task failed
    judge_calls: int = 0  # judge calls for the counted feedback; `tokens` and `cost` of the tasks do not include them
    judge_cached: int = 0  # judge replies that came from the cache
    judge_tokens: int = 0
    judge_cost: float | None = None
    judge_unpriced: int = 0  # judge calls of unknown cost
    judge_texts_cut: int = 0  # texts that were truncated for a judge
    arrows: Mapping[str, str] = field(default_factory=dict)  # ↑ or ↓ per key whose better direction is known
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
        yield self._table()
        yield from map(Text, self._notes())

    def _repr_html_(self) -> str:
        return make_html_table(self.title, *self._cells()) + "".join(f"<p>{escape(note)}</p>" for note in self._notes())

    def to_pandas(self) -> pandas.DataFrame:
        """Return one row per key."""
        import pandas

        return pandas.DataFrame([asdict(row) for row in self.values()])

    def _table(self) -> Table:
        head, rows = self._cells()
        return make_text_table(self.title, head, rows)

    def _cells(self) -> tuple[list[str], list[list[str]]]:
        head = ["key", "n", "mean", *["task failed"] * bool(self.failed), "passed", "failed", "skipped"]
        head += ["variance", "flaky"] * self.repeats
        rows = [self._row(row) for row in self.values()]
        if trust := self.trust():
            head.append(AGREEMENT_COLUMN)
            rows = [[*row, trust.get(key, "")] for key, row in zip(self, rows, strict=True)]
        for feedback in self.overall.values():
            rows.append([*self._of_the_set(feedback), *[""] * bool(trust)])
        return head, rows

    def _with_arrow(self, key: str, shown: str = "") -> str:
        """Return a key, or the text `shown` instead of it, followed by the arrow of its better direction if that is
        known.
        """
        return f"{shown or key} {self.arrows.get(key, '')}".rstrip()

    def _row(self, row: KeySummary) -> list[str]:
        mean = format_number(row.mean) if row.mean is not None else format_labels(row.labels)
        failed = [f"{row.task_failed} of {self.runs}"] * bool(self.failed)
        cells = [
            self._with_arrow(row.key),
            format_counts(row),
            mean,
            *failed,
            format_share(row.passed),
            str(row.failed),
            str(row.skipped),
        ]
        return cells + [format_number(row.variance), "" if row.flaky is None else str(row.flaky)] * self.repeats

    def _of_the_set(self, feedback: Feedback) -> list[str]:
        stats = statistics.summarize_by_key([feedback])[feedback.key]
        value = feedback.label or "" if feedback.score is None else format_number(float(feedback.score))
        failed = [f"{self.failed} of {self.runs}"] * bool(self.failed)
        cells = [
            self._with_arrow(feedback.key, f"{feedback.key} (all)"),
            format_counts(stats),
            value,
            *failed,
            "",
            str(stats.failed),
            str(stats.skipped),
        ]
        return cells + ["", ""] * self.repeats

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
        if self.open_spans:
            notes.append(f"{self.open_spans} runs had spans that were still open when their task ended (see span_wait)")
        notes += [f"{key} has too few scores: it requires {n} (min_test_cases)" for key, n in self.few.items()]
        notes += [f"{what} failed, for example: {first_line(error)}" for what, error in self.why.items()]
        notes += [f"run that example alone: {format_rerun_command(self.failed_on)}"] * bool(self.failed_on)
        return notes + [f"{key} skipped every run: {first_line(lacking)}" for key, lacking in self.lacking.items()]


def make_summary(
    title: str,
    tally: ExperimentTally,
    repeats: bool,
    task: str | None = None,
    trust: Callable[[], Mapping[str, str]] = dict,
    least: Mapping[str, int] = MappingProxyType({}),
) -> Summary:
    """Return the summary of the runs and scores counted so far.

    If `task` is given, the summary names a failed example and how to run it again.

    `least` maps keys to the minimum number of scores for a meaningful mean.
    """
    p50, p95 = tally.percentiles_ms(50, 95)
    task_ok = _summarize_key(tally.task_ok, tally.ends.values(), tally, repeats)
    keys = {
        key: _summarize_key(of_key.tally.stats(key), of_key.spreads.values(), tally, repeats)
        for key, of_key in tally.in_order()
        if key != TASK_OK  # reserved name, which feedback from users must not replace
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
        why=_collect_errors(tally),
        lacking=_collect_skip_reasons(tally),
        few={key: count for key, count in least.items() if (keys[key].n if key in keys else 0) < count},
        remarks=tuple(tally.remarks),
        failed_on=tally.failed_on if task else "",
        judge_calls=tally.spent.calls,
        judge_cached=tally.spent.cached,
        judge_tokens=tally.spent.tokens,
        judge_cost=tally.spent.known_cost,
        judge_unpriced=tally.spent.unpriced,
        judge_texts_cut=tally.spent.texts_cut,
        arrows=tally.arrows,
        trust=trust,
    )


def get_min_cases(evaluators: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """Return, by key, the minimum number of scores for a meaningful mean (`min_test_cases`).

    Only evaluators of single cases that declare a minimum are included.
    """
    said = [evaluator for evaluator in evaluators if evaluator.get("min_cases") and not evaluator.get("summary")]
    return {metric["key"]: evaluator["min_cases"] for evaluator in said for metric in evaluator["metrics"]}


def _collect_errors(tally: ExperimentTally) -> dict[str, str]:
    """Return one error of the task and one error of each key. `Experiment.errors()` yields all errors."""
    errors = {"the task": tally.why, **{key: of_key.why for key, of_key in tally.in_order()}}
    errors |= {key: feedback.error for key, feedback in tally.overall.items()}
    return {what: error for what, error in errors.items() if error}


def _collect_skip_reasons(tally: ExperimentTally) -> dict[str, str]:
    keys = tally.in_order()
    return {key: of_key.lacking for key, of_key in keys if of_key.lacking and of_key.tally.skipped == tally.runs}


def _summarize_key(
    stats: FeedbackStats, spreads: Collection[RepetitionStats], tally: ExperimentTally, repeats: bool
) -> KeySummary:
    variances = [spread.variance for spread in spreads if spread.variance is not None]
    return KeySummary(
        **asdict(stats),
        task_failed=tally.failed,
        variance=sum(variances) / len(variances) if variances else None,
        flaky=sum(spread.is_flaky for spread in spreads) if repeats else None,
    )


def format_counts(stats: FeedbackStats) -> str:
    """Return the number of scores and the number of labels without a score: "3", "8 labels" or "3, 8 labels"."""
    told = f"{stats.labelled} label{'s' * (stats.labelled != 1)}"
    return str(stats.n) if not stats.labelled else told if not stats.n else f"{stats.n}, {told}"


def format_number(value: float | None) -> str:
    """Format a number with at most four significant digits; "" for None."""
    return "" if value is None else f"{value:.4g}"


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


def make_html_table(title: str, head: list[str], rows: list[list[str]]) -> str:
    """Return the table as HTML for notebooks, with every text escaped."""
    top = "".join(f"<th>{escape(name)}</th>" for name in head)
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table><caption>{escape(title)}</caption><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table>"


def render_text(renderable: Any) -> str:
    """Return the plain text that rich would print."""
    text = StringIO()  # in a notebook, rich's own console would display the text instead of writing it to the file
    TerminalConsole(file=text, width=120, color_system=None, force_terminal=False, force_jupyter=False).print(
        renderable
    )
    return text.getvalue()


MAX_ROWS = 500
MAX_TEXT_LENGTH = 2000  # maximum characters of one text

STYLE = """
:root { color-scheme: light dark; --line: light-dark(#d8dbe0, #3a3f47); --soft: light-dark(#f5f6f8, #1f2329);
  --bad: light-dark(#b3261e, #ff8a80); --text: light-dark(#1c1f24, #e6e8eb); --dim: light-dark(#5c6470, #9aa3ae); }
body { font: 14px/1.45 system-ui, sans-serif; color: var(--text); background: light-dark(#fff, #15181c);
  margin: 2rem auto; max-width: 1400px; padding: 0 1rem; }
h1 { font-size: 1.35rem; margin: 0; } h2 { font-size: 1.05rem; margin: 2rem 0 .5rem; }
p { color: var(--dim); margin: .25rem 0; } .bad { color: var(--bad); }
.wide { overflow-x: auto; }
table { border-collapse: collapse; } caption { text-align: left; color: var(--dim); padding-bottom: .35rem; }
th, td { border-bottom: 1px solid var(--line); padding: .4rem .7rem; text-align: left; vertical-align: top; }
th { background: var(--soft); font-weight: 600; white-space: nowrap; }
table:not(.runs) td { white-space: nowrap; }
.runs td { min-width: 6rem; max-width: 30rem; }
.runs td:nth-child(2), .runs td:nth-child(3), .runs td:nth-child(4) { min-width: 15rem; }
td pre { margin: 0; font: 12px/1.4 ui-monospace, monospace; white-space: pre-wrap; overflow-wrap: anywhere;
  max-height: 14rem; overflow-y: auto; }
td small { display: block; color: var(--dim); overflow-wrap: anywhere; } td small.bad { color: var(--bad); }
"""


def render_experiment_html(experiment: Experiment) -> str:
    """Return the HTML page: the summary, then the runs, failures first.

    At most `MAX_ROWS` runs are shown; a line states how many were left out.
    """
    title = escape(experiment.name)
    count, rows = _select_rows(experiment.rows())
    cut = f"<p>The first {len(rows):,} of {count:,} runs, failures first.</p>" if count > len(rows) else ""
    head = f'<meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>{title}</title>'
    summary = f'<div class="wide">{experiment.summary()._repr_html_()}</div>'
    runs = f'<h2>Runs</h2>{cut}<div class="wide">{_render_table(rows)}</div>' if rows else ""
    about = f"<p>{escape(experiment.record.dataset)} · {escape(experiment.record.status)} · {experiment.id}</p>"
    body = f"<h1>{title}</h1>{about}{summary}{runs}"
    return f'<!doctype html><html lang="en"><head>{head}<style>{STYLE}</style></head><body>{body}</body></html>\n'


def render_row_html(row: Row) -> str:
    """Return the HTML of one run for a notebook."""
    return f"<style>{_scope_style(STYLE)}</style><div class='spanwise-row'>{_render_table([row])}</div>"


def _scope_style(style: str) -> str:
    """Return the CSS rules of table cells, scoped so that they do not affect the rest of a notebook. Other rules are
    left out.
    """
    return ".spanwise-row " + "\n.spanwise-row ".join(line for line in style.splitlines() if line.startswith("td "))


def _select_rows(rows: Iterable[Row]) -> tuple[int, list[Row]]:
    """Return the number of all rows, and the rows to show: failed tasks first, then failed evaluators, then the
    others.
    """
    count = 0

    def ranked() -> Iterable[tuple[int, int, Any]]:
        nonlocal count
        for count, row in enumerate(rows, 1):
            yield _rank_row(row), count, row

    shown = heapq.nsmallest(MAX_ROWS, ranked(), key=lambda ranked: ranked[:2])
    return count, [row for _, _, row in shown]


def _rank_row(row: Row) -> int:
    if row.error is not None:
        return 0
    return 1 if any(outcome.error is not None for outcome in row.feedback.values()) else 2


def _render_table(rows: list[Row]) -> str:
    keys = list(dict.fromkeys(key for row in rows for key in row.feedback))
    columns: dict[str, Callable[[Row], str]] = {
        "example": lambda row: f"<pre>{escape(row.example_id[:12])}</pre>{_render_repetition(row)}",
        "inputs": lambda row: _render_value(row.inputs),
        "outputs": _render_answer,
        "reference": lambda row: _render_value(row.reference_outputs),
    }
    head = "".join(f"<th>{escape(name)}</th>" for name in columns)
    head += "".join(f"<th>{escape(key)}{_render_parameters(rows, key)}</th>" for key in keys)
    lines = (
        "".join(f"<td>{cell(row)}</td>" for cell in columns.values())
        + "".join(f"<td>{_render_outcome(row, key)}</td>" for key in keys)
        for row in rows
    )
    body = "".join(f"<tr>{line}</tr>" for line in lines)
    return f'<table class="runs"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'


def _render_parameters(rows: list[Row], key: str) -> str:
    """Return the parameters of a key's evaluator as HTML; "" if it has none."""
    given = next((get_parameters(row.feedback[key]) for row in rows if key in row.feedback), {})
    return "".join(f"<small>{_escape_text(f'{name} = {value}')}</small>" for name, value in given.items())


def _render_answer(row: Row) -> str:
    return _render_value(row.outputs) if row.error is None else f'<pre class="bad">{_escape_text(row.error)}</pre>'


def _render_outcome(row: Row, key: str) -> str:
    """Return a score with its comment, an error, or the reason for a skip, as HTML."""
    outcome = row.feedback.get(key)
    if outcome is None:
        return ""
    if outcome.error is not None:
        return f'<small class="bad">failed: {_escape_text(outcome.error)}</small>'
    value = outcome.label if outcome.score is None else outcome.score
    shown = (
        "<small>skipped</small>"
        if value is None
        else _escape_text(f"{value:.4g}" if type(value) is float else str(value))
    )
    return shown + (f"<small>{_escape_text(outcome.comment)}</small>" if outcome.comment else "")


def _render_repetition(row: Row) -> str:
    return f"<small>repetition {row.repetition + 1}</small>" if row.repetition else ""


def _render_value(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, str):
        return f"<pre>{_escape_text(value)}</pre>"
    try:
        text = orjson.dumps(value, default=repr, option=orjson.OPT_INDENT_2 | orjson.OPT_NON_STR_KEYS).decode()
    except (TypeError, ValueError, RecursionError):
        text = repr(value)
    return f"<pre>{_escape_text(text)}</pre>"


def _escape_text(text: str) -> str:
    """Escape a text for HTML. A text longer than `MAX_TEXT_LENGTH` is truncated, and its full length is stated."""
    if len(text) <= MAX_TEXT_LENGTH:
        return escape(text)
    return f"{escape(text[:MAX_TEXT_LENGTH])}… ({len(text):,} characters)"
