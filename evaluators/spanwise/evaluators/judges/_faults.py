"""What a client's errors mean for a judgement, in words that say what to do."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from spanwise.evaluators.judges._ask import Declined
from spanwise.evaluators.models._address import redirect_words
from spanwise.evaluators.protocol import Unjudged, headers_of, may_pass, status_of

if TYPE_CHECKING:
    from openai import APIError

LONGEST = 300  # characters of what a server said
_TOO_LONG = ("context_length", "context length", "context size", "exceed_context", "too long", "maximum context")
_FILTERED = ("content_filter", "content_policy", "responsibleai")
_NEVER = ("LocalProtocolError", "UnsupportedProtocol", "InvalidURL")  # httpx's, by name
_NO_CREDIT = "insufficient_quota"


class Asked(Protocol):
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


def final(error: APIError, asked: Asked) -> Unjudged | None:
    """An error that no other try can mend, as an outcome; None for one that may pass."""
    lasting = _lasting(error, asked) or redirect_words(asked.base_url, status_of(error), headers_of(error))
    if lasting:
        return Unjudged(lasting)
    if may_pass(error):
        return None
    codes = _codes(error)
    kind = Declined if any(word in codes for word in _FILTERED) else Unjudged
    return kind(_status_words(getattr(error, "status_code", None), _said(error, asked), codes, asked))


def not_a_completion(response: Any, content: bytes, body: Any, asked: Asked) -> Exception:
    """What is raised for an answer that is no chat completion; `body` is its content as JSON, None for what is none."""
    kind = str(response.headers.get("content-type") or "no content type").partition(";")[0]
    error = body.get("error") if isinstance(body, Mapping) else None
    if error:  # some gateways say it with status 200
        code = error.get("code") if isinstance(error, Mapping) else None
        told = f"{asked.base_url} answered {response.status_code} with an error: {_short(_message(error), asked)}"
        passing = isinstance(code, int) and (code == 429 or code >= 500)
        return ConnectionError(told) if passing else Unjudged(told)
    shown = _short(content[: 4 * LONGEST].decode(errors="replace"), asked)
    if body is None and "json" in kind:
        return ConnectionError(f"{asked.base_url} answered with broken JSON: {shown!r}")
    return Unjudged(
        f"{asked.base_url} answered with {kind}, which is no chat completion: {shown!r}; is its "
        "base_url right? most end with /v1"
    )


def _lasting(error: BaseException, asked: Asked) -> str | None:
    for cause in causes(error):
        if isinstance(cause, socket.gaierror) and cause.errno == socket.EAI_NONAME:
            return f"the host of {asked.base_url} has no address: is the judge's base_url right?"
        if isinstance(cause, ssl.SSLCertVerificationError):
            return f"the certificate of {asked.base_url} is not trusted: {cause.verify_message}"
        if type(cause).__name__ in _NEVER:
            return f"{asked.base_url} cannot be asked: {_short(f'{type(cause).__name__}: {cause}', asked)}"
    return None


def _status_words(status: int | None, said: str, codes: str, asked: Asked) -> str:
    where, told = asked.base_url, f" ({status}): {said}"
    if any(word in codes for word in _FILTERED):
        return f"the content filter of {where} refused the question{told}"
    if _NO_CREDIT in codes:
        return f"{where} says that there is no credit left{told}"
    if any(word in codes for word in _TOO_LONG):
        return f"the question is too long for {asked.model!r} at {where}{told}"
    words = {
        401: f"{where} refused the key{told}",
        403: f"{where} does not allow it with this key{told}",
        404: f"there is no model {asked.model!r} at {where}, or no chat completions{told}",
    }
    return words.get(status or 0, f"{where} refused the question{told}")


def causes(error: BaseException | None, most: int = 10) -> Iterator[BaseException]:
    """The error and what stands behind it, asked for or not."""
    for _ in range(most):
        if error is None:
            return
        yield error
        error = error.__cause__ or error.__context__


def _said(error: APIError, asked: Asked) -> str:
    return _short(_message(error.body) or error.message, asked)


def _message(body: Any) -> str:
    """The words of an error's body, in the several forms that servers give it."""
    if isinstance(body, Mapping):
        for name in ("message", "error", "detail", "msg"):
            if body.get(name):
                return _message(body[name])
    return body if isinstance(body, str) else str(body or "")


def _codes(error: APIError) -> str:
    return f"{error.code} {error.type} {error.message} {error.body}".lower()


def _short(said: str, asked: Asked) -> str:
    """On one line, bounded, without the key: some servers repeat it."""
    words = " ".join(said.replace(asked.api_key, "…").split() if asked.api_key else said.split())
    return words if len(words) <= LONGEST else words[:LONGEST] + "…"
