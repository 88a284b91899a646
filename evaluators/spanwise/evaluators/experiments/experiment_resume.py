"""Resuming an experiment: its stored runs and scores, and the changes to its setup that invalidate them."""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Container, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeAlias

from spanwise.collector.errors import NotFound
from spanwise.collector.records import JSON, Experiment, Feedback, Target, TraceSummary, iterate_pages
from spanwise.collector.statistics import get_feedback_slot
from spanwise.collector.stores import Store
from spanwise.evaluators.datasets import diff, stored_examples
from spanwise.evaluators.experiments.dataset_source import ExampleSource
from spanwise.evaluators.experiments.experiment_progress import ExperimentTally
from spanwise.evaluators.interface import Evaluator, Metric, to_stored_value
from spanwise.evaluators.scoring import get_parts

RUN_PAGE = 2_000  # runs per page
# feedback per page; large, because the store sorts all of an experiment's feedback for each page
FEEDBACK_PAGE = 20_000

# Per (evaluator, key): the counted version, and the time from which on it counts (nanoseconds)
CurrentVersions: TypeAlias = Mapping[tuple[str | None, str], tuple[str | None, int]]


class EvaluatedTraces:
    """Record of which evaluators have scored which traces, and on which they failed, as one bit per evaluator."""

    def __init__(self, evaluators: Sequence[Evaluator], declared: Container[str]) -> None:
        """Index the evaluators by name, version and key.

        `declared` holds the keys that the experiment's evaluators declare.
        """
        named = Counter(evaluator.make.name for evaluator in evaluators)
        self._evaluators = {evaluator.key: 1 << bit for bit, evaluator in enumerate(evaluators)}
        self._bits: dict[tuple[str | None, str | None, str], int] = {
            (evaluator.make.name, evaluator.version, key): 1 << bit
            for bit, evaluator in enumerate(evaluators)
            for key in evaluator.make.keys
        }
        self._only_evaluators: dict[tuple[str | None, str | None], int] = {
            (evaluator.make.name, evaluator.version): 1 << bit
            for bit, evaluator in enumerate(evaluators)
            if named[evaluator.make.name] == 1
        }
        self._declared = declared
        # bit of each composite, and the bits of the evaluators of its parts
        self._composites = [
            (1 << bit, sum(1 << at for at, part in enumerate(evaluators) if get_parts(evaluator) & {*part.make.keys}))
            for bit, evaluator in enumerate(evaluators)
            if get_parts(evaluator)
        ]
        self._done: dict[str, int] = {}
        self._failed: dict[str, int] = {}
        self._errors: dict[str, list[str]] = {}

    def note(self, feedback: Feedback) -> None:
        """Record that an evaluator has given this feedback."""
        trace_id, bit = feedback.target.trace_id or "", self._get_bit(feedback)
        if not bit:
            return
        self._done[trace_id] = self._done.get(trace_id, 0) | bit
        if feedback.outcome == "error":
            self._failed[trace_id] = self._add_composites(self._failed.get(trace_id, 0) | bit)
            self._errors.setdefault(trace_id, []).append(feedback.id)

    def missing(self, trace_id: str, evaluators: Sequence[Evaluator]) -> tuple[Evaluator, ...]:
        """Return those of the indexed `evaluators` that have not scored a trace, or failed on it."""
        scored = self._done.get(trace_id, 0) & ~self._failed.get(trace_id, 0)
        bits = {evaluator.key: self._evaluators[evaluator.key] for evaluator in evaluators}
        missing = self._add_composites(sum(bit for bit in bits.values() if not scored & bit))
        return tuple(evaluator for evaluator in evaluators if missing & bits[evaluator.key])

    def _add_composites(self, bits: int) -> int:
        """Return the bits of evaluators that score a trace again, with those of the composites that use them."""
        for composite, parts in self._composites:
            if parts & bits:
                bits |= composite
        return bits

    def is_scored_again(self, feedback: Feedback) -> bool:
        """Return whether the evaluator of this feedback will score the trace again, because it failed under one of its
        keys.
        """
        return bool(self._get_bit(feedback) & self._failed.get(feedback.target.trace_id or "", 0))

    def errors(self, trace_id: str) -> Sequence[str]:
        """Return the ids of error feedback on a trace, from evaluators that will score it again."""
        return self._errors.get(trace_id, ())

    def _get_bit(self, feedback: Feedback) -> int:
        """Return the bit of the evaluator that gave the feedback, or 0 for an evaluator that is not indexed."""
        bit = self._bits.get((feedback.evaluator, feedback.version, feedback.key), 0)
        if bit or feedback.key in self._declared:
            return bit
        return self._only_evaluators.get((feedback.evaluator, feedback.version), 0)


@dataclass(slots=True)
class StoredRuns:
    """Stored runs by (example id, repetition), and the evaluators that have scored each of them."""

    evaluated: EvaluatedTraces
    traces: dict[tuple[str, int], str] = field(default_factory=dict)
    examples: dict[str, str] = field(default_factory=dict)  # trace id → example id
    # trace ids of failed runs that will be run again, by (example id, repetition)
    retried: dict[tuple[str, int], list[str]] = field(default_factory=dict)
    replaced: list[str] = field(default_factory=list)  # trace ids of failed runs that were run again later
    spent_usd: float = 0.0  # cost of all runs in US dollars, with runs that were replaced or will be run again


def read_stored_runs(
    store: Store,
    experiment: Experiment,
    tally: ExperimentTally,
    evaluators: Sequence[Evaluator] = (),
    *,
    retrying: bool = False,
) -> StoredRuns:
    """Read a stored experiment, and add its runs and their newest feedback to the tally (without slots).

    The following feedback of `evaluators` is not counted, because they will score these traces again: feedback of
    another version, from before they changed, or on a trace where they failed. With `retrying`, runs whose task
    failed are not counted either.
    """
    stored = StoredRuns(EvaluatedTraces(evaluators, frozenset(metric.key for metric in read_metrics(experiment))))
    summaries = list(iterate_pages(partial(store.traces, experiment=experiment.id, limit=RUN_PAGE)))
    totals = experiment.metadata.get("totals", {})
    # replaced runs are deleted, so the recorded amount can be larger than the cost of the stored runs
    recorded_usd = totals.get("spent_usd")
    stored.spent_usd = max(
        sum(summary.cost or 0.0 for summary in summaries),
        recorded_usd if isinstance(recorded_usd, int | float) else 0.0,
    )
    for summary in _iterate_counted(summaries, experiment, stored):
        if retrying and summary.status == "error":
            stored.retried.setdefault(_make_run_key(summary), []).append(summary.trace_id)
        else:
            _add_run(summary, tally, stored)
    for feedback in store.feedbacks(target=Target(experiment_id=experiment.id)):
        tally.overall.setdefault(feedback.key, feedback)
    tally.add_judgements(tally.overall.values())
    current: dict[tuple[str | None, str], tuple[str | None, int]] = {}
    recorded = {evaluator["key"]: evaluator.get("since_ns") or 0 for evaluator in experiment.evaluators}
    for evaluator in evaluators:
        # human feedback is always read again, because people may have added more
        is_human = evaluator.spec is not None and evaluator.spec.kind == "human"
        since_ns = time.time_ns() if is_human else recorded.get(evaluator.key, 0)
        current.update({(evaluator.make.name, key): (evaluator.version, since_ns) for key in evaluator.make.keys})
    if evaluators:
        for feedback in _iterate_feedback(store, experiment.id, stored, current):
            stored.evaluated.note(feedback)
    _add_feedback(_iterate_feedback(store, experiment.id, stored, current), tally, stored, current)
    tally.models.update(totals.get("models", ()))
    tally.remarks = dict.fromkeys(totals.get("remarks", ()))
    return stored


def _iterate_counted(
    summaries: Sequence[TraceSummary], experiment: Experiment, stored: StoredRuns
) -> Iterator[TraceSummary]:
    """Yield the runs that count, by start time. A failed run does not count if a later run has replaced it.

    Such a run is still stored if the process that replaced it was killed before it deleted it. This applies only to
    stored datasets, whose example ids are unique. Elsewhere, two runs of one id may belong to two rows.
    """
    if experiment.dataset_version is None:
        yield from reversed(summaries)
        return
    counting: dict[tuple[str, int], str] = {}
    for summary in sorted(summaries, key=lambda summary: (summary.status != "error", summary.start_ns)):
        counting[_make_run_key(summary)] = summary.trace_id
    for summary in reversed(summaries):
        if summary.status != "error" or counting[_make_run_key(summary)] == summary.trace_id:
            yield summary
        else:
            stored.replaced.append(summary.trace_id)


def _make_run_key(summary: TraceSummary) -> tuple[str, int]:
    return summary.example_id or summary.trace_id, summary.repetition


def read_metrics(experiment: Experiment) -> list[Metric]:
    """Return the recorded metrics of an experiment."""
    recorded = [metric for evaluator in experiment.evaluators for metric in evaluator.get("metrics", ())]
    return [Metric.from_dict(metric) for metric in recorded]


def _add_run(summary: TraceSummary, tally: ExperimentTally, stored: StoredRuns) -> None:
    example_id = summary.example_id or summary.trace_id
    stored.traces[example_id, summary.repetition] = summary.trace_id
    stored.examples[summary.trace_id] = example_id
    error = (summary.error or "error") if summary.status == "error" else None
    tally.count_run(summary.duration_ns, error, example_id, summary.trace_id)
    tally.input_tokens += summary.input_tokens
    tally.output_tokens += summary.output_tokens
    tally.add_cost(summary.cost)


def _iterate_feedback(
    store: Store, experiment_id: str, stored: StoredRuns, current: CurrentVersions
) -> Iterator[Feedback]:
    """Yield feedback on the counted runs, newest first, without feedback from before an evaluator changed."""
    for feedback in iterate_pages(partial(store.feedbacks, experiment=experiment_id, limit=FEEDBACK_PAGE)):
        _, since = current.get((feedback.evaluator, feedback.key), ("", 0))
        if feedback.target.trace_id in stored.examples and feedback.created_ns >= since:
            yield feedback


def _add_feedback(
    newest_first: Iterable[Feedback], tally: ExperimentTally, stored: StoredRuns, current: CurrentVersions
) -> None:
    """Add the newest feedback per slot (see `statistics.get_feedback_slot`) to the tally.

    A person's label on a judge's score is a check of the judge. It is not counted in addition to the score.
    """
    counted: set[Hashable] = set()
    judged: set[Hashable] = set()
    labels: list[Feedback] = []
    judgements: set[Hashable] = set()
    for feedback in newest_first:
        version, _ = current.get((feedback.evaluator, feedback.key), (feedback.version, 0))
        slot = get_feedback_slot(feedback)
        if slot in counted or version != feedback.version or stored.evaluated.is_scored_again(feedback):
            continue
        counted.add(slot)
        if feedback.source == "human":
            labels.append(feedback)
            continue
        if feedback.source == "model":
            judged.add((feedback.target.trace_id, feedback.key))
        tally.add_judgements((feedback,), judgements)
        tally.add_feedback(feedback, stored.examples[feedback.target.trace_id or ""])
    for label in labels:
        if (label.target.trace_id, label.key) not in judged:
            tally.add_feedback(label, stored.examples[label.target.trace_id or ""])


_CONTENT_NAME = re.compile(r"examples-[0-9a-f]{8}")  # dataset name derived from its examples
_MAX_LISTED = 3  # maximum number of changed examples listed by id


def list_reductions(then: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Describe each of the options `repetitions`, `limit` and `only` that now selects fewer runs than before."""
    repetitions = then.get("repetitions") or 1, now.get("repetitions") or 1
    limits = then.get("limit"), now.get("limit")
    less = limits[1] is not None and (limits[0] is None or limits[1] < limits[0])
    changes = [f"repetitions was {repetitions[0]} and is {repetitions[1]}"] if repetitions[1] < repetitions[0] else []
    changes += [f"limit was {limits[0]} and is {limits[1]}"] if less else []
    ids = _to_id_set(then.get("only")), _to_id_set(now.get("only"))
    less = ids[1] is not None and (ids[0] is None or not ids[0] <= ids[1])
    return [*changes, f"only was {then.get('only')} and is {now.get('only')}"] if less else changes


def _to_id_set(only: str | Sequence[str] | None) -> set[str] | None:
    return None if only is None else {only} if isinstance(only, str) else set(only)


def list_example_changes(store: Store, earlier: Experiment, source: ExampleSource, now: Mapping[str, Any]) -> list[str]:
    """Describe the changes to examples that make stored runs invalid; [] if examples were only added.

    Reads both dataset versions.
    """
    before, after = (earlier.dataset, earlier.dataset_version), (source.name, source.version)
    if before == after:
        return []
    unnamed = all(_CONTENT_NAME.fullmatch(name) for name in (earlier.dataset, source.name))
    if None in (earlier.dataset_version, source.version) or (earlier.dataset != source.name and not unnamed):
        return [f"dataset was {_format_dataset(*before)} and is {_format_dataset(*after)}"]
    try:
        old, new = (list(stored_examples(store, *version)) for version in (before, after))
    except NotFound as error:
        return [f"its examples cannot be compared: {error}"]
    differences = diff(old, new)
    changed = [f"example {id} changed ({', '.join(names)})" for id, names in differences.changed.items()]
    removed = [f"example {example.id} was removed" for example in differences.removed]
    changes = [*_shorten(changed, "changed"), *_shorten(removed, "were removed")]
    if changes or now.get("limit") is None:
        return changes
    # all earlier examples still exist, but `limit` may select others now
    if now.get("seed") is not None:
        return ["the dataset has grown, so that the random sample (seed, limit) differs"]
    if [example.id for example in old] != [example.id for example in new[: len(old)]]:
        return ["examples were inserted before existing ones, so that limit selects other examples"]
    return []


def _shorten(changes: list[str], verb: str) -> list[str]:
    """Return the first changes, and the number of the others."""
    more = len(changes) - _MAX_LISTED
    return [*changes[:_MAX_LISTED], f"{more} more {verb}"] if more > 0 else changes


def _format_dataset(name: str, version: int | None) -> str:
    return repr(name if version is None else f"{name}@{version}")


# Fields that must be unchanged for stored runs to stay valid. The task's code and the caller's metadata must be
# unchanged too. `list_reductions` checks the options that may only grow. Everything else may change before `resume`:
# concurrency, timeout, retries, the commit, installed packages.
_FIXED_FIELDS = ("task", "fixture", "seed", "split")
_MAX_NAMED = 5  # maximum number of changes listed by name


def list_setup_changes(record: Experiment, setup: Mapping[str, JSON], metadata: Mapping[str, JSON]) -> list[str]:
    """Describe the changes to the setup since the experiment began, except changes to examples.

    Return [] if the stored runs are still valid.
    """
    then: Mapping[str, Any] = record.metadata.get("setup") or {}
    differences = [
        _format_change(name, then.get(name), setup.get(name))
        for name in _FIXED_FIELDS
        if then.get(name) != setup.get(name)
    ]
    differences += list_reductions(then, setup)
    if changed := _list_changed_keys(then.get("task_code") or {}, setup.get("task_code") or {}):
        more = f" and {len(changed) - _MAX_NAMED} more" if len(changed) > _MAX_NAMED else ""
        differences.append(f"the task's code changed: {', '.join(changed[:_MAX_NAMED])}{more}")
    stored = to_stored_value(metadata)
    known = {name: value for name, value in record.metadata.items() if name not in ("setup", "totals")}
    if stored:
        differences += [
            _format_change(f"metadata {n!r}", known.get(n), stored.get(n)) for n in _list_changed_keys(known, stored)
        ]
    return differences


def merge_evaluators(
    before: Sequence[Mapping[str, JSON]], now: Sequence[Mapping[str, JSON]]
) -> tuple[Mapping[str, JSON], ...]:
    """Return the recorded evaluators together with new ones.

    An evaluator whose version, parameters or code have changed gets the present time as `since_ns`: its earlier
    scores are no longer counted.
    """
    merged = {record["key"]: record for record in before}
    for record in now:
        earlier = merged.get(record["key"])
        if earlier is not None:
            same = all(
                to_stored_value(earlier.get(name)) == to_stored_value(record[name]) for name in ("version", "code")
            )
            since_ns = earlier.get("since_ns") if same else time.time_ns()
            record = {**record, "since_ns": since_ns} if since_ns else record
        merged[record["key"]] = record
    return tuple(merged.values())


def _list_changed_keys(then: Mapping[str, JSON], now: Mapping[str, JSON]) -> list[str]:
    return [name for name in {**then, **now} if then.get(name) != now.get(name)]


def _format_change(name: str, then: JSON, now: JSON) -> str:
    return f"{name} was {then!r} and is {now!r}"
