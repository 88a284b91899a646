"""Much feedback in one request: kept in several transactions, acknowledged when all of it is durable."""

from __future__ import annotations

import subprocess
import sys

import httpx
import pytest

from collector.otlp import PROTOBUF, attribute, log_record, logs_request, request, span
from spanwise.collector.server import Server
from spanwise.collector.stores.sqlite import SQLiteStore

TRACE, SPAN, MANY = "1" * 32, "2" * 16, 1000
EVENT = "gen_ai.evaluation.result"
# Sends a file to its own server, which dies in the middle of writing what is in there
KILLED = """
import os, signal, sqlite3, sys
from spanwise.collector.stores.sqlite import database_file
from spanwise.collector.stores.sqlite.write_connection import SQLiteWriteConnection
from pathlib import Path

class Connection(SQLiteWriteConnection):
    left = 16  # statements of 50 rows: the fourth transaction
    def execute(self, sql, *rest):
        if sql.startswith("INSERT INTO feedback"):
            Connection.left -= 1
            if not Connection.left:
                os.kill(os.getpid(), signal.SIGKILL)
        return super().execute(sql, *rest)

database_file.SQLiteWriteConnection = Connection
import httpx
from spanwise.collector.server import Server
from spanwise.collector.stores.sqlite import SQLiteStore
path, address, body = sys.argv[1:]
with SQLiteStore(path) as store, Server(store) as server:
    headers = {"content-type": "application/x-protobuf"}
    httpx.post(server.url + address, content=Path(body).read_bytes(), headers=headers, timeout=60)
    print("acknowledged")
"""


def as_logs() -> bytes:
    good = attribute("gen_ai.evaluation.score.label", "good")
    keys = [attribute("gen_ai.evaluation.name", f"key {number}") for number in range(MANY)]
    return logs_request(*(log_record(TRACE, SPAN, event_name=EVENT, attributes=[key, good]) for key in keys))


def as_annotations() -> bytes:
    """Of ten spans a hundred each."""
    spans = []
    for number in range(10):
        made = span(f"span {number}")
        made.span_id = (number + 1).to_bytes(8, "big")
        for place in range(MANY // 10):
            name = f"annotations.{place}.annotation"
            made.attributes.append(attribute(f"{name}.name", f"key {place}"))
            made.attributes.append(attribute(f"{name}.label", "good"))
        spans.append(made)
    return request(*spans)


@pytest.mark.process
@pytest.mark.parametrize(
    ("address", "body"),
    [
        pytest.param("/v1/logs", as_logs(), id="logs", marks=pytest.mark.slow),
        pytest.param("/v1/traces", as_annotations(), id="spans"),
    ],
)
def test_a_server_that_is_killed_between_has_acknowledged_nothing_and_all_can_be_sent_again(tmp_path, address, body):
    (tmp_path / "body").write_bytes(body)
    command = [sys.executable, "-c", KILLED, tmp_path / "a.db", address, tmp_path / "body"]
    killed = subprocess.run(command, check=False, capture_output=True, text=True)
    assert (killed.returncode, killed.stdout) == (-9, ""), killed.stderr
    with SQLiteStore(tmp_path / "a.db") as store, Server(store) as server:
        assert 0 < store.count()["feedbacks"] < MANY
        assert store.check(deep=True) == []
        answer = httpx.post(server.url + address, content=body, headers={"content-type": PROTOBUF}, timeout=60)
        assert (answer.status_code, store.count()["feedbacks"]) == (200, MANY)
        assert store.check(deep=True) == []
