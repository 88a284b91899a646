"""Quality gate of `spanwise eval`: allowed failures, bounds and expressions; reports for CI."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from fractions import Fraction
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias
from xml.etree import ElementTree

from spanwise.cli.evaluation_files import EvaluationFile
from spanwise.cli.gate_expressions import (
    Expression,
    GateResult,
    MeasuredExperiment,
    Outcome,
    check_unit,
    describe_missing_score,
    evaluate_expression,
    format_key,
    is_measure,
    parse_expression,
    settle,
)
from spanwise.collector.errors import Refused
from spanwise.collector.formatting import escape_markdown, first_line
from spanwise.collector.statistics import MEASURES, TASK_OK
from spanwise.collector.stores import ComparisonOptions, Store
from spanwise.tracer.suggestions import did_you_mean

if TYPE_CHECKING:
    from spanwise.cli.baselines import Baseline
    from spanwise.evaluators import Evaluator, Experiment
    from spanwise.evaluators.analysis import Comparison


# Quality gate of `spanwise eval`: allowed failures, bounds on means and expressions, for the exit status in CI.

MAX_SHOWN_RUNS = 5  # failed runs that are printed
EXIT_CODES = {"passed": 0, "failed": 1, "undecided": 2, "broken": 3}
_INCONCLUSIVE: Mapping[str, Outcome] = {"pass": "passed", "fail": "failed"}
_SHARE_OR_COUNT = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)%|([0-9]{1,9})")


@dataclass(frozen=True, slots=True)
class FailureAllowance:
    """Number or share of runs that may fail."""

    text: str
    count: int = 0
    share: Fraction | None = None

    def allows(self, failed: int, runs: int) -> bool:
        """Return whether this number of failed runs is allowed."""
        return failed <= (self.count if self.share is None else self.share * runs)


@dataclass(frozen=True, slots=True)
class MeanBound:
    """Bound on the mean of a key: an upper bound if `is_most` is set, otherwise a lower bound."""

    key: str
    limit: float
    is_most: bool = False

    @property
    def option(self) -> str:
        """Return the option that sets the bound."""
        return "--fail-over" if self.is_most else "--fail-under"

    @property
    def name(self) -> str:
        """Return the bound with its option, for reports."""
        return f"{self.option} {self.key}={self.limit:g}"

    @property
    def beyond(self) -> str:
        """Return the range in which the mean fails, such as "below 0.8"."""
        return f"{'above' if self.is_most else 'below'} {self.limit:.4g}"

    def fails(self, mean: float) -> bool:
        """Return whether a mean violates the bound; NaN does."""
        return not (mean <= self.limit if self.is_most else mean >= self.limit)


Requirement: TypeAlias = "MeanBound | Expression"


@dataclass(frozen=True, slots=True, kw_only=True)
class Gate:
    """Requirements for the experiments of a command.

    `margin` and `primary` are options of the comparison with the baseline; they precede those of the files.
    `inconclusive` is the outcome that replaces "undecided".
    """

    allowance: FailureAllowance
    bounds: Sequence[MeanBound] = ()
    expressions: Sequence[Expression] = ()
    margin: Mapping[str, float] = field(default_factory=dict)
    primary: Sequence[str] = ()
    inconclusive: Outcome | None = None

    @property
    def requirements(self) -> list[Requirement]:
        """Return the requirements on keys."""
        return [*self.bounds, *self.expressions]

    def get_margin(self, file: EvaluationFile) -> dict[str, float]:
        """Return the margins for a file, by key."""
        return {**file.margin, **self.margin}

    def get_primary(self, file: EvaluationFile) -> Sequence[str] | None:
        """Return the primary keys for a file; None if neither options nor file name some."""
        return [*self.primary] or file.primary


FinalOutcome: TypeAlias = Literal["passed", "failed", "undecided", "broken"]


@dataclass(slots=True, kw_only=True)
class EvaluationResult:
    """Result of one evaluation. `error` tells why its set-up is broken; the gate then has no results."""

    name: str
    experiment: Experiment | None = None
    baseline: Baseline | None = None
    dataset_note: str = ""
    comparison: str = ""  # comparison with the baseline as Markdown, if a report needs it
    gate: list[GateResult] = field(default_factory=list)
    error: str = ""
    seconds: float = 0.0

    @property
    def outcome(self) -> FinalOutcome:
        """Return the outcome of the evaluation: the worst of its gate's results, or "broken"."""
        if self.error:
            return "broken"
        outcomes = {result.outcome for result in self.gate}
        return "failed" if "failed" in outcomes else "undecided" if "undecided" in outcomes else "passed"

    def __str__(self) -> str:
        reasons = [self.error] if self.error else [each.reason for each in self.gate if each.outcome == self.outcome]
        said = f": {first_line(reasons[0])}" if reasons and self.outcome != "passed" else ""
        return f"{self.name}: {OUTCOME_NAMES[self.outcome]}{said}"


OUTCOME_NAMES: Mapping[str, str] = {
    "passed": "passed",
    "failed": "failed",
    "undecided": "could not decide",
    "broken": "broken set-up",
    "skipped": "skipped",
}


def find_worst(results: Iterable[EvaluationResult]) -> FinalOutcome:
    """Return the worst outcome: broken, failed, undecided, passed, in this order."""
    order: tuple[FinalOutcome, ...] = ("broken", "failed", "undecided")
    outcomes = {result.outcome for result in results}
    return next((outcome for outcome in order if outcome in outcomes), "passed")


@dataclass(slots=True)
class FailureSummary:
    """Failures of an experiment: the runs that failed, and the number of failures by key. The key None means the
    task.
    """

    runs: dict[str, tuple[str, str]] = field(default_factory=dict)  # trace id → the example's id, and one error
    times: Counter[str | None] = field(default_factory=Counter)
    why: dict[str | None, str] = field(default_factory=dict)  # key → one of its errors
    of_the_set: list[str] = field(default_factory=list)  # keys of set-level evaluators


def parse_allowance(text: str) -> FailureAllowance:
    """Parse `--allow-failed`. Raises `Refused`."""
    match = _SHARE_OR_COUNT.fullmatch(text.strip())
    if match and match[2]:
        return FailureAllowance(text, count=int(match[2]))
    if match and (percent := Fraction(match[1])) <= 100:
        return FailureAllowance(text, share=percent / 100)
    raise Refused(f"--allow-failed must be a number of runs or a share, such as 2 or 5%, got {text!r}")


def parse_gate(
    *,
    allow_failed: str,
    fail_under: Iterable[str],
    fail_over: Iterable[str],
    fail_if: Iterable[str],
    margin: Iterable[str],
    primary: Sequence[str],
    inconclusive: str | None,
    has_baseline: bool,
) -> Gate:
    """Parse the options of the gate. Raises `Refused`."""
    if inconclusive is not None and inconclusive not in _INCONCLUSIVE:
        raise Refused(f"--inconclusive must be pass or fail, got {inconclusive!r}")
    gate = Gate(
        allowance=parse_allowance(allow_failed),
        bounds=parse_bounds(fail_under, fail_over),
        expressions=[parse_expression(text) for text in fail_if],
        margin=dict(map(_parse_margin, margin)),
        primary=primary,
        inconclusive=_INCONCLUSIVE[inconclusive] if inconclusive else None,
    )
    if not has_baseline:
        for expression in gate.expressions:
            if expression.word:
                raise Refused(f"{expression.name}: a conclusion needs an experiment to compare with; add --baseline")
        if gate.margin or gate.primary:
            option = "--margin" if gate.margin else "--primary"
            raise Refused(f"{option} is an option of the comparison with a baseline; add --baseline, or omit it")
    return gate


def _parse_margin(text: str) -> tuple[str, float]:
    key, _, number = text.rpartition("=")
    try:
        margin = {key.strip(): float(number)}
        ComparisonOptions(margin=margin)
    except ValueError:
        margin = {}
    if not key.strip() or not margin:
        raise Refused(f"--margin must be KEY=NUMBER with a positive number, such as exact=0.02, got {text!r}")
    return key.strip(), margin[key.strip()]


def parse_bounds(least: Iterable[str], most: Iterable[str] = ()) -> list[MeanBound]:
    """Parse all values of `--fail-under` and `--fail-over`. Raises `Refused`."""
    return [*(_parse_bound(text, False) for text in least), *(_parse_bound(text, True) for text in most)]


def _parse_bound(text: str, is_most: bool) -> MeanBound:
    key, _, number = text.rpartition("=")
    try:
        bound = MeanBound(key.strip(), float(number), is_most)
    except ValueError:
        bound = MeanBound("", 0.0, is_most)
    if not bound.key or not isfinite(bound.limit):  # a bound of NaN would never fail
        raise Refused(f"{bound.option} must be KEY=NUMBER, such as exact=0.8, got {text!r}")
    return bound


def check_keys(gate: Gate, files: Sequence[EvaluationFile], where: Path, *, complete: bool = True) -> list[str]:
    """Raise `Refused` for requirements on keys that no file reports, before the runs. Return remarks on other keys.

    `where` is the file or folder of the command. `complete` is False if some of its files could not be loaded: they
    may report any key.
    """
    remarks = []
    for file in files:
        _check_directions(gate.bounds, file.all_evaluators)
        for expression in gate.expressions:
            check_unit(expression, file.reported_keys)
            if expression.word and expression.key in file.set_keys:
                raise Refused(
                    f"{expression.name}: {expression.key!r} has one score for the whole set, and no pairs to compare; "
                    f"use --fail-if '{format_key(expression.key)}.mean < NUMBER'"
                )
        options = [("margin", key) for key in file.margin] + [("primary", key) for key in file.primary or ()]
        for option, key in options:
            if key in MEASURES:
                continue
            if key in file.set_keys:
                raise Refused(
                    f"{file.path}: {option}: {key!r} has one score for the whole set, and no pairs to compare"
                )
            _check_key(key, f"{file.path}: {option}", [file], file.path)
    wanted = [
        (each.option, each.key)
        for each in gate.requirements
        if isinstance(each, MeanBound) or not all(is_measure(each, file.reported_keys) for file in files)
    ]
    options = [("--margin", key) for key in gate.margin] + [("--primary", key) for key in gate.primary]
    wanted += [(option, key) for option, key in options if key not in MEASURES]
    for option, key in dict.fromkeys(wanted):
        if complete and _check_key(key, option, files, where) == "possible":
            remarks.append(f"{option} {key!r}: no evaluator declares this key; it is checked after the runs")
    return remarks


def _check_key(key: str, option: str, files: Sequence[EvaluationFile], where: Path) -> str:
    """Return whether any file declares a key or may report it. Raises `Refused` if none does."""
    known = {TASK_OK, *(known for file in files for known in file.reported_keys)}
    statuses = {file.find_key(key) for file in files}
    if statuses - {"absent"}:
        return "declared" if "declared" in statuses else "possible"
    raise Refused(
        f"{option} {key!r}: no evaluator reports this key{did_you_mean(key, known, form=' ({})')}; known keys: "
        f"{', '.join(sorted(known))}. A key that is only known at run time must occur in "
        f"{'a file of ' if where.is_dir() else ''}{where}, for example in a comment"
    )


def _check_directions(wanted: Sequence[MeanBound], evaluators: Sequence[Evaluator]) -> None:
    """Raise `Refused` for a bound that would fail good means, such as an upper bound where higher is better."""
    declared = [
        metric
        for evaluator in evaluators
        for metric in evaluator.metrics
        if evaluator.spec or not metric.higher_is_better
    ]
    rising = {TASK_OK: True, **{metric.key: metric.higher_is_better for metric in declared}}
    for bound in wanted:
        if rising.get(bound.key, not bound.is_most) == bound.is_most:
            better, sign = ("higher", "<") if bound.is_most else ("lower", ">")
            expression = f"{format_key(bound.key)}.mean {sign} {bound.limit:g}"
            quoted = f'"{expression}"' if "'" in expression else f"'{expression}'"
            raise Refused(
                f"{bound.name}: {better} is better for this key, so this would fail good runs; use --fail-if {quoted}"
            )


def collect_failures(experiment: Experiment) -> FailureSummary:
    """Return the runs whose task or evaluators failed. Rows are read only if there are failures."""
    failures, summary = FailureSummary(), experiment.summary()
    set_failed = any(feedback.error is not None for feedback in summary.overall.values())
    if not (summary.failed or set_failed or any(row.failed for row in summary.values())):
        return failures
    for failure in experiment.errors():
        if failure.teardown:  # the run itself has not failed
            continue
        failures.times[failure.key] += 1
        failures.why.setdefault(failure.key, first_line(failure.error))
        if failure.trace_id:
            failures.runs.setdefault(failure.trace_id, (failure.example_id, first_line(str(failure))))
        else:
            failures.of_the_set.append(str(failure.key))
    return failures


def apply_gate(
    gate: Gate,
    experiment: Experiment,
    failed: FailureSummary,
    comparison: Comparison | None = None,
    file: EvaluationFile | None = None,
    *,
    lenient: bool = False,
) -> list[GateResult]:
    """Return the results of all requirements. The last one, on failed runs, can be understood on its own.

    With `lenient`, requirements on keys that the experiment does not report are skipped.
    """
    status = experiment.record.status
    results = []
    if status != "finished":
        results.append(GateResult("all runs", "failed", f"the evaluation is {status}, so some runs are missing"))
    measured = MeasuredExperiment(experiment, comparison, gate.get_margin(file) if file else gate.margin)
    for requirement in gate.requirements:
        key, reported = requirement.key, measured.is_reported(requirement.key)
        measure = isinstance(requirement, Expression) and is_measure(requirement, {key} if reported else set())
        declared = file is not None and file.find_key(key) == "declared"
        if lenient and not (measure or reported or declared):
            results.append(GateResult(requirement.name, "skipped", f"this evaluation does not report {key!r}"))
        elif isinstance(requirement, Expression):
            results.append(settle(evaluate_expression(requirement, measured), gate.inconclusive))
        else:
            results.append(_check_bound(measured, requirement))
    return [*results, _check_failures(experiment, failed, gate.allowance)]


def _check_failures(experiment: Experiment, failed: FailureSummary, allow: FailureAllowance) -> GateResult:
    name, runs = f"failed runs (--allow-failed {allow.text})", experiment.summary().runs
    count = max(len(failed.runs), experiment.summary().failed, runs if failed.of_the_set else 0)
    if allow.allows(count, runs):
        return GateResult(name, "passed", f"{count} of {runs} runs failed")
    share = f"all {runs}" if count == runs else f"{count} of {runs}"
    errors = "; ".join(
        f"{key or 'the task'}{'' if key in failed.of_the_set else f' {times} times'}, as with {failed.why[key]}"
        for key, times in failed.times.items()
    )
    return GateResult(name, "failed", f"{share} runs failed ({errors}); --allow-failed allows {allow.text}")


def _check_bound(measured: MeasuredExperiment, bound: MeanBound) -> GateResult:
    """Return the result of a bound on a mean. A key without any score violates every bound."""
    stats = measured.find_stats(bound.key)
    if stats is None or stats.mean is None:
        missing = describe_missing_score(measured, bound.key) or ""
        return GateResult(bound.name, "failed", f"{bound.key} has no mean, {bound.beyond}{missing}")
    if bound.fails(stats.mean):
        return GateResult(bound.name, "failed", f"{bound.key} is {stats.mean:.4g}, {bound.beyond}")
    return GateResult(bound.name, "passed", f"{bound.key} is {stats.mean:.4g}")


def fail_keys_without_report(results: Sequence[EvaluationResult]) -> list[str]:
    """Change requirements that every evaluation of a folder has skipped to failed ones. Return the reasons."""
    finished = [result for result in results if not result.error]
    names = dict.fromkeys(each.name for result in finished for each in result.gate if each.outcome == "skipped")
    unmet = [
        name
        for name in names
        if all(each.outcome == "skipped" for result in finished for each in result.gate if each.name == name)
    ]
    for result in finished:
        result.gate = [
            replace(each, outcome="failed", reason="no evaluation has reported this key")
            if each.name in unmet
            else each
            for each in result.gate
        ]
    return [f"{name}: no evaluation has reported this key" for name in unmet]


def list_partial_means(experiment: Experiment, wanted: Sequence[MeanBound]) -> list[str]:
    """Return remarks on bounds whose means cover only some of the runs."""
    summary = experiment.summary()
    partial = [stats for bound in wanted if (stats := summary.get(bound.key)) and stats.n and stats.skipped]
    return [
        f"{stats.key} is the mean over {stats.n} of {summary.runs} runs: {stats.skipped} skipped" for stats in partial
    ]


# Reports of `spanwise eval` for CI: JUnit XML, and Markdown for a pull request.

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
