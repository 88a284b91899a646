"""The health endpoints of a monitor: alive, ready, and why not."""

from __future__ import annotations

import socket

import httpx
import pytest

from spanwise.cli.commands.monitor_health import serve_health
from spanwise.collector.errors import Refused


def test_a_monitor_is_ready_while_nothing_is_wrong() -> None:
    trouble: str | None = None
    with serve_health(0, lambda: trouble) as port:
        address = f"http://127.0.0.1:{port}"
        assert httpx.get(f"{address}/healthz").json() == {"status": "ok", "service": "spanwise-monitor"}
        assert (httpx.get(f"{address}/readyz").status_code, httpx.get(f"{address}/readyz").json()) == (
            200,
            {"ready": True},
        )
        trouble = "no worker runs the rules yet"
        answer = httpx.get(f"{address}/readyz")
        assert (answer.status_code, answer.json()) == (503, {"ready": False, "why": trouble})
        assert httpx.get(f"{address}/healthz").status_code == 200
        assert httpx.get(f"{address}/rules").status_code == 404
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{address}/healthz")


def test_without_a_port_nothing_listens() -> None:
    with serve_health(None, lambda: None) as port:
        assert port is None


def test_a_port_in_use_is_refused() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with (
            pytest.raises(Refused, match=r"--health-port \d+ cannot be used: .*; choose another port"),
            serve_health(taken.getsockname()[1], lambda: None),
        ):
            pass
