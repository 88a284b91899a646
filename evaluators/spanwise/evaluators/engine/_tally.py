"""What the evaluators of an experiment have said so far, key by key."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from spanwise.collector.records import Feedback, FeedbackStats
from spanwise.collector.statistics import TASK_OK, Tally
from spanwise.evaluators.engine._spread import Spread
from spanwise.evaluators.engine._totals import Totals
from spanwise.evaluators.protocol import Metric


@dataclass(slots=True)
class OfKey:
    """One key of an experiment: its tally, an example of what went wrong, and how repetitions differ."""

    tally: Tally
    why: str | None = None  # one of the errors
    lacking: str | None = None  # why one of them was skipped
    judge: str | None = None  # the version of the model whose scores they are; None of code's and people's
    spreads: dict[str, Spread] = field(default_factory=dict)  # by example, only with repetitions

    def repeat(self, example: str, score: float, passes: bool | None) -> None:
        """Count a score as one more repetition of its example."""
        spread = self.spreads.get(example)
        if spread is None:
            spread = self.spreads[example] = Spread()
        spread.add(score, passes)


class Tallies(Totals):
    """Totals of an experiment's runs, and a tally per key: what its summary shows."""

    def __init__(self, metrics: Iterable[Metric] = (), repetitions: int = 1) -> None:
        super().__init__()
        self._metrics = {metric.key: metric for metric in metrics}
        self._repeats = repetitions > 1
        self.keys: dict[str, OfKey] = {}
        self.overall: dict[str, Feedback] = {}  # what set-level evaluators said of the experiment
        self.ends: dict[str, Spread] = {}  # by example, only with repetitions: whether its runs came to a good end

    def metric(self, key: str) -> Metric:
        """What is known about a key's scores."""
        return self._metrics.get(key) or Metric(key)

    def in_order(self) -> list[tuple[str, OfKey]]:
        """Keys as the evaluators declare them, then all others by name."""
        declared = {key: place for place, key in enumerate(self._metrics)}
        return sorted(self.keys.items(), key=lambda pair: (declared.get(pair[0], len(declared)), pair[0]))

    def add_feedback(self, feedback: Feedback, example: str) -> None:
        """Count one outcome on a run of an example, on one of its spans or documents.

        Every one counts: take `newest` first where what is said of a run may replace each other.
        """
        of_key = self.keys.get(feedback.key) or self._new(feedback)
        passes = of_key.tally.add(feedback)
        outcome = feedback.outcome
        if outcome == "score":
            if self._repeats and feedback.score is not None and feedback.target.document is None:
                of_key.repeat(example, float(feedback.score), passes)
        elif outcome == "error":
            of_key.why = of_key.why or feedback.error
        else:
            of_key.lacking = of_key.lacking or feedback.comment

    def count_run(self, duration_ns: int, error: str | None, example: str = "") -> None:
        """As `Totals`; with repetitions also how often the task failed on the example."""
        super().count_run(duration_ns, error, example)
        if self._repeats:
            ok = error is None
            self.ends.setdefault(example, Spread()).add(float(ok), ok)

    @property
    def task_ok(self) -> FeedbackStats:
        """Of all runs those whose task came to an end without an error, as the scores of a key."""
        if not self.runs:
            return FeedbackStats(key=TASK_OK)
        share = (self.runs - self.failed) / self.runs
        lowest, highest = float(not self.failed), float(self.failed < self.runs)
        return FeedbackStats(key=TASK_OK, n=self.runs, mean=share, minimum=lowest, maximum=highest, passed=share)

    @property
    def judge_versions(self) -> dict[str, str]:
        """The keys of judges, with their versions."""
        return {key: of_key.judge for key, of_key in self.keys.items() if of_key.judge is not None}

    def _new(self, feedback: Feedback) -> OfKey:
        of_key = self.keys[feedback.key] = OfKey(Tally(self.metric(feedback.key).passes))
        of_key.judge = (feedback.version or "") if feedback.source == "model" else None
        return of_key
