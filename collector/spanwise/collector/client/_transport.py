"""One HTTP exchange: records out, records in, the server's errors as the store's."""

from __future__ import annotations

import os
import ssl
import weakref
from collections.abc import Sequence
from typing import Any, TypeVar, overload
from urllib.parse import quote

import httpx

from spanwise.collector import _wire
from spanwise.collector.errors import Closed, Forbidden, NotFound, Refused, StoreError, TooLarge, TooSlow, Unavailable
from spanwise.tracer.addresses import url_problem
from spanwise.tracer.certificates import VARIABLES, trusted_authorities
from spanwise.tracer.suppression import suppress_instrumentation

T = TypeVar("T")
Params = Sequence[tuple[str, Any]]
KINDS = {403: Forbidden, 404: NotFound, 413: TooLarge, 422: TooSlow}  # other statuses below 500 are `Refused`
_CERTIFICATES = f"correct or unset the variable that names them ({', '.join(VARIABLES)})"
LARGEST = 32 * 1024 * 1024  # bytes of a body, as servers take them
TIMEOUT, PATIENCE = httpx.Timeout(60.0, connect=5.0), httpx.Timeout(None, connect=5.0)


class Transport:
    """Connections to one server, kept open. Safe to use from several threads.

    Trusts the certificate authorities that `spanwise.tracer.certificates` finds. Raises `Refused` for a malformed
    address or an unusable file of authorities.
    """

    def __init__(self, url: str, api_key: str | None) -> None:
        if problem := url_problem(url):
            raise Refused(f"the store's address {url!r} is malformed: {problem}; use one such as http://127.0.0.1:4318")
        headers = {"content-type": "application/json"} | ({"authorization": f"Bearer {api_key}"} if api_key else {})
        self.url = url.rstrip("/")
        self._client = httpx.Client(base_url=self.url, headers=headers, trust_env=False, verify=_verification(self.url))
        weakref.finalize(self, self._client.close)  # a client that nobody closed leaves no socket behind

    @overload
    def ask(
        self, kind: type[T], method: str, path: str, params: Params = (), body: Any = None, *, patient: bool = False
    ) -> T: ...
    @overload
    def ask(
        self, kind: Any, method: str, path: str, params: Params = (), body: Any = None, *, patient: bool = False
    ) -> Any: ...
    def ask(
        self, kind: Any, method: str, path: str, params: Params = (), body: Any = None, *, patient: bool = False
    ) -> Any:
        """Send a request; the record in its answer. Parameters that are None are left out. Raises `StoreError`.

        `patient`: what is asked may take as long as it takes.
        """
        return _wire.decode(kind, self._answer(method, path, params, body, patient=patient).content)

    def text(self, path: str) -> str:
        """What is told in plain text. Raises `StoreError`."""
        return self._answer("GET", path).text

    def _answer(
        self, method: str, path: str, params: Params = (), body: Any = None, *, patient: bool = False
    ) -> httpx.Response:
        content = None if body is None else _wire.encode(body)
        if content is not None and len(content) > LARGEST:
            raise TooLarge(f"the body is larger than {LARGEST:,} bytes: send less at once")
        given = [(name, _text(value)) for name, value in params if value is not None]
        try:
            with suppress_instrumentation():
                response = self._client.request(
                    method,
                    path,
                    params=given,
                    content=content,
                    timeout=PATIENCE if patient else TIMEOUT,
                )
        except httpx.TransportError as error:
            raise Unavailable(f"{self.url} does not answer: {error or type(error).__name__}") from error
        except RuntimeError as error:  # httpx's word for a client that was closed
            raise Closed(f"the client of {self.url} is closed") from error
        if not response.is_success:
            raise _error(self.url, response)
        return response

    def close(self) -> None:
        """Let go of the connections."""
        self._client.close()


def _verification(url: str) -> ssl.SSLContext | bool:
    authorities = trusted_authorities()
    if authorities is None or not url.startswith("https://"):
        return True
    folder = os.path.isdir(authorities)
    try:
        return ssl.create_default_context(
            cafile=None if folder else authorities, capath=authorities if folder else None
        )
    except OSError as error:
        raise Refused(
            f"the certificate authorities in {authorities!r} cannot be read: {error}; {_CERTIFICATES}"
        ) from error


def segment(name: str) -> str:
    """A name as one part of a path."""
    return quote(name, safe="")


def _text(value: Any) -> Any:
    return str(value).lower() if isinstance(value, bool) else value


def _error(url: str, response: httpx.Response) -> StoreError:
    message = _message(response) or f"{url} answered {response.status_code}: {response.text[:200]!r}"
    if response.status_code in (429, 502, 503, 504):
        return Unavailable(message, _seconds(response))
    if response.status_code >= 500:
        return StoreError(message)
    return KINDS.get(response.status_code, Refused)(message)


def _message(response: httpx.Response) -> str | None:
    try:
        answer = response.json()
    except ValueError:
        return None
    return answer.get("message") if isinstance(answer, dict) else None


def _seconds(response: httpx.Response) -> float:
    value = response.headers.get("retry-after", "")
    return float(value) if value.isdigit() else 1.0
