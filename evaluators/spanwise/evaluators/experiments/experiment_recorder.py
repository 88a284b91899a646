"""Recorder: an experiment whose runs a caller such as the pytest plugin opens around its own code."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Any, Literal, TypeAlias

from spanwise.collector.dialects import read_sdk_span
from spanwise.collector.records import JSON, Example, Feedback, Target, Trace
from spanwise.collector.records import Experiment as Record
from spanwise.collector.statistics import select_latest
from spanwise.collector.stores import Store
from spanwise.evaluators.experiments.dataset_source import attach_example
from spanwise.evaluators.experiments.experiment_preparation import collect_environment, describe_evaluators, make_setup
from spanwise.evaluators.experiments.experiment_progress import ExperimentTally, Heartbeat, compute_wall_ns
from spanwise.evaluators.experiments.experiment_results import (
    Experiment,
    run_set_evaluators,
    save_requested_results,
)
from spanwise.evaluators.experiments.task_run import promote_task_span, read_task_feedback
from spanwise.evaluators.interface import (
    Evaluator,
    JudgementBuffer,
    check_keys,
    run_coroutine,
    to_plain,
    to_stored_value,
    use_judge_context,
)
from spanwise.evaluators.scoring import attach_feedback, get_parts, make_case, retrieved_documents, score, skip_failed
from spanwise.tracer import attribute_names as names
from spanwise.tracer.trace_capture import Captured, capture, is_traced

EndStatus: TypeAlias = Literal["finished", "interrupted"]
NO_OUTPUTS_MESSAGE = (
    "needs outputs; none were recorded: pass them to an evaluator, or call current_run().set_outputs(…)"
)


class OpenRun:
    """Run in progress, with the feedback so far."""

    def __init__(self, example: Example, captured: Captured, judgements: JudgementBuffer, repetition: int = 0) -> None:
        self.example = example
        self._target = Target(trace_id=captured.trace_id)
        self._judge_context = {
            "judgements": judgements,
            "target": self._target,
            "repetition": repetition,
            "inside": None,
        }
        self.feedback: list[Feedback] = []
        self._captured = captured
        self._outputs: JSON = None

    def set_outputs(self, outputs: JSON) -> None:
        """Set the outputs of the run."""
        self._outputs = to_plain(outputs)
        self._captured.run.set_outputs(outputs)

    def score(self, evaluator: Evaluator, outputs: JSON = None, **fields: Any) -> list[Feedback]:
        """Score outputs with an evaluator. If no documents are given, those that the run has retrieved so far are
        used.
        """
        if outputs is not None:
            self.set_outputs(outputs)
        runs = tuple(read_sdk_span(span) for span in self._captured.spans(0)[0])
        documents = retrieved_documents(Trace(runs[0], runs)) if runs else None
        case = make_case(None, self.example, **{"documents": documents, "outputs": outputs, **fields})
        with self.judging():
            feedback = [replace(outcome, target=self._target, id="") for outcome in score(evaluator, case)]
        self.feedback += feedback
        return feedback

    def look_back(self, evaluators: Sequence[Evaluator], trace: Trace) -> None:
        """Score the finished run with evaluators that read its spans and recorded outputs."""
        case, target = make_case(trace, self.example, outputs=self._outputs), Target(trace_id=trace.trace_id)
        with self.judging():
            for evaluator in sorted(evaluators, key=lambda each: bool(get_parts(each))):
                if get_parts(evaluator):
                    self.feedback += score(evaluator, attach_feedback(case, self.feedback))
                elif case.outputs is None and (skipped := skip_failed(evaluator, case, target)):
                    self.feedback += skipped
                elif case.outputs is None and "outputs" in evaluator.needs:
                    self.feedback += evaluator.make.skip(target, NO_OUTPUTS_MESSAGE)
                else:
                    self.feedback += score(evaluator, case)

    def judging(self) -> AbstractContextManager[None]:
        """Return a context in which judge calls are recorded with this run as their target."""
        return use_judge_context(**self._judge_context)

    def note(self, key: str, score: bool, comment: str | None) -> None:
        """Add a score that comes from the caller, not from an evaluator."""
        self.feedback.append(Feedback(target=self._target, key=key, score=score, comment=comment))


class Recorder:
    """Recorder that collects runs into one experiment. The constructor saves the experiment's record."""

    def __init__(
        self,
        store: Store,
        name: str,
        dataset: str,
        evaluators: Sequence[Evaluator] = (),
        *,
        dataset_version: int | None = None,
        repetitions: int = 1,
        metadata: Mapping[str, JSON] | None = None,
        id: str | None = None,
        started_ns: int | None = None,
    ) -> None:
        """Save the record and start the heartbeat.

        With `id` and `started_ns`, several processes can add runs to one experiment. The caller then ends it with
        `finish_stored_experiment`.
        """
        check_keys(evaluators)
        parameters = {"repetitions": repetitions} if repetitions > 1 else {}
        setup = make_setup(None, parameters, dataset=dataset, dataset_version=dataset_version)
        self._store = store
        self._environment = collect_environment()
        self._record = Record(
            id=id or secrets.token_hex(16),
            name=name,
            dataset=dataset,
            dataset_version=dataset_version,
            evaluators=describe_evaluators(evaluators),
            started_ns=started_ns or time.time_ns(),
            metadata={**to_stored_value(metadata or {}), "setup": setup},
            seen_ns=time.time_ns(),
        )
        self._judgements = JudgementBuffer()
        self._set_evaluators = [evaluator for evaluator in evaluators if evaluator.summary]
        self._tally = ExperimentTally((metric for evaluator in evaluators for metric in evaluator.metrics), repetitions)
        self._tally.remarks = dict.fromkeys(remark for evaluator in evaluators for remark in evaluator.remarks)
        self._store.save_experiment(self._record)
        self._heartbeat = Heartbeat(store, self._record.id)
        self._heartbeat.start()

    @contextmanager
    def run(
        self,
        name: str,
        example: Example,
        after: Sequence[Evaluator] = (),
        function: Any = None,
        repetition: int = 0,
    ) -> Iterator[OpenRun]:
        """Open a run around a block of code that calls `function`; the evaluators `after` score it when it ends.

        An exception in the block is recorded as the run's error and raised again. The span of a traced function
        becomes the root of its run.
        """
        attributes = {names.EXPERIMENT: self._record.id, names.EXAMPLE: example.id, names.REPETITION: repetition}
        opened: OpenRun | None = None
        try:
            with capture(name, inputs=example.inputs, attributes=attributes) as captured:
                opened = OpenRun(example, captured, self._judgements, repetition)
                with opened.judging():
                    yield opened
        finally:
            if opened is not None:
                self._store_run(captured, opened, after, traced=is_traced(function))

    def finish(self, status: EndStatus = "finished") -> Experiment:
        """Run the set-level evaluators over all runs, and record the end of the experiment."""
        self._heartbeat.stop()
        return _finish_experiment(
            self._record, self._store, self._tally, self._set_evaluators, self._environment.result(), status
        )

    def _store_run(self, captured: Captured, opened: OpenRun, after: Sequence[Evaluator], *, traced: bool) -> None:
        spans, still_open = captured.spans()
        runs = tuple(read_sdk_span(span) for span in spans)
        root = around = next(run for run in runs if run.parent_id is None)
        if traced:
            runs, root = promote_task_span(runs, around, as_returned=around.outputs is None)
        runs, root = attach_example(runs, root, opened.example, around.inputs)
        opened.look_back(after, Trace(root, runs, complete=not still_open))
        feedback = opened.feedback + read_task_feedback(captured, around, root)
        self._store.append((*runs, *self._judgements.take()), feedback)
        error = (root.error or "error") if root.status == "error" else None
        self._tally.add_run(
            self._tally.runs, root.trace_id, compute_wall_ns(runs), error, still_open, opened.example.id
        )
        self._tally.add_calls(runs)
        self._tally.add_judgements(feedback)
        for outcome in select_latest(feedback):
            self._tally.add_feedback(outcome, opened.example.id)


def finish_stored_experiment(
    store: Store, id: str, set_evaluators: Sequence[Evaluator], status: EndStatus
) -> Experiment:
    """Finish an experiment to which other processes have added runs; see `Recorder.finish`."""
    loaded = Experiment.load(store, id)
    return _finish_experiment(
        loaded.record, store, loaded._tally, set_evaluators, collect_environment().result(), status
    )


def _finish_experiment(
    record: Record,
    store: Store,
    tally: ExperimentTally,
    set_evaluators: Sequence[Evaluator],
    environment: Mapping[str, JSON],
    status: EndStatus,
) -> Experiment:
    ended = replace(
        record,
        status=status,
        ended_ns=(now := time.time_ns()),
        seen_ns=now,
        example_count=len(tally.traces),
        metadata={
            **record.metadata,
            "setup": {**record.metadata["setup"], **environment},
            "totals": dict(tally.totals()),
        },
    )
    experiment = Experiment(ended, store, tally)
    run_coroutine(run_set_evaluators(experiment, set_evaluators, store, tally))
    store.save_experiment(ended)
    save_requested_results(experiment)
    return experiment
