"""What was acknowledged is there after kill -9 and after SIGTERM, in the middle of a load."""

from __future__ import annotations

import random
import sqlite3
import threading
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import httpx
import pytest

from assay.collector.client import HTTPStore
from collector.otlp import PROTOBUF, attribute, request, span
from integration.serving import Process

HEADERS = {"content-type": PROTOBUF}


class Load:
    """Threads that send requests of 20 spans, one trace each, until the server goes away."""

    def __init__(self, url: str, seed: int, threads: int = 4) -> None:
        self.url, self.acknowledged = url, list[str]()
        self.refused = list[int]()
        self.threads = [threading.Thread(target=self._send, args=(random.Random(seed + n),)) for n in range(threads)]
        for thread in self.threads:
            thread.start()

    def _send(self, random_: random.Random) -> None:
        with httpx.Client(timeout=30) as client:
            while True:
                trace_id = random_.randbytes(16)
                spans = [
                    span(
                        trace_id=trace_id,
                        span_id=random_.randbytes(8),
                        attributes=[attribute("input.value", "x" * 500)],
                    )
                    for _ in range(20)
                ]
                try:
                    response = client.post(f"{self.url}/v1/traces", content=request(*spans), headers=HEADERS)
                except httpx.TransportError:
                    return
                if response.status_code == 200:
                    self.acknowledged.append(trace_id.hex())
                else:
                    self.refused.append(response.status_code)

    def join(self) -> set[str]:
        for thread in self.threads:
            thread.join()
        return set(self.acknowledged)


def until(condition: Callable[[], bool], seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.005)


def lost(url: str, acknowledged: set[str]) -> set[str]:
    """Traces that were acknowledged and are not there with all their spans."""
    with HTTPStore(url) as store:
        whole = {trace.trace_id for trace in store.many(sorted(acknowledged)) if len(trace.runs) == 20}
    return acknowledged - whole


def sound(path: Path) -> list[str]:
    with closing(sqlite3.connect(path)) as db:
        return [row[0] for row in db.execute("PRAGMA integrity_check")]


def killed_again_and_again(folder: Path, kills: int) -> None:
    path, random_ = folder / "assay.db", random.Random(7)
    acknowledged: set[str] = set()
    for round_ in range(kills):
        with Process(path) as server:
            assert lost(server.url, acknowledged) == set()
            load = Load(server.url, round_ * 100)
            wanted = random_.randint(1, 60)
            until(lambda load=load, wanted=wanted: len(load.acknowledged) >= wanted)
            time.sleep(random_.random() / 20)  # somewhere within a commit, a checkpoint, a round of indexing
        acknowledged |= load.join()
        assert sound(path) == ["ok"]
    with Process(path) as server:
        assert lost(server.url, acknowledged) == set()
        server.stop()


def test_three_kills_under_load_lose_nothing(tmp_path: Path) -> None:
    killed_again_and_again(tmp_path, 3)


@pytest.mark.slow
def test_thirty_kills_under_load_lose_nothing(tmp_path: Path) -> None:
    killed_again_and_again(tmp_path, 30)


def test_a_server_that_is_told_to_stop_loses_nothing(tmp_path: Path) -> None:
    with Process(tmp_path / "assay.db") as server:
        load = Load(server.url, 1)
        until(lambda: len(load.acknowledged) >= 20)
        assert "everything that was acknowledged is kept" in server.stop()
    acknowledged = load.join()
    assert not (tmp_path / "assay.db-wal").exists()  # the last one out has put everything into the file
    with Process(tmp_path / "assay.db") as again:
        assert lost(again.url, acknowledged) == set()
        again.stop()


def test_a_span_is_kept_although_the_server_dies_right_after_its_answer(tmp_path: Path) -> None:
    one = span("last words")
    with Process(tmp_path / "assay.db") as server:
        told = httpx.post(f"{server.url}/v1/traces", content=request(one), headers=HEADERS, timeout=60)
    assert told.status_code == 200  # and that was its end
    with Process(tmp_path / "assay.db", server.port) as again, HTTPStore(again.url) as store:
        assert store.trace(one.trace_id.hex()).root.name == "last words"


def test_a_port_that_is_taken_is_named_with_its_holder(tmp_path: Path) -> None:
    with Process(tmp_path / "a.db") as server:
        with pytest.raises(AssertionError, match=r"held by an Assay server \(process \d+, store '.*a.db'\).*--port"):
            Process(tmp_path / "b.db", server.port)
        with pytest.raises(AssertionError, match=f"written by process .* answers at {server.url}"):
            Process(tmp_path / "a.db")
