"""Results of an experiment: rows, errors, summary, rescoring, set-level evaluators, HTML page, files.

Runs are read page by page. For set-level evaluators, only the fields that they request are held in memory, not whole
cases.
"""

from __future__ import annotations

import asyncio
import hashlib
import heapq
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from html import escape
from importlib import import_module
from itertools import islice
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, Unpack
from urllib.parse import quote

import orjson
from rich.console import Console, ConsoleOptions, RenderResult

from spanwise.collector.errors import StoreError
from spanwise.collector.formatting import first_line, standing
from spanwise.collector.records import JSON, Example, Feedback, Target, Trace
from spanwise.collector.records import Experiment as Record
from spanwise.collector.statistics import TASK_OK, BooleanRates, RepeatedRuns, compute_boolean_rates, databricks_table
from spanwise.collector.stores import JudgeAgreement, Store, iterate_examples, measure_robustness
from spanwise.evaluators.datasets import to_row
from spanwise.evaluators.experiments.dataset_source import ExampleLookup, read_attached_example
from spanwise.evaluators.experiments.experiment_plan import EvaluateOptions
from spanwise.evaluators.experiments.experiment_progress import ExperimentTally
from spanwise.evaluators.experiments.experiment_resume import read_metrics, read_stored_runs
from spanwise.evaluators.experiments.experiment_summary import Robustness, Summary, make_summary
from spanwise.evaluators.experiments.result_writer import UnstoredRuns
from spanwise.evaluators.interface import (
    PARAMETERS_KEY,
    Evaluator,
    JudgementBuffer,
    Metric,
    StoreLocation,
    get_parameters,
    print_message,
    resolve_store,
    to_plain,
    use_judge_context,
)
from spanwise.evaluators.scoring import make_case
from spanwise.tracer import attribute_names as names

if TYPE_CHECKING:
    import pandas


# Rows of an experiment: runs with their feedback, errors, and the HTML page that shows them.


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


# Result files: the dataset of an experiment with all metrics of one evaluator, as JSON Lines.
#
# H2O Eval Studio calls this file the LLM result. Each line is a run: the fields of its example, the answer, the
# retrieved documents, and the metrics. The lines have the form of a dataset file, so `evaluate()` and `spanwise
# datasets` read them.

RESULTS_FOLDER = "spanwise-results"
_MAX_NAME_BYTES = 200  # file systems allow 255


def get_results_path(store: Store, experiment_id: str, evaluator: str) -> Path:
    """Return the path of the file that `save_llm_result=True` writes: `spanwise-results/EXPERIMENT/EVALUATOR.jsonl`.

    The folder is next to the store's file. For any other store, such as one over HTTP, it is in the current directory.
    """
    where = store.where
    is_file = "://" not in where and Path(where).is_file()
    parent = Path(where).resolve().parent if is_file else Path.cwd()
    name = quote(evaluator, safe=" ")
    if len(name) > _MAX_NAME_BYTES:
        name = f"{name[:_MAX_NAME_BYTES]}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"
    return parent / RESULTS_FOLDER / experiment_id / f"{name}.jsonl"


def list_saving_evaluators(record: Record) -> list[str]:
    """Return the keys of the recorded evaluators that were made with `save_llm_result=True`."""
    return [
        str(evaluator["key"])
        for evaluator in record.evaluators
        if ((evaluator.get("origin") or {}).get("init_parameters") or {}).get("save_llm_result") is True
    ]


def write_results(
    path: Path, rows: Iterable[Row], overall: Mapping[str, Feedback], record: Record, evaluator: str | None
) -> int:
    """Write the results of one evaluator, or of all for None, and return the number of runs.

    The file replaces an existing one after all lines are written. Only its owner can read it.

    Set-level scores (`overall`) are repeated in each line. Raises `ValueError` for an unknown evaluator.
    """
    belongs = _make_filter(record, evaluator)
    metrics = {
        metric["key"]: Metric.from_dict(metric) for each in record.evaluators for metric in each.get("metrics", ())
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    runs = 0
    descriptor, temporary = tempfile.mkstemp(prefix=".", suffix=".jsonl", dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            for row in rows:
                runs += 1
                feedback = {**row.feedback, **overall}
                chosen = {key: each for key, each in feedback.items() if belongs(each)}
                file.write(_encode({**_describe_run(row), "results": dict(_describe_results(chosen, metrics))}))
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
    return runs


def _make_filter(record: Record, evaluator: str | None) -> Callable[[Feedback], bool]:
    """Return the function that tells whether feedback is by the evaluator.

    Keys that it returned without declaring them have its version.
    """
    if evaluator is None:
        return lambda feedback: True
    recorded = {str(each["key"]): each for each in record.evaluators}
    if evaluator not in recorded:
        known = ", ".join(recorded) or "none"
        raise ValueError(f"experiment {record.name!r} has no evaluator {evaluator!r:.100}; it has: {known}")
    owners = {metric["key"]: key for key, each in recorded.items() for metric in each.get("metrics", ())}
    version = recorded[evaluator].get("version")
    return lambda feedback: owners[feedback.key] == evaluator if feedback.key in owners else feedback.version == version


def _describe_run(row: Row) -> dict[str, JSON]:
    """Return the fields of the example with the answer and the retrieved documents, and those of the run."""
    case = make_case(row.trace, row.known_example)
    example = replace(row.known_example, outputs=row.outputs, documents=case.documents)
    run = {
        "trace_id": row.trace.trace_id,
        "repetition": row.repetition,
        "error": row.error,
        "duration_ms": row.trace.root.duration_ns / 1e6,
    }
    return {**to_row(example), "run": run}


def _describe_results(
    feedback: Mapping[str, Feedback], metrics: Mapping[str, Metric]
) -> Iterator[tuple[str, dict[str, JSON]]]:
    """Yield each key with its score, without the fields that are empty."""
    for key, each in feedback.items():
        metric = metrics.get(key) or Metric(key)
        values: dict[str, Any] = {
            "display_name": metric.display_name,
            "outcome": each.outcome,
            "score": each.score,
            "label": each.label,
            "passed": None if each.score is None else metric.passes(each.score),
            "comment": each.comment,
            "error": each.error,
            "metadata": {name: value for name, value in each.metadata.items() if name != PARAMETERS_KEY},
        }
        yield key, {name: value for name, value in values.items() if value not in (None, "", {})}


def _encode(line: Mapping[str, Any]) -> bytes:
    try:
        return orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE)
    except TypeError:  # values that JSON does not have, such as lone surrogates
        return orjson.dumps(to_plain(line), option=orjson.OPT_APPEND_NEWLINE)


# Results of an experiment: summary, rows, errors, rescoring, and set-level evaluators.

ROW_PAGE = 200


class RescoreFunction(Protocol):
    """Type of the function that scores the runs of an experiment with more evaluators."""

    def __call__(
        self, experiment: Experiment, evaluators: Iterable[Any], **options: Unpack[EvaluateOptions]
    ) -> Experiment: ...


_rescore: RescoreFunction


def register_rescore(rescore: RescoreFunction) -> RescoreFunction:
    """Set the function that `Experiment.evaluate` calls. It is registered because importing it would be an import
    cycle.
    """
    global _rescore
    _rescore = rescore
    return rescore


class Experiment:
    """One execution of a task over a dataset.

    `print` shows its summary. Rows are read from the store on demand.
    """

    def __init__(
        self,
        record: Record,
        store: Store,
        tally: ExperimentTally,
        *,
        unstored: UnstoredRuns | None = None,
        examples: Sequence[Example] | None = None,
    ) -> None:
        self.record = record
        self.unstored = unstored
        self.saved_results: dict[str, Path] = {}  # files of evaluators with `save_llm_result=True`, by their keys
        self._examples = examples  # None if they must be read from the store
        self._store = store
        self._tally = tally

    @classmethod
    def load(cls, store: StoreLocation, id_or_name: str) -> Experiment:
        """Load a stored experiment by id, by a prefix of its id, or the newest of that name. Raises `NotFound`."""
        store = resolve_store(store)
        record = store.experiment(id_or_name)
        tally = ExperimentTally(read_metrics(record), int((record.metadata.get("setup") or {}).get("repetitions") or 1))
        traces = read_stored_runs(store, record, tally).traces
        # order the runs as in the dataset; runs whose example is not in the dataset follow, ordered by start time
        position = {example.id: index for index, example in enumerate(iterate_examples(store, record))}
        last = len(position)
        keys = sorted(enumerate(traces), key=lambda pair: (position.get(pair[1][0], last), pair[1][1], pair[0]))
        tally.traces = dict(enumerate(traces[key] for _, key in keys))
        return cls(record, store, tally)

    @property
    def id(self) -> str:
        """Return the id, 32 hex digits."""
        return self.record.id

    @property
    def name(self) -> str:
        """Return the name of the experiment."""
        return self.record.name

    @property
    def store(self) -> Store:
        """Return the store that holds its traces and feedback."""
        return self._store

    def summary(self) -> Summary:
        """Return for each key the number of scores, the mean, the share that passes, failures and skips.

        Print the summary, or read single values, such as `summary()["exact"].mean`.
        """
        record = self.record

        def read_agreement() -> Mapping[str, str]:
            """Return each judge's agreement with human feedback; {} if the store is unavailable or closed."""
            versions = {key: version or None for key, version in self._tally.judge_versions.items()}
            try:
                return JudgeAgreement(self._store).said(versions)
            except StoreError:
                return {}

        status = "" if record.status == "finished" else f", {standing(record)}"
        title = f"{record.name} on {record.dataset}{status}"
        return make_summary(
            title,
            self._tally,
            has_task=bool((record.metadata.get("setup") or {}).get("task")),
            read_agreement=read_agreement,
            evaluators=record.evaluators,
        )

    def rows(self) -> Iterator[Row]:
        """Yield every run in the dataset's order, read from the store page by page."""

        def read() -> Iterator[Example]:
            return iterate_examples(self._store, self.record) if self._examples is None else iter(self._examples)

        examples = ExampleLookup(read)
        ids = (self._tally.traces[slot] for slot in sorted(self._tally.traces))
        while page := list(islice(ids, ROW_PAGE)):
            for trace in self._store.many(page):
                yield Row(read_attached_example(trace.root) or examples.get(trace.root.example_id or ""), trace)
            examples.forget(trace.root.example_id or "")

    def errors(self) -> Iterator[Failure]:
        """Yield every error of the task, of the fixture's tear-down and of evaluators, with tracebacks."""
        for row in self.rows():
            if row.error is not None:
                events = [event for event in row.trace.root.events if event.name == "exception"]
                stack = str(events[-1].attributes.get("exception.stacktrace", "")) if events else ""
                yield Failure(row.example_id, row.trace.trace_id, None, row.error, stack)
            for failed in row.trace.root.attributes.get(names.TEARDOWN_ERRORS) or ():
                yield Failure(
                    row.example_id, row.trace.trace_id, None, failed["error"], failed["traceback"], teardown=True
                )
            for outcome in row.feedback.values():
                if outcome.error is not None:
                    yield Failure(
                        row.example_id, row.trace.trace_id, outcome.key, outcome.error, _get_feedback_traceback(outcome)
                    )
        for outcome in self._tally.overall.values():
            if outcome.error is not None:
                yield Failure("", "", outcome.key, outcome.error, _get_feedback_traceback(outcome))

    def repeats(self, key: str) -> RepeatedRuns:
        """Return the statistics of repeated runs under one key: pass@k, pass^k, variances, and flaky examples.

        Raises `ValueError` for an unknown key, or if the experiment has no repetitions.
        """
        if self._tally.repetitions < 2:
            raise ValueError(f"experiment {self.name!r} has no repetitions; run it with evaluate(…, repetitions=5)")
        if key != TASK_OK and key not in self._tally.keys:
            known = ", ".join([*self._tally.keys, TASK_OK])
            raise ValueError(f"experiment {self.name!r} has no key {key!r:.100}; expected one of: {known}")
        return self._tally.repeats(key)

    def higher_is_better(self, key: str) -> bool:
        """Return whether a higher score is the better one under this key."""
        return self._tally.metric(key).higher_is_better

    def rates(self, key: str) -> BooleanRates:
        """Return the rates that H2O reports for a group of boolean metrics: passes, failures, retrieval, generation and
        parse failures.
        """
        return compute_boolean_rates((outcome for row in self.rows() for outcome in row.feedback.values()), key)

    def robustness(self) -> Robustness:
        """Return the share of base cases that pass, or fail, also in all their perturbations, by kind and key.

        See `datasets.perturb`. The result also lists the flips between pass and fail.
        """
        return Robustness(f"Robustness of {self.name}", measure_robustness(self._store, self.record))

    def analyze(self) -> Any:
        """Return the `Analysis` of this experiment alone: leaderboards, problems and insights."""
        # by name, because the analysis imports experiments
        return import_module("spanwise.evaluators.analysis").analyze(self)

    def to_pandas(self) -> pandas.DataFrame:
        """Return one row per run: inputs, outputs, reference, error, duration, and one column per key."""
        import pandas

        return pandas.DataFrame([row.to_dict() for row in self.rows()])

    def databricks(self) -> dict[str, Any]:
        """Return the results of yes-or-no judges under Databricks' names (see `databricks_results`).

        Names such as `response/llm_judged/correctness/rating` map to lists with one entry per run. Names such as
        `…/rating/percentage` map to one number.
        """
        return databricks_table(row.trace.feedback for row in self.rows())

    def to_html(self) -> str:
        """Return a self-contained HTML document: the summary, then the runs, failures first, 500 at most."""
        record = self.record
        subtitle = f"{record.dataset} · {record.status} · {self.id}"
        return render_experiment_html(record.name, subtitle, self._repr_html_(), self.rows(), self._tally.display_names)

    def save_results(self, path: str | os.PathLike[str], *, evaluator: str | None = None) -> int:
        """Write the dataset with all metrics of an evaluator to a JSON Lines file, and return the number of runs.

        `evaluator` is the key of an evaluator; None writes the metrics of all. Raises `ValueError` for an unknown one.
        """
        return write_results(Path(path), self.rows(), self._tally.overall, self.record, evaluator)

    def evaluate(self, evaluators: Iterable[Any], **options: Unpack[EvaluateOptions]) -> Experiment:
        """Score the existing runs with more evaluators; the task is not run again. For options see `evaluate()`."""
        return _rescore(self, evaluators, **options)

    def __str__(self) -> str:
        return str(self.summary())

    def __repr__(self) -> str:
        runs = f"{self._tally.runs} runs, {self._tally.failed} failed"
        return f"<Experiment {self.name!r} {self.id[:8]} {self.record.status}: {runs}>"

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield self.summary()

    def _repr_html_(self) -> str:
        return self.summary()._repr_html_()


def _get_feedback_traceback(feedback: Feedback) -> str:
    return str(feedback.metadata.get("traceback", ""))


def save_requested_results(experiment: Experiment, evaluators: Iterable[str] | None = None) -> None:
    """Write the files of the evaluators with `save_llm_result=True`, of `evaluators` only if it is not None.

    Print where they are. A file that cannot be written is reported, not raised.
    """
    chosen = None if evaluators is None else set(evaluators)
    for key in list_saving_evaluators(experiment.record):
        if chosen is not None and key not in chosen:
            continue
        path = get_results_path(experiment.store, experiment.id, key)
        try:
            runs = experiment.save_results(path, evaluator=key)
        except (StoreError, OSError) as problem:
            hint = f"save them elsewhere with experiment.save_results(path, evaluator={key!r})"
            print_message(f"spanwise: the results of {key!r} could not be saved in {path}: {problem}; {hint}")
        else:
            experiment.saved_results[key] = path
            print_message(f"spanwise: saved {runs} runs with the results of {key!r} in {path}")


async def run_set_evaluators(
    experiment: Experiment, evaluators: Sequence[Evaluator], store: Store, tally: ExperimentTally
) -> None:
    """Run set-level evaluators over an experiment, store their feedback, and add it to the tally."""
    if not evaluators:
        return
    record = experiment.record
    kind = store.dataset(record.dataset, record.dataset_version).kind if record.dataset_version is not None else "kv"
    judgements, target = JudgementBuffer(), Target(experiment_id=experiment.id)
    for evaluator in evaluators:
        named = {"evaluator": evaluator.make.name, "version": evaluator.version, "target": target}
        with use_judge_context(judgements=judgements, inside=None, **named):
            cases = (make_case(row.trace, row.known_example, kind) for row in experiment.rows())
            feedback = await evaluator.evaluate_set(cases, target)
        tally.overall.update({outcome.key: outcome for outcome in feedback})
        tally.add_judgements(feedback)
        await asyncio.to_thread(store.append, judgements.take(), feedback)
