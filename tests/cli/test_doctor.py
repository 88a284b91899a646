"""`spanwise doctor`, as people run it."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path

import httpx
import pytest
from typer.testing import CliRunner, Result

from spanwise.cli.app import app
from spanwise.collector import connect
from spanwise.collector.client import HTTPStore
from spanwise.collector.records import Key, Run
from spanwise.collector.server import Server
from spanwise.collector.stores.sqlite import SQLiteStore


def run(number: int, **fields: object) -> Run:
    at = 1_750_000_000 * 10**9 + number
    made = {"name": "search", "start_ns": at, "end_ns": at + 1, **fields}
    return Run(trace_id=f"{number:032x}", span_id=f"{number:016x}", **made)  # type: ignore[arg-type]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "a.db"
    with connect(path) as store:
        store.append(
            [
                run(1, kind="retriever", attributes={"vendor.docs": "…", "otel.scope.name": "vendor"}),
                run(2, name="answer", inputs="q", outputs="a"),
            ]
        )
    return path


def doctor(*arguments: str) -> Result:
    result = CliRunner().invoke(app, ["doctor", *arguments])
    assert result.exit_code == 0, result.output
    return result


def test_it_says_per_sender_what_is_there_and_what_is_not(file: Path) -> None:
    shown = doctor("--store", str(file))
    assert re.search(r"vendor *│ 1 *│ 0 of 1 *│ 0 of 1 *│ 0 of 1 *│ – .*vendor\.docs 1", shown.stdout)
    assert "1 of 1 retrieval spans have no documents" in shown.stdout
    assert "examined all 2 spans, in 2 traces of 2 senders" in shown.stderr


def test_filters_hold(file: Path) -> None:
    found = json.loads(doctor("--store", str(file), "--where", "name=answer", "--json").stdout)
    assert ([one["spans"] for one in found["senders"]], found["sampled"]) == ([1], False)
    assert json.loads(doctor("--store", str(file), "--since", "1h", "--json").stdout)["senders"] == []


def test_a_part_of_many_is_said_to_be_one(file: Path) -> None:
    found = doctor("--store", str(file), "--spans", "1", "--json")
    told = json.loads(found.stdout)
    assert (told["spans"], told["spans_stored"], told["sampled"]) == (1, 2, True)
    assert "examined the latest 1 spans of 2 stored" in doctor("--store", str(file), "--spans", "1").stderr


def test_a_server_says_the_same_and_what_it_has_refused(file: Path) -> None:
    alone = json.loads(doctor("--store", str(file), "--json").stdout)["senders"]
    with SQLiteStore(file) as store, Server(store) as server:
        assert json.loads(doctor("--store", server.url, "--json").stdout)["senders"] == alone
        httpx.post(f"{server.url}/v1/traces", content=b"{", headers={"content-type": "application/json"})
        *_, trouble = json.loads(doctor("--store", server.url, "--json").stdout)["troubles"]
    told = "1 requests answered with an error since the collector started"
    assert trouble == f'{told} (signal="traces",reason="malformed")'


@pytest.mark.process
def test_the_numbers_of_a_collector_are_read_by_name(file: Path) -> None:
    with SQLiteStore(file) as store, Server(store) as server, HTTPStore(server.url) as client:
        numbers = client.numbers()
    assert (numbers["spanwise_store_writable"], numbers["spanwise_pending_bytes"]) == (1.0, 0.0)


def test_nothing_stored_is_said(tmp_path: Path) -> None:
    path = tmp_path / "empty.db"
    connect(path).close()
    shown = doctor("--store", str(path))
    assert (shown.stdout, "examined all 0 spans: no spans have been received" in shown.stderr) == ("", True)


def test_conditions_that_nothing_passes_are_said(file: Path) -> None:
    told = " ".join(doctor("--where", "name=nobody", "--store", str(file)).stderr.split())
    assert "stored passes the conditions" in told


def test_a_key_of_a_project_sees_its_senders_alone(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SPANWISE_API_KEY", raising=False)
    hashed = hashlib.sha256(b"bank's").hexdigest()
    with SQLiteStore(file) as store:
        store.append([run(3, project="bank", name="theirs", resource={"service.name": "bank"})])
        store.save_key(Key(id="k", name="k", sha256=hashed, scopes=("read",), project="bank"))
        with Server(store, host="0.0.0.0") as server:
            monkeypatch.setenv("SPANWISE_API_KEY", "bank's")
            found = json.loads(doctor("--store", server.url, "--json").stdout)
    assert [one["who"]["service"] for one in found["senders"]] == ["bank"]
    assert (found["spans"], found["spans_stored"]) == (1, None)
