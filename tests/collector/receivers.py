"""Receivers of notifications on loopback: scripted HTTP and SMTP servers in threads."""

from __future__ import annotations

import socket
import socketserver
import ssl
import threading
from collections.abc import Callable
from contextlib import ExitStack, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, NamedTuple, Self

from spanwise.collector.records import Notification

Answer = Callable[[BaseHTTPRequestHandler], None]


def notification(id: str = "n1", **fields: Any) -> Notification:
    given = {"alert": "grounded", "status": "firing", "headline": "It fell.", "targets": ("ops",)}
    return Notification(id=id, **{**given, **fields})


class Received(NamedTuple):
    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def id(self) -> str:
        return self.headers["Idempotency-Key"]


class _Running:
    server: socketserver.BaseServer

    def __enter__(self) -> Self:
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.server.shutdown()
        self.server.server_close()

    @property
    def port(self) -> int:
        return int(self.server.server_address[1])  # type: ignore[index]


def reply(status: int, body: bytes = b"", **headers: str) -> Answer:
    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(status)
        for name, value in headers.items():
            handler.send_header(name.replace("_", "-"), value)
        handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        handler.wfile.write(body)

    return answer


class HTTPReceiver(_Running):
    """Keeps every request, and answers as `answer` says."""

    def __init__(self, answer: Answer | None = None, tls: ssl.SSLContext | None = None) -> None:
        self.requests: list[Received] = []
        self.answer = answer or reply(200, b"ok")
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                receiver.requests.append(Received(self.path, dict(self.headers), body))
                try:
                    receiver.answer(self)
                except OSError:  # the sender has left
                    self.close_connection = True

            do_GET = do_POST

            def log_message(self, *_: Any) -> None: ...

        class Server(ThreadingHTTPServer):
            daemon_threads, block_on_close = True, False

            def handle_error(self, *_: Any) -> None: ...

        self.server = Server(("127.0.0.1", 0), Handler)
        if tls is not None:
            self.server.socket = tls.wrap_socket(self.server.socket, server_side=True, do_handshake_on_connect=False)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/hook"

    @property
    def ids(self) -> list[str]:
        return [request.id for request in list(self.requests)]


class SMTPReceiver(_Running):
    """Keeps every message. `replies` maps the beginning of a command to the reply that it gets."""

    def __init__(self, tls: ssl.SSLContext | None = None, replies: dict[str, bytes] | None = None) -> None:
        self.messages: list[bytes] = []
        self.commands: list[str] = []
        self.tls, self.replies = tls, replies or {}
        receiver = self

        class Handler(socketserver.BaseRequestHandler):
            def handle(self) -> None:
                with suppress(OSError), ExitStack() as stack:  # OSError: the client has left
                    receiver.talk(self.request, stack)

        class Server(socketserver.ThreadingTCPServer):
            daemon_threads, block_on_close, allow_reuse_address = True, False, True

        self.server = Server(("127.0.0.1", 0), Handler)

    def talk(self, connection: socket.socket, stack: ExitStack) -> None:
        file = stack.enter_context(connection.makefile("rb"))
        connection.sendall(self.replies.get("connect", b"220 ready\r\n"))
        is_encrypted = False
        while line := file.readline():
            command = line.decode().strip()
            self.commands.append(command)
            own = next((text for start, text in self.replies.items() if command.upper().startswith(start)), None)
            if own is not None:
                connection.sendall(own)
            elif command.upper().startswith("EHLO"):
                offers = b"250-STARTTLS\r\n" if self.tls is not None and not is_encrypted else b""
                connection.sendall(b"250-here\r\n" + offers + b"250 AUTH PLAIN\r\n")
            elif command == "STARTTLS" and self.tls is not None:
                connection.sendall(b"220 go\r\n")
                connection = stack.enter_context(self.tls.wrap_socket(connection, server_side=True))
                file, is_encrypted = stack.enter_context(connection.makefile("rb")), True
            elif command.upper() == "DATA":
                connection.sendall(b"354 go on\r\n")
                lines = []
                while (text := file.readline()) not in (b".\r\n", b""):
                    lines.append(text.removeprefix(b".") if text.startswith(b"..") else text)
                self.messages.append(b"".join(lines))
                connection.sendall(b"250 kept\r\n")
            elif command.upper() == "QUIT":
                connection.sendall(b"221 bye\r\n")
                return
            else:
                connection.sendall(b"235 ok\r\n" if command.upper().startswith("AUTH") else b"250 ok\r\n")
