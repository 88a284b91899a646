"""What a store knows of an experiment's runs: which are done, and who has scored them."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from assay.collector.records import Experiment, Feedback, Target, TraceSummary
from assay.collector.stores import Store
from assay.evaluators.engine._tally import Tally
from assay.evaluators.protocol._evaluator import Evaluator
from assay.evaluators.protocol._metric import Metric

PAGE = 500

# Per (evaluator, key): the version that counts, and from when on (nanoseconds)
Current: TypeAlias = Mapping[tuple[str | None, str], tuple[str | None, int]]


@dataclass(slots=True)
class Recall:
    """Runs by (example id, repetition), and of each trace what has been said: (evaluator, version, key)."""

    traces: dict[tuple[str, int], str] = field(default_factory=dict)
    order: list[str] = field(default_factory=list)  # trace ids by start
    examples: dict[str, str] = field(default_factory=dict)  # trace id → example id
    said: dict[str, set[tuple[str | None, str | None, str]]] = field(default_factory=dict)
    declared: frozenset[str] = frozenset()  # keys that some evaluator of the experiment is known to give

    def missing(self, trace_id: str, evaluators: Sequence[Evaluator]) -> tuple[Evaluator, ...]:
        """The evaluators that have not looked at a trace, or did so at another version."""
        said = self.said.get(trace_id, set())
        names = {(evaluator, version) for evaluator, version, key in said if key not in self.declared}
        alone = {one.make.name for one in evaluators if sum(o.make.name == one.make.name for o in evaluators) == 1}
        return tuple(
            one
            for one in evaluators
            if not any((one.make.name, one.version, key) in said for key in one.make.keys)
            and not (one.make.name in alone and (one.make.name, one.version) in names)
        )


def recall(store: Store, experiment: Experiment, tally: Tally, evaluators: Sequence[Evaluator] = ()) -> Recall:
    """Read an experiment back, adding its runs and their newest feedback to the tally (without slots).

    What other versions of `evaluators` have said does not count, nor what they said before they changed: they are going
    to say it again.
    """
    found = Recall(declared=frozenset(metric.key for metric in metrics_of(experiment)))
    summaries = list(_summaries(store, experiment.id))
    for summary in reversed(summaries):
        found.traces[summary.example_id or summary.trace_id, summary.repetition] = summary.trace_id
        found.order.append(summary.trace_id)
        found.examples[summary.trace_id] = summary.example_id or summary.trace_id
        tally.count_run(summary.duration_ns, (summary.error or "error") if summary.status == "error" else None)
        tally.input_tokens += summary.input_tokens
        tally.output_tokens += summary.output_tokens
        tally.add_cost(summary.cost)
    since = {one["key"]: one.get("since_ns") or 0 for one in experiment.evaluators}
    current: Current = {
        (one.make.name, key): (one.version, _since(one, since)) for one in evaluators for key in one.make.keys
    }
    _add_feedback(store, experiment, tally, found, current)
    tally.models.update(experiment.metadata.get("totals", {}).get("models", ()))
    return found


def _since(evaluator: Evaluator, recorded: Mapping[str, int]) -> int:
    """From when on what an evaluator has said counts. People's votes are read anew: there may be more."""
    if evaluator.spec is not None and evaluator.spec.kind == "human":
        return time.time_ns()
    return recorded.get(evaluator.key, 0)


def metrics_of(experiment: Experiment) -> list[Metric]:
    """What was recorded about the keys of an experiment."""
    recorded = [metric for one in experiment.evaluators for metric in one.get("metrics", ())]
    return [Metric(m["key"], None, m.get("higher_is_better", True), m.get("threshold")) for m in recorded]


def _add_feedback(store: Store, experiment: Experiment, tally: Tally, found: Recall, current: Current) -> None:
    newest: set[tuple[object, ...]] = set()
    for one in store.feedbacks(target=Target(experiment_id=experiment.id)):
        tally.overall.setdefault(one.key, one)
    for one in _feedbacks(store, experiment.id):  # newest first: an older version of the same does not count
        trace_id = one.target.trace_id
        if trace_id in found.examples:
            version, since = current.get((one.evaluator, one.key), (one.version, 0))
            if one.created_ns < since:
                continue
            found.said.setdefault(trace_id, set()).add((one.evaluator, one.version, one.key))
            same = (one.target, one.key, one.source, one.author)  # people's votes do not replace each other
            if same not in newest and version == one.version:
                newest.add(same)
                tally.add_feedback(one, found.examples[trace_id])


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
