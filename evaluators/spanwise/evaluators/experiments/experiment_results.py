"""Results of an experiment: summary, rows, errors, rescoring, and set-level evaluators.

Runs are read page by page. For set-level evaluators, only the fields that they request are held in memory, not whole
cases.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, Unpack

from rich.console import Console, ConsoleOptions, RenderResult

from spanwise.collector.errors import StoreError
from spanwise.collector.formatting import standing
from spanwise.collector.records import Example, Feedback, Target
from spanwise.collector.records import Experiment as Record
from spanwise.collector.statistics import (
    TASK_OK,
    BooleanRates,
    RepeatedRuns,
    compute_boolean_rates,
    databricks_table,
)
from spanwise.collector.stores import JudgeAgreement, Store, iterate_examples, measure_robustness
from spanwise.evaluators.experiments.dataset_source import ExampleLookup, read_attached_example
from spanwise.evaluators.experiments.experiment_resume import read_metrics, read_stored_runs
from spanwise.evaluators.experiments.experiment_robustness import Robustness
from spanwise.evaluators.experiments.experiment_rows import Failure, Row, render_experiment_html
from spanwise.evaluators.experiments.experiment_settings import EvaluateOptions
from spanwise.evaluators.experiments.experiment_summary import Summary, make_summary
from spanwise.evaluators.experiments.experiment_totals import ExperimentTally
from spanwise.evaluators.experiments.result_files import get_results_path, list_saving_evaluators, write_results
from spanwise.evaluators.experiments.result_writer import UnstoredRuns
from spanwise.evaluators.interface import (
    Evaluator,
    JudgementBuffer,
    StoreLocation,
    print_message,
    resolve_store,
    use_judge_context,
)
from spanwise.evaluators.scoring import make_case
from spanwise.tracer import attribute_names as names

if TYPE_CHECKING:
    import pandas


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
