"""Which failures may pass when the same is tried again, and how long to wait before that.

A rate limit, a server in trouble, a network that is away: the next attempt may succeed. A `TypeError` never passes, a
wrong key (401) neither: trying again would only cost time and money. Libraries are known by the names of their classes
and by the attributes that they agree on, so none of them is imported here.
"""

from __future__ import annotations

import errno
import random
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeAlias

from spanwise.tracer.backoff import pause, seconds_until

RetryOn: TypeAlias = type[BaseException] | tuple[type[BaseException], ...] | Callable[[BaseException], bool]

LONGEST = 60.0  # seconds between two attempts, whatever a server asks for
_STATUSES = frozenset({408, 409, 425, 429})  # and all from 500 on
_REFUSALS = frozenset({401, 402, 403, 407})  # of a key, not of what was sent
_NETWORK = frozenset(
    getattr(errno, name)
    for name in ("EAGAIN", "ENETDOWN", "ENETUNREACH", "ENETRESET", "EHOSTDOWN", "EHOSTUNREACH", "ENOBUFS", "ETIMEDOUT")
    if hasattr(errno, name)
)
_PASSING = frozenset(  # classes of clients that are no OSError, by their own name or a base's
    {
        "TransportError",  # httpx: connections, time-outs, broken protocol
        "APIConnectionError",  # openai, anthropic, litellm
        "ClientConnectionError",  # aiohttp
        "ConnectionError",  # requests, botocore, redis
        "Timeout",  # requests, litellm
        "HTTPClientError",  # botocore
        "gaierror",  # a name that could not be looked up
        "IncompleteRead",  # http.client, urllib3
        "RateLimitError",
        "ServiceUnavailable",  # google
        "ResourceExhausted",
        "DeadlineExceeded",
    }
)
_LASTING = frozenset(  # though a base of theirs is among those
    {"UnsupportedProtocol", "LocalProtocolError", "SSLCertVerificationError", "InvalidURL", "MissingSchema"}
)
_GRPC = frozenset({"UNAVAILABLE", "RESOURCE_EXHAUSTED", "DEADLINE_EXCEEDED", "ABORTED"})
_OUT_OF_CREDIT = "insufficient_quota"  # OpenAI's code for a 429 that only money ends
_MISTAKES = (TypeError, ValueError, LookupError, AttributeError, NameError, AssertionError, ArithmeticError)
_CAUSES = 5  # as many exceptions behind one another are looked at
_random = random.Random()  # our own: an application that seeds `random` gets its sequence


def may_pass(error: BaseException) -> bool:
    """Whether what failed like this may succeed when it is tried again: the network, a time-out, a busy server.

    That is so for `ConnectionError`, `TimeoutError` and the network's other `OSError`; for what httpx, requests,
    aiohttp, openai and the like raise of connections; for anything with an HTTP status 408, 409, 425, 429 or 5xx (in
    `status_code`, `status`, `code`, or of its `response`), and for anything that says `retry_after` or `Retry-After`.
    An exception raised `from` such a one counts as it does, unless it is a programmer's mistake like `TypeError`.
    """
    return isinstance(error, Exception) and any(map(_passes, _behind(error)))


def is_outside(error: BaseException) -> bool:
    """Whether an error says nothing of what was sent: it may pass, or the server refused the key."""
    return may_pass(error) or any(_status(cause) in _REFUSALS for cause in _behind(error))


def retries_on(given: RetryOn | None) -> Callable[[BaseException], bool]:
    """What an option `retry_on=` says, as a function of the error: a kind of exception, several, or one's own function.

    None is `may_pass`. What is no `Exception` (Ctrl-C, `SystemExit`) is never tried again. Raises `ValueError`.
    """
    if given is None:
        return may_pass
    if _is_kind(given):
        return lambda error: isinstance(error, Exception) and isinstance(error, given)  # type: ignore[arg-type]
    if isinstance(given, type | tuple) or not callable(given):
        raise ValueError(f"retry_on is an exception type, a tuple of these, or a function of the error, not {given!r}")
    return lambda error: isinstance(error, Exception) and bool(given(error))


def wait_before(attempt: int, error: BaseException) -> float:
    """Seconds to wait after a failed attempt, counted from 0: what the server asked for, else twice as long each time.

    Never more than `LONGEST`. Up to half is left to chance, so that many that failed together do not come back
    together; of what a server asked for nothing is taken off, but up to a quarter is added.
    """
    asked = retry_after(error)
    if asked is not None:
        return min(asked * (1 + _random.random() / 4), LONGEST)
    return pause(attempt, longest=LONGEST) * (0.5 + _random.random() / 2)


def retry_after(error: BaseException) -> float | None:
    """Seconds that a server asked to wait, from `retry_after` or the header `Retry-After`; None where it did not."""
    for cause in _behind(error):
        given = _attribute(cause, "retry_after")
        seconds = _seconds(_header(cause) if given is None else given)
        if seconds is not None:
            return seconds
    return None


def status_of(error: BaseException) -> int | None:
    """The HTTP status that an error, or what it was raised from, speaks of."""
    return next((status for cause in _behind(error) if (status := _status(cause)) is not None), None)


def headers_of(error: BaseException) -> Mapping[str, str]:
    """The headers of the reply that an error, or what it was raised from, bears; their names in lower case."""
    for cause in _behind(error):
        for holder in (_attribute(cause, "response"), cause):
            headers = _attribute(holder, "headers")
            if headers is not None:
                return _plain_headers(headers)
    return {}


def _plain_headers(headers: Any) -> dict[str, str]:
    try:
        return {str(name).lower(): str(value) for name, value in headers.items()}
    except Exception:  # somebody else's attribute of that name
        return {}


def _is_kind(given: object) -> bool:
    kinds = given if isinstance(given, tuple) else (given,)
    return bool(kinds) and all(isinstance(kind, type) and issubclass(kind, BaseException) for kind in kinds)


def _behind(error: BaseException) -> Iterator[BaseException]:
    """The error and what it was raised from, as far as that speaks for it."""
    cause: BaseException | None = error
    for _ in range(_CAUSES):
        if cause is None:
            return
        yield cause
        reason = _attribute(cause, "reason")  # urllib's URLError
        behind = reason if isinstance(reason, BaseException) else cause.__cause__
        cause = None if isinstance(cause, _MISTAKES) or _status(cause) is not None else behind


def _passes(error: BaseException) -> bool:
    if _attribute(error, "code") == _OUT_OF_CREDIT:
        return False
    status = _status(error)
    if status is not None and status >= 400:
        return status in _STATUSES or status >= 500
    if retry_after(error) is not None or _grpc(error) in _GRPC:
        return True
    names = {kind.__name__ for kind in type(error).__mro__}
    if names & _LASTING:
        return False
    by_kind = isinstance(error, ConnectionError | TimeoutError) or getattr(error, "errno", None) in _NETWORK
    return by_kind or bool(names & _PASSING)


def _status(error: BaseException) -> int | None:
    """The HTTP status that an error speaks of."""
    response = _attribute(error, "response")
    candidates = (
        *(_attribute(error, name) for name in ("status_code", "status", "code", "http_status")),
        *(_attribute(response, name) for name in ("status_code", "status")),
        _of_botocore(response),
    )
    return next((int(value) for value in candidates if _is_status(value)), None)


def _is_status(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 100 <= value < 600


def _of_botocore(response: object) -> object:
    metadata = response.get("ResponseMetadata") if isinstance(response, Mapping) else None
    return metadata.get("HTTPStatusCode") if isinstance(metadata, Mapping) else None


def _grpc(error: BaseException) -> str | None:
    """The name of a gRPC status, which `code()` gives."""
    code = _attribute(error, "code")
    try:
        return str(getattr(code(), "name", None)) if callable(code) else None
    except Exception:  # somebody else's method of that name
        return None


def _header(error: BaseException) -> object:
    for holder in (_attribute(error, "response"), error):
        headers = _attribute(holder, "headers")
        get = _attribute(headers, "get")
        if callable(get):
            given = get("retry-after") or get("Retry-After")
            if given is not None:
                return given
    return None


def _seconds(given: Any) -> float | None:
    """Seconds from a number or its text, or from an HTTP date."""
    if isinstance(given, bool) or not isinstance(given, int | float | str):
        return None
    return seconds_until(str(given))


def _attribute(holder: object, name: str) -> Any:
    """An attribute, or None: an exception of somebody else's may raise while it is looked at."""
    try:
        return getattr(holder, name, None)
    except Exception:
        return None
