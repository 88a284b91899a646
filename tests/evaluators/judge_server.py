"""A scripted OpenAI-compatible HTTP server, in a thread on 127.0.0.1: what judges are tried against.

    with serving(["yes", Reply(status=500), Reply(hang=True)]) as server:
        client = AsyncOpenAI(base_url=server.url, api_key="key")

A script is a list of replies, given in their order, or a function from the `Request` to a reply. A reply is a text (the
content of a completion), a dict (the same, as JSON), a number (a status with an error of that kind) or a `Reply`.
"""

from __future__ import annotations

import json
import math
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

RAN_OUT = 410  # an error that no client tries again


@dataclass(frozen=True)
class Request:
    """What came: `at` is seconds of the monotonic clock."""

    path: str
    body: dict[str, Any]
    headers: dict[str, str]  # names in lower case
    at: float = field(default_factory=time.monotonic)


@dataclass(frozen=True, kw_only=True)
class Reply:
    """What goes back, after `delay` seconds. `hang`: nothing, until the server is closed. `cut`: the connection is closed
    after so many bytes of the body. `chunked`: the body goes in pieces, without its length.
    """

    body: Any = None  # bytes and text as they are, all else as JSON
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    delay: float = 0.0
    hang: bool = False
    cut: int | None = None
    chunked: bool = False


Said = str | dict[str, Any] | int | Reply
Script = Iterable[Said] | Callable[[Request], Said]


def completion(
    content: str | None = "",
    *,
    finish: str | None = "stop",
    usage: tuple[int, int] | None = (10, 5),
    model: str = "scripted-1",
    refusal: str | None = None,
    reasoning_tokens: int = 0,
    logprobs: list[tuple[str, float, dict[str, float]]] | None = None,
    **more: Any,
) -> dict[str, Any]:
    """The body of a chat completion; `usage` are tokens in and out, `logprobs` (token, logprob, alternatives) of each."""
    message = {"role": "assistant", "content": content, "refusal": refusal, **more.pop("message", {})}
    choice = {"index": 0, "message": message, "finish_reason": finish, "logprobs": _logprobs(logprobs)}
    body = {"id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": model, "choices": [choice]}
    if usage is not None:
        body["usage"] = {
            "prompt_tokens": usage[0],
            "completion_tokens": usage[1],
            "total_tokens": sum(usage),
            "completion_tokens_details": {"reasoning_tokens": reasoning_tokens},
        }
    return {**body, **more}


def _logprobs(tokens: list[tuple[str, float, dict[str, float]]] | None) -> dict[str, Any] | None:
    if tokens is None:
        return None
    told = [{"token": token, "logprob": logprob, "top_logprobs": _top(top)} for token, logprob, top in tokens]
    return {"content": told, "refusal": None}


def _top(top: Mapping[str, float]) -> list[dict[str, Any]]:
    return [{"token": token, "logprob": logprob} for token, logprob in top.items()]


def error(
    status: int,
    message: str | None = None,
    *,
    param: str | None = None,
    code: str | None = None,
    type: str = "invalid_request_error",
    **more: Any,
) -> Reply:
    """An error as OpenAI words it; `more` are fields of the `Reply`."""
    told = {"message": message or f"error {status}", "type": type, "param": param, "code": code}
    return Reply(status=status, body={"error": told}, **more)


class Limit:
    """At most `allows` requests in any `per` seconds."""

    def __init__(self, allows: int, per: float = 1.0) -> None:
        self.allows, self.per = allows, per
        self._taken: deque[float] = deque()
        self._lock = threading.Lock()

    def wait(self) -> tuple[float, int]:
        """Seconds until the next request is allowed, 0 if this one is, and how many more are."""
        with self._lock:
            now = time.monotonic()
            while self._taken and self._taken[0] <= now - self.per:
                self._taken.popleft()
            if len(self._taken) >= self.allows:
                return self._taken[0] + self.per - now, 0
            self._taken.append(now)
            return 0.0, self.allows - len(self._taken)


class Server:
    """`url` for a client, `requests` in the order in which they came, `refused` how many of them the limit refused."""

    def __init__(self, script: Script, limit: Limit | None, port: int = 0) -> None:
        self.requests: list[Request] = []
        self.refused = 0
        self.limit = limit
        self.closing = threading.Event()
        self._script = script if callable(script) else iter(list(script))
        self._lock = threading.Lock()
        self._sockets: set[socket.socket] = set()
        self._http = _HTTP(self, port)
        self.url = f"http://127.0.0.1:{self._http.server_port}/v1"
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.02,), name="judge-server")

    @property
    def bodies(self) -> list[dict[str, Any]]:
        return [request.body for request in self.requests]

    def reply_to(self, request: Request) -> Reply:
        with self._lock:
            self.requests.append(request)
            wait, remaining = self.limit.wait() if self.limit else (0.0, 0)
            if wait:
                self.refused += 1
                return _refusal(wait)
            said = None if callable(self._script) else next(self._script, None)
        reply = self._reply(self._script(request) if callable(self._script) else said)
        return reply if self.limit is None else _with_limit(reply, self.limit, remaining)

    @staticmethod
    def _reply(said: Said | None) -> Reply:
        if said is None:
            return error(RAN_OUT, "the script has no more replies")
        if isinstance(said, int):
            return error(said)
        if isinstance(said, Reply):
            return said
        return Reply(body=completion(said if isinstance(said, str) else json.dumps(said)))

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Ends what hangs, and all connections; all threads have ended then."""
        self.closing.set()
        self._http.shutdown()
        self._thread.join()
        with self._lock:
            open_ones = list(self._sockets)
        for each in open_ones:
            _shut(each)
        self._http.server_close()

    def opened(self, each: socket.socket) -> None:
        with self._lock:
            self._sockets.add(each)
        if self.closing.is_set():
            _shut(each)

    def closed(self, each: socket.socket) -> None:
        with self._lock:
            self._sockets.discard(each)


def _refusal(wait: float) -> Reply:
    headers = {
        "Retry-After": str(math.ceil(wait)),
        "retry-after-ms": str(math.ceil(wait * 1000)),
        "x-ratelimit-remaining-requests": "0",
        "x-ratelimit-reset-requests": f"{math.ceil(wait * 1000)}ms",
    }
    return error(429, "Rate limit reached for requests", type="requests", code="rate_limit_exceeded", headers=headers)


def _with_limit(reply: Reply, limit: Limit, remaining: int) -> Reply:
    headers = {
        "x-ratelimit-limit-requests": str(limit.allows),
        "x-ratelimit-remaining-requests": str(remaining),
        "x-ratelimit-reset-requests": f"{limit.per:g}s",
    }
    return Reply(**{**vars(reply), "headers": {**headers, **reply.headers}})


class _HTTP(ThreadingHTTPServer):
    daemon_threads = False
    request_queue_size = 256

    def __init__(self, server: Server, port: int) -> None:
        self.scripted = server
        super().__init__(("127.0.0.1", port), _Handler)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away is no news."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _HTTP
    disable_nagle_algorithm = True

    def setup(self) -> None:
        super().setup()
        self.server.scripted.opened(self.connection)

    def finish(self) -> None:
        self.server.scripted.closed(self.connection)
        super().finish()

    def do_POST(self) -> None:
        raw = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        headers = {name.lower(): value for name, value in self.headers.items()}
        self._send(self.server.scripted.reply_to(Request(self.path, _decoded(raw), headers)))

    do_GET = do_POST

    def _send(self, reply: Reply) -> None:
        closing = self.server.scripted.closing
        if reply.hang:
            closing.wait()
        if reply.hang or closing.wait(reply.delay):
            self.close_connection = True
            return
        body = reply.body if isinstance(reply.body, bytes) else _encoded(reply.body)
        self.send_response(reply.status)
        kind = (
            {}
            if any(name.lower() == "content-type" for name in reply.headers)
            else {"Content-Type": "application/json"}
        )
        for name, value in {**kind, **reply.headers}.items():
            self.send_header(name, value)
        self.send_header(*(("Transfer-Encoding", "chunked") if reply.chunked else ("Content-Length", str(len(body)))))
        self.end_headers()
        self._write(reply, body)

    def _write(self, reply: Reply, body: bytes) -> None:
        sent = body[: reply.cut]
        if reply.chunked:
            for start in range(0, len(sent), 16):
                piece = sent[start : start + 16]
                self.wfile.write(f"{len(piece):x}\r\n".encode() + piece + b"\r\n")
            if reply.cut is None:
                self.wfile.write(b"0\r\n\r\n")
        else:
            self.wfile.write(sent)
        if reply.cut is not None:
            self.close_connection = True
            _shut(self.connection)

    def log_message(self, format: str, *args: Any) -> None:
        """Tests have nothing to read on stderr."""


def _decoded(raw: bytes) -> dict[str, Any]:
    try:
        body = json.loads(raw or b"{}")
    except ValueError:
        return {"raw": raw}
    return body if isinstance(body, dict) else {"raw": raw}


def _encoded(body: Any) -> bytes:
    return body.encode() if isinstance(body, str) else json.dumps(body).encode()


def _shut(each: socket.socket) -> None:
    try:
        each.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass  # the other side was first


@contextmanager
def serving(script: Script, *, allows: int | None = None, per: float = 1.0, port: int = 0) -> Iterator[Server]:
    """A server that says what the script says; with `allows` it answers 429 to all beyond so many in `per` seconds."""
    server = Server(script, Limit(allows, per) if allows else None, port)
    server.start()
    try:
        yield server
    finally:
        server.close()
