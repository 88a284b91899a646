"""Progress of an experiment: running totals, judge cost, heartbeat, watchdog of stalls."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import threading
import time
from array import array
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite
from types import FrameType
from typing import Any

from spanwise.collector.records import Feedback, FeedbackStats, Run
from spanwise.collector.statistics import TASK_OK, RepeatedRuns, ScoreSample, Tally, collect_repeated_runs, percentile
from spanwise.collector.stores import Store
from spanwise.evaluators.experiments.task_run import run_task_on_loop, run_task_on_thread
from spanwise.evaluators.interface import Evaluator, Metric, ProgressBar, print_message

# Running totals of an experiment: runs, scores per key, repetitions, and judge cost.


@dataclass(slots=True)
class JudgeCost:
    """Judge calls, replies from the cache, tokens, and cost in US dollars (None until a cost is known).

    `unpriced` is the number of calls of unknown cost, which `cost` leaves out. `texts_cut` is the number of texts that
    were truncated for a judge.
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
        """Return input plus output tokens."""
        return self.input_tokens + self.output_tokens

    @property
    def known_cost(self) -> float | None:
        """Return the cost in US dollars.

        Return None if no paid call has a known cost: a total of 0 from cached replies would hide the calls of unknown
        cost.
        """
        return None if self.unpriced and not self.cost else self.cost

    def __bool__(self) -> bool:
        return bool(self.calls or self.cached)

    def add(self, feedback: Feedback, counted: set[Hashable]) -> None:
        """Add the judgement behind a feedback, unless it is already in `counted`: one judgement may give feedback on
        several keys.
        """
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
        """Return the totals that are recorded with the experiment; {} if no judge was called."""
        known = {name: getattr(self, name) for name in self.__slots__} | {"cost": self.known_cost}
        return {f"judge_{name}": value for name, value in known.items() if value is not None} if self else {}

    def __str__(self) -> str:
        parts = [f"{self.calls:,} judge calls"]
        parts += [f"{self.cached:,} cached replies"] * bool(self.cached)
        parts += [f"{self.tokens:,} tokens"] * bool(self.tokens)
        parts += [] if self.known_cost is None else [f"${self.known_cost:,.4f}"]
        if self.unpriced:
            parts.append("cost unknown" if self.known_cost is None else f"cost of {self.unpriced:,} calls unknown")
        if self.texts_cut:
            parts.append(f"{self.texts_cut:,} text{'s' if self.texts_cut > 1 else ''} truncated before judging")
        return " · ".join(parts)


def _to_finite_number(value: Any) -> float:
    """Return a non-negative finite number, else 0: metadata can contain arbitrary values."""
    return value if isinstance(value, int | float) and isfinite(value) and value >= 0 else 0


def compute_wall_ns(runs: Sequence[Run]) -> int:
    """Return the time from the first start to the last end of a trace's runs, in nanoseconds.

    Failed attempts are included, as in `TraceSummary`.
    """
    return max(0, max(run.end_ns for run in runs) - min(run.start_ns for run in runs))


@dataclass(slots=True)
class KeyTally:
    """Tally of one key of an experiment, with its scores and one of its errors."""

    tally: Tally
    why: str | None = None  # one of the errors
    lacking: str | None = None  # reason of one of the skips
    judge: str | None = None  # version of the judge that gave the scores; None for code and human feedback
    sample: ScoreSample = field(default_factory=ScoreSample)
    # with repetitions, the trace of each score of `sample`; None for a score of a document
    traces: list[str | None] = field(default_factory=list)


class ExperimentTally:
    """Totals of an experiment's runs, and a tally per key: the data of its summary."""

    def __init__(self, metrics: Iterable[Metric] = (), repetitions: int = 1) -> None:
        self._metrics = {metric.key: metric for metric in metrics}
        self.repetitions = repetitions
        self.traces: dict[int, str] = {}  # trace id of each result slot
        self.runs = 0
        self.failed = 0  # runs whose task failed
        self.why: str | None = None  # error of the failed run with the lowest example id
        self.failed_on = ""  # id of the example of `why`
        self.open = 0  # number of runs with spans that were still open after `span_wait`
        self.durations_ns = array("q")
        self.input_tokens = 0
        self.output_tokens = 0
        self.cost: float | None = None
        self.models: Counter[str] = Counter()
        self.spent = JudgeCost()
        self.remarks: Mapping[str, None] = {}  # remarks shown below the summary table
        self.keys: dict[str, KeyTally] = {}
        self.overall: dict[str, Feedback] = {}  # feedback of set-level evaluators on the experiment
        self.tasks = ScoreSample()  # 1 for each run whose task ended without an error, else 0
        # by trace, only with repetitions: the example, and whether the task ended without an error
        self.ends: dict[str, tuple[str, bool]] = {}

    def add_run(
        self, slot: int, trace_id: str, duration_ns: int, error: str | None, open_spans: int = 0, example: str = ""
    ) -> None:
        """Add a finished run of an example, and record its trace under its slot."""
        self.traces[slot] = trace_id
        self.open += open_spans > 0
        self.count_run(duration_ns, error, example, trace_id)

    def count_run(self, duration_ns: int, error: str | None, example: str = "", trace_id: str = "") -> None:
        """Count a finished run of an example. `error` is the task's error, or None."""
        self.runs += 1
        self.durations_ns.append(duration_ns)
        self.tasks.add(float(error is None), example)
        if self.repetitions > 1:
            self.ends[trace_id] = example, error is None
        if error is not None:
            self.failed += 1
            # choose by example id, so that the result does not depend on the order in which runs end or are read
            if self.why is None or example < self.failed_on:
                self.why, self.failed_on = error, example

    def add_calls(self, runs: Iterable[Run]) -> None:
        """Add the models, tokens and cost of the spans of a run."""
        for run in runs:
            if run.model:
                self.models[run.model] += 1
            if run.usage:
                self.input_tokens += run.usage.input_tokens
                self.output_tokens += run.usage.output_tokens
            self.add_cost(run.cost)

    def add_cost(self, cost: float | None) -> None:
        """Add a cost in US dollars. The total stays None until the first known cost."""
        if cost is not None:
            self.cost = (self.cost or 0.0) + cost

    def add_judgements(self, feedback: Iterable[Feedback], counted: set[Hashable] | None = None) -> None:
        """Add the judge calls behind feedback. Pass the same set `counted` to several calls to count each judgement
        once.
        """
        counted = set() if counted is None else counted
        for each in feedback:
            if each.metadata:
                self.spent.add(each, counted)

    def percentiles_ms(self, *percents: int) -> list[float | None]:
        """Return durations at these percentiles (nearest rank), in milliseconds; None without runs."""
        ordered = sorted(self.durations_ns)
        return [percentile(ordered, percent) / 1e6 if ordered else None for percent in percents]

    def totals(self) -> Mapping[str, object]:
        """Return the totals that are recorded with the experiment when it ends."""
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

    def metric(self, key: str) -> Metric:
        """Return the metric of a key, or a default metric if no evaluator declares the key."""
        return self._metrics.get(key) or Metric(key)

    @property
    def arrows(self) -> dict[str, str]:
        """Return the arrow of each key whose better direction is declared."""
        return {TASK_OK: "↑"} | {key: metric.arrow for key, metric in self._metrics.items() if metric.arrow}

    @property
    def display_names(self) -> dict[str, str]:
        """Return the display names of the keys that have one."""
        return {key: metric.display_name for key, metric in self._metrics.items() if metric.display_name}

    def in_order(self) -> list[tuple[str, KeyTally]]:
        """Return keys in the order of declaration, then all others by name."""
        declared = {key: index for index, key in enumerate(self._metrics)}
        return sorted(self.keys.items(), key=lambda pair: (declared.get(pair[0], len(declared)), pair[0]))

    def add_feedback(self, feedback: Feedback, example: str) -> None:
        """Count one feedback, given on a run of an example or on one of the run's spans or documents.

        Every feedback counts. If a later one may replace an earlier one, apply `select_latest` first.
        """
        of_key = self.keys.get(feedback.key)
        if of_key is None:
            of_key = self.keys[feedback.key] = KeyTally(Tally(self.metric(feedback.key).passes))
            of_key.judge = (feedback.version or "") if feedback.source == "model" else None
        of_key.tally.add(feedback)
        outcome = feedback.outcome
        if outcome == "score":
            if (score := feedback.score) is not None:
                sample = of_key.sample  # `ScoreSample.add` is inlined, because this runs for every example
                sample.scores.append(score)
                sample.examples.append(example)
                if self.repetitions > 1:
                    of_key.traces.append(feedback.target.trace_id if feedback.target.document is None else None)
        elif outcome == "error":
            of_key.why = of_key.why or feedback.error
        else:
            of_key.lacking = of_key.lacking or feedback.comment

    @property
    def task_ok(self) -> FeedbackStats:
        """Return the statistics of the key `task_ok`: the share of all runs whose task ended without an error."""
        if not self.runs:
            return FeedbackStats(key=TASK_OK)
        share = (self.runs - self.failed) / self.runs
        lowest, highest = float(not self.failed), float(self.failed < self.runs)
        return FeedbackStats(key=TASK_OK, n=self.runs, mean=share, minimum=lowest, maximum=highest, passed=share)

    def repeats(self, key: str) -> RepeatedRuns:
        """Return the statistics of the repeated runs under a key, or under `task_ok`."""
        if key == TASK_OK:
            scores = [(trace, float(is_ok)) for trace, (_, is_ok) in self.ends.items()]
            return collect_repeated_runs(key, self.repetitions, self.ends, scores)
        of_key, metric = self.keys[key], self.metric(key)
        pairs = zip(of_key.traces, of_key.sample.scores, strict=True)
        return collect_repeated_runs(
            key,
            self.repetitions,
            self.ends,
            ((trace, score) for trace, score in pairs if trace is not None),
            threshold=metric.threshold,
            higher_is_better=metric.higher_is_better,
        )

    @property
    def judge_versions(self) -> dict[str, str]:
        """Return the keys that judges score, each with the judge's version."""
        return {key: of_key.judge for key, of_key in self.keys.items() if of_key.judge is not None}


# Liveness of an experiment: heartbeat in its record, and a watchdog that reports a stall and its cause.
#
# The watchdog inspects the stacks of threads and coroutines only after a stall, so normal runs do not become slower.

HEARTBEAT_INTERVAL = 5.0  # seconds between two heartbeats


class Heartbeat:
    """Heartbeat thread that updates `seen_ns` in an experiment's record every few seconds.

    It continues while tasks, the store or set-level evaluators take long. Errors of the store are ignored.
    """

    def __init__(self, store: Store, experiment_id: str, every: float = HEARTBEAT_INTERVAL) -> None:
        self._store, self._id, self._every = store, experiment_id, every
        self._stopped = threading.Event()

    def __enter__(self) -> Heartbeat:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Start the heartbeat thread."""

        def beat() -> None:
            while not self._stopped.wait(self._every):
                with contextlib.suppress(Exception):
                    self._store.change_experiment(self._id, seen_ns=time.time_ns())

        threading.Thread(target=beat, name="spanwise-heartbeat", daemon=True).start()

    def stop(self) -> None:
        """Stop the heartbeat, without waiting for an update in progress."""
        self._stopped.set()


STALLED_AFTER = 10.0  # seconds without a finished run before the progress bar shows the reason
REPORT_AFTER = 60.0  # seconds without a finished run before a message is printed, if there is no progress bar
CHECK_INTERVAL = 1.0  # seconds between two checks
_MAX_NAMED = 2
_EVALUATOR_CODES = {Evaluator.evaluate.__code__, Evaluator.evaluate_here.__code__, Evaluator.evaluate_batch.__code__}
_TASK_CODES = {run_task_on_thread.__code__, run_task_on_loop.__code__}


class StallWatchdog:
    """Watchdog thread that checks whether runs still finish.

    After a stall the progress bar shows what the experiment waits for.
    """

    def __init__(self, bar: ProgressBar, loop: asyncio.AbstractEventLoop, *, prints: bool) -> None:
        """Create the watchdog. With `prints`, it also prints the reason of a long stall if the bar is not visible."""
        self.status = ""  # the reason of the present stall
        self._bar = bar
        self._loop = loop
        self._prints = prints and not bar.is_visible
        self._stopped = threading.Event()
        self._last_progress = time.monotonic()

    def __enter__(self) -> StallWatchdog:
        threading.Thread(target=self._watch, name="spanwise-watch", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()

    def note_progress(self) -> None:
        """Record that a run has finished."""
        self._last_progress = time.monotonic()
        if self.status:
            self.status = ""
            self._bar.show_status("")

    def _watch(self) -> None:
        while not self._stopped.wait(CHECK_INTERVAL):
            seconds = time.monotonic() - self._last_progress
            if seconds < STALLED_AFTER:
                continue
            names = describe_pending_work(self._loop)
            more = f" and {len(names) - _MAX_NAMED} more" if len(names) > _MAX_NAMED else ""
            self.status = f"waiting for {', '.join(names[:_MAX_NAMED]) or 'the store'}{more} ({seconds:.0f} s)"
            self._bar.show_status(self.status)
            if self._prints and REPORT_AFTER <= seconds < REPORT_AFTER + CHECK_INTERVAL:
                remedy = "a timeout of evaluate() or of the evaluator turns this into an error"
                print_message(f"spanwise: {self.status}; {remedy}")


def describe_pending_work(loop: asyncio.AbstractEventLoop) -> list[str]:
    """Return descriptions of the running evaluators, then of the running tasks.

    They are read from the local variables of the functions on the stacks of all threads and of the loop's tasks.
    """
    frames: list[FrameType] = []
    for top in sys._current_frames().values():
        frame: FrameType | None = top
        while frame is not None:
            frames.append(frame)
            frame = frame.f_back
    for task in asyncio.all_tasks(loop):
        coroutine: Any = task.get_coro()
        while (frame := getattr(coroutine, "cr_frame", None)) is not None:
            frames.append(frame)
            coroutine = getattr(coroutine, "cr_await", None)
    evaluators, tasks = [], []
    for frame in frames:
        if frame.f_code in _EVALUATOR_CODES:
            values = frame.f_locals
            case = values.get("case")
            subject = f"{len(values['cases'])} runs" if case is None else f"example {case.example.id[:12]}"
            evaluators.append(f"evaluator {values['self'].key!r} on {subject}")
        elif frame.f_code in _TASK_CODES:
            tasks.append(f"the task on example {frame.f_locals['item'].example.id[:12]}")
    return list(dict.fromkeys([*evaluators, *tasks]))
