"""`spanwise spool`, and what a server fetches for itself."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from collector.otlp import request, span
from integration.serving import Process, free_port
from spanwise.cli.app import app
from spanwise.cli.commands.serve import deliver_spooled
from spanwise.collector.server import Server
from spanwise.collector.stores.sqlite import SQLiteStore
from spanwise.tracer.configuration import Settings
from spanwise.tracer.export import disk_spool
from spanwise.tracer.export.disk_spool import Spool
from spanwise.tracer.export.span_encoding import TRACES_PATH


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SPANWISE_SPILL_DIR", str(tmp_path / "spill"))
    monkeypatch.delenv("SPANWISE_API_KEY", raising=False)
    return tmp_path / "spill"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with SQLiteStore(tmp_path / "spanwise.db") as store, Server(store) as running:
        yield running


def left_for(url: str, project: str = "p") -> None:
    """A process has left two spans for this address."""
    settings = Settings(url=url, project=project, spill_dir=disk_spool.get_spool_directory())
    left = Spool(disk_spool.get_spool_folder(settings), owner=disk_spool.describe_owner(settings))
    left.append(TRACES_PATH, request(span(), span()), 2)
    left.close_segment()


def spanwise(*arguments: str, **options: str) -> Result:
    return CliRunner().invoke(app, ["spool", *arguments], **options)  # type: ignore[arg-type]


def test_list(place: Path) -> None:
    assert f"no unsent items in {place}" in spanwise("list").stderr
    left_for("http://one:1")
    left_for("http://two:2", "q")
    rows = [json.loads(line) for line in spanwise("list", "--json").stdout.splitlines()]
    assert [(row["url"], row["project"], row["items"]) for row in rows] == [
        ("http://one:1", "p", 2),
        ("http://two:2", "q", 2),
    ]
    assert "http://one:1" not in spanwise("list", "--for", "http://two:2").stdout
    assert "http://one:1" in spanwise("list").stdout


def test_a_spool_that_is_off_is_said_to_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPANWISE_SPILL_DIR", "off")
    assert "the spool is disabled by SPANWISE_SPILL_DIR" in str(spanwise("list").exception)


def test_send_to_whom_it_is_for(server: Server) -> None:
    left_for(server.url)
    left_for("http://127.0.0.1:1")
    sent = spanwise("send")
    assert (sent.exit_code, f"2 sent to {server.url}" in sent.stderr) == (1, True)
    assert "2 left (connection refused)" in sent.stderr
    assert (server.store.count()["spans"], [one.url for one in disk_spool.list_spool_folders()]) == (
        2,
        ["http://127.0.0.1:1"],
    )


def test_send_elsewhere(server: Server) -> None:
    left_for("http://127.0.0.1:1")
    left_for("http://127.0.0.1:2")
    sent = spanwise("send", "--for", "http://localhost:1", "--to", server.url, "--json")
    [row] = map(json.loads, sent.stdout.splitlines())
    assert (sent.exit_code, row["kept"], row["left"], row["to"]) == (0, 2, 0, server.url)
    assert [one.url for one in disk_spool.list_spool_folders()] == ["http://127.0.0.1:2"]


def test_clear_asks(place: Path) -> None:
    left_for("http://one:1")
    left_for("http://two:2")
    assert spanwise("clear", input="n\n").exit_code == 1
    assert "removed 2 items" in spanwise("clear", "--for", "http://one:1", input="y\n").stderr
    assert json.loads(spanwise("clear", "--yes", "--json").stdout) == {"removed": 2}
    assert disk_spool.list_spool_folders() == []


def test_a_server_fetches_what_is_for_it_alone(server: Server) -> None:
    left_for(server.url.replace("127.0.0.1", "localhost"))
    left_for("http://127.0.0.1:1")
    assert (deliver_spooled(server.url), deliver_spooled(server.url)) == (2, 0)
    assert server.store.count()["spans"] == 2
    assert [one.url for one in disk_spool.list_spool_folders()] == ["http://127.0.0.1:1"]


@pytest.mark.process
def test_spanwise_serve_fetches_it_when_it_starts(tmp_path: Path) -> None:
    port = free_port()
    left_for(f"http://127.0.0.1:{port}")
    with Process(tmp_path / "a.db", port):
        deadline = time.monotonic() + 60
        while disk_spool.list_spool_folders() and time.monotonic() < deadline:
            time.sleep(0.05)
    with SQLiteStore(tmp_path / "a.db") as store:
        assert store.count()["spans"] == 2
