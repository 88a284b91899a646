"""Evaluators applied to cases: `score`, batches for models, threads and the event loop.

An exception of an evaluator becomes feedback with the outcome "error", so it costs no other evaluator's feedback.
Exceptions that end the whole run (see `is_interruption`) are raised.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence, Set
from itertools import count
from os import PathLike
from typing import Any, NamedTuple, SupportsIndex, TypeAlias, overload

from spanwise.collector.records import Case, Example, Feedback, Target, Trace
from spanwise.collector.stores import TraceStore
from spanwise.evaluators.interface import (
    AwaitFunction,
    Batch,
    Evaluator,
    as_evaluator,
    claim_keys,
    is_interruption,
    list_declared_keys,
    make_loop_waiter,
    make_untraced_target,
    run_coroutine,
    run_in_thread,
)
from spanwise.evaluators.scoring.case_builder import load_turns, make_case, normalize_case
from spanwise.evaluators.scoring.composite_evaluator import attach_feedback, get_parts

StoreLocation: TypeAlias = "TraceStore | str | PathLike[str] | None"


class ScoreResult(list[Feedback]):
    """List of the feedback of one evaluator on one case or set, with access by key: `result["pii"]`."""

    def __init__(self, feedback: Iterable[Feedback] = (), primary: str | None = None) -> None:
        super().__init__(feedback)
        self._primary = primary  # key of the evaluator's primary metric

    @overload
    def __getitem__(self, at: SupportsIndex) -> Feedback: ...

    @overload
    def __getitem__(self, at: slice) -> list[Feedback]: ...

    @overload
    def __getitem__(self, at: str) -> Feedback: ...

    def __getitem__(self, at: SupportsIndex | slice | str) -> Feedback | list[Feedback]:
        """Return the feedback at an index or a slice, or the first one with a key. Raises `KeyError` for an unknown
        key.
        """
        if not isinstance(at, str):
            return super().__getitem__(at)
        for feedback in self:
            if feedback.key == at:
                return feedback
        raise KeyError(f"no feedback has the key {at!r}; expected one of: {self._keys()}")

    @property
    def score(self) -> float | bool:
        """Return the score of the primary key, or of the only feedback.

        Raises `ValueError` if there is no such feedback, or if it is an error, a skip or a label. The message gives
        the reason.
        """
        candidates = self if len(self) == 1 else [feedback for feedback in self if feedback.key == self._primary]
        if len(candidates) != 1:
            raise ValueError(
                f"there is no single score among {len(self)} feedbacks; choose one by key or index: {self._keys()}"
            )
        feedback = candidates[0]
        if feedback.score is not None:
            return feedback.score
        if feedback.outcome == "score":
            raise ValueError(f"{feedback.key!r} has the label {feedback.label!r} and no score")
        raise ValueError(f"{feedback.key!r} has no score: {feedback.outcome}: {feedback.error or feedback.comment}")

    def _keys(self) -> str:
        return ", ".join(dict.fromkeys(feedback.key for feedback in self)) or "none"


async def ascore(
    evaluator: Any,
    on: Trace | Case | Sequence[Case] | None = None,
    *,
    example: Example | None = None,
    session: str | None = None,
    store: StoreLocation = None,
    **fields: Any,
) -> ScoreResult:
    """Return the feedback of one evaluator like `score`, from async code."""
    judge = as_evaluator(evaluator)
    primary = next((metric.key for metric in judge.metrics if metric.primary), None)
    return ScoreResult(await _score(judge, on, example, session, store, fields), primary)


async def _score(
    judge: Evaluator,
    on: Trace | Case | Sequence[Case] | None,
    example: Example | None,
    session: str | None,
    store: StoreLocation,
    fields: dict[str, Any],
) -> list[Feedback]:
    if session is not None:
        return await _score_session(judge, on, session, store, example, fields)
    if store is not None:
        raise TypeError("store= is only valid with session=: score(…, session=id, store=…)")
    if judge.summary:
        return await judge.evaluate_set(_input_cases(on, fields), make_untraced_target())
    case = _input_case(on, example, fields)
    target = Target(trace_id=case.trace.trace_id) if case.trace else make_untraced_target()
    if isinstance(on, Trace) and "outputs" not in fields and (skipped := skip_failed(judge, case, target)):
        return skipped
    return (await judge.evaluate_batch([case], [target]))[0]


def score(
    evaluator: Any,
    on: Trace | Case | Sequence[Case] | None = None,
    *,
    example: Example | None = None,
    session: str | None = None,
    store: StoreLocation = None,
    **fields: Any,
) -> ScoreResult:
    """Return the feedback of one evaluator on a trace, a case, or values: `score(get_evaluator("exact"), outputs="a",
    reference_outputs="b")`.

    `fields` are those of `Case`, or Databricks' columns (`request`, `response`, …). They override those of a
    trace. The evaluator gets plain values, as in `evaluate()`: a dict for a model, Python numbers for numpy's.
    A set-level evaluator takes a list of cases, or one list per field.

    With the id of a `session`, the evaluator gets the last turn, and all turns as `history`. The feedback is about
    the session. The session is read from `store` (None: see `spanwise.collector.connect`). Nothing is stored: call
    `store.add_feedback(…)` for that.

    The result is a list of feedback. `result.score` is the score of the primary key or of the only feedback;
    `result["pii"]` is the feedback with a key.

    An exception of the evaluator is not raised: it becomes feedback with the outcome "error". Raises
    `TypeError` if `evaluator` is not an evaluator, and for unknown fields. Raises `ValueError` for lists of
    unequal length, and `NotFound` for a session without traces.
    """
    return run_coroutine(ascore(evaluator, on, example=example, session=session, store=store, **fields))


async def _score_session(
    judge: Evaluator, on: Any, session: str, store: StoreLocation, example: Example | None, fields: dict[str, Any]
) -> list[Feedback]:
    if on is not None or judge.summary:
        scope = f"set-level evaluator {judge.key!r}" if judge.summary else "a trace or a case"
        raise TypeError(f"session={session!r} cannot be combined with {scope}")
    turns = await asyncio.to_thread(load_turns, session, store)
    target = Target(session_id=session)
    return (await judge.evaluate_batch([normalize_case(make_case(turns, example, **fields))], [target]))[0]


def _input_case(on: Any, example: Example | None, fields: dict[str, Any]) -> Case:
    if isinstance(on, Case):
        return normalize_case(on)
    if on is None or isinstance(on, Trace):
        return normalize_case(make_case(on, example, **fields))
    raise TypeError(f"expected a trace, a case or field values to score, got {on!r:.200}")


def _input_cases(on: Any, columns: dict[str, Any]) -> list[Case]:
    if on is not None:
        return [_input_case(member, None, {}) for member in ([on] if isinstance(on, Trace | Case) else on)]
    listed: dict[str, list[Any]] = {}
    for name, column in columns.items():
        if column is None:
            continue
        # a single value, such as a text, is no list, and a set has no order
        if isinstance(column, str | bytes | Mapping | Set) or not isinstance(column, Iterable):
            raise TypeError(f"a set-level evaluator needs a list per field, got {name}={column!r:.200}")
        listed[name] = list(column)
    lengths = {name: len(column) for name, column in listed.items()}
    if len(set(lengths.values())) > 1:
        counted = ", ".join(f"{count} {name}" for name, count in lengths.items())
        raise ValueError(f"the lists of a set must have the same length, got {counted}")
    rows = zip(*listed.values(), strict=True)
    return [_input_case(None, None, dict(zip(listed, row, strict=True))) for row in rows]


_FAILURE_FIELDS = frozenset(
    {"run", "root_run", "trace", "case"}
)  # evaluators that need one of these can judge a failed run


class CaseScorer:
    """Scorer that applies evaluators of single cases, grouped by the thread or event loop that runs them.

    Plain evaluators (`Evaluator.plain`) run on the caller's thread or loop, one after the other. All others run
    concurrently, except composites, which run last. The argument `only` of the methods restricts a call to these evaluators.
    """

    def __init__(self, evaluators: Sequence[Evaluator], batch_size: int = 32) -> None:
        self._batchers = {
            judge.key: CaseBatcher(judge, batch_size) for judge in evaluators if isinstance(judge.function, Batch)
        }
        self._composites = tuple(judge for judge in evaluators if get_parts(judge))
        self.has_composites = bool(self._composites)
        self._plain = tuple(judge for judge in evaluators if judge.plain and not get_parts(judge))
        self._others = tuple(judge for judge in evaluators if not judge.plain)
        self.has_concurrent = bool(self._others)
        self._owners = list_declared_keys(evaluators)
        self._returned: set[str] = set()  # keys of plain evaluators that returned at least once
        self._looked = {judge.key: count(1) for judge in evaluators if judge.max_cases is not None}

    def score_on_thread(
        self, case: Case, target: Target, wait: AwaitFunction, only: Sequence[Evaluator] | None = None
    ) -> list[Feedback]:
        """Score with the plain evaluators on this thread. If an evaluator returns an awaitable, `wait` blocks until its
        result is there.
        """
        feedback: list[Feedback] = []
        for evaluator in _select_evaluators(self._plain, only):
            left_out = self._left_out(evaluator, case, target)
            results = left_out or evaluator.evaluate_here(case, target, wait)
            feedback += claim_keys(self._owners, evaluator, results, target)
        return feedback

    async def score_on_loop(
        self, case: Case, target: Target, only: Sequence[Evaluator] | None = None
    ) -> list[Feedback]:
        """Score with the plain evaluators on the event loop. Slow ones move to threads."""
        feedback: list[Feedback] = []
        for evaluator in _select_evaluators(self._plain, only):
            results = self._left_out(evaluator, case, target) or await self._try_on_thread(evaluator, case, target)
            feedback += claim_keys(self._owners, evaluator, results, target)
        return feedback

    async def score_concurrently(
        self, case: Case, target: Target, only: Sequence[Evaluator] | None = None
    ) -> list[Feedback]:
        """Score with the evaluators that are not plain, concurrently."""

        async def score_case(evaluator: Evaluator) -> list[Feedback]:
            if left_out := self._left_out(evaluator, case, target):
                return left_out
            batcher = self._batchers.get(evaluator.key)
            return await (evaluator.evaluate(case, target) if batcher is None else batcher.score(case, target))

        evaluators = _select_evaluators(self._others, only)
        outcomes = await asyncio.gather(*map(score_case, evaluators), return_exceptions=True)
        feedback: list[Feedback] = []
        for evaluator, outcome in zip(evaluators, outcomes, strict=True):
            feedback += claim_keys(self._owners, evaluator, evaluator.settled(outcome, target), target)
        return feedback

    def score_composites(
        self, case: Case, target: Target, feedback: Sequence[Feedback], only: Sequence[Evaluator] | None = None
    ) -> list[Feedback]:
        """Score with the composites, in order, after all other evaluators gave `feedback`."""
        results: list[Feedback] = []
        for evaluator in _select_evaluators(self._composites, only):
            known = attach_feedback(case, (*feedback, *results))
            results += claim_keys(self._owners, evaluator, evaluator.evaluate_here(known, target), target)
        return results

    async def _try_on_thread(self, evaluator: Evaluator, case: Case, target: Target) -> list[Feedback]:
        """Run an evaluator on a thread until it has returned once, then on the event loop. If it hung on the event loop,
        it would block the loop and Ctrl-C.
        """
        if evaluator.key in self._returned:
            return await evaluator.evaluate(case, target)
        wait = make_loop_waiter(asyncio.get_running_loop())
        feedback: list[Feedback] = await run_in_thread(lambda: evaluator.evaluate_here(case, target, wait))
        self._returned.add(evaluator.key)
        return feedback

    def _left_out(self, evaluator: Evaluator, case: Case, target: Target) -> list[Feedback] | None:
        """Return skips if the task failed or the evaluator has scored its maximum number of cases, else None."""
        if failed := skip_failed(evaluator, case, target):
            return failed
        if evaluator.max_cases is None or next(self._looked[evaluator.key]) <= evaluator.max_cases:
            return None
        return evaluator.make.skip(target, f"it has looked at {evaluator.max_cases} cases (max_dataset_rows)")


def skip_failed(evaluator: Evaluator, case: Case, target: Target) -> list[Feedback] | None:
    """Return skips if the task failed, or was cancelled without outputs, and the evaluator judges its outputs."""
    run = case.run
    cancelled = run is not None and run.status == "cancelled" and run.outputs is None
    if run is None or not (cancelled or run.status == "error"):
        return None
    if _FAILURE_FIELDS & set(evaluator.needs) or "outputs" in evaluator.uses:
        return None
    reason = "the run was cancelled before it returned" if cancelled else f"the task failed: {run.error or 'error'}"
    return evaluator.make.skip(target, reason)


def _select_evaluators(evaluators: Sequence[Evaluator], only: Sequence[Evaluator] | None) -> Sequence[Evaluator]:
    if only is None:
        return evaluators
    keys = {judge.key for judge in only}
    return [judge for judge in evaluators if judge.key in keys]


IDLE_S = 0.02  # seconds that a batch waits for more cases

FeedbackFuture: TypeAlias = "asyncio.Future[list[Feedback]]"


class WaitingCase(NamedTuple):
    """Case that waits for its batch, with the future of its feedback."""

    case: Case
    target: Target
    outcome: FeedbackFuture


class CaseBatcher:
    """Batches of cases for one evaluator: up to `size` cases, or those that arrive within `IDLE_S` seconds."""

    def __init__(self, evaluator: Evaluator, size: int) -> None:
        self._evaluator = evaluator
        self._size = size
        self._waiting: list[WaitingCase] = []
        self._batch_lock = asyncio.Lock()  # two concurrent batches would only share the model's threads
        self._timer: asyncio.TimerHandle | None = None
        self._running: set[asyncio.Task[None]] = set()

    async def score(self, case: Case, target: Target) -> list[Feedback]:
        """Return the feedback on one case after its batch was scored."""
        loop = asyncio.get_running_loop()
        outcome: FeedbackFuture = loop.create_future()
        self._waiting.append(WaitingCase(case, target, outcome))
        if len(self._waiting) >= self._size:
            self._start()
        elif self._timer is None:
            self._timer = loop.call_later(IDLE_S, self._start)
        return await outcome

    def _start(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        task = asyncio.get_running_loop().create_task(self._flush())
        self._running.add(task)
        task.add_done_callback(self._end_batch)

    async def _flush(self) -> None:
        async with self._batch_lock:
            batch, self._waiting = self._waiting[: self._size], self._waiting[self._size :]
            if batch:
                await self._score_batch(batch)

    def _end_batch(self, task: asyncio.Task[None]) -> None:
        """Start the next batch if cases wait, also after a batch that was cancelled."""
        self._running.discard(task)
        self._waiting = [waiting for waiting in self._waiting if not waiting.outcome.done()]
        if self._waiting and not self._running and self._timer is None:
            self._start()

    async def _score_batch(self, batch: Sequence[WaitingCase]) -> None:
        """Set the outcome of every case of a batch, also if scoring fails. Otherwise the callers would wait forever."""
        cases, targets, outcomes = zip(*batch, strict=True)
        try:
            feedback = await self._evaluator.evaluate_batch(cases, targets)
        except BaseException as error:
            for outcome in outcomes:
                if not outcome.done():
                    outcome.cancel(f"the batch was not scored: {type(error).__name__}")
            if is_interruption(error):
                raise
            return
        for outcome, of_case in zip(outcomes, feedback, strict=True):
            if not outcome.done():
                outcome.set_result(of_case)
