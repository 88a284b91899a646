"""A trace as a tree for the terminal: times, inputs, outputs, documents, feedback."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence

from rich.text import Text
from rich.tree import Tree

from spanwise.cli._common import harmless, on_a_line
from spanwise.collector import format
from spanwise.collector.gaps import gaps, open_runs
from spanwise.collector.records import JSON, Feedback, OpenRun, Run, Trace
from spanwise.collector.stores import derived_fields
from spanwise.collector.terminal import cut

SHORT, DOCUMENT = 400, 120  # characters
STYLES = {"error": "bold red", "cancelled": "bold yellow", "ok": "bold", "unset": "bold"}


def tree(trace: Trace, *, whole: bool = False) -> Tree:
    """The tree. Texts are cut unless `whole`; nothing in them is taken for markup."""
    limit = 10**9 if whole else SHORT
    top = Tree(_line((_title(trace.root) + ("" if trace.complete else "  (not complete)"), "dim")))
    for sentence in gaps(trace):
        top.add(_line((sentence, "yellow")))
    _feedback(top, (feedback for feedback in trace.feedback if feedback.target.span_id is None), limit)
    placed: set[str] = set()
    # A run whose parent never arrived stands at the top, and so does one of a circle of parents
    ids = {run.span_id for run in trace.runs}
    for run in [run for run in trace.runs if run.parent_id not in ids]:
        _grow(top, trace, run, limit, placed)
    for run in trace.runs:
        if run.span_id not in placed:
            _grow(top, trace, run, limit, placed)
    return top


def under_way(runs: Sequence[OpenRun]) -> Tree:
    """A trace of which nothing has ended yet: its open runs (at least one)."""
    first = min(runs, key=lambda run: run.start_ns)
    top = Tree(_line((_title(first), "dim")))
    for sentence in ("nothing of it has ended yet", *open_runs(runs)):
        top.add(_line((sentence, "yellow")))
    return top


def _title(run: Run | OpenRun) -> str:
    return f"trace {run.trace_id}  {on_a_line(run.project)}  {format.to_the_second(run.start_ns)}"


def _grow(parent: Tree, trace: Trace, root: Run, limit: int, placed: set[str]) -> None:
    waiting = [(parent, root)]
    while waiting:
        above, run = waiting.pop()
        if run.span_id in placed:
            continue
        placed.add(run.span_id)
        branch = above.add(_head(run))
        _details(branch, run, limit)
        _feedback(branch, (feedback for feedback in trace.feedback if feedback.target.span_id == run.span_id), limit)
        waiting += [(branch, child) for child in reversed(trace.children(run.span_id))]


def _head(run: Run) -> Text:
    took = format.duration(run.duration_ns)
    head = _line((on_a_line(run.name) or "(no name)", STYLES[run.status]), f"  {on_a_line(run.kind)}  {took}")
    if run.model:
        head.append(on_a_line(f"  {run.model}"), "cyan")
    if run.usage:
        head.append(f"  {run.usage.input_tokens} → {run.usage.output_tokens} tokens", "cyan")
    if run.cost is not None:
        head.append(f"  ${run.cost:.6f}", "cyan")
    return head


def _details(branch: Tree, run: Run, limit: int) -> None:
    if run.error:
        branch.add(_line((cut(run.error, limit), "red")))
    derived = derived_fields(run)
    for name, field, value in (("in", "inputs", run.inputs), ("out", "outputs", run.outputs)):
        if value is not None:
            mark = " (derived)" if field in derived else ""
            branch.add(_line((f"{name}{mark}: ", "dim"), cut(_text(value), limit)))
    for place, document in enumerate(run.documents):
        score = "" if document.score is None else f" {document.score:.3f}"
        content = cut(document.content, DOCUMENT if limit == SHORT else limit)
        branch.add(_line((f"[{place}] {on_a_line(document.id or '')}{score}  ", "green"), content))


def _feedback(branch: Tree, feedbacks: Iterable[Feedback], limit: int) -> None:
    for feedback in feedbacks:
        who = feedback.author or feedback.evaluator or feedback.source
        value = (f"★ {on_a_line(feedback.key)} = {cut(_value(feedback), limit)}", "yellow")
        branch.add(_line(value, f"  {on_a_line(who)}  {cut(feedback.comment or '', limit)}"))


def _value(feedback: Feedback) -> str:
    if feedback.outcome == "error":
        return feedback.error or ""
    if feedback.outcome == "skip":
        return "skipped"
    return (feedback.label or "") if feedback.score is None else format.number(feedback.score)


def _line(*parts: str | tuple[str, str]) -> Text:
    """Texts, some with a style, one after the other: what a trace holds must not steer the terminal."""
    return Text.assemble(*(harmless(part) if isinstance(part, str) else (harmless(part[0]), part[1]) for part in parts))


def _text(value: JSON) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
