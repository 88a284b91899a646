"""Reports of `spanwise eval` for CI: JUnit XML, and Markdown for a pull request."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING
from xml.etree import ElementTree

from spanwise.cli.gate_expressions import GateResult
from spanwise.cli.quality_gate import OUTCOME_NAMES, EvaluationResult, find_worst
from spanwise.collector.errors import Refused
from spanwise.collector.formatting import escape_markdown
from spanwise.collector.stores import Store

if TYPE_CHECKING:
    from spanwise.evaluators import Experiment
    from spanwise.evaluators.analysis import Comparison

# Characters that XML 1.0 does not allow, not even escaped
_ILLEGAL_IN_XML = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def prepare_report(path: Path) -> None:
    """Create an empty report, so that a report of an earlier run cannot be mistaken for one of this run.

    Raises `Refused` if the file cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"")
    except OSError as error:
        raise Refused(f"the report {str(path)!r} cannot be written: {error.strerror}; name another file") from None


# --- JUnit XML --------------------------------------------------------------------------------------------------------


def render_junit(results: Sequence[EvaluationResult]) -> bytes:
    """Return JUnit XML: a test suite per evaluation with a test case per requirement, and one for failed runs.

    A requirement that could not be decided is an error of the type "undecided", a broken set-up one of the type
    "broken".
    """
    root = ElementTree.Element("testsuites", name="spanwise eval")
    for result in results:
        _add_suite(root, result)
    for name in ("tests", "failures", "errors", "skipped"):
        root.set(name, str(sum(int(suite.get(name, "0")) for suite in root)))
    ElementTree.indent(root)
    document: bytes = ElementTree.tostring(root, encoding="utf-8", xml_declaration=True)
    return document


def _add_suite(root: ElementTree.Element, result: EvaluationResult) -> None:
    suite = ElementTree.SubElement(root, "testsuite", name=_clean(result.name), time=f"{result.seconds:.3f}")
    properties = _list_properties(result)
    if properties:
        listed = ElementTree.SubElement(suite, "properties")
        for name, value in properties.items():
            ElementTree.SubElement(listed, "property", name=name, value=_clean(value))
    if result.experiment is not None:
        started = datetime.fromtimestamp(result.experiment.record.started_ns / 1e9, UTC)
        suite.set("timestamp", started.strftime("%Y-%m-%dT%H:%M:%S"))
    if result.error:
        case = ElementTree.SubElement(suite, "testcase", classname=_clean(result.name), name="set-up")
        _add_element(case, "error", "broken", result.error)
    for each in result.gate:
        case = ElementTree.SubElement(suite, "testcase", classname=_clean(result.name), name=_clean(each.name))
        _add_outcome(case, each)
    counts = {"tests": "testcase", "failures": "testcase/failure", "errors": "testcase/error"}
    counts["skipped"] = "testcase/skipped"
    for name, elements in counts.items():
        suite.set(name, str(len(suite.findall(elements))))


def _list_properties(result: EvaluationResult) -> dict[str, str]:
    properties = {}
    if result.experiment is not None:
        summary = result.experiment.summary()
        properties = {
            "experiment": result.experiment.id,
            "store": result.experiment.store.where,
            "runs": str(summary.runs),
            "failed_runs": str(summary.failed),
        }
    if result.baseline is not None:
        properties["baseline"] = f"{result.baseline}; {result.dataset_note}".rstrip("; ")
    return properties


def _add_outcome(case: ElementTree.Element, result: GateResult) -> None:
    match result.outcome:
        case "passed":
            ElementTree.SubElement(case, "system-out").text = _clean(result.reason)
        case "failed":
            _add_element(case, "failure", "failed", result.reason)
        case "undecided":
            _add_element(case, "error", "undecided", result.reason)
        case "skipped":
            ElementTree.SubElement(case, "skipped", message=_clean(result.reason))


def _add_element(case: ElementTree.Element, tag: str, kind: str, reason: str) -> None:
    element = ElementTree.SubElement(case, tag, type=kind, message=_clean(reason))
    element.text = _clean(reason)


def _clean(text: str) -> str:
    """Return the text without characters that are illegal in XML. ElementTree escapes the others."""
    return _ILLEGAL_IN_XML.sub("", text)


# --- Markdown ---------------------------------------------------------------------------------------------------------


def render_markdown(results: Sequence[EvaluationResult]) -> str:
    """Return the results as Markdown for a pull request.

    The conclusion comes first, then per evaluation the requirements and the comparison with the baseline. Runs are
    linked if the store is a collector.
    """
    parts = []
    if len(results) > 1:
        rows = [(escape_markdown(result.name), OUTCOME_NAMES[result.outcome]) for result in results]
        parts.append(f"## Evaluations: {OUTCOME_NAMES[find_worst(results)]}")
        parts.append(_make_table(("evaluation", "result"), rows))
    for result in results:
        parts += _render_evaluation(result, "###" if len(results) > 1 else "##")
    return "\n\n".join(part for part in parts if part) + "\n"


def _render_evaluation(result: EvaluationResult, heading: str) -> list[str]:
    parts = [f"{heading} {escape_markdown(result.name)}: {OUTCOME_NAMES[result.outcome]}"]
    if result.error:
        parts.append(escape_markdown(result.error))
    if result.experiment is not None:
        parts.append("\n".join(f"- {line}" for line in _list_facts(result, result.experiment)))
    rows = [
        (escape_markdown(each.name), OUTCOME_NAMES[each.outcome], escape_markdown(each.reason)) for each in result.gate
    ]
    if rows:
        parts.append(_make_table(("requirement", "result", "reason"), rows))
    return [*parts, result.comparison]


def _list_facts(result: EvaluationResult, experiment: Experiment) -> list[str]:
    """Return the number of runs with links, and the baseline."""
    summary, url = experiment.summary(), _get_url(experiment.store.where)
    runs = f"{summary.runs} runs, {summary.failed} failed"
    if url is not None:
        links = [f"[experiment]({url}/experiments/{experiment.id})"]
        if result.baseline is not None:
            links.append(f"[comparison]({url}/compare?ids={result.baseline.record.id}&ids={experiment.id})")
        runs += f" ({', '.join(links)})"
    notes = [str(result.baseline), result.dataset_note] if result.baseline is not None else []
    return [runs, *map(escape_markdown, notes)]


def render_comparison(comparison: Comparison, store: Store) -> str:
    """Return the comparison with a baseline as Markdown. It reads from the store, which must be open."""
    return comparison.to_markdown(_get_url(store.where)).strip()


def _get_url(where: str) -> str | None:
    return where.rstrip("/") if where.startswith(("http://", "https://")) else None


def _make_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
