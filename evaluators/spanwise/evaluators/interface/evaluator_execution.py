"""Evaluator: execution on a case, a batch or a set, with timeout, retries, context of judgements."""

from __future__ import annotations

import asyncio
import errno
import inspect
import random
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any, Protocol, TypeAlias, runtime_checkable

from spanwise.collector.records import Case, Feedback, Run, Target
from spanwise.evaluators.interface.argument_binding import Binding
from spanwise.evaluators.interface.evaluator_spec import EvaluatorSpec, Metric
from spanwise.evaluators.interface.outcomes import (
    SCALAR_TYPES,
    FeedbackFactory,
    InvalidResult,
    Skip,
    encode_infinities,
    explain_missing_fields,
)
from spanwise.evaluators.interface.sync_bridge import AwaitFunction, is_interruption, run_in_thread
from spanwise.tracer.http_connections import compute_backoff, parse_retry_after

# Retry policy: which errors are transient, and how long to wait before the next attempt.
#
# Rate limits, server errors and network failures are transient: the next attempt may succeed. A `TypeError` or a
# wrong API key (401) is not: retries would only cost time and money. Errors of libraries are recognised by class
# names and common attributes, so that no library is imported here.

RetryOn: TypeAlias = type[BaseException] | tuple[type[BaseException], ...] | Callable[[BaseException], bool]

MAX_RETRY_DELAY = 60.0  # maximum seconds between two attempts, also if a server asks for more
# transient client errors; every status from 500 on is transient, too
_TRANSIENT_STATUSES = frozenset({408, 409, 425, 429})
_AUTHENTICATION_STATUSES = frozenset({401, 402, 403, 407})  # HTTP statuses that the API key causes, not the input
_NETWORK_ERRNOS = frozenset(
    getattr(errno, name)
    for name in ("EAGAIN", "ENETDOWN", "ENETUNREACH", "ENETRESET", "EHOSTDOWN", "EHOSTUNREACH", "ENOBUFS", "ETIMEDOUT")
    if hasattr(errno, name)
)
# names of transient exception classes of clients (or of their base classes) that do not derive from OSError
_TRANSIENT_CLASSES = frozenset(
    {
        "TransportError",  # httpx: connections, time-outs, broken protocol
        "APIConnectionError",  # openai, anthropic, litellm
        "ClientConnectionError",  # aiohttp
        "ConnectionError",  # requests, botocore, redis
        "Timeout",  # requests, litellm
        "HTTPClientError",  # botocore
        "gaierror",  # name resolution failed
        "IncompleteRead",  # http.client, urllib3
        "RateLimitError",
        "ServiceUnavailable",  # google
        "ResourceExhausted",
        "DeadlineExceeded",
    }
)
_PERMANENT_CLASSES = frozenset(  # exceptions that are not transient, although a base class is in `_TRANSIENT_CLASSES`
    {"UnsupportedProtocol", "LocalProtocolError", "SSLCertVerificationError", "InvalidURL", "MissingSchema"}
)
_TRANSIENT_GRPC_CODES = frozenset({"UNAVAILABLE", "RESOURCE_EXHAUSTED", "DEADLINE_EXCEEDED", "ABORTED"})
_QUOTA_CODE = "insufficient_quota"  # error code of OpenAI for a 429 that means exhausted credit, not a rate limit
_PROGRAMMING_ERRORS = (TypeError, ValueError, LookupError, AttributeError, NameError, AssertionError, ArithmeticError)
_MAX_CAUSES = 5  # maximum length of the chain of causes
_random = random.Random()  # separate generator, so that an application that seeds `random` keeps its sequence


def is_transient(error: BaseException) -> bool:
    """Return whether a retry may succeed after this error: network failures, timeouts, busy servers.

    - `ConnectionError`, `TimeoutError` and other `OSError` of the network
    - connection errors of httpx, requests, aiohttp, openai and similar libraries
    - errors with an HTTP status 408, 409, 425, 429 or 5xx (in `status_code`, `status`, `code`, or in the same
      attributes of `response`)
    - errors with `retry_after` or a `Retry-After` header

    An exception raised `from` a transient one is transient too, unless it is a programming error such as `TypeError`.
    """
    return isinstance(error, Exception) and any(map(_is_transient_error, _iterate_causes(error)))


def is_independent_of_input(error: BaseException) -> bool:
    """Return whether an error does not depend on the input: it is transient, or the server rejected the API key."""
    return is_transient(error) or any(
        _read_http_status(cause) in _AUTHENTICATION_STATUSES for cause in _iterate_causes(error)
    )


def compile_retry_on(given: RetryOn | None) -> Callable[[BaseException], bool]:
    """Return a function of the error for the option `retry_on=`: an exception type, a tuple of types, or a function.

    None means `is_transient`. Exceptions that are not an `Exception` (Ctrl-C, `SystemExit`) are never retried. Raises
    `ValueError`.
    """
    if given is None:
        return is_transient
    kinds = given if isinstance(given, tuple) else (given,)
    if kinds and all(isinstance(kind, type) and issubclass(kind, BaseException) for kind in kinds):
        return lambda error: isinstance(error, Exception) and isinstance(error, given)  # type: ignore[arg-type]
    if isinstance(given, type | tuple) or not callable(given):
        raise ValueError(
            f"retry_on must be an exception type, a tuple of these, or a function of the error, got {given!r}"
        )
    return lambda error: isinstance(error, Exception) and bool(given(error))


def compute_retry_delay(attempt: int, error: BaseException) -> float:
    """Return the seconds to wait after failed attempt number `attempt`, counted from 0.

    The delay is the one that the server requested, or else exponential backoff; it is at most `MAX_RETRY_DELAY`. A
    random part keeps clients that failed together from retrying together. Up to half of the backoff is random. A
    delay that the server requested is never shortened, but extended by up to a quarter.
    """
    requested = get_retry_after(error)
    if requested is not None:
        return min(requested * (1 + _random.random() / 4), MAX_RETRY_DELAY)
    return compute_backoff(attempt, longest=MAX_RETRY_DELAY) * (0.5 + _random.random() / 2)


def get_retry_after(error: BaseException) -> float | None:
    """Return the seconds that a server asked to wait, from `retry_after` or `Retry-After`; None if the error has
    neither.
    """
    for cause in _iterate_causes(error):
        requested = _read_attribute(cause, "retry_after")
        if requested is None:
            requested = _read_retry_after_header(cause)
        # a number of seconds, the same as text, or an HTTP date
        if isinstance(requested, int | float | str) and not isinstance(requested, bool):
            seconds = parse_retry_after(str(requested))
            if seconds is not None:
                return seconds
    return None


def get_http_status(error: BaseException) -> int | None:
    """Return the HTTP status of an error or of its causes, or None."""
    return next((status for cause in _iterate_causes(error) if (status := _read_http_status(cause)) is not None), None)


def get_response_headers(error: BaseException) -> Mapping[str, str]:
    """Return the response headers of an error or of its causes, with names in lower case; {} without them."""
    for cause in _iterate_causes(error):
        for holder in (_read_attribute(cause, "response"), cause):
            headers = _read_attribute(holder, "headers")
            if headers is None:
                continue
            try:
                return {str(name).lower(): str(value) for name, value in headers.items()}
            except Exception:  # an unrelated attribute has this name
                return {}
    return {}


def _iterate_causes(error: BaseException) -> Iterator[BaseException]:
    """Yield the error and its causes, up to the first programming error or error with an HTTP status."""
    cause: BaseException | None = error
    for _ in range(_MAX_CAUSES):
        if cause is None:
            return
        yield cause
        reason = _read_attribute(cause, "reason")  # `URLError` of urllib keeps its cause in `reason`
        is_last = isinstance(cause, _PROGRAMMING_ERRORS) or _read_http_status(cause) is not None
        cause = None if is_last else reason if isinstance(reason, BaseException) else cause.__cause__


def _is_transient_error(error: BaseException) -> bool:
    if _read_attribute(error, "code") == _QUOTA_CODE:
        return False
    status = _read_http_status(error)
    if status is not None and status >= 400:
        return status in _TRANSIENT_STATUSES or status >= 500
    if get_retry_after(error) is not None or _read_grpc_code(error) in _TRANSIENT_GRPC_CODES:
        return True
    names = {kind.__name__ for kind in type(error).__mro__}
    if names & _PERMANENT_CLASSES:
        return False
    by_kind = isinstance(error, ConnectionError | TimeoutError) or getattr(error, "errno", None) in _NETWORK_ERRNOS
    return by_kind or bool(names & _TRANSIENT_CLASSES)


def _read_http_status(error: BaseException) -> int | None:
    """Return the HTTP status of an error, or None."""
    response = _read_attribute(error, "response")
    botocore = response.get("ResponseMetadata") if isinstance(response, Mapping) else None
    candidates = (
        *(_read_attribute(error, name) for name in ("status_code", "status", "code", "http_status")),
        *(_read_attribute(response, name) for name in ("status_code", "status")),
        botocore.get("HTTPStatusCode") if isinstance(botocore, Mapping) else None,
    )
    for value in candidates:
        if isinstance(value, int) and not isinstance(value, bool) and 100 <= value < 600:
            return int(value)
    return None


def _read_grpc_code(error: BaseException) -> str | None:
    """Return the name of the gRPC status that the method `code()` of an error returns, or None."""
    code = _read_attribute(error, "code")
    try:
        return str(getattr(code(), "name", None)) if callable(code) else None
    except Exception:  # an unrelated method has this name
        return None


def _read_retry_after_header(error: BaseException) -> object:
    for holder in (_read_attribute(error, "response"), error):
        headers = _read_attribute(holder, "headers")
        get = _read_attribute(headers, "get")
        if callable(get):
            header = get("retry-after") or get("Retry-After")
            if header is not None:
                return header
    return None


def _read_attribute(holder: object, name: str) -> Any:
    """Return an attribute, or None. Attributes of foreign exceptions may raise when they are read."""
    try:
        return getattr(holder, name, None)
    except Exception:
        return None


# Context of a judgement: target, evaluator, repetition, and the buffer for the judge's traces.

_INVALID_TRACE_ID = "0" * 32  # OpenTelemetry's invalid trace id


class JudgementBuffer:
    """Buffer of the runs of finished judgements until they are stored with the feedback that refers to them.

    An evaluator returns only after its judgement has ended. The buffer therefore contains every judgement that an
    evaluator's feedback refers to when that feedback is stored. Any thread may add and take.
    """

    def __init__(self) -> None:
        self._finished: deque[Sequence[Run]] = deque()

    def add(self, runs: Sequence[Run]) -> None:
        """Add the runs of one judgement."""
        self._finished.append(runs)

    def take(self) -> list[Run]:
        """Remove and return all runs."""
        runs: list[Run] = []
        while self._finished:
            try:
                runs += self._finished.popleft()
            except IndexError:  # another thread has taken the last runs
                break
        return runs


class DiscardedJudgements(JudgementBuffer):
    """Buffer for judgements whose traces are not stored, for example if no feedback is stored either."""


def make_untraced_target() -> Target:
    """Return the target for feedback on values that belong to no trace."""
    return Target(trace_id=_INVALID_TRACE_ID)


@dataclass(frozen=True, slots=True)
class JudgeContext:
    """Context of a judge call.

    `evaluator` and `version` are those of the feedback, and `target` is its target. `repetition` is the repetition of
    an experiment's run; None if the case provides it. `inside` is the trace of the enclosing judgement. Judge traces
    are added to `judgements`; if it is None, judge spans are sent to the collector like all spans of this process.
    """

    judgements: JudgementBuffer | None = None
    evaluator: str | None = None
    version: str | None = None
    target: Target | None = None
    repetition: int | None = None
    inside: Any = None


_context_variable: ContextVar[JudgeContext] = ContextVar("spanwise-judging", default=JudgeContext())  # noqa: B039  # frozen
get_judge_context = _context_variable.get


@contextmanager
def use_judge_context(**fields: Any) -> Iterator[None]:
    """Set fields of the `JudgeContext` by name for the block.

    A target without a trace is ignored, so that it does not replace the target of an enclosing context.
    """
    target = fields.get("target")
    if target is not None and target.trace_id == _INVALID_TRACE_ID:
        del fields["target"]
    token = _context_variable.set(replace(_context_variable.get(), **fields))
    try:
        yield
    finally:
        with suppress(ValueError):  # the block may end in another context, if Python closes a discarded coroutine
            _context_variable.reset(token)


# Evaluator: execution on a case, a batch or a set, with timeout, retries and bisection of failed batches.

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
