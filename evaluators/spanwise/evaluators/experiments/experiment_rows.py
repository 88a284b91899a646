"""Rows of an experiment: runs with their feedback, errors, and the HTML page that shows them."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from html import escape
from operator import attrgetter
from typing import Any

import orjson

from spanwise.collector.formatting import first_line
from spanwise.collector.records import JSON, Example, Feedback, Trace
from spanwise.evaluators.interface import PARAMETERS_KEY, get_parameters


@dataclass(frozen=True, slots=True, repr=False)
class Row:
    """One run of an experiment: its trace with all feedback, and its example if the example is stored."""

    example: Example | None
    trace: Trace

    @property
    def example_id(self) -> str:
        """Return the id of the example, or the trace id if the run has no example."""
        return self.trace.root.example_id or self.trace.trace_id

    @property
    def repetition(self) -> int:
        """Return the number of the repetition, starting at 0."""
        return self.trace.root.repetition

    @property
    def known_example(self) -> Example:
        """Return the stored example; if there is none, an example built from the run."""
        return self.example or Example(id=self.example_id, inputs=self.inputs)

    @property
    def inputs(self) -> JSON:
        """Return the example's inputs. Without an example, return the inputs recorded by the root run, whose names may
        differ.
        """
        return self.example.inputs if self.example is not None else self.trace.root.inputs

    @property
    def outputs(self) -> JSON:
        """Return the outputs of the task; None if it failed."""
        return self.trace.root.outputs

    @property
    def reference_outputs(self) -> JSON:
        """Return the expected outputs of the example, or None."""
        return self.example.reference_outputs if self.example else None

    @property
    def error(self) -> str | None:
        """Return the error of the task, or None."""
        return self.trace.root.error

    @property
    def feedback(self) -> Mapping[str, Feedback]:
        """Return the newest feedback for each key, given on the run or each of its spans.

        For each key, a judge's score takes precedence over a person's label on that score.
        """
        feedback = [outcome for outcome in self.trace.feedback if outcome.target.document is None]
        by_age = sorted(feedback, key=attrgetter("created_ns"))
        judged = {outcome.key for outcome in by_age if outcome.source == "model"}
        if not judged:
            return {each.key: each for each in by_age}
        return {each.key: each for each in by_age if each.source != "human" or each.key not in judged}

    @property
    def scores(self) -> Mapping[str, float | bool | str | None]:
        """Return the score (or label) per key; None for an error or a skip."""
        return _list_scores(self.feedback)

    def __repr__(self) -> str:
        result = f"error={first_line(self.error)!r}" if self.error else f"outputs={first_line(repr(self.outputs))}"
        return f"<Row {self.example_id[:12]} {result} {dict(self.scores)!r:.300}>"

    def _repr_html_(self) -> str:
        """Return the HTML for a notebook, with the CSS rules of table cells only, scoped to this row."""
        rules = [f".spanwise-row {line}" for line in STYLE.splitlines() if line.startswith("td ")]
        return "<style>{}</style><div class='spanwise-row'>{}</div>".format("\n".join(rules), _render_table([self], {}))

    @property
    def why(self) -> str | None:
        """Return the first line of the task's error, else of an evaluator's error; None if nothing failed."""
        if self.error is not None:
            return first_line(self.error)
        failed = (outcome for outcome in self.feedback.values() if outcome.error is not None)
        return next((f"{outcome.key}: {first_line(outcome.error or '')}" for outcome in failed), None)

    def to_dict(self) -> dict[str, Any]:
        """Return one flat dict: the fields of the run, one entry per key, and the evaluators' parameters if any."""
        root, feedback = self.trace.root, self.feedback
        parameters = {
            key: parameters_of_key
            for key, each in feedback.items()
            if each.metadata and (parameters_of_key := get_parameters(each))
        }
        return {
            "example_id": self.example_id,
            "repetition": self.repetition,
            "inputs": self.inputs,
            "outputs": self.outputs,
            "reference_outputs": self.reference_outputs,
            "error": self.error,
            "duration_ms": root.duration_ns / 1e6,
            "trace_id": root.trace_id,
            **_list_scores(feedback),
            **({PARAMETERS_KEY: parameters} if parameters else {}),
        }


def _list_scores(feedback: Mapping[str, Feedback]) -> dict[str, float | bool | str | None]:
    return {key: outcome.label if outcome.score is None else outcome.score for key, outcome in feedback.items()}


@dataclass(frozen=True, slots=True)
class Failure:
    """Error of a task or an evaluator (`key`), with its traceback if there is one.

    With `teardown` it is the error of the tear-down after a task, which does not make the run fail. `example_id` and `trace_id` are empty for a set-level evaluator, which scores all runs.
    """

    example_id: str
    trace_id: str
    key: str | None
    error: str
    traceback: str
    teardown: bool = False

    def __str__(self) -> str:
        who = f"evaluator {self.key!r}" if self.key else "the tear-down" if self.teardown else "the task"
        where = f"example {self.example_id}" if self.example_id else "the whole set"
        return f"{who} failed on {where}: {self.error}\n{self.traceback}".rstrip()


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


def render_experiment_html(
    name: str, subtitle: str, summary: str, rows: Iterable[Row], display_names: Mapping[str, str]
) -> str:
    """Return the HTML page of an experiment: the summary (HTML), then the runs, failures first.

    At most `MAX_ROWS` runs are shown; a line states how many were left out. Display names are shown below their keys.
    """
    count = 0

    def ranked() -> Iterable[tuple[int, int, Row]]:
        """Yield rows with their rank: failed tasks first, then failed evaluators, then the others."""
        nonlocal count
        for count, row in enumerate(rows, 1):
            evaluator_failed = any(outcome.error is not None for outcome in row.feedback.values())
            yield 0 if row.error is not None else 1 if evaluator_failed else 2, count, row

    rows_shown = [row for _, _, row in heapq.nsmallest(MAX_ROWS, ranked(), key=lambda ranked: ranked[:2])]
    title = escape(name)
    truncated = (
        f"<p>The first {len(rows_shown):,} of {count:,} runs, failures first.</p>" if count > len(rows_shown) else ""
    )
    head = f'<meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>{title}</title>'
    runs = (
        f'<h2>Runs</h2>{truncated}<div class="wide">{_render_table(rows_shown, display_names)}</div>'
        if rows_shown
        else ""
    )
    body = f'<h1>{title}</h1><p>{escape(subtitle)}</p><div class="wide">{summary}</div>{runs}'
    return f'<!doctype html><html lang="en"><head>{head}<style>{STYLE}</style></head><body>{body}</body></html>\n'


def _render_table(rows: list[Row], display_names: Mapping[str, str]) -> str:
    keys = list(dict.fromkeys(key for row in rows for key in row.feedback))
    head = "".join(f"<th>{name}</th>" for name in ("example", "inputs", "outputs", "reference"))
    for key in keys:
        parameters = next((get_parameters(row.feedback[key]) for row in rows if key in row.feedback), {})
        parameter_lines = "".join(
            f"<small>{_escape_text(f'{name} = {value}')}</small>" for name, value in parameters.items()
        )
        named = f"<br><small>{_escape_text(display_names[key])}</small>" if key in display_names else ""
        head += f"<th>{escape(key)}{named}{parameter_lines}</th>"
    body = ""
    for row in rows:
        repetition = f"<small>repetition {row.repetition + 1}</small>" if row.repetition else ""
        error = None if row.error is None else f'<pre class="bad">{_escape_text(row.error)}</pre>'
        cells = [
            f"<pre>{escape(row.example_id[:12])}</pre>{repetition}",
            _render_value(row.inputs),
            _render_value(row.outputs) if error is None else error,
            _render_value(row.reference_outputs),
            *(_render_outcome(row.feedback.get(key)) for key in keys),
        ]
        body += "<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>"
    return f'<table class="runs"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'


def _render_outcome(outcome: Feedback | None) -> str:
    """Return a score with its comment, an error, or the reason for a skip, as HTML."""
    if outcome is None:
        return ""
    if outcome.error is not None:
        return f'<small class="bad">failed: {_escape_text(outcome.error)}</small>'
    value = outcome.label if outcome.score is None else outcome.score
    if value is None:
        text = "<small>skipped</small>"
    else:
        text = _escape_text(f"{value:.4g}" if type(value) is float else str(value))
    return text + (f"<small>{_escape_text(outcome.comment)}</small>" if outcome.comment else "")


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
