"""What a key costs a request: the guard with keys beside the application alone, in microseconds of CPU per request.

    python benchmarks/keys.py [--requests 20000]

Budget: 20 µs. The application answers nothing and does nothing, so that the difference is the guard's. Each kind of
request is measured in rounds that alternate with the bare application, and the median of the differences is told:
telemetry with a bearer token, with Basic, with a session's cookie on a page, through the middleware for other origins,
and a wrong key; 1,000 keys are known to the store.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import statistics
import tempfile
import time
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

from spanwise.collector.api import Authenticator, CorsMiddleware, KeyCache, SecurityMiddleware
from spanwise.collector.api.asgi_application import ROUTE_PERMISSIONS
from spanwise.collector.records import Key
from spanwise.collector.security import AttemptLimiter, BrowserSessions
from spanwise.collector.stores.sqlite import SQLiteStore

ORIGIN, ROUNDS = "https://app.test", 15


async def nothing(scope: Any, receive: Any, send: Any) -> None:
    """An application that answers nothing."""


async def unsent(message: Any) -> None:
    """Nobody listens."""


def request(method: str, path: str, **headers: str) -> dict[str, Any]:
    """A scope, with what an exporter or a browser sends beside it."""
    others = {"host": "traces.test:4318", "user-agent": "OTel-OTLP-Exporter-Python/1.40", "accept": "*/*"}
    others |= {"content-type": "application/x-protobuf", "content-length": "1234", "content-encoding": "gzip"}
    sent = [(name.replace("_", "-").encode(), value.encode()) for name, value in (others | headers).items()]
    return {
        "type": "http",
        "method": method,
        "path": path,
        "headers": sent,
        "client": ("192.0.2.1", 5),
        "query_string": b"",
    }


async def cpu(app: Any, scope: Mapping[str, Any], count: int) -> float:
    """Microseconds of CPU a request."""
    begin = time.process_time_ns()
    for _ in range(count):
        await app(dict(scope), None, unsent)
    return (time.process_time_ns() - begin) / count / 1000


async def measured(store: SQLiteStore, count: int) -> None:
    authenticator, browser_sessions = Authenticator(KeyCache(store), "master"), BrowserSessions()
    guard = SecurityMiddleware(nothing, ROUTE_PERMISSIONS, authenticator, browser_sessions)
    session = browser_sessions.begin(sha256(b"secret-500").digest())
    basic = base64.b64encode(b"pk-lf-1:secret-500").decode()
    kinds = {
        "bearer": (guard, request("POST", "/v1/traces", authorization="Bearer secret-500")),
        "basic": (guard, request("POST", "/v1/traces", authorization=f"Basic {basic}")),
        "session on a page": (guard, request("GET", "/", cookie=f"a=b; spanwise-session-4318={session}")),
        "another origin": (
            CorsMiddleware(guard, [ORIGIN], ROUTE_PERMISSIONS.rows),
            request("POST", "/api/feedback", authorization="Bearer secret-500", origin=ORIGIN),
        ),
        "wrong": (guard, request("POST", "/v1/traces", authorization="Bearer wrong")),
    }
    for name, (app, scope) in kinds.items():
        await app(dict(scope), None, unsent)  # which reads the keys
        costs = []
        for _ in range(ROUNDS):
            authenticator.attempts = AttemptLimiter()
            costs.append(await cpu(app, scope, count // ROUNDS) - await cpu(nothing, scope, count // ROUNDS))
        print(
            f"{name:20} {statistics.median(costs):6.1f} µs a request (of {ROUNDS} rounds {min(costs):.1f} to {max(costs):.1f})"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=20_000)
    count = parser.parse_args().requests
    with tempfile.TemporaryDirectory() as folder, SQLiteStore(Path(folder, "keys.db")) as store:
        for number in range(1000):
            digest = sha256(f"secret-{number}".encode()).hexdigest()
            store.save_key(Key(id=f"k{number}", name="n", sha256=digest))
        asyncio.run(measured(store, count))


if __name__ == "__main__":
    main()
