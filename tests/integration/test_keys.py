"""No key is told anywhere: not in the log, an error, a traceback, the list of processes, the file, or an answer."""

from __future__ import annotations

import base64
import json
import logging
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from hashlib import sha256
from pathlib import Path
from typing import Any

import httpx
import pytest

from integration.serving import COMMAND, environment, free_port
from spanwise.collector.client import HTTPStore
from spanwise.collector.records import Key
from spanwise.collector.server import Server
from spanwise.collector.stores.sqlite import SQLiteStore

MASTER, SECRET, WRONG = "master-SECRET-1", "stored-SECRET-2", "wrong-SECRET-3"


def spelled(secret: str) -> Iterator[dict[str, str]]:
    yield {"authorization": f"Bearer {secret}"}
    yield {"authorization": secret}
    yield {"authorization": "Basic " + base64.b64encode(f"pk:{secret}".encode()).decode()}
    yield {"x-api-key": secret}
    yield {"api_key": secret}
    yield {"x-api-key": secret, "authorization": f"Bearer {WRONG}"}
    yield {"authorization": f"Digest {secret}"}


def tried(url: str) -> Iterator[str]:
    """What is answered to keys in all spellings, where they belong and where they do not."""
    with httpx.Client(base_url=url, timeout=60) as client:
        for secret in (MASTER, SECRET, WRONG):
            for headers in spelled(secret):
                for method, path in (
                    ("GET", "/api/count"),
                    ("GET", "/"),
                    ("POST", "/v1/traces"),
                    ("DELETE", "/api/traces"),
                ):
                    for accept in ("text/html", "*/*"):
                        answer = client.request(method, path, headers={**headers, "accept": accept})
                        yield f"{answer.headers} {answer.text}"
            page = client.get("/sign-in").text
            token = page.split('name="token" value="')[1][:64]
            for data in (
                {"key": secret, "token": token},
                {"key": secret},
                {"key": secret, "token": token, "next": secret},
            ):
                answer = client.post("/sign-in", data=data)
                yield f"{answer.headers} {answer.text}"
            client.cookies.clear()


def hidden(text: str) -> None:
    for secret in (MASTER, SECRET, WRONG):
        for form in (secret, base64.b64encode(f"pk:{secret}".encode()).decode(), sha256(secret.encode()).hexdigest()):
            assert form not in text


@contextmanager
def serving(path: Path) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    port = free_port()
    command = [*COMMAND, "serve", "--host", "0.0.0.0", "--port", str(port), "--store", str(path)]
    env = environment() | {"SPANWISE_API_KEY": MASTER}
    process = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    url, deadline = f"http://127.0.0.1:{port}", time.monotonic() + 240
    try:
        while time.monotonic() < deadline:
            assert process.poll() is None, process.communicate()[0]
            with suppress(httpx.TransportError):
                if httpx.get(f"{url}/readyz", timeout=60).status_code == 200:
                    break
        yield url, process
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


@pytest.mark.slow
def test_a_server_tells_no_key_to_anybody(tmp_path: Path) -> None:
    path = tmp_path / "spanwise.db"
    with SQLiteStore(path) as store:
        store.save_key(Key(id="k", name="n", sha256=sha256(SECRET.encode()).hexdigest(), scopes=("read",)))
    with serving(path) as (url, process):
        for answer in tried(url):
            hidden(answer)
        hidden(Path(f"/proc/{process.pid}/cmdline").read_bytes().decode())
        made = httpx.post(
            f"{url}/api/keys",
            headers={"x-api-key": MASTER},
            json={"id": "x\nY", "name": "a\nb", "sha256": "s"},
            timeout=60,
        )
        process.send_signal(signal.SIGTERM)
        said = process.communicate(timeout=240)[0]
    hidden(said)
    assert made.status_code == 200
    assert "request(s) with invalid API keys from 127.0.0.1" in said
    (line,) = [line for line in said.splitlines() if line.startswith("{")]
    assert (json.loads(line)["audit"], json.loads(line)["key"]) == ("save_key", "SPANWISE_API_KEY")
    for file in tmp_path.iterdir():
        for secret in (MASTER, SECRET, WRONG):
            assert secret.encode() not in file.read_bytes()


class Broken(SQLiteStore):
    """A store with a fault in it."""

    def count(self, *_: object) -> Any:
        raise RuntimeError("a fault")


def test_a_traceback_holds_no_key(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with (
        caplog.at_level(logging.DEBUG),
        Broken(tmp_path / "spanwise.db") as store,
        Server(store, host="0.0.0.0", api_key=MASTER) as server,
    ):
        answers = [httpx.get(f"{server.url}/api/count", headers=sent, timeout=60) for sent in spelled(MASTER)]
        with HTTPStore(server.url, MASTER) as client, pytest.raises(Exception) as failed:
            client.count()
        said = f"{client!r} {failed.value!r} {server.authenticator!r} {server!r}"
    assert {answer.status_code for answer in answers} == {500, 401}
    assert "RuntimeError: a fault" in caplog.text
    hidden(caplog.text + said + "".join(answer.text for answer in answers))
