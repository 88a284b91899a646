"""Retries of a question under one deadline, and classification of endpoint errors."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
from collections.abc import Callable, Coroutine, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from spanwise.collector.errors import SpanwiseError
from spanwise.collector.formatting import first_line
from spanwise.evaluators.interface import (
    Unjudged,
    compute_retry_delay,
    get_http_status,
    get_response_headers,
    is_transient,
)
from spanwise.evaluators.judges.llm_client.chat_completions import Declined
from spanwise.evaluators.models.model_resolution import redirect_error

if TYPE_CHECKING:
    from openai import APIError
    from tenacity import RetryCallState


T = TypeVar("T")

_CONNECTION_ERRORS = ("ConnectError", "ConnectTimeout", "ConnectionRefusedError", "gaierror")
ATTEMPT_SHARE = 0.5  # of the deadline that one attempt may take, so that a hang leaves room for another


class Deadline:
    """Seconds for one question with all its attempts, from when its first call starts: waiting in line is none."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._until: float | None = None

    def start(self) -> None:
        """The first call starts; later ones change nothing."""
        if self._until is None:
            self._until = asyncio.get_running_loop().time() + self.seconds

    @property
    def left(self) -> float | None:
        """Seconds, 0 at least; None before the start."""
        return None if self._until is None else max(0.0, self._until - asyncio.get_running_loop().time())

    @property
    def of_attempt(self) -> float:
        """Seconds that the next attempt may take."""
        whole = self.seconds * ATTEMPT_SHARE
        return whole if self.left is None else min(whole, self.left)


class ReplyTimeout(TimeoutError):
    """An attempt has taken as long as it may."""


async def call_with_retries(
    call: Callable[[], Coroutine[Any, Any, T]],
    deadline: Deadline,
    gives_up: Callable[[BaseException, float], bool] = lambda error, pause: False,
) -> T:
    """What `call` gives in the end. Raises its last error, when that cannot pass, the deadline leaves no room, or
    `gives_up`, given the error and the seconds until the next try, says so.
    """
    from tenacity import AsyncRetrying, retry_if_exception

    def has_no_room(state: RetryCallState) -> bool:
        if deadline.left is None or state.upcoming_sleep >= deadline.left:  # None: it got no turn in all that time
            return True
        error = state.outcome.exception() if state.outcome is not None else None
        return error is not None and gives_up(error, state.upcoming_sleep)

    trying = AsyncRetrying(
        retry=retry_if_exception(is_transient),
        wait=_compute_retry_pause,
        stop=has_no_room,
        sleep=asyncio.sleep,
        reraise=True,
    )

    async def attempt() -> T:  # tenacity awaits what it knows for a coroutine function
        return await call()

    return await trying(attempt)


def _compute_retry_pause(state: RetryCallState) -> float:
    error = state.outcome.exception() if state.outcome is not None else None
    if error is None or is_rate_limited(error):  # the limiter holds everybody back, as long as the server asks for
        return 0.0
    return compute_retry_delay(state.attempt_number - 1, error)


def is_rate_limited(error: BaseException) -> bool:
    """Whether a server says that it gets too much: 429, or 503 and 529 that may pass."""
    return get_http_status(error) in (429, 503, 529) and is_transient(error)


def is_possibly_billed(error: BaseException) -> bool:
    """Whether a call that failed like this may have been answered, and billed: not one that the server refused."""
    return not (isinstance(error, Unjudged) or get_http_status(error) is not None or is_connection_failure(error))


def is_connection_failure(error: BaseException) -> bool:
    """Return whether there was no connection, so that no server has seen the question."""
    return any(type(cause).__name__ in _CONNECTION_ERRORS for cause in iterate_causes(error, 5))


def to_judgement_error(error: Exception, where: str, tries: int, deadline: Deadline, key: str | None) -> Exception:
    """What is said of a question without an answer: of a network or a server in trouble; any other error as it is."""
    if isinstance(error, SpanwiseError) or not is_transient(error):
        return error
    attempts = f"{tries} attempt{'s' if tries != 1 else ''}"
    if is_connection_failure(error):
        return Unjudged(f"{where} cannot be reached, after {attempts}: {describe_call_error(error, key)}")
    return Unjudged(
        f"{where} gave no answer within {deadline.seconds:g} s after {attempts}: {describe_call_error(error, key)}"
    )


def describe_call_error(error: BaseException, key: str | None) -> str:
    """An error in one line: its status and what the server said, else its kind and its cause; never the key."""
    body = getattr(error, "body", None)
    words = body.get("message") if isinstance(body, dict) else None
    words = words if isinstance(words, str) and words else _describe_cause(error)
    status = get_http_status(error)
    words = words.replace(key, "…") if key and len(key) >= 4 else words
    return first_line(f"{status} {words}" if status is not None and str(status) not in words else words, 300)


def _describe_cause(error: BaseException) -> str:
    if isinstance(error, ReplyTimeout):
        return str(error)
    if is_connection_failure(error):
        for cause in iterate_causes(error):
            if isinstance(cause, OSError) and cause.errno is not None and cause.errno > 0:
                return os.strerror(cause.errno).lower()
    cause = error.__cause__ if str(error) in ("", "Connection error.") and error.__cause__ is not None else error
    words = str(cause)
    return f"{type(cause).__name__}: {words}" if words else type(cause).__name__


MAX_ERROR_LENGTH = 300  # characters of what a server said
_CONTEXT_LENGTH_CODES = (
    "context_length",
    "context length",
    "context size",
    "exceed_context",
    "too long",
    "maximum context",
)
_CONTENT_FILTER_CODES = ("content_filter", "content_policy", "responsibleai")
_INVALID_REQUEST_CLASSES = ("LocalProtocolError", "UnsupportedProtocol", "InvalidURL")  # httpx's, by name
_QUOTA_CODE = "insufficient_quota"


class EndpointInfo(Protocol):
    """Who was asked."""

    @property
    def model(self) -> str:
        """The model's name."""

    @property
    def base_url(self) -> str:
        """The endpoint."""

    @property
    def api_key(self) -> str | None:
        """The key, which no message shows."""


def classify_error(error: APIError, asked: EndpointInfo) -> Unjudged | None:
    """An error that no other try can mend, as an outcome; None for one that may pass."""
    lasting = _explain_connection_error(error, asked) or redirect_error(
        asked.base_url, get_http_status(error), get_response_headers(error)
    )
    if lasting:
        return Unjudged(lasting)
    if is_transient(error):
        return None
    codes = _get_error_codes(error)
    kind = Declined if any(word in codes for word in _CONTENT_FILTER_CODES) else Unjudged
    return kind(_explain_status(getattr(error, "status_code", None), _get_error_text(error, asked), codes, asked))


def make_invalid_response_error(response: Any, content: bytes, body: Any, asked: EndpointInfo) -> Exception:
    """What is raised for an answer that is no chat completion; `body` is its content as JSON, None for what is none."""
    kind = str(response.headers.get("content-type") or "no content type").partition(";")[0]
    error = body.get("error") if isinstance(body, Mapping) else None
    if error:  # some gateways say it with status 200
        code = error.get("code") if isinstance(error, Mapping) else None
        told = f"{asked.base_url} answered {response.status_code} with an error: {_shorten(_get_body_message(error), asked)}"
        passing = isinstance(code, int) and (code == 429 or code >= 500)
        return ConnectionError(told) if passing else Unjudged(told)
    shown = _shorten(content[: 4 * MAX_ERROR_LENGTH].decode(errors="replace"), asked)
    if body is None and "json" in kind:
        return ConnectionError(f"{asked.base_url} answered with broken JSON: {shown!r}")
    return Unjudged(
        f"{asked.base_url} answered with {kind}, which is no chat completion: {shown!r}; is its "
        "base_url right? most end with /v1"
    )


def _explain_connection_error(error: BaseException, asked: EndpointInfo) -> str | None:
    for cause in iterate_causes(error):
        if isinstance(cause, socket.gaierror) and cause.errno == socket.EAI_NONAME:
            return f"the host of {asked.base_url} has no address: is the judge's base_url right?"
        if isinstance(cause, ssl.SSLCertVerificationError):
            return f"the certificate of {asked.base_url} is not trusted: {cause.verify_message}"
        if type(cause).__name__ in _INVALID_REQUEST_CLASSES:
            return f"{asked.base_url} cannot be asked: {_shorten(f'{type(cause).__name__}: {cause}', asked)}"
    return None


def _explain_status(status: int | None, said: str, codes: str, asked: EndpointInfo) -> str:
    where, told = asked.base_url, f" ({status}): {said}"
    if any(word in codes for word in _CONTENT_FILTER_CODES):
        return f"the content filter of {where} refused the question{told}"
    if _QUOTA_CODE in codes:
        return f"{where} says that there is no credit left{told}"
    if any(word in codes for word in _CONTEXT_LENGTH_CODES):
        return f"the question is too long for {asked.model!r} at {where}{told}"
    words = {
        401: f"{where} refused the key{told}",
        403: f"{where} does not allow it with this key{told}",
        404: f"there is no model {asked.model!r} at {where}, or no chat completions{told}",
    }
    return words.get(status or 0, f"{where} refused the question{told}")


def iterate_causes(error: BaseException | None, most: int = 10) -> Iterator[BaseException]:
    """The error and what stands behind it, asked for or not."""
    for _ in range(most):
        if error is None:
            return
        yield error
        error = error.__cause__ or error.__context__


def _get_error_text(error: APIError, asked: EndpointInfo) -> str:
    return _shorten(_get_body_message(error.body) or error.message, asked)


def _get_body_message(body: Any) -> str:
    """The words of an error's body, in the several forms that servers give it."""
    if isinstance(body, Mapping):
        for name in ("message", "error", "detail", "msg"):
            if body.get(name):
                return _get_body_message(body[name])
    return body if isinstance(body, str) else str(body or "")


def _get_error_codes(error: APIError) -> str:
    return f"{error.code} {error.type} {error.message} {error.body}".lower()


def _shorten(said: str, asked: EndpointInfo) -> str:
    """On one line, bounded, without the key: some servers repeat it."""
    words = " ".join(said.replace(asked.api_key, "…").split() if asked.api_key else said.split())
    return words if len(words) <= MAX_ERROR_LENGTH else words[:MAX_ERROR_LENGTH] + "…"
