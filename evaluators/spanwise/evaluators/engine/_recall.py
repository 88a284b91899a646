"""What a store knows of an experiment's runs: which are done, and who has scored them."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Container, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TypeAlias

from spanwise.collector.records import Experiment, Feedback, Target, TraceSummary, paged
from spanwise.collector.statistics import place_of
from spanwise.collector.stores import Store
from spanwise.evaluators.engine._tally import Tallies
from spanwise.evaluators.protocol import Evaluator, Metric

PAGE = 2_000  # runs at once
FEEDBACK_PAGE = 20_000  # the store sorts all of an experiment's feedback for each page

# Per (evaluator, key): the version that counts, and from when on (nanoseconds)
Current: TypeAlias = Mapping[tuple[str | None, str], tuple[str | None, int]]


@dataclass(slots=True)
class Recall:
    """Runs by (example id, repetition), and which evaluators have looked at which of them."""

    traces: dict[tuple[str, int], str] = field(default_factory=dict)
    order: list[str] = field(default_factory=list)  # trace ids by start
    examples: dict[str, str] = field(default_factory=dict)  # trace id → example id
    again: dict[tuple[str, int], list[str]] = field(default_factory=dict)  # runs that failed and are to be run again
    replaced: list[str] = field(default_factory=list)  # trace ids of failed runs of which there is a later one
    seen: Seen = field(default_factory=lambda: Seen((), frozenset()))

    def missing(self, trace_id: str, evaluators: Sequence[Evaluator]) -> tuple[Evaluator, ...]:
        """The evaluators that have not looked at a trace, did so at another version, or failed on it."""
        return self.seen.missing(trace_id, evaluators)


class Seen:
    """Which of some evaluators have looked at which traces, and on which they failed: bits by their place."""

    def __init__(self, evaluators: Sequence[Evaluator], declared: Container[str]) -> None:
        """`declared` are the keys that some evaluator of the experiment is known to give."""
        named = Counter(evaluator.make.name for evaluator in evaluators)
        self._bits: dict[tuple[str | None, str | None, str], int] = {
            (evaluator.make.name, evaluator.version, key): 1 << place
            for place, evaluator in enumerate(evaluators)
            for key in evaluator.make.keys
        }
        self._alone: dict[tuple[str | None, str | None], int] = {
            (evaluator.make.name, evaluator.version): 1 << place
            for place, evaluator in enumerate(evaluators)
            if named[evaluator.make.name] == 1
        }
        self._declared = declared
        self._looked: dict[str, int] = {}
        self._failed: dict[str, int] = {}
        self._errors: dict[str, list[str]] = {}

    def note(self, feedback: Feedback) -> None:
        """Somebody has said something of a trace."""
        trace_id, bits = feedback.target.trace_id or "", self._of(feedback)
        if not bits:
            return
        self._looked[trace_id] = self._looked.get(trace_id, 0) | bits
        if feedback.outcome == "error":
            self._failed[trace_id] = self._failed.get(trace_id, 0) | bits
            self._errors.setdefault(trace_id, []).append(feedback.id)

    def missing(self, trace_id: str, evaluators: Sequence[Evaluator]) -> tuple[Evaluator, ...]:
        """The evaluators that have not looked at a trace, or failed on it."""
        done = self._looked.get(trace_id, 0) & ~self._failed.get(trace_id, 0)
        return tuple(evaluator for place, evaluator in enumerate(evaluators) if not done >> place & 1)

    def is_said_again(self, feedback: Feedback) -> bool:
        """Whether the evaluator that gave this failed on its trace, under this key or another, and so looks again."""
        return bool(self._of(feedback) & self._failed.get(feedback.target.trace_id or "", 0))

    def errors(self, trace_id: str) -> Sequence[str]:
        """Ids of the errors on a trace of evaluators that look again."""
        return self._errors.get(trace_id, ())

    def _of(self, feedback: Feedback) -> int:
        """The bit of the evaluator that said it, 0 if it is none of these."""
        bits = self._bits.get((feedback.evaluator, feedback.version, feedback.key), 0)
        if bits or feedback.key in self._declared:
            return bits
        return self._alone.get((feedback.evaluator, feedback.version), 0)


def recall(
    store: Store,
    experiment: Experiment,
    tally: Tallies,
    evaluators: Sequence[Evaluator] = (),
    *,
    retrying: bool = False,
) -> Recall:
    """Read an experiment back, adding its runs and their newest feedback to the tally (without slots).

    What other versions of `evaluators` have said does not count, nor what they said before they changed, or where they
    failed: they are going to say it again. With `retrying`, runs whose task failed do not count either.
    """
    recalled = Recall(seen=Seen(evaluators, frozenset(metric.key for metric in metrics_of(experiment))))
    summaries = list(paged(partial(store.traces, experiment=experiment.id, limit=PAGE)))
    for summary in _counting(summaries, experiment, recalled):
        if retrying and summary.status == "error":
            recalled.again.setdefault(_run_of(summary), []).append(summary.trace_id)
        else:
            _add_run(summary, tally, recalled)
    for feedback in store.feedbacks(target=Target(experiment_id=experiment.id)):
        tally.overall.setdefault(feedback.key, feedback)
    tally.add_judgements(tally.overall.values())
    current = _current(experiment, evaluators)
    if evaluators:
        for feedback in _said(store, experiment.id, recalled, current):
            recalled.seen.note(feedback)
    _add_feedback(_said(store, experiment.id, recalled, current), tally, recalled, current)
    totals = experiment.metadata.get("totals", {})
    tally.models.update(totals.get("models", ()))
    tally.remarks = dict.fromkeys(totals.get("remarks", ()))
    return recalled


def _counting(summaries: Sequence[TraceSummary], experiment: Experiment, recalled: Recall) -> Iterator[TraceSummary]:
    """Runs by start. One that failed and was run again, without being taken away then, counts no more.

    Only where ids of examples are known to differ: elsewhere two runs of one id may be those of two rows.
    """
    if experiment.dataset_version is None:
        yield from reversed(summaries)
        return
    counting: dict[tuple[str, int], str] = {}
    for summary in sorted(summaries, key=lambda summary: (summary.status != "error", summary.start_ns)):
        counting[_run_of(summary)] = summary.trace_id
    for summary in reversed(summaries):
        if summary.status != "error" or counting[_run_of(summary)] == summary.trace_id:
            yield summary
        else:
            recalled.replaced.append(summary.trace_id)


def _run_of(summary: TraceSummary) -> tuple[str, int]:
    return summary.example_id or summary.trace_id, summary.repetition


def metrics_of(experiment: Experiment) -> list[Metric]:
    """What was recorded about the keys of an experiment."""
    recorded = [metric for evaluator in experiment.evaluators for metric in evaluator.get("metrics", ())]
    return [Metric.from_dict(metric) for metric in recorded]


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


def _said(store: Store, experiment_id: str, recalled: Recall, current: Current) -> Iterator[Feedback]:
    """Feedback on the runs that count, newest first, without what evaluators have said before they changed."""
    for feedback in paged(partial(store.feedbacks, experiment=experiment_id, limit=FEEDBACK_PAGE)):
        _, since = current.get((feedback.evaluator, feedback.key), ("", 0))
        if feedback.target.trace_id in recalled.examples and feedback.created_ns >= since:
            yield feedback


def _add_feedback(said: Iterable[Feedback], tally: Tallies, recalled: Recall, current: Current) -> None:
    """Feedback comes newest first, so the first in each place (see `statistics.newest`) is the one that counts.

    A vote on what a judge has said checks the judge, and counts not beside it.
    """
    counted: set[Hashable] = set()
    judged: set[Hashable] = set()
    votes: list[Feedback] = []
    judgements: set[Hashable] = set()
    for feedback in said:
        version, _ = current.get((feedback.evaluator, feedback.key), (feedback.version, 0))
        place = place_of(feedback)
        if place in counted or version != feedback.version or recalled.seen.is_said_again(feedback):
            continue
        counted.add(place)
        if feedback.source == "human":
            votes.append(feedback)
            continue
        if feedback.source == "model":
            judged.add((feedback.target.trace_id, feedback.key))
        tally.add_judgements((feedback,), judgements)
        tally.add_feedback(feedback, recalled.examples[feedback.target.trace_id or ""])
    for vote in votes:
        if (vote.target.trace_id, vote.key) not in judged:
            tally.add_feedback(vote, recalled.examples[vote.target.trace_id or ""])
