"""Retry policy: which errors are transient, and how long to wait before the next attempt.

Rate limits, server errors and network failures are transient: the next attempt may succeed. A `TypeError` or a wrong
API key (401) is not: retries would only cost time and money. Errors of libraries are recognised by class names and
common attributes, so that no library is imported here.
"""

from __future__ import annotations

import errno
import random
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeAlias

from spanwise.tracer.backoff import compute_backoff, parse_retry_after

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
