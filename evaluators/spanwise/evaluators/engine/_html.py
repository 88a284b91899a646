"""An experiment as one HTML file: opened anywhere, without scripts, and with every text escaped."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable
from html import escape
from typing import TYPE_CHECKING, Any

import orjson

from spanwise.evaluators.protocol import parameters_of

if TYPE_CHECKING:
    from spanwise.evaluators.engine._experiment import Experiment, Row

MOST_ROWS = 500
LONGEST = 2000  # characters of one text

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


def page(experiment: Experiment) -> str:
    """The whole document: summary, then rows, failures first, no more than `MOST_ROWS` of them, which is said."""
    title = escape(experiment.name)
    count, rows = _worst(experiment.rows())
    cut = f"<p>The first {len(rows):,} of {count:,} runs, failures first.</p>" if count > len(rows) else ""
    head = f'<meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>{title}</title>'
    summary = f'<div class="wide">{experiment.summary()._repr_html_()}</div>'
    runs = f'<h2>Runs</h2>{cut}<div class="wide">{_table(rows)}</div>' if rows else ""
    about = f"<p>{escape(experiment.record.dataset)} · {escape(experiment.record.status)} · {experiment.id}</p>"
    body = f"<h1>{title}</h1>{about}{summary}{runs}"
    return f'<!doctype html><html lang="en"><head>{head}<style>{STYLE}</style></head><body>{body}</body></html>\n'


def block(row: Row) -> str:
    """One run for a notebook."""
    return f"<style>{_within(STYLE)}</style><div class='spanwise-row'>{_table([row])}</div>"


def _within(style: str) -> str:
    """The rules of cells alone, which touch nothing else of a notebook."""
    return ".spanwise-row " + "\n.spanwise-row ".join(line for line in style.splitlines() if line.startswith("td "))


def _worst(rows: Iterable[Row]) -> tuple[int, list[Row]]:
    """How many there are, and those that are shown: tasks that failed, then evaluators that did, then in order."""
    count = 0

    def ranked() -> Iterable[tuple[int, int, Any]]:
        nonlocal count
        for count, row in enumerate(rows, 1):
            yield _rank(row), count, row

    shown = heapq.nsmallest(MOST_ROWS, ranked(), key=lambda ranked: ranked[:2])
    return count, [row for _, _, row in shown]


def _rank(row: Row) -> int:
    if row.error is not None:
        return 0
    return 1 if any(outcome.error is not None for outcome in row.feedback.values()) else 2


def _table(rows: list[Row]) -> str:
    keys = list(dict.fromkeys(key for row in rows for key in row.feedback))
    columns: dict[str, Callable[[Row], str]] = {
        "example": lambda row: f"<pre>{escape(row.example_id[:12])}</pre>{_repetition(row)}",
        "inputs": lambda row: _value(row.inputs),
        "outputs": _answer,
        "reference": lambda row: _value(row.reference_outputs),
    }
    head = "".join(f"<th>{escape(name)}</th>" for name in columns)
    head += "".join(f"<th>{escape(key)}{_parameters(rows, key)}</th>" for key in keys)
    lines = (
        "".join(f"<td>{cell(row)}</td>" for cell in columns.values())
        + "".join(f"<td>{_outcome(row, key)}</td>" for key in keys)
        for row in rows
    )
    body = "".join(f"<tr>{line}</tr>" for line in lines)
    return f'<table class="runs"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'


def _parameters(rows: list[Row], key: str) -> str:
    """The parameters of the evaluator behind a key, if it has any."""
    given = next((parameters_of(row.feedback[key]) for row in rows if key in row.feedback), {})
    return "".join(f"<small>{_text(f'{name} = {value}')}</small>" for name, value in given.items())


def _answer(row: Row) -> str:
    return _value(row.outputs) if row.error is None else f'<pre class="bad">{_text(row.error)}</pre>'


def _outcome(row: Row, key: str) -> str:
    """A score with its comment, an error, or why it was skipped."""
    outcome = row.feedback.get(key)
    if outcome is None:
        return ""
    if outcome.error is not None:
        return f'<small class="bad">failed: {_text(outcome.error)}</small>'
    value = outcome.label if outcome.score is None else outcome.score
    shown = "<small>skipped</small>" if value is None else _text(f"{value:.4g}" if type(value) is float else str(value))
    return shown + (f"<small>{_text(outcome.comment)}</small>" if outcome.comment else "")


def _repetition(row: Row) -> str:
    return f"<small>repetition {row.repetition + 1}</small>" if row.repetition else ""


def _value(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, str):
        return f"<pre>{_text(value)}</pre>"
    try:
        text = orjson.dumps(value, default=repr, option=orjson.OPT_INDENT_2 | orjson.OPT_NON_STR_KEYS).decode()
    except (TypeError, ValueError, RecursionError):
        text = repr(value)
    return f"<pre>{_text(text)}</pre>"


def _text(text: str) -> str:
    """Escaped, and cut at a length that is said."""
    if len(text) <= LONGEST:
        return escape(text)
    return f"{escape(text[:LONGEST])}… ({len(text):,} characters)"
