"""Running totals of an experiment's runs, in memory that does not grow with what they hold."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence

from spanwise.collector.records import Feedback, Run
from spanwise.collector.statistics import percentile
from spanwise.evaluators.engine._spent import Spent


class Totals:
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
        self.spent = Spent()
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


def wall_ns(runs: Sequence[Run]) -> int:
    """From the first start to the last end of a trace's runs, failed attempts too, as `TraceSummary` has it."""
    return max(0, max(run.end_ns for run in runs) - min(run.start_ns for run in runs))
