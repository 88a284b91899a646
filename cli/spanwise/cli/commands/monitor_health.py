"""Health endpoints of `spanwise monitor`: /healthz and /readyz on a port of this machine."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import orjson

from spanwise.collector.errors import Refused

HOST = "127.0.0.1"


@contextmanager
def serve_health(port: int | None, find_trouble: Callable[[], str | None]) -> Iterator[int | None]:
    """Answer health checks within the block, and yield the port; None: do not. Raises `Refused` if the port is in use.

    `find_trouble` returns the reason why no traces are evaluated now; None if they are.
    """
    if port is None:
        yield None
        return

    class Handler(BaseHTTPRequestHandler):
        timeout = 10.0  # seconds for a client to send its request

        def do_GET(self) -> None:
            status, content = 200, dict[str, object](ready=True)
            if self.path == "/healthz":
                content = {"status": "ok", "service": "spanwise-monitor"}
            elif self.path != "/readyz":
                status, content = 404, {"message": "expected /healthz or /readyz"}
            elif (trouble := find_trouble()) is not None:
                status, content = 503, {"ready": False, "why": trouble}
            body = orjson.dumps(content)
            self.send_response(status)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    try:
        server = ThreadingHTTPServer((HOST, port), Handler)
    except OSError as error:
        raise Refused(f"--health-port {port} cannot be used: {error.strerror or error}; choose another port") from error
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, name="spanwise-health", daemon=True)
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
