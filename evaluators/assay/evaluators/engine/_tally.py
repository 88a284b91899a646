"""Running totals of an experiment, in memory that does not grow with what the runs hold."""

from __future__ import annotations

import math
from array import array
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from assay.collector.records import Feedback, Run
from assay.evaluators.protocol._metric import Metric


@dataclass(slots=True)
class Spread:
    """Scores of one example over its repetitions: count, mean, and the sum of squared differences (Welford)."""

    n: int = 0
    mean: float = 0.0
    squares: float = 0.0
    passed: int = 0
    judged: int = 0

    def add(self, score: float, passes: bool | None) -> None:
        """Count one more score."""
        self.n += 1
        step = score - self.mean
        self.mean += step / self.n
        self.squares += step * (score - self.mean)
        self.judged += passes is not None
        self.passed += bool(passes)

    @property
    def variance(self) -> float | None:
        """The sample variance; None with fewer than two scores."""
        return self.squares / (self.n - 1) if self.n > 1 else None

    @property
    def is_flaky(self) -> bool:
        """Whether it passed in some repetitions and failed in others; without a threshold, whether it varied."""
        if self.judged:
            return 0 < self.passed < self.judged
        return self.squares > 1e-18


@dataclass(slots=True)
class KeyTally:
    """Totals of one feedback key: scores, labels, errors, skips, and who passed."""

    metric: Metric
    n: int = 0
    total: float = 0.0
    minimum: float = math.inf
    maximum: float = -math.inf
    failed: int = 0
    why: str | None = None  # one of the errors
    skipped: int = 0
    lacking: str | None = None  # why one of them was skipped
    passed: int = 0
    judged: int = 0
    labels: Counter[str] = field(default_factory=Counter)
    spreads: dict[str, Spread] = field(default_factory=dict)  # by example, only with repetitions

    def add(self, feedback: Feedback, example: str | None) -> None:
        """Count one outcome; `example` names whose repetition it is."""
        if feedback.outcome == "error":
            self.failed += 1
            self.why = self.why or feedback.error
        elif feedback.outcome == "skip":
            self.skipped += 1
            self.lacking = self.lacking or feedback.comment
        else:
            self.n += 1
            if feedback.label is not None:
                self.labels[feedback.label] += 1
            if feedback.score is not None:
                self._add_score(feedback.score, example)

    def _add_score(self, score: float | bool, example: str | None) -> None:
        value = float(score)
        self.total += value
        self.minimum = min(self.minimum, value)
        self.maximum = max(self.maximum, value)
        passes = self.metric.passes(score)
        self.judged += passes is not None
        self.passed += bool(passes)
        if example is not None:
            self.spreads.setdefault(example, Spread()).add(value, passes)

    @property
    def mean(self) -> float | None:
        """The mean of all scores; None where there is none."""
        return self.total / self.n if self.n and self.minimum <= self.maximum else None


class Tally:
    """Totals of all keys and runs of an experiment, and which trace belongs to which slot of the results."""

    def __init__(self, metrics: Iterable[Metric] = (), repetitions: int = 1) -> None:
        self._metrics = {metric.key: metric for metric in metrics}
        self._repeats = repetitions > 1
        self.keys: dict[str, KeyTally] = {}
        self.overall: dict[str, Feedback] = {}  # what set-level evaluators said of the experiment
        self.traces: dict[int, str] = {}
        self.runs = 0
        self.failed = 0  # runs whose task failed
        self.why: str | None = None  # one of their errors
        self.open = 0  # runs with spans that had not ended in time
        self.durations_ns = array("q")
        self.input_tokens = 0
        self.output_tokens = 0
        self.cost: float | None = None
        self.models: Counter[str] = Counter()

    def metric(self, key: str) -> Metric:
        """What is known about a key's scores."""
        return self._metrics.get(key) or Metric(key)

    def in_order(self) -> list[tuple[str, KeyTally]]:
        """Keys as the evaluators declare them, then all others by name."""
        declared = {key: place for place, key in enumerate(self._metrics)}
        return sorted(self.keys.items(), key=lambda pair: (declared.get(pair[0], len(declared)), pair[0]))

    def add_run(self, slot: int, trace_id: str, duration_ns: int, error: str | None, open_spans: int = 0) -> None:
        """Count a finished run and remember where it belongs."""
        self.traces[slot] = trace_id
        self.open += open_spans > 0
        self.count_run(duration_ns, error)

    def count_run(self, duration_ns: int, error: str | None) -> None:
        """Count a finished run; `error` is that of its task."""
        self.runs += 1
        self.failed += error is not None
        self.why = self.why or error
        self.durations_ns.append(duration_ns)

    def add_calls(self, runs: Iterable[Run]) -> None:
        """Count models, tokens and cost of the spans of a run."""
        for run in runs:
            if run.model:
                self.models[run.model] += 1
            if run.usage:
                self.input_tokens += run.usage.input_tokens
                self.output_tokens += run.usage.output_tokens
            self.add_cost(run.cost)

    def add_cost(self, cost: float | None) -> None:
        """Count dollars; None stays None until some cost is known."""
        if cost is not None:
            self.cost = (self.cost or 0.0) + cost

    def add_feedback(self, feedback: Feedback, example: str) -> None:
        """Count one outcome of an evaluator on a run. Feedback on single documents is not averaged here."""
        if feedback.target.document is not None:
            return
        tally = self.keys.get(feedback.key)
        if tally is None:
            tally = self.keys[feedback.key] = KeyTally(self.metric(feedback.key))
        tally.add(feedback, example if self._repeats else None)

    def totals(self) -> Mapping[str, object]:
        """What is recorded with the experiment when it ends."""
        known = {
            "runs": self.runs,
            "failed": self.failed,
            "models": sorted(self.models),
            "input_tokens": self.input_tokens,
            "output_tokens": self.output_tokens,
            "cost": self.cost,
            "mean_ms": sum(self.durations_ns) / self.runs / 1e6 if self.runs else None,
        }
        return {name: value for name, value in known.items() if value is not None}
