"""Evaluator: execution on a case, a batch or a set, with timeout, retries and bisection of failed batches."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any, Protocol, runtime_checkable

from spanwise.collector.records import Case, Feedback, Target
from spanwise.evaluators.interface.argument_binding import Binding
from spanwise.evaluators.interface.evaluator_spec import EvaluatorSpec, Metric
from spanwise.evaluators.interface.judge_context import use_judge_context
from spanwise.evaluators.interface.outcomes import (
    SCALAR_TYPES,
    FeedbackFactory,
    InvalidResult,
    Skip,
    explain_missing_fields,
)
from spanwise.evaluators.interface.retry_policy import compute_retry_delay, is_independent_of_input, is_transient
from spanwise.evaluators.interface.sync_bridge import AwaitFunction, is_interruption, run_in_thread
from spanwise.evaluators.interface.value_conversion import encode_infinities

SLOW_SECONDS = 0.01  # seconds; a plain function that takes longer runs on a thread from then on


class JudgeBackedFunction(Protocol):
    """Interface of evaluator functions that call judges."""

    @property
    def where(self) -> Sequence[str]:
        """Return where the judged text is sent, as texts for display."""

    def ready(self) -> None:
        """Check that every judge is configured. Raises `ValueError` if one is not."""


@runtime_checkable
class Batch(Protocol):
    """Interface of evaluators that score many cases together faster, such as those with a local model."""

    def batch(self, cases: Sequence[Case]) -> Any:
        """Return one value per case in order, or a coroutine of that list.

        An exception in the list is the error of the case at its position.

        If the method raises, it is called again with each half of the cases, down to single cases. That takes fewer
        than twice as many calls as there are cases. Splitting stops after three calls if all errors are independent
        of the input, that is transient errors and a rejected API key.
        """


def _run_awaitable(awaitable: Awaitable[Any]) -> Any:
    async def main() -> Any:
        return await awaitable

    return asyncio.run(main())


@dataclass(slots=True)
class _SpeedRecord:
    """Record of whether a function was slow. It is the only mutable state of an evaluator."""

    slow: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluator:
    """Callable with its metrics, options and argument binding.

    Created by `as_evaluator`, `@evaluator` or `get_evaluator`.

    Calling the evaluator calls the function. `evaluate` turns the function's errors into feedback instead of raising
    them.
    """

    key: str
    function: Callable[..., Any]
    binding: Binding
    make: FeedbackFactory
    version: str = "1"
    # in a rule's version, replaces the hash of the source text: a number, or the evaluator's own version
    revision: str = "1"
    metrics: tuple[Metric, ...] = ()
    summary: bool = False  # True: scores all cases of an experiment together
    max_cases: int | None = None  # maximum number of cases that a set-level evaluator receives (`max_dataset_rows`)
    min_cases: int = 0  # minimum number of cases for a meaningful set-level score or mean (`min_test_cases`)
    primary: bool = False  # whether its keys decide comparisons of experiments
    timeout: float | None = None  # seconds per attempt
    retries: int = 0
    retry_on: Callable[[BaseException], bool] = is_transient  # whether an error is retried
    origin: Mapping[str, Any] = field(default_factory=dict)  # result of `to_dict`
    spec: EvaluatorSpec | None = None  # registry entry; None for users' functions
    _pace: _SpeedRecord = field(default_factory=_SpeedRecord, repr=False, compare=False)

    @property
    def needs(self) -> tuple[str, ...]:
        """Return the names of the required arguments. A case that lacks one of them is skipped."""
        return tuple(name for name, _ in self.binding.required)

    @property
    def asking(self) -> JudgeBackedFunction | None:
        """Return the function if it calls judges, else None."""
        function: Any = self.function
        return function if hasattr(function, "ready") and hasattr(function, "where") else None

    @property
    def remarks(self) -> tuple[str, ...]:
        """Return warnings about the evaluator's set-up:

        - arguments whose names are probably misspelt: no case has a field of such a name
        - thresholds that no score can meet, or that were chosen for another model
        """
        misspelt = (
            f"{self.key!r} never got the argument {name!r}, which has a default; did you mean {field!r}?"
            for name, field in self.binding.misspelt
        )
        return (*misspelt, *_describe_thresholds(self.metrics))

    @property
    def standards(self) -> tuple[str, ...]:
        """Return the compliance standards (NIST AI RMF, SR 11-7) that the evaluator addresses, in Spanwise's
        assignment.
        """
        return self.spec.standards if self.spec else ()

    @property
    def uses(self) -> tuple[str, ...]:
        """Return the names of the optional arguments that are passed if a case has them."""
        return tuple(name for name, _ in self.binding.optional)

    @property
    def __name__(self) -> str:
        return self.key

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function itself."""
        return self.function(*args, **kwargs)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values from which `from_dict` restores the evaluator.

        Raises `ValueError` for a function that cannot be imported by name, and for parameters that are functions.
        Restoring such parameters would run any code that the data names.
        """
        if not self.origin:
            raise ValueError(
                f"evaluator {self.key!r} cannot be serialized: {self.function!r} cannot be imported by name"
            )
        for name, value in self.origin["init_parameters"].items():
            if not _is_json(value):
                raise ValueError(
                    f"evaluator {self.key!r} cannot be serialized: the parameter {name}={value!r:.200} is not a JSON value"
                )
        plain: dict[str, Any] = encode_infinities(self.origin)
        return plain

    async def evaluate(self, case: Case, target: Target) -> list[Feedback]:
        """Return the feedback on one case. Raises only interruptions; see `is_interruption`."""
        try:
            arguments, missing = self.binding.arguments(case)
            if missing:
                return self.make.skip(target, explain_missing_fields(missing, case))
            if self.asking is None:
                return self.make.wrap(await self._attempt(self.function, arguments), target)
            with use_judge_context(evaluator=self.make.name, version=self.version, target=target):
                return self.make.wrap(await self._attempt(self.function, arguments), target)
        except BaseException as error:
            if is_interruption(error):
                raise
            return self.make.failure(target, error, self._hint(error, case))

    def evaluate_here(self, case: Case, target: Target, wait: AwaitFunction = _run_awaitable) -> list[Feedback]:
        """Evaluate a case on the calling thread without an event loop, for evaluators that are `plain`.

        `wait` resolves an awaitable that a plain function returned. Raises only `KeyboardInterrupt`.
        """
        try:
            arguments, missing = self.binding.arguments(case)
            if missing:
                return self.make.skip(target, explain_missing_fields(missing, case))
            args = self.binding.pop_positional(arguments)
            returned = self.function(*args, **arguments)
            if type(returned) not in SCALAR_TYPES and inspect.isawaitable(returned):
                returned = wait(returned)
            return self.make.wrap(returned, target)
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            return self.make.failure(target, error, self._hint(error, case))

    @property
    def plain(self) -> bool:
        """Return whether the function is synchronous, takes one case, and has neither timeout nor retries."""
        bound = self.timeout is not None or self.retries or self.summary or isinstance(self.function, Batch)
        return not bound and not _is_async(self.function)

    @property
    def is_async(self) -> bool:
        """Return whether the function is a coroutine function."""
        return _is_async(self.function)

    async def evaluate_batch(self, cases: Sequence[Case], targets: Sequence[Target]) -> list[list[Feedback]]:
        """Return the feedback on many cases in order, through `batch` if the evaluator has it.

        Raises only interruptions, as `evaluate` does.
        """
        if not isinstance(self.function, Batch):
            outcomes = await asyncio.gather(*map(self.evaluate, cases, targets), return_exceptions=True)
            return [self.settled(outcome, target) for outcome, target in zip(outcomes, targets, strict=True)]
        prepared = [self._prepare_case(case, target) for case, target in zip(cases, targets, strict=True)]
        ready = [case for case in prepared if isinstance(case, Case)]
        values = iter(await self._bisect(ready, await self._call_batch(ready)) if ready else [])
        return [
            self._wrap_value(next(values), target) if isinstance(outcome, Case) else outcome
            for outcome, target in zip(prepared, targets, strict=True)
        ]

    def settled(self, outcome: list[Feedback] | BaseException, target: Target) -> list[Feedback]:
        """Return feedback for a result of `asyncio.gather`. The result is an exception if an evaluator cancelled its
        own task.
        """
        if not isinstance(outcome, BaseException):
            return outcome
        if is_interruption(outcome):
            raise outcome
        return self.make.failure(target, outcome)

    async def evaluate_set(self, cases: Iterable[Case], target: Target) -> list[Feedback]:
        """Return the feedback on all cases together. Incomplete cases are left out and counted.

        Cases are read one by one on a thread, so that even a million cases need little memory. Raises only
        interruptions, as `evaluate` does.
        """
        try:
            cases = islice(cases, self.max_cases)
            columns = await run_in_thread(lambda: self.binding.columns(cases))
            if not columns.complete:
                missing = " and ".join(columns.missing)
                return self.make.skip(target, f"needs {missing}; no case has them" if missing else "there are no cases")
            if columns.complete < self.min_cases:
                return self.make.skip(target, f"{columns.complete} cases, fewer than {self.min_cases}")
            outcomes = self.make.wrap(await self._attempt(self.function, columns.arguments), target)
            return [replace(outcome, metadata=columns.describe(outcome.metadata)) for outcome in outcomes]
        except BaseException as error:
            if is_interruption(error):
                raise
            return self.make.failure(target, error)

    def _hint(self, error: BaseException, case: Case) -> str:
        """Explain an error caused by a function that expects a dict as outputs, although the task returned a text. ""
        for others.
        """
        if not isinstance(case.outputs, str) or self.binding.prepare is not None:
            return ""
        if type(error) not in (TypeError, AttributeError):  # `str()` of exceptions of other classes may raise
            return ""
        if not str(error).startswith(("string indices must be integers", "'str' object has no attribute")):
            return ""
        return "; outputs is a text: use outputs itself, or let the task return a dict such as {'output': …}"

    def _prepare_case(self, case: Case, target: Target) -> Case | list[Feedback]:
        """Return the case in the form that `batch` receives, or a skip or error if `batch` cannot receive it."""
        try:
            try:
                missing = self.binding.arguments(case)[1]
            except Exception:
                missing = []  # `batch` will fail in the same way and report the error
            if missing:
                return self.make.skip(target, explain_missing_fields(missing, case))
            return self.binding.mapped(case)
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            return self.make.failure(target, error)

    def _wrap_value(self, value: Any, target: Target) -> list[Feedback]:
        if isinstance(value, BaseException):
            return self.make.failure(target, value)
        try:
            return self.make.wrap(value, target)
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            return self.make.failure(target, error)

    async def _bisect(self, cases: list[Case], results: list[Any] | BaseException) -> list[Any]:
        """Return the value or the exception of each case, from the results of a batch or the exception that it raised.

        A failed batch is split in halves until only the failing cases fail.
        """
        if not isinstance(results, BaseException):
            return results
        if len(cases) == 1 or isinstance(results, InvalidResult):
            return [results] * len(cases)
        middle = len(cases) // 2
        halves = (cases[:middle], cases[middle:])
        results_of_halves = [await self._call_batch(half) for half in halves]
        errors = [error for error in (results, *results_of_halves) if isinstance(error, BaseException)]
        if len(errors) == 3 and all(map(is_independent_of_input, errors)):
            return [results] * len(cases)
        bisected = [
            await self._bisect(half, half_results) for half, half_results in zip(halves, results_of_halves, strict=True)
        ]
        return [value for values in bisected for value in values]

    async def _call_batch(self, cases: list[Case]) -> list[Any] | BaseException:
        """Return the results of `batch`, or the exception that it raised."""
        try:
            returned = await self._attempt(self.function.batch, {"cases": cases})  # type: ignore[attr-defined]
            return _read_batch_results(returned, len(cases))
        except BaseException as error:
            if is_interruption(error):
                raise
            return error

    async def _attempt(self, function: Callable[..., Any], arguments: dict[str, Any]) -> Any:
        for attempt in range(self.retries):
            try:
                return await self._call(function, arguments)
            except Skip:
                raise
            except Exception as error:
                if not self.retry_on(error):
                    raise
                await asyncio.sleep(compute_retry_delay(attempt, error))
        return await self._call(function, arguments)

    async def _call(self, function: Callable[..., Any], arguments: dict[str, Any]) -> Any:
        arguments = dict(arguments)  # copy: `pop_positional` removes entries that a retry needs again
        args = self.binding.pop_positional(arguments)
        if self.timeout is None:
            return await self._call_function(function, args, arguments)
        try:
            async with asyncio.timeout(self.timeout) as limit:
                return await self._call_function(function, args, arguments)
        except TimeoutError as error:
            if not limit.expired():
                raise  # the function itself raised this error, for example for a judge's timeout
            raise TimeoutError(f"the evaluator took more than {self.timeout} s") from error

    async def _call_function(self, function: Callable[..., Any], args: Sequence[Any], arguments: dict[str, Any]) -> Any:
        if (self._pace.slow or self.timeout is not None) and not _is_async(function):
            returned = await run_in_thread(lambda: function(*args, **arguments))
        else:
            began = time.perf_counter()
            returned = function(*args, **arguments)
            if time.perf_counter() - began > SLOW_SECONDS:
                self._pace.slow = True
        return await returned if inspect.isawaitable(returned) else returned


def _read_batch_results(returned: Any, count: int) -> list[Any]:
    """Check that `batch` returned `count` values, and return them as a list.

    Raises `InvalidResult`, and the errors of an iterator.
    """
    if isinstance(returned, str | bytes | Mapping | Set) or not isinstance(returned, Iterable):
        raise InvalidResult(f"batch() must return a list of {count} results, got {returned!r:.200}")
    listed = list(islice(returned, count + 1))  # the iterator may be infinite
    if len(listed) != count:
        number = f"more than {count}" if len(listed) > count else len(listed)
        raise InvalidResult(f"batch() returned {number} results for {count} cases")
    return listed


def _is_json(value: Any) -> bool:
    if isinstance(value, Mapping):
        return all(isinstance(name, str) and _is_json(member) for name, member in value.items())
    if isinstance(value, list | tuple):
        return all(map(_is_json, value))
    return value is None or isinstance(value, str | int | float)


def _is_async(function: Callable[..., Any]) -> bool:
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(function, "__call__", None))  # noqa: B004


def _describe_thresholds(metrics: Iterable[Metric]) -> Iterator[str]:
    """Yield a sentence for thresholds that no score can meet, and one for those that belong to another model."""
    metrics = tuple(metrics)
    for metric in metrics:
        if not metric.is_reachable and metric.range is not None:
            bound = f"at most {metric.range[1]:g}" if metric.higher_is_better else f"at least {metric.range[0]:g}"
            yield f"no score of {metric.key!r} can meet its threshold of {metric.threshold:g}: scores are {bound}"
    foreign = [metric for metric in metrics if metric.threshold_model]
    if foreign:
        keys = ", ".join(repr(metric.key) for metric in foreign)
        yield f"the threshold of {keys} was chosen for {foreign[0].threshold_model}, which is not the model in use"
