"""Classification of endpoint errors: transient or permanent, possibly billed, and their messages."""

from __future__ import annotations

import os
import socket
import ssl
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from spanwise.collector.formatting import first_line
from spanwise.evaluators.interface import Unjudged, get_http_status, get_response_headers, is_transient
from spanwise.evaluators.judges.llm_client.chat_completions import Declined, Unbilled
from spanwise.evaluators.models.model_resolution import redirect_error

if TYPE_CHECKING:
    from openai import APIError


_CONNECTION_ERRORS = ("ConnectError", "ConnectTimeout", "ConnectionRefusedError", "gaierror")


class ReplyTimeout(TimeoutError):
    """Error for an attempt that got no reply in time."""


def is_rate_limited(error: BaseException) -> bool:
    """Return whether the server reports overload: status 429, or a transient 503 or 529."""
    return get_http_status(error) in (429, 503, 529) and is_transient(error)


def is_possibly_billed(error: BaseException) -> bool:
    """Return whether the server may have processed and billed a failed call.

    A call without a connection was not billed, nor one that the server refused with an error status. Some servers bill
    a timeout (408), a question that their content filter stops, and one that is too long.
    """
    if isinstance(error, Unbilled) or is_connection_failure(error):
        return False
    return isinstance(error, Unjudged) or get_http_status(error) in (None, 408)


def is_connection_failure(error: BaseException) -> bool:
    """Return whether there was no connection, so that no server received the question."""
    return any(type(cause).__name__ in _CONNECTION_ERRORS for cause in iterate_causes(error, 5))


def describe_call_error(error: BaseException, key: str | None) -> str:
    """Return an error as one line: its status and the server's message, else its type and cause. The key is masked."""
    body = getattr(error, "body", None)
    message = body.get("message") if isinstance(body, dict) else None
    message = message if isinstance(message, str) and message else _describe_cause(error)
    status = get_http_status(error)
    message = message.replace(key, "…") if key and len(key) >= 4 else message
    return first_line(f"{status} {message}" if status is not None and str(status) not in message else message, 300)


def _describe_cause(error: BaseException) -> str:
    if isinstance(error, ReplyTimeout):
        return str(error)
    if is_connection_failure(error):
        for cause in iterate_causes(error):
            if isinstance(cause, OSError) and cause.errno is not None and cause.errno > 0:
                return os.strerror(cause.errno).lower()
    cause = error.__cause__ if str(error) in ("", "Connection error.") and error.__cause__ is not None else error
    message = str(cause)
    return f"{type(cause).__name__}: {message}" if message else type(cause).__name__


MAX_ERROR_LENGTH = 300  # maximum characters of a server's message
_CONTEXT_LENGTH_CODES = (
    "context_length",
    "context length",
    "context size",
    "exceed_context",
    "too long",
    "maximum context",
)
_CONTENT_FILTER_CODES = ("content_filter", "content_policy", "responsibleai")
_INVALID_REQUEST_CLASSES = ("LocalProtocolError", "UnsupportedProtocol", "InvalidURL")  # class names of httpx
_QUOTA_CODE = "insufficient_quota"


class EndpointInfo(Protocol):
    """Interface with the properties of an endpoint that error messages need."""

    @property
    def model(self) -> str:
        """Return the model's name."""

    @property
    def base_url(self) -> str:
        """Return the endpoint's address."""

    @property
    def api_key(self) -> str | None:
        """Return the key, which messages must mask."""


def classify_error(error: APIError, endpoint: EndpointInfo) -> Unjudged | None:
    """Return a permanent error as `Unjudged`, or None for a transient one."""
    lasting = _explain_connection_error(error, endpoint) or redirect_error(
        endpoint.base_url, get_http_status(error), get_response_headers(error)
    )
    if lasting:
        return Unbilled(lasting)
    if is_transient(error):
        return None
    codes = f"{error.code} {error.type} {error.message} {error.body}".lower()
    message = _shorten(_get_body_message(error.body) or error.message, endpoint)
    kind: type[Unjudged] = Unbilled
    if any(word in codes for word in _CONTENT_FILTER_CODES):
        kind = Declined
    elif any(word in codes for word in _CONTEXT_LENGTH_CODES):
        kind = Unjudged
    return kind(_explain_status(getattr(error, "status_code", None), message, codes, endpoint))


def make_invalid_response_error(response: Any, content: bytes, body: Any, endpoint: EndpointInfo) -> Exception:
    """Return the error for a response that is not a chat completion. `body` is its content as JSON, or None if it is not
    JSON.
    """
    kind = str(response.headers.get("content-type") or "no content type").partition(";")[0]
    error = body.get("error") if isinstance(body, Mapping) else None
    if error:  # some gateways send errors with status 200
        code = error.get("code") if isinstance(error, Mapping) else None
        message = f"{endpoint.base_url} answered {response.status_code} with an error: {_shorten(_get_body_message(error), endpoint)}"
        is_passing = isinstance(code, int) and (code == 429 or code >= 500)
        return ConnectionError(message) if is_passing else Unjudged(message)
    excerpt = _shorten(content[: 4 * MAX_ERROR_LENGTH].decode(errors="replace"), endpoint)
    if body is None and "json" in kind:
        return ConnectionError(f"{endpoint.base_url} answered with broken JSON: {excerpt!r}")
    return Unjudged(
        f"{endpoint.base_url} answered with {kind} instead of a chat completion: {excerpt!r}; check its "
        "base_url, most end with /v1"
    )


def _explain_connection_error(error: BaseException, endpoint: EndpointInfo) -> str | None:
    for cause in iterate_causes(error):
        if isinstance(cause, socket.gaierror) and cause.errno == socket.EAI_NONAME:
            return f"the host name of {endpoint.base_url} cannot be resolved; check the judge's base_url"
        if isinstance(cause, ssl.SSLCertVerificationError):
            return f"the certificate of {endpoint.base_url} is not trusted: {cause.verify_message}"
        if type(cause).__name__ in _INVALID_REQUEST_CLASSES:
            return f"{endpoint.base_url} cannot be called: {_shorten(f'{type(cause).__name__}: {cause}', endpoint)}"
    return None


def _explain_status(status: int | None, message: str, codes: str, endpoint: EndpointInfo) -> str:
    where, detail = endpoint.base_url, f" ({status}): {message}"
    if any(word in codes for word in _CONTENT_FILTER_CODES):
        return f"the content filter of {where} refused the question{detail}"
    if _QUOTA_CODE in codes:
        return f"{where} reports that no credit is left{detail}"
    if any(word in codes for word in _CONTEXT_LENGTH_CODES):
        return f"the question is too long for {endpoint.model!r} at {where}{detail}"
    explanation = {
        401: f"{where} refused the key{detail}",
        403: f"{where} denied access with this key{detail}",
        404: f"{where} has no model {endpoint.model!r}, or no chat completions endpoint{detail}",
    }
    return explanation.get(status or 0, f"{where} refused the question{detail}")


def iterate_causes(error: BaseException | None, most: int = 10) -> Iterator[BaseException]:
    """Yield the error and its chain of explicit or implicit causes."""
    for _ in range(most):
        if error is None:
            return
        yield error
        error = error.__cause__ or error.__context__


def _get_body_message(body: Any) -> str:
    """Return the message in an error's body, in any of the forms that servers use."""
    if isinstance(body, Mapping):
        for name in ("message", "error", "detail", "msg"):
            if body.get(name):
                return _get_body_message(body[name])
    return body if isinstance(body, str) else str(body or "")


def _shorten(text: str, endpoint: EndpointInfo) -> str:
    """Return the text on one line, truncated. The key is masked, because some servers repeat it in their messages."""
    shortened = " ".join(text.replace(endpoint.api_key, "…").split() if endpoint.api_key else text.split())
    return shortened if len(shortened) <= MAX_ERROR_LENGTH else shortened[:MAX_ERROR_LENGTH] + "…"
