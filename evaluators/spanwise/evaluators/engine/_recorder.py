"""An experiment whose runs are opened around somebody else's code, scored inside it, and stored when they end."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Any, Literal, TypeAlias

from spanwise.collector.dialects import from_readable
from spanwise.collector.records import JSON, Case, Document, Example, Feedback, Target, Trace
from spanwise.collector.records import Experiment as Record
from spanwise.collector.statistics import newest
from spanwise.collector.stores import Store
from spanwise.evaluators.engine._examples import with_example
from spanwise.evaluators.engine._experiment import Experiment
from spanwise.evaluators.engine._heartbeat import Heartbeat
from spanwise.evaluators.engine._notes import feedback_of
from spanwise.evaluators.engine._root import own_root
from spanwise.evaluators.engine._setup import described, setup_of, surroundings
from spanwise.evaluators.engine._setup import plain as as_kept
from spanwise.evaluators.engine._tally import Tallies
from spanwise.evaluators.engine._totals import wall_ns
from spanwise.evaluators.engine._whole import score_set
from spanwise.evaluators.protocol import Evaluator, Judgements, check_keys, finish, judging, plain
from spanwise.evaluators.scoring import case_of, of_failed, retrieved, score
from spanwise.tracer import attributes as names
from spanwise.tracer.capture import Captured, capture, is_traced

End: TypeAlias = Literal["finished", "interrupted"]
UNSHOWN = "needs outputs; nothing has shown any: call an evaluator with them, or current_run().set_outputs(…)"


class OpenRun:
    """One run while it lasts: what evaluators say of it so far."""

    def __init__(self, example: Example, captured: Captured, judgements: Judgements, repetition: int = 0) -> None:
        self.example = example
        self._target = Target(trace_id=captured.trace_id)
        self._known = {"judgements": judgements, "target": self._target, "repetition": repetition, "inside": None}
        self.feedback: list[Feedback] = []
        self._captured = captured
        self._outputs: JSON = None

    def set_outputs(self, outputs: JSON) -> None:
        """What the run is taken to have returned."""
        self._outputs = plain(outputs)
        self._captured.run.set_outputs(outputs)

    def score(self, evaluator: Evaluator, outputs: JSON = None, **fields: Any) -> list[Feedback]:
        """Let an evaluator look at outputs; documents are those retrieved so far, unless they are given."""
        if outputs is not None:
            self.set_outputs(outputs)
        case = case_of(None, self.example, **{"documents": self._retrieved(), "outputs": outputs, **fields})
        with self.judging():
            feedback = [replace(outcome, target=self._target, id="") for outcome in score(evaluator, case)]
        self.feedback += feedback
        return feedback

    def look_back(self, evaluators: Sequence[Evaluator], trace: Trace) -> None:
        """Let evaluators look at the run when it is over: at its spans, and at the outputs that it was said to have."""
        case = case_of(trace, self.example, outputs=self._outputs)
        with self.judging():
            for evaluator in evaluators:
                self.feedback += self._looked_back(evaluator, case, Target(trace_id=trace.trace_id))

    def judging(self) -> AbstractContextManager[None]:
        """Let judges inside know which run they judge."""
        return judging(**self._known)

    def note(self, key: str, score: bool, comment: str | None) -> None:
        """Add an outcome that no evaluator gave."""
        self.feedback.append(Feedback(target=self._target, key=key, score=score, comment=comment))

    def _looked_back(self, evaluator: Evaluator, case: Case, target: Target) -> list[Feedback]:
        if case.outputs is None and (skipped := of_failed(evaluator, case, target)):
            return skipped
        if case.outputs is None and "outputs" in evaluator.needs:
            return evaluator.make.skip(target, UNSHOWN)
        return score(evaluator, case)

    def _retrieved(self) -> tuple[Document, ...] | None:
        runs = tuple(from_readable(span) for span in self._captured.spans(0)[0])
        return retrieved(Trace(runs[0], runs)) if runs else None


class Recorder:
    """Collects runs into one experiment. The experiment is there from its first run on."""

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
        """With `id` and `started_ns` several processes add to one experiment, which `finish_stored` finishes."""
        check_keys(evaluators)
        known = {"repetitions": repetitions} if repetitions > 1 else {}
        setup = setup_of(None, known, dataset=dataset, dataset_version=dataset_version)
        self._store = store
        self._surroundings = surroundings()
        self._record = Record(
            id=id or secrets.token_hex(16),
            name=name,
            dataset=dataset,
            dataset_version=dataset_version,
            evaluators=described(evaluators),
            started_ns=started_ns or time.time_ns(),
            metadata={**as_kept(metadata or {}), "setup": setup},
            seen_ns=time.time_ns(),
        )
        self._judgements = Judgements()
        self._whole = [evaluator for evaluator in evaluators if evaluator.summary]
        self._tally = Tallies((metric for evaluator in evaluators for metric in evaluator.metrics), repetitions)
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
        """A run around a block of code that calls `function`, at which `after` looks when it is over. What the block
        raises goes on, and is the run's error. The span of a traced function is the root of its run.
        """
        attributes = {names.EXPERIMENT: self._record.id, names.EXAMPLE: example.id, names.REPETITION: repetition}
        with_spans: Captured | None = None
        try:
            with capture(name, inputs=example.inputs, attributes=attributes) as captured:
                with_spans = captured
                opened = OpenRun(example, captured, self._judgements, repetition)
                with opened.judging():
                    yield opened
        finally:
            if with_spans is not None:
                self._keep(with_spans, opened, after, traced=is_traced(function))

    def finish(self, status: End = "finished") -> Experiment:
        """Let set-level evaluators judge all runs, and note the end."""
        self._heartbeat.stop()
        return _finished(self._record, self._store, self._tally, self._whole, self._surroundings.result(), status)

    def _keep(self, captured: Captured, opened: OpenRun, after: Sequence[Evaluator], *, traced: bool) -> None:
        spans, still_open = captured.spans()
        runs = tuple(from_readable(span) for span in spans)
        root = around = next(run for run in runs if run.parent_id is None)
        if traced:
            runs, root = own_root(runs, around, as_returned=around.outputs is None)
        runs, root = with_example(runs, root, opened.example, around.inputs)
        opened.look_back(after, Trace(root, runs, complete=not still_open))
        feedback = opened.feedback + feedback_of(captured, around, root)
        self._store.append((*runs, *self._judgements.take()), feedback)
        error = (root.error or "error") if root.status == "error" else None
        self._tally.add_run(self._tally.runs, root.trace_id, wall_ns(runs), error, still_open, opened.example.id)
        self._tally.add_calls(runs)
        self._tally.add_judgements(feedback)
        for outcome in newest(feedback):
            self._tally.add_feedback(outcome, opened.example.id)


def finish_stored(store: Store, id: str, whole: Sequence[Evaluator], status: End) -> Experiment:
    """As `Recorder.finish`, of an experiment to which other processes have added."""
    loaded = Experiment.load(store, id)
    return _finished(loaded.record, store, loaded._tally, whole, surroundings().result(), status)


def _finished(
    record: Record,
    store: Store,
    tally: Tallies,
    whole: Sequence[Evaluator],
    around: Mapping[str, JSON],
    status: End,
) -> Experiment:
    ended = replace(
        record,
        status=status,
        ended_ns=(now := time.time_ns()),
        seen_ns=now,
        example_count=len(tally.traces),
        metadata={
            **record.metadata,
            "setup": {**record.metadata["setup"], **around},
            "totals": dict(tally.totals()),
        },
    )
    experiment = Experiment(ended, store, tally)
    finish(score_set(experiment, whole, store, tally))
    store.save_experiment(ended)
    return experiment
