"""OTLP/HTTP client: request thread, compression, authentication, response status and error messages."""

from __future__ import annotations

import gzip
import queue
import socket
import ssl
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.client import RemoteDisconnected
from typing import TYPE_CHECKING, Literal

from spanwise.tracer import attribute_names as names
from spanwise.tracer import http_connections, internal_errors
from spanwise.tracer.configuration import Settings
from spanwise.tracer.export.span_encoding import TRACES_PATH
from spanwise.tracer.http_connections import is_loopback, parse_retry_after, suppress_instrumentation

if TYPE_CHECKING:
    import requests


_MIN_COMPRESS_BYTES = 1024  # smaller bodies are not compressed
_MAX_RETRY_AFTER = 300.0  # upper limit in seconds for `Retry-After`
# Retryable: the user may correct the key, or the next process may have the right one
_UNAUTHORIZED = frozenset((401, 403))
_RETRYABLE = frozenset((*_UNAUTHORIZED, 408, 425, 429, 500, 502, 503, 504))


_preload_lock = threading.Lock()
_IMPORT_ATTEMPTS = 3
_MAX_PRELOAD_WAIT = 5.0  # seconds that a fork waits for the lock; only a deadlock of imports takes longer


def preload_modules() -> None:
    """Import the modules that delivery needs. The delivery thread calls this, because it takes a tenth of a second.

    A fork waits for the import. Otherwise a child would inherit modules that are half imported, or whose import lock
    is never released.

    `requests` ignores a warning of urllib3 while it is imported. Where warnings are errors, the import fails if another
    thread resets the filters of warnings meanwhile, as pytest does between tests. It is then repeated without the
    modules of the first attempt: with these, every later `import requests` of the application would be broken.
    """
    with _preload_lock:
        import encodings.idna  # noqa: F401  (imported by the first connection)
        import netrc  # noqa: F401  (by the first request)

        for attempt in range(_IMPORT_ATTEMPTS):
            try:
                import requests  # noqa: F401

                break
            except Warning:
                if "requests" not in sys.modules:  # no other thread is importing it
                    for name in [name for name in list(sys.modules) if name.startswith("requests.")]:
                        del sys.modules[name]
                if attempt == _IMPORT_ATTEMPTS - 1:
                    raise
        from opentelemetry.proto.collector.logs.v1 import logs_service_pb2  # noqa: F401  (`parse_rejections`)
        from opentelemetry.proto.collector.trace.v1 import trace_service_pb2  # noqa: F401


def wait_before_fork() -> None:
    """Wait for the import of `preload_modules` and hold its lock during the fork."""
    _preload_lock.acquire(timeout=_MAX_PRELOAD_WAIT)


def release_after_fork() -> None:
    """Release the lock of `wait_before_fork`, in the parent and in the child."""
    if _preload_lock.locked():
        _preload_lock.release()


@dataclass(frozen=True, slots=True)
class RequestOutcome:
    """Outcome of a request: ok, refused (permanent), too_large, or later (retryable, not before `after` seconds).

    `reason` is a key for counters, and `explanation` describes the cause for the log.
    """

    verdict: Literal["ok", "refused", "too_large", "later"]
    reason: str = ""
    after: float = 0.0
    body: bytes = b""
    explanation: str = ""


class OtlpHttpClient:
    """HTTP client that sends request bodies to a collector over one persistent connection.

    Used by one thread at a time.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._headers = {"Content-Type": "application/x-protobuf", "User-Agent": "spanwise-tracer"}
        if settings.api_key:
            self._headers["Authorization"] = f"Bearer {settings.api_key}"
        self._headers.update(settings.headers)
        self._compresses = settings.compression == "gzip" or (
            settings.compression is None and not is_loopback(settings.url)
        )
        self._session: requests.Session | None = None
        self.is_spanwise: bool | None = None  # True for a Spanwise collector; None: unknown

    def send(self, path: str, body: bytes, timeout: float) -> RequestOutcome:
        """Send a protobuf body with POST to the address of the signal, `<url><path>`."""
        import requests

        if self._session is None:
            self._session = requests.Session()
        headers = self._headers
        if self._compresses and len(body) >= _MIN_COMPRESS_BYTES:
            body, headers = gzip.compress(body, 1, mtime=0), {**headers, "Content-Encoding": "gzip"}
        address = (self._settings.traces_url if path == TRACES_PATH else None) or self._settings.url + path
        # without proxies for the loopback interface, which a proxy cannot reach
        self._session.trust_env = not is_loopback(address)
        auth = requests.utils.get_auth_from_url(address)
        try:
            with suppress_instrumentation():
                response = self._session.post(
                    address,
                    data=body,
                    headers=headers,
                    auth=auth if any(auth) else _keep_authorization,
                    timeout=max(timeout, 0.05),
                    verify=self._settings.certificate or True,
                    allow_redirects=False,
                )
        except OSError as error:  # covers all errors of requests, and a missing certificate file
            return RequestOutcome("later", type(error).__name__, explanation=explain_connection_error(error, timeout))
        if response.ok or names.COLLECTOR_HEADER in response.headers:
            self.is_spanwise = response.headers.get(names.COLLECTOR_HEADER) == "1"
        if (named := response.headers.get(names.DESTINATIONS_HEADER)) is not None:
            http_connections.update_from_header(self._settings.url, self._settings.project, named)
        return _classify_response(response)


def _keep_authorization(request: requests.PreparedRequest) -> requests.PreparedRequest:
    """Return the request unchanged.

    Without this hook, requests would replace the API key by credentials from `~/.netrc`.
    """
    return request


def _classify_response(response: requests.Response) -> RequestOutcome:
    status = response.status_code
    if 200 <= status < 300:
        return RequestOutcome("ok", body=response.content)
    if status == 413:
        return RequestOutcome("too_large", "http_413")
    if status in _RETRYABLE:
        after = min(_MAX_RETRY_AFTER, parse_retry_after(response.headers.get("Retry-After")) or 0.0)
        return RequestOutcome(
            "later", f"http_{status}", after, explanation=f"HTTP {status} {to_one_line(response.reason or '')}".strip()
        )
    return RequestOutcome("refused", f"http_{status}")


@dataclass(slots=True, eq=False)
class PendingRequest:
    """Request that was sent or is about to be sent."""

    path: str
    body: bytes
    timeout: float  # seconds
    began: float = field(default_factory=time.monotonic)
    is_done: bool = False
    _outcomes: queue.SimpleQueue[RequestOutcome] = field(default_factory=queue.SimpleQueue)

    @property
    def age(self) -> float:
        """Return the seconds since the request was created."""
        return time.monotonic() - self.began

    def wait(self, seconds: float) -> RequestOutcome | None:
        """Wait for the outcome, and return it, or None if there is none within that many seconds."""
        try:
            return self._outcomes.get(timeout=seconds)
        except queue.Empty:
            return None

    def send(self, post: OtlpHttpClient) -> None:
        """Send the request and store the outcome. After an unexpected error, the outcome is `later`."""
        answer = RequestOutcome("later", "failed")
        try:
            answer = post.send(self.path, self.body, self.timeout)
        except BaseException as error:
            answer = RequestOutcome("later", type(error).__name__)
            internal_errors.record_error("delivery", error)
        finally:
            self.is_done = True
            self._outcomes.put(answer)


class RequestThread:
    """Thread that sends one request at a time.

    A request for which nobody waits any more still occupies the thread until it ends.
    """

    def __init__(self, post: OtlpHttpClient) -> None:
        self._post = post
        self._requests: queue.SimpleQueue[PendingRequest | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._last: PendingRequest | None = None

    def send(self, path: str, body: bytes, timeout: float) -> PendingRequest | None:
        """Begin a request. Return None while an earlier one is in progress. Called by one thread at a time."""
        if self._last is not None and not self._last.is_done:
            return None
        request = self._last = PendingRequest(path, body, timeout)
        if self._ensure_started():
            self._requests.put(request)
        else:
            request.send(self._post)
        return request

    def end(self) -> None:
        """End the thread after the request in progress."""
        self._requests.put(None)

    def _ensure_started(self) -> bool:
        """Start the thread if necessary. Return False if the system has no more threads."""
        if self._thread is None or not self._thread.is_alive():
            thread = threading.Thread(target=self._run, name="spanwise-request", daemon=True)
            try:
                thread.start()
            except RuntimeError:
                return False
            self._thread = thread
        return True

    def _run(self) -> None:
        while (request := self._requests.get()) is not None:
            request.send(self._post)


_MAX_LENGTH = 200  # maximum number of characters of a message from a library or a server


def explain_connection_error(error: BaseException, timeout: float | None = None) -> str:
    """Return a short, one-line reason why a request failed. `timeout` is the request's limit in seconds."""
    causes = list(_iterate_causes(error))
    for cause in causes:
        if text := _describe_known_cause(cause):
            return text
    if any(isinstance(cause, TimeoutError) or "Timeout" in type(cause).__name__ for cause in causes):
        return "no answer in time" if timeout is None else f"no answer within {timeout:.3g} s"
    return to_one_line(f"{type(causes[-1]).__name__}: {causes[-1]}")


def to_one_line(text: str) -> str:
    """Return a foreign message as one printable line of at most 200 characters."""
    printable = "".join(c if c.isprintable() else " " for c in text[: 2 * _MAX_LENGTH])
    text = " ".join(printable.split())
    return text if len(text) <= _MAX_LENGTH else text[: _MAX_LENGTH - 1] + "…"


def _describe_known_cause(cause: BaseException) -> str | None:
    if isinstance(cause, socket.gaierror):
        return "the host name cannot be resolved"
    if isinstance(cause, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted: {to_one_line(cause.verify_message)}"
    if isinstance(cause, ssl.SSLError):
        return f"TLS failed: {to_one_line(cause.reason or str(cause))}"
    if isinstance(cause, ConnectionRefusedError):
        return "connection refused"
    if isinstance(cause, (RemoteDisconnected, ConnectionResetError, BrokenPipeError)):
        return "it closed the connection without an answer"
    return None


def _iterate_causes(error: BaseException) -> Iterator[BaseException]:
    """Yield an exception and all exceptions that it wraps, including urllib3's `reason` and its arguments."""
    pending, seen = [error], set[int]()
    while pending and len(seen) < 32:
        current = pending.pop()
        if id(current) in seen:
            continue
        seen.add(id(current))
        yield current
        wrapped = (current.__context__, current.__cause__, getattr(current, "reason", None), *current.args)
        pending += [item for item in wrapped if isinstance(item, BaseException)]
