"""`spanwise demo`, run as people run it."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import urllib.request
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from spanwise.cli.app import app, report_errors
from spanwise.collector.stores.sqlite import SQLiteStore
from spanwise.tracer import process_runtime

KEYS = ("document_recall", "ir_mrr", "contains", "length")


@pytest.fixture(autouse=True)
def own_place(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """A directory and a tracer of its own, and no model service."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SPANWISE_SPILL_DIR", "off")
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL", "SPANWISE_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    previous = process_runtime.replace_runtime(None)
    yield
    made = process_runtime.replace_runtime(previous)
    if made is not None:
        made.delivery.close(0.2)


def demo(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["demo", "--no-serve", "--no-models", *arguments])


@pytest.mark.process
def test_prints_both_experiments_and_where_to_look():
    shown = demo("--port", "0")
    assert shown.exit_code == 0, shown.output
    assert all(key in shown.stdout for key in (*KEYS, "bm25-k1", "bm25-k5"))
    assert re.search(r"http://127\.0\.0\.1:\d+/traces\?project=demo", shown.stdout)
    assert re.search(r"/compare\?ids=[0-9a-f]{32},[0-9a-f]{32}", shown.stdout)


@pytest.mark.process
def test_forty_questions_come_in_as_live_traffic():
    demo("--port", "0")
    with SQLiteStore("spanwise-demo.db") as store:
        live = store.traces(project="demo", experiment="", limit=100)
        assert len(live) == 40
        assert all(one.span_count == 3 and one.complete and one.status != "error" for one in live)
        assert {tag for one in live for tag in one.tags} == {"easy", "medium", "hard"}
        whole = store.trace(live.items[0].trace_id)
    assert [run.kind for run in whole.runs] == ["chain", "retriever", "chain"]
    assert len(whole.documents) == 5


@pytest.mark.process
def test_rules_score_the_traffic_while_it_comes_in():
    shown = demo("--port", "0")
    assert re.search(r"http://127\.0\.0\.1:\d+/rules", shown.stdout)
    with SQLiteStore("spanwise-demo.db") as store:
        counts = {one.rule.name: one.counts for one in store.status(project="demo")}
        live = store.aggregate(project="demo", experiment="")[0].feedback
    assert counts["answers"]["scored"] == 40
    assert 10 < counts["on topic"]["scored"] < 40
    assert counts["on topic"]["scored"] + counts["on topic"]["sampled_out"] == 40
    assert {one.key: one.n for one in live} == {"answered": 40, "length": 40, "on_topic": counts["on topic"]["scored"]}


@pytest.mark.process
def test_every_row_is_scored_under_every_key():
    demo("--port", "0")
    with SQLiteStore("spanwise-demo.db") as store:
        experiments = store.experiments(dataset="python-reference")
        for experiment in experiments:
            stats = store.aggregate(experiment=experiment.id)[0].feedback
            assert {one.key: (one.n, one.failed, one.skipped) for one in stats} == dict.fromkeys(KEYS, (40, 0, 0))
    assert {(one.name, one.status) for one in experiments} == {("bm25-k1", "finished"), ("bm25-k5", "finished")}


@pytest.mark.process
def test_again_into_the_same_file_adds_experiments_over_the_same_version():
    assert [demo("--port", "0").exit_code for _ in range(2)] == [0, 0]
    with SQLiteStore("spanwise-demo.db") as store:
        assert [one.version for one in store.versions("python-reference")] == [1]
        assert len(store.experiments(dataset="python-reference")) == 4


@pytest.mark.process
def test_a_free_port_is_taken_when_the_usual_one_is_busy(usual_port):
    with ExitStack() as held:
        with suppress(OSError):  # another program may hold it already: just as good
            held.enter_context(socket.create_server(("127.0.0.1", usual_port)))
        shown = demo()
    assert shown.exit_code == 0
    assert re.search(r"port 4318 is in use by [^;]*; using \d+ instead", " ".join(shown.stderr.split()))
    assert ":4318/" not in shown.stdout


@pytest.mark.process
def test_a_busy_port_that_was_asked_for_is_told_in_one_line():
    with socket.create_server(("127.0.0.1", 0)) as busy, pytest.raises(SystemExit) as told, report_errors():
        app(["demo", "--no-serve", "--port", str(busy.getsockname()[1])])
    assert re.fullmatch(r"spanwise: port \d+ is in use by process \d+ .*--port", str(told.value))


def test_an_address_is_no_store():
    with pytest.raises(SystemExit, match="give its path"), report_errors():
        app(["demo", "--store", "http://127.0.0.1:4318"])


@pytest.mark.process
@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)])
def test_serves_the_pages_until_it_is_told_to_stop(number):
    command = [sys.executable, "-c", "from spanwise.cli import main; main()", "demo", "--no-models", "--port", "0"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment
    ) as running:
        lines = iter(running.stdout.readline, "")
        found = next(line for line in lines if line.startswith("experiments")).split()[1]
        assert next(line for line in lines if "Ctrl-C" in line)
        page = urllib.request.urlopen(found).read().decode()
        running.send_signal(number)
        assert running.wait(240) == 0
    assert "bm25-k5" in page
