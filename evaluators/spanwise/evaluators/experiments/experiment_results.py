"""Results of an experiment: rows, errors, rescoring, and set-level evaluators.

Runs are read page by page. For set-level evaluators, only the fields that they request are held in memory, not whole
cases.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any, Protocol, Unpack

from rich.console import Console, ConsoleOptions, RenderResult

from spanwise.collector.errors import StoreError
from spanwise.collector.formatting import first_line, standing
from spanwise.collector.records import JSON, Case, Example, Feedback, Target, Trace
from spanwise.collector.records import Experiment as Record
from spanwise.collector.statistics import BooleanRates, compute_boolean_rates, databricks_table
from spanwise.collector.stores import JudgeAgreement, Store
from spanwise.evaluators.experiments.dataset_source import ExampleLookup, iterate_example_pages, read_attached_example
from spanwise.evaluators.experiments.experiment_report import (
    Summary,
    get_min_cases,
    make_summary,
    render_experiment_html,
    render_row_html,
)
from spanwise.evaluators.experiments.experiment_resume import StoredRuns, read_metrics, read_stored_runs
from spanwise.evaluators.experiments.experiment_settings import EvaluateOptions
from spanwise.evaluators.experiments.experiment_totals import ExperimentTally
from spanwise.evaluators.experiments.result_writer import UnstoredRuns
from spanwise.evaluators.interface import (
    PARAMETERS_KEY,
    Evaluator,
    JudgementBuffer,
    StoreLocation,
    get_parameters,
    resolve_store,
    use_judge_context,
)
from spanwise.evaluators.scoring import make_case

if TYPE_CHECKING:
    import pandas


ROW_PAGE = 200


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
        """Return the newest feedback for each key, given on the run or one of its spans.

        For one key, a judge's score takes precedence over a person's label on that score.
        """
        said = [outcome for outcome in self.trace.feedback if outcome.target.document is None]
        judged = {outcome.key for outcome in said if outcome.source == "model"}
        by_age = sorted(said, key=lambda outcome: outcome.created_ns)
        return {one.key: one for one in by_age if one.source != "human" or one.key not in judged}

    @property
    def scores(self) -> Mapping[str, float | bool | str | None]:
        """Return the score (or label) per key; None for an error or a skip."""
        return {
            key: outcome.label if outcome.score is None else outcome.score for key, outcome in self.feedback.items()
        }

    def __repr__(self) -> str:
        said = f"error={first_line(self.error)!r}" if self.error else f"outputs={first_line(repr(self.outputs))}"
        return f"<Row {self.example_id[:12]} {said} {dict(self.scores)!r:.300}>"

    def _repr_html_(self) -> str:
        return render_row_html(self)

    @property
    def why(self) -> str | None:
        """Return the first line of the task's error, else of an evaluator's error; None if nothing failed."""
        if self.error is not None:
            return first_line(self.error)
        failed = (outcome for outcome in self.feedback.values() if outcome.error is not None)
        return next((f"{outcome.key}: {first_line(outcome.error or '')}" for outcome in failed), None)

    def to_dict(self) -> dict[str, Any]:
        """Return one flat dict: the fields of the run, one entry per key, and the evaluators' parameters if any."""
        root = self.trace.root
        parameters = {key: given for key, one in self.feedback.items() if (given := get_parameters(one))}
        return {
            "example_id": self.example_id,
            "repetition": self.repetition,
            "inputs": self.inputs,
            "outputs": self.outputs,
            "reference_outputs": self.reference_outputs,
            "error": self.error,
            "duration_ms": root.duration_ns / 1e6,
            "trace_id": root.trace_id,
            **self.scores,
            **({PARAMETERS_KEY: parameters} if parameters else {}),
        }


@dataclass(frozen=True, slots=True)
class Failure:
    """Error of a task or an evaluator (`key`), with its traceback if there is one.

    `example_id` and `trace_id` are empty for a set-level evaluator, which scores all runs.
    """

    example_id: str
    trace_id: str
    key: str | None
    error: str
    traceback: str

    def __str__(self) -> str:
        who = f"evaluator {self.key!r}" if self.key else "the task"
        where = f"example {self.example_id}" if self.example_id else "the whole set"
        return f"{who} failed on {where}: {self.error}\n{self.traceback}".rstrip()


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
        self._examples = examples  # None if they must be read from the store
        self._store = store
        self._tally = tally

    @classmethod
    def load(cls, store: StoreLocation, id_or_name: str) -> Experiment:
        """Load a stored experiment by id, by a prefix of its id, or the newest of that name. Raises `NotFound`."""
        store = resolve_store(store)
        record = store.experiment(id_or_name)
        tally = ExperimentTally(read_metrics(record), _get_repetitions(record))
        recalled = read_stored_runs(store, record, tally)
        ids = (example.id for page in iterate_example_pages(store, record) for example in page)
        tally.traces = dict(enumerate(_order_traces(recalled, ids)))
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
        status = "" if record.status == "finished" else f", {standing(record)}"
        title = f"{record.name} on {record.dataset}{status}"
        return make_summary(
            title,
            self._tally,
            _get_repetitions(record) > 1,
            _get_task_name(record),
            self._trust,
            get_min_cases(record.evaluators),
        )

    def _trust(self) -> Mapping[str, str]:
        """Return each judge's agreement with human feedback; {} if the store is unavailable or closed."""
        try:
            return JudgeAgreement(self._store).said(
                {key: version or None for key, version in self._tally.judge_versions.items()}
            )
        except StoreError:
            return {}

    def rows(self) -> Iterator[Row]:
        """Yield every run in the dataset's order, read from the store page by page."""
        examples = ExampleLookup(self._pages)
        ids = (self._tally.traces[slot] for slot in sorted(self._tally.traces))
        while page := list(islice(ids, ROW_PAGE)):
            for trace in self._store.many(page):
                yield Row(read_attached_example(trace.root) or examples.get(trace.root.example_id or ""), trace)
            examples.forget(trace.root.example_id or "")

    def _pages(self) -> Iterator[Sequence[Example]]:
        return iterate_example_pages(self._store, self.record) if self._examples is None else iter((self._examples,))

    def errors(self) -> Iterator[Failure]:
        """Yield every error of the task and of evaluators, with tracebacks."""
        for row in self.rows():
            if row.error is not None:
                yield Failure(row.example_id, row.trace.trace_id, None, row.error, _get_task_traceback(row.trace))
            for outcome in row.feedback.values():
                if outcome.error is not None:
                    yield Failure(
                        row.example_id, row.trace.trace_id, outcome.key, outcome.error, _get_feedback_traceback(outcome)
                    )
        for outcome in self._tally.overall.values():
            if outcome.error is not None:
                yield Failure("", "", outcome.key, outcome.error, _get_feedback_traceback(outcome))

    def spread(self, key: str) -> Mapping[str, tuple[int, float, float | None, bool]]:
        """Return for each example id (number of scores, mean, variance, whether it is flaky) under one key; {} without
        repetitions.
        """
        tally = self._tally.keys.get(key)
        spreads = tally.spreads if tally else {}
        return {
            example: (spread.n, spread.mean, spread.variance, spread.is_flaky) for example, spread in spreads.items()
        }

    def higher_is_better(self, key: str) -> bool:
        """Return whether a higher score is the better one under this key."""
        return self._tally.metric(key).higher_is_better

    def rates(self, key: str) -> BooleanRates:
        """Return the rates that H2O reports for a group of boolean metrics: passes, failures, retrieval, generation and
        parse failures.
        """
        return compute_boolean_rates((outcome for row in self.rows() for outcome in row.feedback.values()), key)

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
        return render_experiment_html(self)

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


def _get_task_name(record: Record) -> str | None:
    return (record.metadata.get("setup") or {}).get("task")


def _get_repetitions(record: Record) -> int:
    return int((record.metadata.get("setup") or {}).get("repetitions") or 1)


def _order_traces(recalled: StoredRuns, examples: Iterable[str]) -> list[str]:
    """Return trace ids in the dataset's order. Traces whose example is not in the dataset follow, ordered by start
    time.
    """
    position = {id: place for place, id in enumerate(examples)}
    last = len(position)
    keys = sorted(enumerate(recalled.traces), key=lambda pair: (position.get(pair[1][0], last), pair[1][1], pair[0]))
    return [recalled.traces[key] for _, key in keys]


def _get_task_traceback(trace: Trace) -> str:
    events = [event for event in trace.root.events if event.name == "exception"]
    return str(events[-1].attributes.get("exception.stacktrace", "")) if events else ""


async def run_set_evaluators(
    experiment: Experiment, evaluators: Sequence[Evaluator], store: Store, tally: ExperimentTally
) -> None:
    """Run set-level evaluators over an experiment, store their feedback, and add it to the tally."""
    judgements, target = JudgementBuffer(), Target(experiment_id=experiment.id)
    for evaluator in evaluators:
        named = {"evaluator": evaluator.make.name, "version": evaluator.version, "target": target}
        with use_judge_context(judgements=judgements, inside=None, **named):
            feedback = await evaluator.evaluate_set(_iterate_cases(experiment, store), target)
        tally.overall.update({outcome.key: outcome for outcome in feedback})
        tally.add_judgements(feedback)
        await asyncio.to_thread(store.append, judgements.take(), feedback)


def _iterate_cases(experiment: Experiment, store: Store) -> Iterator[Case]:
    record = experiment.record
    kind = store.dataset(record.dataset, record.dataset_version).kind if record.dataset_version is not None else "kv"
    return (make_case(row.trace, row.known_example, kind) for row in experiment.rows())
