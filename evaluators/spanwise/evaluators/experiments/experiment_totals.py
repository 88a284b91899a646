"""Running totals of an experiment: runs, scores per key, repetitions, and judge cost."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite
from typing import Any

from spanwise.collector.records import Feedback, FeedbackStats, Run
from spanwise.collector.statistics import TASK_OK, Tally, percentile
from spanwise.evaluators.interface import Metric


@dataclass(slots=True)
class RepetitionStats:
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
class JudgeCost:
    """Questions that models answered, and answers that were known; tokens; US dollars, None until some are known.

    `unpriced` counts calls whose cost is not known: it is no part of `cost`. `texts_cut` counts texts of which a judge
    saw a part.
    """

    calls: int = 0
    cached: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cost: float | None = None
    unpriced: int = 0
    texts_cut: int = 0

    @property
    def tokens(self) -> int:
        """In and out."""
        return self.input_tokens + self.output_tokens

    @property
    def known_cost(self) -> float | None:
        """US dollars; None where nothing but answers from the cache is known to have cost nothing."""
        return None if self.unpriced and not self.cost else self.cost

    def __bool__(self) -> bool:
        return bool(self.calls or self.cached)

    def add(self, feedback: Feedback, counted: set[Hashable]) -> None:
        """Count the judgement behind a feedback, unless it is among those `counted`: it may give several keys."""
        judge = feedback.metadata.get("judge")
        if feedback.source != "model" or not isinstance(judge, Mapping):
            return
        judgement = feedback.judge_trace_id or (feedback.target.trace_id, feedback.evaluator)
        if judgement in counted:
            return
        counted.add(judgement)
        calls = int(_to_finite_number(judge.get("calls")))
        self.calls += calls
        self.cached += int(_to_finite_number(judge.get("cached")))
        self.input_tokens += int(_to_finite_number(judge.get("input_tokens")))
        self.output_tokens += int(_to_finite_number(judge.get("output_tokens")))
        left_out = judge.get("left_out")
        self.texts_cut += len(left_out) if isinstance(left_out, Mapping) else 0
        if judge.get("cost") is not None:
            self.cost = (self.cost or 0.0) + _to_finite_number(judge["cost"])
        else:
            self.unpriced += calls

    def totals(self) -> dict[str, object]:
        """What is recorded with the experiment; nothing where no judge was asked."""
        known = {name: getattr(self, name) for name in self.__slots__} | {"cost": self.known_cost}
        return {f"judge_{name}": value for name, value in known.items() if value is not None} if self else {}

    def __str__(self) -> str:
        parts = [f"{self.calls:,} calls of judges"]
        parts += [f"{self.cached:,} answers known before"] * bool(self.cached)
        parts += [f"{self.tokens:,} tokens"] * bool(self.tokens)
        parts += [] if self.known_cost is None else [f"${self.known_cost:,.4f}"]
        if self.unpriced:
            parts.append("cost unknown" if self.known_cost is None else f"cost of {self.unpriced:,} of these unknown")
        if self.texts_cut:
            parts.append(f"{self.texts_cut:,} text{'s' if self.texts_cut > 1 else ''} cut before judging")
        return " · ".join(parts)


def _to_finite_number(value: Any) -> float:
    """Metadata may be anybody's."""
    return value if isinstance(value, int | float) and isfinite(value) and value >= 0 else 0


class RunTotals:
    """How many runs, how long, at what cost; and which trace belongs to which slot of the results."""

    def __init__(self) -> None:
        self.traces: dict[int, str] = {}
        self.runs = 0
        self.failed = 0  # runs whose task failed
        self.why: str | None = None  # one of their errors,
        self.failed_on = ""  # and the id of its example
        self.open = 0  # runs with spans that had not ended in time
        self.durations_ns = array("q")
        self.input_tokens = 0
        self.output_tokens = 0
        self.cost: float | None = None
        self.models: Counter[str] = Counter()
        self.spent = JudgeCost()
        self.remarks: Mapping[str, None] = {}  # what is to be said of the whole

    def add_run(
        self, slot: int, trace_id: str, duration_ns: int, error: str | None, open_spans: int = 0, example: str = ""
    ) -> None:
        """Count a finished run of an example and remember where it belongs."""
        self.traces[slot] = trace_id
        self.open += open_spans > 0
        self.count_run(duration_ns, error, example)

    def count_run(self, duration_ns: int, error: str | None, example: str = "") -> None:
        """Count a finished run of an example; `error` is that of its task."""
        self.runs += 1
        self.durations_ns.append(duration_ns)
        if error is not None:
            self.failed += 1
            if self.why is None or example < self.failed_on:  # the same whoever ended first, and when it is read back
                self.why, self.failed_on = error, example

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

    def add_judgements(self, said: Iterable[Feedback], counted: set[Hashable] | None = None) -> None:
        """Count what judges were asked for feedback; `counted` remembers judgements from one call to the next."""
        counted = set() if counted is None else counted
        for feedback in said:
            if feedback.metadata:
                self.spent.add(feedback, counted)

    def percentiles_ms(self, *percents: int) -> list[float | None]:
        """Durations at these percentiles (nearest rank), in milliseconds; None before any run."""
        ordered = sorted(self.durations_ns)
        return [percentile(ordered, percent) / 1e6 if ordered else None for percent in percents]

    def totals(self) -> Mapping[str, object]:
        """What is recorded with the experiment when it ends."""
        known = {
            "runs": self.runs,
            "failed": self.failed,
            "models": sorted(self.models),
            "remarks": list(self.remarks) or None,
            "input_tokens": self.input_tokens,
            "output_tokens": self.output_tokens,
            "cost": self.cost,
            "mean_ms": sum(self.durations_ns) / self.runs / 1e6 if self.runs else None,
            **self.spent.totals(),
        }
        return {name: value for name, value in known.items() if value is not None}


def compute_wall_ns(runs: Sequence[Run]) -> int:
    """From the first start to the last end of a trace's runs, failed attempts too, as `TraceSummary` has it."""
    return max(0, max(run.end_ns for run in runs) - min(run.start_ns for run in runs))


@dataclass(slots=True)
class KeyTally:
    """One key of an experiment: its tally, an example of what went wrong, and how repetitions differ."""

    tally: Tally
    why: str | None = None  # one of the errors
    lacking: str | None = None  # why one of them was skipped
    judge: str | None = None  # the version of the model whose scores they are; None of code's and people's
    spreads: dict[str, RepetitionStats] = field(default_factory=dict)  # by example, only with repetitions

    def repeat(self, example: str, score: float, passes: bool | None) -> None:
        """Count a score as one more repetition of its example."""
        spread = self.spreads.get(example)
        if spread is None:
            spread = self.spreads[example] = RepetitionStats()
        spread.add(score, passes)


class ExperimentTally(RunTotals):
    """Totals of an experiment's runs, and a tally per key: what its summary shows."""

    def __init__(self, metrics: Iterable[Metric] = (), repetitions: int = 1) -> None:
        super().__init__()
        self._metrics = {metric.key: metric for metric in metrics}
        self._repeats = repetitions > 1
        self.keys: dict[str, KeyTally] = {}
        self.overall: dict[str, Feedback] = {}  # what set-level evaluators said of the experiment
        self.ends: dict[
            str, RepetitionStats
        ] = {}  # by example, only with repetitions: whether its runs came to a good end

    def metric(self, key: str) -> Metric:
        """What is known about a key's scores."""
        return self._metrics.get(key) or Metric(key)

    def in_order(self) -> list[tuple[str, KeyTally]]:
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
            self.ends.setdefault(example, RepetitionStats()).add(float(ok), ok)

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

    def _new(self, feedback: Feedback) -> KeyTally:
        of_key = self.keys[feedback.key] = KeyTally(Tally(self.metric(feedback.key).passes))
        of_key.judge = (feedback.version or "") if feedback.source == "model" else None
        return of_key
