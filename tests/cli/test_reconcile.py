"""Nothing was lost: shown, not said."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from typer.testing import CliRunner, Result

from collector.making import run
from collector.otlp import attribute, span
from looped_cases import loop_over
from spanwise.cli.app import app
from spanwise.cli.commands.traces import LIVE_PROCESS_NS, SpanBalance, balance_spans
from spanwise.collector.records import OpenRun, Process, ProcessReport
from spanwise.collector.server import Server
from spanwise.collector.stores.sqlite import SQLiteStore
from spanwise.tracer.configuration import Settings
from spanwise.tracer.export import disk_spool
from spanwise.tracer.export.disk_spool import Spool
from spanwise.tracer.export.span_encoding import TRACES_PATH

NOW = 10**18


def balanced(stored: int = 0, spooled: int | None = 0, age: float = 5.0, begun: int = 0, **said: Any) -> SpanBalance:
    report = ProcessReport(instance="i", reported_ns=5, **said)
    return balance_spans(process(stored, report, age), spooled, begun, NOW)


def process(stored: int, report: ProcessReport | None, age: float = 0.0) -> Process:
    given = {"instance": "i", "service": "s", "project": "p", "environment": "e", "pid": 7}
    return Process(stored=stored, report=report, seen_ns=NOW - int(age * 1e9), **given)


@loop_over(
    ("given", "missing", "words"),
    [
        ({"stored": 9, "started": 9, "delivered": 9}, 0, "all accounted for"),
        ({"stored": 5, "started": 9, "dropped": {"full": 4}}, 0, "4 dropped by the process"),
        ({"stored": 5, "spooled": 4, "started": 9, "spilled": 4}, 0, "4 are in the spool of this machine"),
        ({"stored": 5, "spooled": None, "started": 9, "spilled": 4}, 4, "4 more were in the spool of its machine"),
        ({"stored": 5, "started": 9, "pending": 4}, 0, "all accounted for"),
        ({"stored": 5, "started": 9, "pending": 4, "age": 120}, 4, "4 were in its memory"),
        ({"stored": 8, "started": 9, "pending": 4, "age": 120}, 1, "1 unaccounted for"),
        ({"stored": 8, "started": 9, "open": 1}, 0, "1 run open at its last report"),
        ({"stored": 8, "started": 9, "open": 1, "age": 120}, 0, "still running, or ended with the process"),
        ({"stored": 8, "started": 9, "delivered": 9}, 1, "1 unaccounted for"),
        ({"stored": 12, "started": 9}, 0, "more spans have arrived since its last report"),
        ({}, 0, "all accounted for"),
    ],
)
def test_each_span_that_was_started_is_somewhere(given: dict[str, Any], missing: int, words: str) -> None:
    found = balanced(**given)
    assert found.unaccounted == missing
    assert words in found.verdict


def test_at_the_edge_of_freshness() -> None:
    assert balanced(started=1, pending=1, age=(LIVE_PROCESS_NS - 1) / 1e9).unaccounted == 0
    assert balanced(started=1, pending=1, age=LIVE_PROCESS_NS / 1e9).unaccounted == 1


def test_of_a_process_that_never_said_anything_nothing_is_known() -> None:
    found = balance_spans(process(3, None), 0, 2, NOW)
    assert (found.started, found.unaccounted, found.open) == (None, None, 2)
    assert found.verdict.startswith("unknown")
    assert "3 stored, 2 runs open" in found.verdict


# the command


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setenv("SPANWISE_SPILL_DIR", str(tmp_path / "spill"))
    with SQLiteStore(tmp_path / "spanwise.db") as store, Server(store) as running:
        yield running


def reconcile(server: Server, *options: str) -> Result:
    return CliRunner().invoke(app, ["traces", "reconcile", "--store", server.url, *options], catch_exceptions=False)


def left_on_disk(instance: str, spans: int) -> None:
    request = ExportTraceServiceRequest()
    group = request.resource_spans.add()
    group.resource.attributes.append(attribute("service.instance.id", instance))
    group.scope_spans.add().spans.extend(span() for _ in range(spans))
    settings = Settings(url="http://away:1", spill_dir=disk_spool.get_spool_directory())
    left = Spool(disk_spool.get_spool_folder(settings), owner=disk_spool.describe_owner(settings))
    left.append(TRACES_PATH, request.SerializeToString(), spans)
    left.close_segment()


def test_nothing_is_missing(server: Server) -> None:
    resource = {"service.instance.id": "one", "service.name": "shop"}
    server.store.append([run(resource=resource) for _ in range(3)])
    said = {"reported_ns": time.time_ns(), "service": "shop", "pid": 7}
    server.store.add_reports([ProcessReport(instance="one", started=6, delivered=3, spilled=2, open=1, **said)])
    left_on_disk("one", 2)
    result = reconcile(server)
    assert (result.exit_code, "1 processes, 6 spans started, 0 unaccounted for" in result.stderr) == (0, True)
    for words in ("shop 7", "just now", "2 are in the spool of this machine", "1 run open"):
        assert words in result.stdout


def test_what_is_missing_is_the_exit_status(server: Server) -> None:
    server.store.add_reports(
        [ProcessReport(instance="one", started=6, dropped={"full": 2}, reported_ns=time.time_ns())]
    )
    server.store.append([run(resource={"service.instance.id": "two"})])
    server.store.add_running([OpenRun(trace_id="a" * 32, span_id="b" * 16, name="slow", instance="two")])
    result = reconcile(server, "--json")
    found = {row["instance"]: row for row in map(json.loads, result.stdout.splitlines())}
    assert (result.exit_code, "4 unaccounted for" in result.stderr) == (1, True)
    assert (found["one"]["unaccounted"], found["one"]["dropped"], found["one"]["spooled"]) == (4, {"full": 2}, 0)
    assert (found["two"]["started"], found["two"]["open"]) == (None, 1)
    assert f"spool: {disk_spool.get_spool_directory()}" in result.stderr


def test_a_disk_that_is_not_ours_to_read_is_said_to_be(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPANWISE_SPILL_DIR", "off")
    server.store.add_reports([ProcessReport(instance="one", reported_ns=time.time_ns())])
    result = reconcile(server, "--json")
    assert json.loads(result.stdout)["spooled"] is None
    assert "the spool of this machine is empty or not readable" in result.stderr


@pytest.mark.process
def test_processes_of_long_ago_are_left_out(server: Server) -> None:
    server.store.add_reports([ProcessReport(instance="one", started=6, reported_ns=5)])
    assert reconcile(server, "--since", "2100-01-01").exit_code == 0
    assert reconcile(server, "--since", "1h").exit_code == 1
