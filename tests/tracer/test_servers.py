"""Servers of several processes: what every request traced is delivered."""

from __future__ import annotations

import importlib.util
import os
import random
import signal
import socket
import subprocess
import sys
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest
from tests.tracer.conftest import Sink, until

UVICORN = [sys.executable, "-m", "uvicorn", "--workers", "2", "--log-level", "error", "--port", "{port}", "app:asgi"]
GUNICORN = [sys.executable, "-m", "gunicorn", "--preload", "-w", "3", "-b", "127.0.0.1:{port}", "app:wsgi"]
APP = """
import time
from spanwise.tracer import trace

@trace
def answer(path):
    return path

answer("at start")
time.sleep(0.55)  # the first delivery is under way where workers are forked

def wsgi(environ, start_response):
    text = answer(environ["PATH_INFO"]).encode()
    start_response("200 OK", [("Content-Length", str(len(text)))])
    return [text]

async def asgi(scope, receive, send):
    if scope["type"] == "http":
        text = answer(scope["path"]).encode()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": text})
"""


def free_port() -> int:
    """One that no client's end of a connection gets meanwhile: those are above 32,767."""
    while True:
        with socket.socket() as bound, suppress(OSError):
            bound.bind(("127.0.0.1", port := random.SystemRandom().randrange(20_000, 32_768)))
            return port


def asked(url: str) -> str:
    with urllib.request.urlopen(url, timeout=60) as response:
        return str(response.read().decode())


def inputs(sink: Sink) -> set[str]:
    return {a.value.string_value for s in sink.spans() for a in s.attributes if a.key == "input.value"}


def answers(url: str) -> bool:
    try:
        return bool(asked(url))
    except OSError:
        return False


@pytest.mark.slow  # a server of several processes, started and ended
@pytest.mark.parametrize("command", [UVICORN, GUNICORN], ids=["uvicorn", "gunicorn"])
def test_all_of_300_requests_are_delivered(command: list[str], sink: Sink, tmp_path: Path) -> None:
    if importlib.util.find_spec(command[2]) is None:
        pytest.skip(f"{command[2]} is not installed")
    (tmp_path / "app.py").write_text(APP)
    port = free_port()
    env = {**os.environ, "SPANWISE_URL": sink.url, "SPANWISE_SPILL_DIR": str(tmp_path / "spool")}
    server = subprocess.Popen([part.format(port=port) for part in command], cwd=tmp_path, env=env)
    try:
        until(lambda: answers(f"http://127.0.0.1:{port}/ready"), 240)
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(asked, [f"http://127.0.0.1:{port}/r{n}" for n in range(300)]))
        wanted = {f'{{"path":"{path}"}}' for path in ("at start", *(f"/r{n}" for n in range(300)))}
        until(lambda: wanted <= inputs(sink))  # uvicorn's end waits for nobody
    finally:
        server.send_signal(signal.SIGTERM)
        server.wait(240)
