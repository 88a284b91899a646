"""Reference documentation of the evaluators, generated from the registry as Markdown.

Run `python -m spanwise.cli.evaluator_docs docs/evaluators` to write it; a test checks that it is up to date.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from spanwise.collector.records import Feedback, Run, Target, Trace, Usage
from spanwise.evaluators import Evaluator, Metric, get_evaluator, interface, judge, score
from spanwise.evaluators.interface import STANDARDS, DiscardedJudgements, EvaluatorSpec, use_judge_context
from spanwise.evaluators.interface.evaluator_spec import MONITORING
from spanwise.evaluators.judges import Prompt
from spanwise.evaluators.testing import scripted

EXAMPLE_TRACE = """ids = {"trace_id": "1" * 32, "parent_id": "a" * 16}
root = Run(trace_id="1" * 32, span_id="a" * 16, name="agent", kind="agent", end_ns=2_500_000_000)
search = Run(**ids, span_id="b" * 16, name="search", kind="tool", inputs={"query": "cats"}, start_ns=1, end_ns=10**9)
plan = Run(**ids, span_id="c" * 16, name="plan", kind="llm", usage=Usage(900, 120), cost=0.0004, start_ns=2)
send = Run(**ids, span_id="d" * 16, name="send", kind="tool", inputs={"to": "ann", "cc": "bob"}, start_ns=3)
votes = [
    Feedback(target=Target(trace_id="1" * 32), key="thumbs_up", score=vote, source="human", author=author)
    for author, vote in (("ann", 1.0), ("bob", 0.0), ("cid", 1.0))
]
trace = Trace(root, (root, search, plan, send), tuple(votes))
"""
LINE_WIDTH = 120
_INDENT = "    "
PRINT_RESULTS = "for feedback in results:\n    print(feedback.key, feedback.outcome, feedback.score)"
EXAMPLE_IMPORTS = "from spanwise.collector.records import Feedback, Run, Target, Trace, Usage\n"


def render_page(id: str, *, example: bool = True) -> str:
    """Return an evaluator's page as Markdown: definition, source, needs, parameters, metrics, prompts, an executed
    example.
    """
    spec = interface.get_spec(id)
    parts = [
        f"# {id}",
        inspect.getdoc(interface.get_factory(id)) or "",
        _facts_table(spec),
        *_render_metrics(interface.get_default_metrics(spec)),
        *_render_parameters(id),
    ]
    parts += _render_prompts(default_prompts(id))
    if example and spec.example:
        parts += ["## Example", *_render_example(spec)]
    return "\n\n".join(parts) + "\n"


def render_evaluator(evaluator: Evaluator) -> str:
    """Return a user's evaluator as Markdown: needs, version, metrics, and the prompts of a judge."""
    facts = [("Needs", ", ".join(evaluator.needs)), ("Version", evaluator.version)]
    prompts = getattr(evaluator.function, "prompts", ())
    if prompts:
        facts.insert(1, ("Asks", ", ".join(evaluator.asking.where) if evaluator.asking else "no endpoint"))
    description = "" if evaluator.spec else inspect.getdoc(evaluator.function) or ""
    parts = [
        f"# {evaluator.key}",
        *([description] if description else []),
        _markdown_table(facts),
        *_render_metrics(evaluator.metrics),
    ]
    return "\n\n".join([*parts, *_render_prompts(prompts)]) + "\n"


def default_prompts(id: str) -> tuple[Prompt, ...]:
    """Return the default prompts of a registered judge; () if it has no prompts or has required parameters."""
    factory = interface.get_factory(id)
    if not hasattr(factory, "prompts") or inspect.Parameter.empty in default_parameters(id).values():
        return ()
    prompts: tuple[Prompt, ...] = factory().prompts
    return prompts


def group_by_standard(specs: Iterable[EvaluatorSpec]) -> dict[str, list[str]]:
    """Return the ids of evaluators by compliance standard. Evaluators without one come last, if there are any."""
    groups: dict[str, list[str]] = {standard: [] for standard in STANDARDS}
    for spec in specs:
        for standard in spec.standards or (NO_STANDARD,):
            groups.setdefault(standard, []).append(spec.id)
    return groups


def describe_standard(standard: str, ids: Sequence[str]) -> str:
    """Return the evaluators of a standard as text."""
    others = ["every evaluator that a monitor rule runs"] if standard == MONITORING else []
    return ", ".join([*ids, *others]) or "none"


def render_index() -> str:
    """Return a table of all evaluators by group, and one by compliance standard."""
    rows = ["| id | group | needs | metrics | for |", "|---|---|---|---|---|"]
    for spec in sorted(interface.list_specs(), key=lambda spec: (spec.group, spec.id)):
        keys = describe_metrics(spec)
        rows.append(
            f"| [{spec.id}]({spec.id}.md) | {spec.group} | {describe_needs(spec)} | {keys} | {describe_compatibility(spec)} |"
        )
    return "\n".join([_INTRODUCTION, *rows, "", *_standards_section(), ""])


def render_pages() -> dict[str, str]:
    """Return the contents of docs/evaluators by file name."""
    return {"README.md": render_index(), **{f"{spec.id}.md": render_page(spec.id) for spec in interface.list_specs()}}


def describe_needs(spec: EvaluatorSpec) -> str:
    """Return the required columns and, in parentheses, the optional ones."""
    table = spec.needed
    required = [name for name, need in table.items() if need == "yes"]
    optional = [f"({name})" for name, need in table.items() if need == "optional"]
    return ", ".join([*required, *optional])


def describe_metrics(spec: EvaluatorSpec) -> str:
    """Return the keys, each with ↑ or ↓ if it is known whether higher or lower scores are better."""
    return ", ".join(f"{metric.key} {metric.arrow}".rstrip() for metric in spec.metrics)


def describe_compatibility(spec: EvaluatorSpec) -> str:
    """Return "LLM", "RAG" or both: whether the evaluator applies to models alone or to retrieval-augmented
    generation.
    """
    return ", ".join(name for name, holds in (("LLM", spec.llm), ("RAG", spec.rag)) if holds)


def default_parameters(id: str) -> dict[str, Any]:
    """Return the evaluator's parameters with their defaults; `inspect.Parameter.empty` for required ones."""
    factory = interface.get_factory(id)
    if dataclasses.is_dataclass(factory):
        return {field.name: _field_default(field) for field in dataclasses.fields(factory) if field.init}
    parameters = inspect.signature(factory).parameters if isinstance(factory, type) else {}
    return {name: parameter.default for name, parameter in parameters.items()}


_INTRODUCTION = """# Evaluators

Made from the registry by `python -m spanwise.cli.evaluator_docs docs/evaluators`. `spanwise evaluators list` shows
the same table, `spanwise evaluators show ID` the same pages. [protocol.md](protocol.md) tells how to write your own.
[coverage.md](../coverage.md) lists the evaluators under the headings of the documents that define them.

What is needed: the columns of a case (question = `inputs`, expected = `reference_outputs` or `expected_documents`,
context = `documents`, actual = `outputs`, conditions, trace) and machinery (judge, agent, model, gpu); in parentheses
what is used when it is there. A case that lacks a need is skipped, never scored. ↑ means that higher scores are
better, ↓ that lower ones are.
"""


NO_STANDARD = "none of the nine"
STANDARDS_NOTE = (
    "The assignment of evaluators to standards is Spanwise's own reading. H2O Eval Studio's documentation names the "
    "nine standards, but does not assign its evaluators to them."
)


def _standards_section() -> Iterator[str]:
    """Yield the lines of the section that lists evaluators by compliance standard."""
    yield "## By standard"
    yield ""
    yield f"{STANDARDS_NOTE} `spanwise evaluators list --by standard` shows the same table."
    yield ""
    yield "| standard | evaluators |"
    yield "|---|---|"
    for standard, ids in group_by_standard(interface.list_specs()).items():
        yield _table_row([standard, describe_standard(standard, [f"[{id}]({id}.md)" for id in ids])])


def _facts_table(spec: EvaluatorSpec) -> str:
    checked = [("Numbers checked against", spec.canonical)] if spec.canonical else []
    version = "changes with its model and its parameters" if spec.model else spec.version
    rows = [
        ("Defined by", spec.source),
        *checked,
        ("Needs", describe_needs(spec)),
        *_model_rows(spec),
        ("Makes sense for", describe_compatibility(spec)),
        ("Level", "all cases together" if spec.summary else "each case"),
        ("Standards (our reading)", ", ".join(spec.standards)),
        ("Version", "changes with its prompts and its judge" if spec.judge else version),
    ]
    return _markdown_table(rows)


def _model_rows(spec: EvaluatorSpec) -> list[tuple[str, str]]:
    """Return the table row that names the default model, and the model for which the document's thresholds hold."""
    if not spec.model:
        return []
    from spanwise.evaluators.models import DEFAULT

    factory = interface.get_factory(spec.id)
    if model := getattr(factory, "DEFAULT_MODEL", None):
        return [("Default model", model)]
    document = getattr(factory, "DOCUMENT", None)
    thresholds = f"; the document's thresholds apply only to {document}" if document else ""
    limits = "for English, which reads the first 256 tokens of a text"
    return [("Default model", f"{DEFAULT['embedding']} {limits}{thresholds}")]


def _markdown_table(rows: Iterable[tuple[str, str]]) -> str:
    return "\n".join(["| | |", "|---|---|", *(f"| {name} | {value} |" for name, value in rows)])


def _render_prompts(prompts: Sequence[Prompt]) -> Iterator[str]:
    """Yield prompts in the form in which they are sent, with their few-shot examples."""
    for prompt in prompts:
        yield f"## Prompt `{prompt.id}`" if len(prompts) > 1 else "## Prompt"
        yield f"Version {prompt.version}, `{prompt.hash}`. Each value is inserted between tags that mark it as data."
        yield f"```txt\n{prompt.text.strip()}\n```"
        for number, shot in enumerate(prompt.shots, 1):
            values = "\n".join(f"{name}: {value}" for name, value in shot.values)
            yield f"Example {number}:\n\n```txt\n{values}\n→ {shot.reply}\n```"


def _render_metrics(metrics: Sequence[Metric]) -> Iterator[str]:
    """Yield the table of metrics, and the differences from the source document if there are any."""
    yield "## Metrics"
    yield _metrics_table(metrics)
    rows = [row for metric in metrics for row in _difference_rows(metric)]
    if rows:
        yield "The document gives other values:"
        yield "\n".join(["| key | | document | here | reason |", "|---|---|---|---|---|", *rows])


def _metrics_table(metrics: Sequence[Metric]) -> str:
    has_names = any(metric.display_name for metric in metrics)
    head = "| key | name | range" if has_names else "| key | range"
    rows = [f"{head} | better | threshold | |", "|---" * (5 + has_names) + "|"]
    for metric in metrics:
        better = f"{metric.arrow} higher" if metric.higher_is_better else f"{metric.arrow} lower"
        names = [metric.display_name] if has_names else []
        primary = "primary" if metric.primary else ""
        threshold = _format_threshold(metric.threshold)
        limits = _format_range(metric.range)
        rows.append(_table_row([f"`{metric.key}`", *names, limits, better.strip(), threshold, primary]))
    return "\n".join(rows)


def _difference_rows(metric: Metric) -> Iterator[str]:
    """Yield a row for the range and one for the threshold, if the document's differ."""
    differing, document = metric.document_differences, metric.document
    if document is not None and "range" in differing:
        values = [_format_range(document.range), _format_range(metric.range), differing["range_reason"]]
        yield _table_row([f"`{metric.key}`", "range", *values])
    if document is not None and "threshold" in differing:
        here = _format_threshold(metric.threshold) or "none"
        values = [_format_threshold(document.threshold), here, differing["threshold_reason"]]
        yield _table_row([f"`{metric.key}`", "threshold", *values])


def _table_row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _format_range(ends: tuple[float, float] | None) -> str:
    return "any" if ends is None else " to ".join(map(_format_number, ends))


def _format_threshold(threshold: float | None) -> str:
    return "" if threshold is None else _format_number(threshold)


def _format_number(number: float) -> str:
    return f"{number:g}".replace("inf", "∞")


def _render_parameters(id: str) -> Iterator[str]:
    parameters = default_parameters(id)
    if parameters:
        yield "## Parameters"
        rows = [
            f"| `{name}` | {'required' if value is inspect.Parameter.empty else f'`{value!r}`'} |"
            for name, value in parameters.items()
        ]
        yield "\n".join(["| name | default |", "|---|---|", *rows])


def _field_default(field: dataclasses.Field[Any]) -> Any:
    if field.default is not dataclasses.MISSING:
        return field.default
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return inspect.Parameter.empty


def _render_example(spec: EvaluatorSpec) -> Iterator[str]:
    """Yield the example as a program, with one argument per line as a formatter would write it, and its output."""
    function = "judge" if spec.example.startswith("judge(") else "get_evaluator"
    setup = f"from spanwise.evaluators import {function}, score\n"
    if "scripted(" in spec.example:
        setup += "from spanwise.evaluators.testing import scripted\n"
    if re.search(r", trace\b(?!=)", spec.example):
        setup = f"{EXAMPLE_IMPORTS}{setup}\n{EXAMPLE_TRACE}"
    source = f"score({spec.example})"
    call = ast.parse(source, mode="eval").body
    assert isinstance(call, ast.Call)
    arguments = "".join(f"    {member},\n" for member in _format_members(call, source, 1))
    yield f"```python\n{setup}\nresults = score(\n{arguments})\n{PRINT_RESULTS}\n```"
    lines = [f"{feedback.key} {feedback.outcome} {feedback.score}" for feedback in run_example(spec)]
    yield "```text\n" + "\n".join(lines) + "\n```"


def _format_expression(node: ast.expr, source: str, depth: int, before: str = "") -> str:
    """Format an expression that follows the text `before` on its line.

    If the expression does not fit on the line, its members go together on the next line. If they do not fit there
    either, each member gets a line.
    """
    text = ast.get_source_segment(source, node) or ""
    if len(f"{_INDENT * depth}{before}{text},") <= LINE_WIDTH:
        return text
    if isinstance(node, ast.Lambda):
        head = text.removesuffix(ast.get_source_segment(source, node.body) or "")
        return head + _format_expression(node.body, source, depth, before + head)
    # a method call, such as `{…}.get(name)`: only the object before the dot is broken into lines
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        target = node.func.value
        call = text.removeprefix(ast.get_source_segment(source, target) or "")
        return _format_expression(target, source, depth, before) + call
    if not isinstance(node, ast.Call | ast.List | ast.Dict):
        return text
    opening = text[: text.index("(") + 1] if isinstance(node, ast.Call) else text[0]
    inner, end = "\n" + _INDENT * (depth + 1), "\n" + _INDENT * depth + text[-1]
    within = text[len(opening) : -1]
    if len(_INDENT) * (depth + 1) + len(within) <= LINE_WIDTH:
        return f"{opening}{inner}{within}{end}"
    return opening + "".join(f"{inner}{member}," for member in _format_members(node, source, depth + 1)) + end


def _format_members(node: ast.Call | ast.List | ast.Dict, source: str, depth: int) -> list[str]:
    if isinstance(node, ast.List):
        return [_format_expression(member, source, depth) for member in node.elts]
    if isinstance(node, ast.Dict):
        prefixes = [(f"{ast.get_source_segment(source, key)}: " if key else "**") for key in node.keys]
        values = node.values
    else:
        prefixes = [*("" for _ in node.args), *(f"{keyword.arg}=" for keyword in node.keywords)]
        values = [*node.args, *(keyword.value for keyword in node.keywords)]
    return [
        prefix + _format_expression(value, source, depth, prefix)
        for prefix, value in zip(prefixes, values, strict=True)
    ]


def run_example(spec: EvaluatorSpec) -> list[Feedback]:
    """Run the evaluator on its documented example, and return the feedback."""
    names: dict[str, Any] = {
        "Feedback": Feedback,
        "Run": Run,
        "Target": Target,
        "Trace": Trace,
        "Usage": Usage,
        "get_evaluator": get_evaluator,
        "judge": judge,
        "score": score,
        "scripted": scripted,
    }
    exec(EXAMPLE_TRACE, names)
    with use_judge_context(judgements=DiscardedJudgements()):  # do not store judge traces
        feedback: list[Feedback] = eval(f"score({spec.example})", names)
    return feedback


def write_pages(folder: Path) -> None:
    """Write all pages, and delete those of removed evaluators."""
    pages = render_pages()
    for old in folder.glob("*.md"):
        if old.name not in pages and old.name != "protocol.md":
            old.unlink()
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in pages.items():
        (folder / name).write_text(text, "utf-8")


if __name__ == "__main__":
    write_pages(Path(sys.argv[1]))
