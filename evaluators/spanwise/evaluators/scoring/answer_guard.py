"""Guard: evaluators that run inline, before an answer is returned, and may replace it.

The caller waits for the decision, for at most the guard's time limit. Synchronous evaluators run on a pool of daemon
threads, because a function that runs on the caller's thread cannot be stopped waiting for.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
import inspect
import logging
import os
import queue
import threading
import time
from collections.abc import AsyncGenerator, Callable, Generator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeAlias, TypeVar

from spanwise.collector.records import Case, Feedback
from spanwise.collector.statistics import make_pass_rule
from spanwise.evaluators.interface import Evaluator, as_evaluator, capture_call, make_untraced_target, run_coroutine
from spanwise.evaluators.scoring.case_scoring import make_case, normalize_case
from spanwise.tracer import current_run, span
from spanwise.tracer.run_recording import make_argument_binder

log = logging.getLogger("spanwise.evaluators")
F = TypeVar("F", bound=Callable[..., Any])
Verdict: TypeAlias = Literal["pass", "block", "would_block", "error", "skip"]
DEFAULT_TIMEOUT_S = 2.0
MAX_THREADS = 256  # of the pool; evaluations beyond wait for a thread, within their time limit
IDLE_S = 30.0  # seconds after which a thread of the pool ends
MAX_STREAM_ITEMS = 100_000  # longer streams pass without a decision


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardDecision:
    """Decision about one answer. `on_fail` functions receive it.

    `verdict` is "block", or "would_block" in shadow mode, if an evaluator failed; "error" if evaluators raised or
    exceeded the time limit; "skip" if none of them could decide; otherwise "pass". Only "block" changes the answer.
    """

    verdict: Verdict
    reason: str
    inputs: Mapping[str, Any]
    outputs: Any
    feedback: tuple[Feedback, ...] = ()
    seconds: float = 0.0


def guard(
    *evaluators: Any,
    on_fail: Any,
    shadow: bool = True,
    timeout: float = DEFAULT_TIMEOUT_S,
    name: str | None = None,
    reduce: Callable[[list[Any]], Any] | None = None,
) -> Callable[[F], F]:
    """Evaluate each answer of a function before it is returned: `@guard(get_evaluator("pii"), on_fail="…")`.

    If an evaluator fails the answer, `on_fail` takes its place: an exception is raised, a function is called with the
    `GuardDecision`, and any other value is returned. With `shadow=True`, the default, the answer always passes, and the
    guard only records what it would have done. An answer also passes if its evaluators raise, cannot decide, or need
    more than `timeout` seconds. An evaluator fails an answer with the score False, or beyond its threshold.

    Decisions are feedback of the current run, with the key `guard:NAME`; `name` is the function's by default. Evaluators
    get the function's arguments as `inputs` and its result as `outputs`. The items of a generator are held back until
    the decision, and in shadow mode passed on at once; `reduce` turns them into outputs (default: their text, or a
    list). Raises `TypeError` for something that is not an evaluator or a function, and `ValueError` for an invalid
    `timeout`.
    """
    if isinstance(timeout, bool) or not isinstance(timeout, int | float) or not 0 < timeout < float("inf"):
        raise ValueError(f"timeout must be a number of seconds > 0, got {timeout!r}")
    if not evaluators:
        raise TypeError("guard() needs an evaluator: @guard(get_evaluator('pii'), on_fail=…)")
    built = tuple(map(as_evaluator, evaluators))
    if wrong := next((each for each in built if each.summary), None):
        raise TypeError(f"evaluator {wrong.key!r} scores a set of cases; a guard needs one that scores a single answer")

    def decorate(function: F) -> F:
        if isinstance(function, staticmethod | classmethod):
            return type(function)(decorate(function.__func__))
        if not callable(function) or inspect.isclass(function):
            raise TypeError(f"@guard takes a function or a method, got {function!r}")
        label = name or str(getattr(function, "__name__", type(function).__name__))
        bind = make_argument_binder(function)
        return _Guard(built, on_fail, shadow, float(timeout), label, reduce, function, bind).wrap()  # type: ignore[return-value]

    return decorate


@dataclass(frozen=True, slots=True)
class _Guard:
    """Guard of one function."""

    evaluators: Sequence[Evaluator]
    on_fail: Any
    shadow: bool
    timeout: float
    name: str
    reduce: Callable[[list[Any]], Any] | None
    function: Callable[..., Any]
    bind: Callable[[tuple[Any, ...], Mapping[str, Any]], dict[str, Any]]  # arguments by name

    def wrap(self) -> Callable[..., Any]:
        """Return the guarded function, of the same kind as the original."""
        function = self.function
        inner = function if inspect.isroutine(function) else type(function).__call__
        wrapper: Callable[..., Any]
        if inspect.isasyncgenfunction(function) or inspect.isasyncgenfunction(inner):
            wrapper = self._wrap_async_stream()
        elif inspect.isgeneratorfunction(function) or inspect.isgeneratorfunction(inner):
            wrapper = self._wrap_stream()
        elif inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(inner):

            async def guarded_async(*args: Any, **kwargs: Any) -> Any:
                answer = await function(*args, **kwargs)
                decision = await self.decide_async(args, kwargs, answer)
                return await self.apply_async(decision) if decision.verdict == "block" else answer

            wrapper = guarded_async
        else:

            def guarded(*args: Any, **kwargs: Any) -> Any:
                answer = function(*args, **kwargs)
                decision = self.decide(args, kwargs, answer)
                return self.apply(decision) if decision.verdict == "block" else answer

            wrapper = guarded
        return functools.update_wrapper(wrapper, function)

    def _wrap_stream(self) -> Callable[..., Generator[Any, Any, Any]]:
        def guarded(*args: Any, **kwargs: Any) -> Generator[Any, Any, Any]:
            items: list[Any] = []
            stream = _record_items(self.function(*args, **kwargs), items, MAX_STREAM_ITEMS + 1)
            if self.shadow:
                try:
                    result = yield from stream
                except GeneratorExit:
                    self._record(replace(_UNFINISHED, outputs=items))
                    raise
                self.decide(args, kwargs, _Stream(items))
                return result
            result, has_ended = None, False
            while not has_ended and len(items) <= MAX_STREAM_ITEMS:
                try:
                    next(stream)
                except StopIteration as end:
                    result, has_ended = end.value, True
            decision = self.decide(args, kwargs, _Stream(items))
            if decision.verdict == "block":
                yield self.apply(decision)
                return result
            yield from items
            return result if has_ended else (yield from stream)

        return guarded

    def _wrap_async_stream(self) -> Callable[..., AsyncGenerator[Any, Any]]:
        async def guarded(*args: Any, **kwargs: Any) -> AsyncGenerator[Any, Any]:
            items: list[Any] = []
            holds_back = not self.shadow
            stream = self.function(*args, **kwargs)
            step = stream.__anext__()
            try:
                while True:
                    try:
                        item = await step
                    except StopAsyncIteration:
                        break
                    if len(items) <= MAX_STREAM_ITEMS:
                        items.append(item)
                    if holds_back and len(items) > MAX_STREAM_ITEMS:  # too long: it passes without a decision
                        holds_back = False
                        for held in items[:-1]:
                            yield held
                    if holds_back:
                        step = stream.__anext__()
                    else:
                        try:
                            sent = yield item
                        except GeneratorExit:
                            self._record(replace(_UNFINISHED, outputs=items))
                            raise
                        except BaseException as error:
                            step = stream.athrow(error)
                        else:
                            step = stream.__anext__() if sent is None else stream.asend(sent)
            finally:
                if (close := getattr(stream, "aclose", None)) is not None:
                    await close()
            decision = await self.decide_async(args, kwargs, _Stream(items))
            if decision.verdict == "block":
                yield await self.apply_async(decision)
            elif holds_back:
                for item in items:
                    yield item

        return guarded

    def decide(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], answer: Any) -> GuardDecision:
        """Return the decision about an answer, and record it. Raises only `KeyboardInterrupt`."""
        began = time.perf_counter()
        case = self._prepare(args, kwargs, answer)
        if isinstance(case, GuardDecision):
            return self._record(case)
        done: queue.SimpleQueue[tuple[int, list[Feedback]]] = queue.SimpleQueue()
        for number, evaluator in enumerate(self.evaluators):
            _submit(evaluator, case, lambda feedback, number=number: done.put((number, feedback)))  # type: ignore[misc]
        found: dict[int, list[Feedback]] = {}
        while len(found) < len(self.evaluators):
            try:
                number, feedback = done.get(timeout=max(0.0, began + self.timeout - time.perf_counter()))
            except queue.Empty:
                break
            found[number] = feedback
        return self._conclude(case, found, began)

    async def decide_async(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], answer: Any) -> GuardDecision:
        """Return the decision like `decide`. Coroutine functions run on the caller's loop, others on a thread."""
        began = time.perf_counter()
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:  # another kind of loop, such as trio's
            return self.decide(args, kwargs, answer)
        case = self._prepare(args, kwargs, answer)
        if isinstance(case, GuardDecision):
            return self._record(case)
        tasks: list[asyncio.Future[list[Feedback]]] = []
        for evaluator in self.evaluators:
            if evaluator.is_async:
                tasks.append(loop.create_task(evaluator.evaluate(case, _NO_TARGET)))
            else:
                tasks.append(loop.create_future())
                _submit(evaluator, case, functools.partial(_deliver, loop, tasks[-1]))
        try:
            await asyncio.wait(tasks, timeout=max(0.0, began + self.timeout - time.perf_counter()))
        finally:
            for task in tasks:
                task.cancel()  # changes nothing for those that are done
        found = {}
        for number, task in enumerate(tasks):
            if task.done() and not task.cancelled():
                error = task.exception()
                found[number] = (
                    task.result() if error is None else self.evaluators[number].make.failure(_NO_TARGET, error)
                )
        return self._conclude(case, found, began)

    def apply(self, decision: GuardDecision) -> Any:
        """Return what takes the place of a blocked answer. Raises the guard's exception."""
        on_fail = self.on_fail
        if isinstance(on_fail, type) and issubclass(on_fail, BaseException):
            raise on_fail(decision.reason)
        if isinstance(on_fail, BaseException):
            raise on_fail.with_traceback(None)  # it would collect the frames of all calls
        return on_fail(decision) if callable(on_fail) else on_fail

    async def apply_async(self, decision: GuardDecision) -> Any:
        """Return what takes the place of a blocked answer; `on_fail` may be a coroutine function."""
        replacement = self.apply(decision)
        return await replacement if callable(self.on_fail) and inspect.isawaitable(replacement) else replacement

    def _prepare(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], answer: Any) -> Case | GuardDecision:
        """Return the case that evaluators get, or the decision for an answer that they cannot get."""
        inputs: Mapping[str, Any] = {}
        try:
            inputs = self.bind(args, kwargs)
            if isinstance(answer, _Stream) and len(answer.items) > MAX_STREAM_ITEMS:
                reason = f"the stream has more than {MAX_STREAM_ITEMS:,} items"
            elif hasattr(answer, "__next__") or hasattr(answer, "__anext__") or inspect.isawaitable(answer):
                reason = "the function returned a stream or an awaitable; guard the generator or coroutine function"
            elif isinstance(answer, _Stream):
                items = answer.items
                if self.reduce is not None:
                    answer = self.reduce(items)
                else:
                    answer = "".join(items) if items and all(isinstance(item, str) for item in items) else items
                return normalize_case(make_case(None, inputs=inputs, outputs=answer))
            else:
                return normalize_case(make_case(None, inputs=inputs, outputs=answer))
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
            return GuardDecision(verdict="error", reason=reason, inputs=inputs, outputs=answer)
        return GuardDecision(verdict="skip", reason=reason, inputs=inputs, outputs=answer)

    def _conclude(self, case: Case, found: Mapping[int, list[Feedback]], began: float) -> GuardDecision:
        """Return the decision that follows from the feedback, and record it. Raises nothing."""
        try:
            decision = self._weigh(case, found, time.perf_counter() - began)
        except Exception as error:
            log.exception("spanwise: guard %r could not decide; the answer passed", self.name)
            reason = f"{type(error).__name__}: {error}"
            decision = GuardDecision(verdict="error", reason=reason, inputs={}, outputs=case.outputs)
        return self._record(decision)

    def _weigh(self, case: Case, found: Mapping[int, list[Feedback]], seconds: float) -> GuardDecision:
        """Return the decision that follows from the feedback."""
        failures, errors, passes = [], [], 0
        for number, evaluator in enumerate(self.evaluators):
            if number not in found:
                errors.append(f"{evaluator.key} took more than {self.timeout:g} s")
            for feedback in found.get(number, ()):
                if feedback.outcome == "error":
                    errors.append(f"{feedback.key}: {feedback.error}")
                elif (verdict := _judge_feedback(evaluator, feedback)) is False:
                    value = feedback.label if feedback.score is None else feedback.score
                    failures.append(", ".join(filter(None, (f"{feedback.key}: {value}", feedback.comment))))
                else:
                    passes += verdict is True
        verdict_: Verdict = "pass"
        reason = "; ".join(failures or errors)
        if failures:
            verdict_ = "would_block" if self.shadow else "block"
        elif errors:
            verdict_ = "error"
        elif not passes:
            verdict_, reason = "skip", "no evaluator could decide; give a graded score a threshold"
        return GuardDecision(
            verdict=verdict_,
            reason=reason,
            inputs=case.inputs if isinstance(case.inputs, Mapping) else {},
            outputs=case.outputs,
            feedback=tuple(each for number in sorted(found) for each in found[number]),
            seconds=seconds,
        )

    def _record(self, decision: GuardDecision) -> GuardDecision:
        """Attach the decision and the evaluators' feedback to the current run, or to a run of the guard's own."""
        try:
            is_traced = int(current_run().trace_id or "0", 16) > 0
            with nullcontext(current_run()) if is_traced else span(f"guard {self.name}", kind="guardrail") as run:
                if not is_traced:
                    run.set_inputs(decision.inputs)
                    run.set_outputs(decision.outputs)
                details = {"guard": self.name, "verdict": decision.verdict, "shadow": self.shadow}
                for each in decision.feedback:
                    run.feedback(
                        each.key,
                        each.score if each.score is not None else each.label,
                        label=each.label if each.score is not None else None,
                        comment=each.comment,
                        source=each.source,
                        metadata={**each.metadata, **details},
                        outcome=each.outcome,
                        error=each.error,
                        evaluator=each.evaluator,
                        version=each.version,
                    )
                is_decided = decision.verdict in ("pass", "block", "would_block")
                run.feedback(
                    f"guard:{self.name}",
                    decision.verdict == "pass" if is_decided else None,
                    label=decision.verdict if is_decided else None,
                    comment=decision.reason or None,
                    metadata={**details, "seconds": round(decision.seconds, 6), "timeout": self.timeout},
                    outcome="score" if is_decided else "error" if decision.verdict == "error" else "skip",
                    error=f"{decision.reason}; the answer passed" if decision.verdict == "error" else None,
                    evaluator=f"guard:{self.name}",
                )
        except Exception:
            log.exception("spanwise: guard %r could not record its decision", self.name)
        return decision


@dataclass(frozen=True, slots=True)
class _Stream:
    """Items of a guarded generator."""

    items: list[Any]


def _judge_feedback(evaluator: Evaluator, feedback: Feedback) -> bool | None:
    """Return whether feedback passes; None if it neither passes nor fails."""
    metric = next((each for each in evaluator.metrics if each.key == feedback.key), None)
    if feedback.outcome != "score":
        return None
    if feedback.score is None:
        return feedback.label in metric.good_labels if metric is not None and metric.good_labels else None
    threshold = None if metric is None else metric.threshold
    is_rising = metric is None or metric.higher_is_better
    rule = make_pass_rule(threshold, is_rising, is_boolean=isinstance(feedback.score, bool))
    return None if rule is None else rule.passes(float(feedback.score))


_UNFINISHED = GuardDecision(verdict="skip", reason="the stream was closed before its end", inputs={}, outputs=())
_NO_TARGET = make_untraced_target()


def _deliver(loop: asyncio.AbstractEventLoop, future: asyncio.Future[list[Feedback]], feedback: list[Feedback]) -> None:
    """Resolve a future of an event loop from another thread."""

    def resolve() -> None:
        if not future.done():
            future.set_result(feedback)

    try:
        loop.call_soon_threadsafe(resolve)
    except RuntimeError:
        log.debug("spanwise: the event loop of a guarded call is closed")


def _record_items(stream: Generator[Any, Any, Any], items: list[Any], most: int) -> Generator[Any, Any, Any]:
    """Yield the items of a generator, and append up to `most` of them to a list."""
    step: Callable[[], Any] = functools.partial(next, stream)
    while True:
        try:
            item = step()
        except StopIteration as end:
            return end.value
        if len(items) < most:
            items.append(item)
        try:
            sent = yield item
        except GeneratorExit:
            stream.close()
            raise
        except BaseException as error:
            step = functools.partial(stream.throw, error)
        else:
            step = functools.partial(next, stream) if sent is None else functools.partial(stream.send, sent)


@dataclass(slots=True)
class _ThreadPool:
    """Daemon threads for evaluations. They do not delay the exit of the process."""

    pid: int = field(default_factory=os.getpid)
    tasks: queue.SimpleQueue[Callable[[], None]] = field(default_factory=queue.SimpleQueue)
    lock: threading.Lock = field(default_factory=threading.Lock)
    threads: int = 0
    idle: int = 0

    def submit(self, task: Callable[[], None]) -> None:
        """Run a task on an idle thread or a new one; if there are too many, on the next that is free."""
        with self.lock:
            starts = self.idle <= self.tasks.qsize() and self.threads < MAX_THREADS
            self.threads += starts
            self.tasks.put(task)
        if starts:
            threading.Thread(target=self.work, name="spanwise-guard", daemon=True).start()

    def work(self) -> None:
        """Run tasks until none has come for a while."""
        while True:
            with self.lock:
                self.idle += 1
            try:
                task = self.tasks.get(timeout=IDLE_S)
            except queue.Empty:
                with self.lock:
                    self.idle -= 1
                    if self.tasks.empty():
                        self.threads -= 1
                        return
                continue
            with self.lock:
                self.idle -= 1
            task()


_pools: list[_ThreadPool] = []


def _submit(evaluator: Evaluator, case: Case, deliver: Callable[[list[Feedback]], None]) -> None:
    """Evaluate a case on the pool in the caller's context, and deliver the feedback.

    A forked child gets a pool of its own.
    """
    if not _pools or _pools[-1].pid != os.getpid():
        _pools[:] = [_ThreadPool()]
    context = contextvars.copy_context()

    def evaluate() -> list[Feedback]:
        if evaluator.plain:
            return evaluator.evaluate_here(case, _NO_TARGET)
        return run_coroutine(evaluator.evaluate_batch([case], [_NO_TARGET]))[0]

    def task() -> None:
        result = context.run(capture_call, evaluate)
        failure = () if result.error is None else evaluator.make.failure(_NO_TARGET, result.error)
        deliver([*(result.result or ()), *failure])

    try:
        _pools[-1].submit(task)
    except RuntimeError as error:  # no thread can start, such as while the interpreter exits
        deliver(evaluator.make.failure(_NO_TARGET, error))
