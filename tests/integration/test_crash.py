"""What was acknowledged is there after kill -9 and after SIGTERM, in the middle of a load."""

from __future__ import annotations

import random
import sqlite3
import threading
import time
from contextlib import closing
from pathlib import Path

import httpx
import pytest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from collector.growing import Traces
from collector.otlp import PROTOBUF, attribute, request, span
from integration.serving import Process
from polling import until
from spanwise.collector.client import HTTPStore
from spanwise.collector.stores.sqlite.database.connections import open_writable

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


def lost(url: str, acknowledged: set[str]) -> set[str]:
    """Traces that were acknowledged and are not there with all their spans."""
    with HTTPStore(url) as store:
        whole = {trace.trace_id for trace in store.many(sorted(acknowledged)) if len(trace.runs) == 20}
    return acknowledged - whole


def sound(path: Path) -> list[str]:
    with closing(sqlite3.connect(path)) as db:
        return [row[0] for row in db.execute("PRAGMA integrity_check")]


def killed_again_and_again(folder: Path, kills: int) -> None:
    path, random_ = folder / "spanwise.db", random.Random(7)
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


@pytest.mark.process
@pytest.mark.parametrize("kills", [1, pytest.param(12, marks=pytest.mark.slow)])
def test_kills_under_load_lose_nothing(tmp_path: Path, kills: int) -> None:
    killed_again_and_again(tmp_path, kills)


class Agents:
    """Threads that have three traces open each, which grow by ten spans a request, until the server goes away."""

    def __init__(self, url: str, seed: int, threads: int = 3) -> None:
        self.url, self.acknowledged, self.answers = url, set[tuple[str, str]](), 0
        self.threads = [threading.Thread(target=self._send, args=(random.Random(seed + n),)) for n in range(threads)]
        for thread in self.threads:
            thread.start()

    def _send(self, random_: random.Random) -> None:
        traces = [(random_.randbytes(16), random_.randbytes(8)) for _ in range(3)]
        with httpx.Client(timeout=30) as client:
            while True:
                spans = [one for trace_id, root in traces for one in steps(random_, trace_id, root)]
                try:
                    response = client.post(f"{self.url}/v1/traces", content=request(*spans), headers=HEADERS)
                except httpx.TransportError:
                    return
                if response.status_code == 200:
                    self.acknowledged |= {(one.trace_id.hex(), one.span_id.hex()) for one in spans}
                    self.answers += 1

    def join(self) -> set[tuple[str, str]]:
        for thread in self.threads:
            thread.join()
        return self.acknowledged


def steps(random_: random.Random, trace_id: bytes, root: bytes) -> list[Span]:
    """A step of an agent, as its spans end: what it called, then itself; its root has not ended."""
    step = random_.randbytes(8)
    used = KeyValue(key="gen_ai.usage.input_tokens", value=AnyValue(int_value=random_.randint(1, 9)))
    inner = [
        span(trace_id=trace_id, span_id=random_.randbytes(8), parent_span_id=step, attributes=[used]) for _ in range(9)
    ]
    return [*inner, span(trace_id=trace_id, span_id=step, parent_span_id=root)]


def not_as_they_add_up(path: Path) -> list[str]:
    """Traces of which the file says something else than all of their spans add up to."""
    with closing(open_writable(str(path))) as db:
        traces = Traces(db)
        traces.settle()
        ids = [row[0] for row in db.execute("SELECT trace_id FROM traces WHERE span_count > 0")]
        return [trace_id for trace_id in ids if traces.said(trace_id) != traces.true(trace_id)]


def stored(path: Path) -> set[tuple[str, str]]:
    with closing(sqlite3.connect(path)) as db:
        return set(db.execute("SELECT t.trace_id, s.span_id FROM spans s JOIN traces t ON t.id = s.trace"))


@pytest.mark.process
@pytest.mark.parametrize("kills", [1, pytest.param(4, marks=pytest.mark.slow)])
def test_traces_that_grow_when_the_server_is_killed_add_up(tmp_path: Path, kills: int) -> None:
    path, random_ = tmp_path / "spanwise.db", random.Random(7)
    acknowledged: set[tuple[str, str]] = set()
    for round_ in range(kills):
        with Process(path) as server:
            agents = Agents(server.url, round_ * 100)
            wanted = random_.randint(30, 60)  # some have more spans by then than are read at once
            until(lambda agents=agents, wanted=wanted: agents.answers >= wanted, 240)
            server.kill()
        acknowledged |= agents.join()
        assert acknowledged <= stored(path)
        assert not_as_they_add_up(path) == []


@pytest.mark.process
def test_what_is_summed_up_behind_when_the_server_is_killed_is_found_again(tmp_path: Path) -> None:
    path, trace_id = tmp_path / "spanwise.db", b"t" * 16
    ids = [number.to_bytes(8, "big") for number in range(1, 3002)]
    chain = [
        span(trace_id=trace_id, span_id=one, parent_span_id=above) for above, one in zip([b"", *ids], ids, strict=False)
    ]
    used = KeyValue(key="gen_ai.usage.input_tokens", value=AnyValue(int_value=3))
    chain[-1].attributes.append(used)  # all above it must be told
    with Process(path) as server:
        for some in (chain[:-1], chain[-1:]):
            told = httpx.post(f"{server.url}/v1/traces", content=request(*some), headers=HEADERS, timeout=60)
            assert told.status_code == 200
    with Process(path) as again:
        until(lambda: due(path) == 0, 240)
        again.stop()
    with closing(open_writable(str(path))) as db:
        assert Traces(db).said(trace_id.hex()) == Traces(db).true(trace_id.hex())


def due(path: Path) -> int:
    with closing(sqlite3.connect(path)) as db:
        found: int = db.execute("SELECT count(*) FROM states WHERE data IS NULL").fetchone()[0]
        return found


@pytest.mark.process
def test_a_server_that_is_told_to_stop_loses_nothing(tmp_path: Path) -> None:
    with Process(tmp_path / "spanwise.db") as server:
        load = Load(server.url, 1)
        until(lambda: len(load.acknowledged) >= 20)
        assert "all acknowledged data is stored" in server.stop()
    acknowledged = load.join()
    assert not (tmp_path / "spanwise.db-wal").exists()  # the last one out has put everything into the file
    with Process(tmp_path / "spanwise.db") as again:
        assert lost(again.url, acknowledged) == set()
        again.stop()


@pytest.mark.process
def test_a_span_is_kept_although_the_server_dies_right_after_its_answer(tmp_path: Path) -> None:
    one = span("last words")
    with Process(tmp_path / "spanwise.db") as server:
        told = httpx.post(f"{server.url}/v1/traces", content=request(one), headers=HEADERS, timeout=60)
    assert told.status_code == 200  # and that was its end
    with Process(tmp_path / "spanwise.db", server.port) as again, HTTPStore(again.url) as store:
        assert store.trace(one.trace_id.hex()).root.name == "last words"


@pytest.mark.process
def test_a_port_that_is_taken_is_named_with_its_holder(tmp_path: Path) -> None:
    with Process(tmp_path / "a.db") as server:
        with pytest.raises(
            AssertionError, match=r"in use by a Spanwise server \(process \d+, store '.*a.db'\).*--port"
        ):
            Process(tmp_path / "b.db", server.port)
        with pytest.raises(AssertionError, match=f"written by process .* answers at {server.url}"):
            Process(tmp_path / "a.db")
