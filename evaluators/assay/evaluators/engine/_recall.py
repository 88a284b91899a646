"""What a store knows of an experiment's runs: which are done, and who has scored them."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from assay.collector.records import Experiment, Feedback, Target, TraceSummary
from assay.collector.statistics import place_of
from assay.collector.stores import Store
from assay.evaluators.engine._tally import Tallies
from assay.evaluators.protocol import Evaluator, Metric

PAGE = 2_000

# Per (evaluator, key): the version that counts, and from when on (nanoseconds)
Current: TypeAlias = Mapping[tuple[str | None, str], tuple[str | None, int]]


@dataclass(slots=True)
class Recall:
    """Runs by (example id, repetition), and of each trace what feedback there is: (evaluator, version, key)."""

    traces: dict[tuple[str, int], str] = field(default_factory=dict)
    order: list[str] = field(default_factory=list)  # trace ids by start
    examples: dict[str, str] = field(default_factory=dict)  # trace id → example id
    feedback: dict[str, set[tuple[str | None, str | None, str]]] = field(default_factory=dict)
    declared: frozenset[str] = frozenset()  # keys that some evaluator of the experiment is known to give

    def missing(self, trace_id: str, evaluators: Sequence[Evaluator]) -> tuple[Evaluator, ...]:
        """The evaluators that have not looked at a trace, or did so at another version."""
        known = self.feedback.get(trace_id, set())
        versions = {(name, version) for name, version, key in known if key not in self.declared}
        named = Counter(evaluator.make.name for evaluator in evaluators)
        return tuple(
            evaluator
            for evaluator in evaluators
            if not any((evaluator.make.name, evaluator.version, key) in known for key in evaluator.make.keys)
            and not (named[evaluator.make.name] == 1 and (evaluator.make.name, evaluator.version) in versions)
        )


def recall(store: Store, experiment: Experiment, tally: Tallies, evaluators: Sequence[Evaluator] = ()) -> Recall:
    """Read an experiment back, adding its runs and their newest feedback to the tally (without slots).

    What other versions of `evaluators` have said does not count, nor what they said before they changed: they are going
    to say it again.
    """
    recalled = Recall(declared=frozenset(metric.key for metric in metrics_of(experiment)))
    for summary in reversed(list(_summaries(store, experiment.id))):
        _add_run(summary, tally, recalled)
    for feedback in store.feedbacks(target=Target(experiment_id=experiment.id)):
        tally.overall.setdefault(feedback.key, feedback)
    _add_feedback(store, experiment.id, tally, recalled, _current(experiment, evaluators))
    totals = experiment.metadata.get("totals", {})
    tally.models.update(totals.get("models", ()))
    tally.remarks = dict.fromkeys(totals.get("remarks", ()))
    return recalled


def metrics_of(experiment: Experiment) -> list[Metric]:
    """What was recorded about the keys of an experiment."""
    recorded = [metric for evaluator in experiment.evaluators for metric in evaluator.get("metrics", ())]
    return [Metric(m["key"], None, m.get("higher_is_better", True), m.get("threshold")) for m in recorded]


def _add_run(summary: TraceSummary, tally: Tallies, recalled: Recall) -> None:
    example_id = summary.example_id or summary.trace_id
    recalled.traces[example_id, summary.repetition] = summary.trace_id
    recalled.order.append(summary.trace_id)
    recalled.examples[summary.trace_id] = example_id
    error = (summary.error or "error") if summary.status == "error" else None
    tally.count_run(summary.duration_ns, error, example_id)
    tally.input_tokens += summary.input_tokens
    tally.output_tokens += summary.output_tokens
    tally.add_cost(summary.cost)


def _current(experiment: Experiment, evaluators: Sequence[Evaluator]) -> Current:
    recorded = {evaluator["key"]: evaluator.get("since_ns") or 0 for evaluator in experiment.evaluators}
    return {
        (evaluator.make.name, key): (evaluator.version, _since(evaluator, recorded))
        for evaluator in evaluators
        for key in evaluator.make.keys
    }


def _since(evaluator: Evaluator, recorded: Mapping[str, int]) -> int:
    """From when on what an evaluator has said counts. People's votes are read anew: there may be more."""
    if evaluator.spec is not None and evaluator.spec.kind == "human":
        return time.time_ns()
    return recorded.get(evaluator.key, 0)


def _add_feedback(store: Store, experiment_id: str, tally: Tallies, recalled: Recall, current: Current) -> None:
    """Feedback comes newest first, so the first in each place (see `statistics.newest`) is the one that counts."""
    counted: set[Hashable] = set()
    for feedback in _feedbacks(store, experiment_id):
        trace_id = feedback.target.trace_id
        version, since = current.get((feedback.evaluator, feedback.key), (feedback.version, 0))
        if trace_id not in recalled.examples or feedback.created_ns < since:
            continue
        recalled.feedback.setdefault(trace_id, set()).add((feedback.evaluator, feedback.version, feedback.key))
        place = place_of(feedback)
        if place not in counted and version == feedback.version:
            counted.add(place)
            tally.add_feedback(feedback, recalled.examples[trace_id])


def _summaries(store: Store, experiment: str) -> Iterator[TraceSummary]:
    cursor: str | None = None
    while True:
        page = store.traces(experiment=experiment, limit=PAGE, cursor=cursor)
        yield from page
        cursor = page.next
        if cursor is None:
            return


def _feedbacks(store: Store, experiment: str) -> Iterator[Feedback]:
    cursor: str | None = None
    while True:
        page = store.feedbacks(experiment=experiment, limit=PAGE, cursor=cursor)
        yield from page
        cursor = page.next
        if cursor is None:
            return
