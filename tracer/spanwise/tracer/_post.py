"""One OTLP/HTTP request, and what its answer means: kept, refused for good, or worth another try."""

from __future__ import annotations

import gzip
import os
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from spanwise.tracer import attributes as names
from spanwise.tracer import destinations
from spanwise.tracer._encode import TRACES
from spanwise.tracer._settings import Settings
from spanwise.tracer.addresses import is_loopback
from spanwise.tracer.backoff import seconds_until
from spanwise.tracer.connection_errors import explain, one_line
from spanwise.tracer.suppression import suppress_instrumentation

if TYPE_CHECKING:
    import requests

_WORTH_PACKING = 1024  # bytes
_LONGEST_WAIT = 300.0  # seconds, whatever a server asks for
_NO_KEY = frozenset((401, 403))  # somebody can mend that, and the next process may have the right one
_RETRYABLE = frozenset((*_NO_KEY, 408, 425, 429, 500, 502, 503, 504))


_loading = threading.Lock()
_LONGEST_LOAD = 5.0  # seconds that a fork waits for it; more can only be a deadlock of imports


def load() -> None:
    """Import all that delivery needs, on its own thread, for it takes a tenth of a second.

    No fork comes in between: a child would inherit modules that are half imported, or locked for ever.
    """
    with _loading:
        import encodings.idna  # noqa: F401  (imported by the first connection)
        import netrc  # noqa: F401  (by the first request)

        import requests  # noqa: F401
        from opentelemetry.proto.collector.logs.v1 import logs_service_pb2  # noqa: F401  (`_encode`)
        from opentelemetry.proto.collector.trace.v1 import trace_service_pb2  # noqa: F401


def _before_fork() -> None:
    _loading.acquire(timeout=_LONGEST_LOAD)


def _after_fork() -> None:
    if _loading.locked():
        _loading.release()


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork)


@dataclass(frozen=True, slots=True)
class Answer:
    """Outcome of a request: ok, refused (permanent), too_large, or later (retryable, not before `after` seconds).

    `reason` is a key for counters, `explanation` the cause in words for the log.
    """

    verdict: Literal["ok", "refused", "too_large", "later"]
    reason: str = ""
    after: float = 0.0
    body: bytes = b""
    explanation: str = ""


class Post:
    """Sends request bodies to a collector over one kept-alive connection. Used by one thread at a time."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._headers = {"Content-Type": "application/x-protobuf", "User-Agent": "spanwise-tracer"}
        if settings.api_key:
            self._headers["Authorization"] = f"Bearer {settings.api_key}"
        self._headers.update(settings.headers)
        self._packs = settings.compression == "gzip" or (settings.compression is None and not is_loopback(settings.url))
        self._session: requests.Session | None = None
        self.is_spanwise: bool | None = None  # whether the collector is one of Spanwise's; None: it has not said

    def send(self, path: str, body: bytes, timeout: float) -> Answer:
        """POST a protobuf body to the address of the signal, `<url><path>`."""
        import requests

        if self._session is None:
            self._session = requests.Session()
        headers = self._headers
        if self._packs and len(body) >= _WORTH_PACKING:
            body, headers = gzip.compress(body, 1, mtime=0), {**headers, "Content-Encoding": "gzip"}
        address = self._address(path)
        self._session.trust_env = not is_loopback(address)  # a proxy cannot reach the loopback of this machine
        auth = requests.utils.get_auth_from_url(address)
        try:
            with suppress_instrumentation():
                response = self._session.post(
                    address,
                    data=body,
                    headers=headers,
                    auth=auth if any(auth) else _as_it_is,
                    timeout=max(timeout, 0.05),
                    verify=self._settings.certificate or True,
                    allow_redirects=False,
                )
        except OSError as error:  # all of requests' own, and a file of certificates that does not exist
            return Answer("later", type(error).__name__, explanation=explain(error, timeout))
        if response.ok or names.COLLECTOR_HEADER in response.headers:
            self.is_spanwise = response.headers.get(names.COLLECTOR_HEADER) == "1"
        if (named := response.headers.get(names.DESTINATIONS_HEADER)) is not None:
            destinations.learn(self._settings, named)
        return _meaning(response)

    def _address(self, path: str) -> str:
        own = self._settings.traces_url if path == TRACES else None
        return own or self._settings.url + path


def _as_it_is(request: requests.PreparedRequest) -> requests.PreparedRequest:
    """Else what `~/.netrc` says of the host would take the place of our key."""
    return request


def _meaning(response: requests.Response) -> Answer:
    status = response.status_code
    if 200 <= status < 300:
        return Answer("ok", body=response.content)
    if status == 413:
        return Answer("too_large", "http_413")
    if status in _RETRYABLE:
        after = _seconds(response.headers.get("Retry-After"))
        return Answer(
            "later", f"http_{status}", after, explanation=f"HTTP {status} {one_line(response.reason or '')}".strip()
        )
    return Answer("refused", f"http_{status}")


def _seconds(text: str | None) -> float:
    return min(_LONGEST_WAIT, seconds_until(text) or 0.0)
