"""What a process that is killed leaves behind, as the collector and its commands tell it: traced, stored, shown."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from integration.serving import environment
from spanwise.cli.app import app
from spanwise.collector.server import Server
from spanwise.collector.stores.sqlite import SQLiteStore

PROGRAM = """
import time
from spanwise.tracer import configure, trace

configure(project="shop")

@trace
def search(question): return ["a"]

@trace
def slow(seconds): time.sleep(seconds)

@trace
def answer(question, seconds):
    search(question)
    slow(seconds)

answer("soon", 0)
answer("never", 600)
"""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with SQLiteStore(tmp_path / "spanwise.db") as store, Server(store) as running:
        yield running


def until(condition: Callable[[], object], seconds: float = 40) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "not in time"
        time.sleep(0.05)


@pytest.mark.slow  # a run is told of after a second
def test_a_process_that_is_killed_leaves_its_open_runs(server: Server) -> None:
    store, given = server.store, {**environment(), "SPANWISE_URL": server.url}
    with subprocess.Popen([sys.executable, "-c", PROGRAM], env=given) as process:
        until(lambda: len(store.running()) == 2 and store.processes() and store.processes()[0].report)
        os.kill(process.pid, signal.SIGKILL)
    [broken, whole] = store.traces()
    assert (whole.complete, whole.running, broken.complete, broken.running) == (True, 0, False, 2)
    assert {run.name for run in store.trace(broken.trace_id).running} == {"answer", "slow"}
    shown = CliRunner().invoke(app, ["traces", "show", broken.trace_id, "--store", server.url]).stdout
    assert ("answer is running since" in shown, "slow is running since" in shown) == (True, True)
    told = CliRunner().invoke(app, ["traces", "reconcile", "--json", "--store", server.url])
    row = json.loads(told.stdout)
    assert (told.exit_code, row["pid"], row["unaccounted"], row["stored"]) == (0, process.pid, 0, 4)
    assert (row["started"], row["open"], "2 runs open" in row["verdict"]) == (6, 2, True)
