"""Decoding in processes of their own: as in the server's, whatever becomes of them."""

from __future__ import annotations

import asyncio
import os
import pickle
import resource
import signal
import subprocess
import sys
import tracemalloc
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from resource import RLIMIT_NOFILE
from typing import Any, cast

import grpc
import httpx
import pytest

from collector.compressed import adopt, dictionaries_of
from collector.otlp import attribute, log_record, logs_request, request, span
from polling import until
from spanwise.collector.ingest import Limits, decode_pool, default_decoder_count
from spanwise.collector.ingest.decode_pool import (
    DecodePool,
    Offloader,
    SuspectBodies,
    WorkerPool,
    WorkerProcess,
    fingerprint_body,
)
from spanwise.collector.ingest.otlp_receiver import IngestPipeline
from spanwise.collector.ingest.otlp_signals import LENGTH_PREFIX, TRACES, Request, WorkerSettings
from spanwise.collector.ingest.request_decoder import RetryableError
from spanwise.collector.prometheus_metrics import Metrics
from spanwise.collector.server import Server
from spanwise.collector.stores.sqlite import SQLiteStore
from spanwise.collector.stores.sqlite.write.run_codec import RunEncoder

LARGE_TEXT = attribute("input.value", "words " * 100_000)  # 600 KB: decoded in a process at once
PROTOBUF = {"content-type": "application/x-protobuf"}
MEMORY = 512 * 2**20


def processes() -> list[int]:
    """The decoders of this process."""
    found: list[int] = []
    for thread in Path("/proc/self/task").iterdir():
        found += map(int, (thread / "children").read_text().split())
    return [pid for pid in found if b"decode_worker" in Path(f"/proc/{pid}/cmdline").read_bytes()]


def post(url: str, body: bytes, path: str = "/v1/traces", **headers: str) -> httpx.Response:
    return httpx.post(url + path, content=body, headers=PROTOBUF | headers, timeout=120)


def numbers(url: str, name: str) -> list[float]:
    lines = httpx.get(f"{url}/metrics", timeout=60).text.splitlines()
    return [float(line.rpartition(" ")[2]) for line in lines if line.startswith(name)]


@contextmanager
def by_grpc(server: Server) -> Iterator[Any]:
    """A function that sends traces."""
    address = (server.grpc_url or "").removeprefix("http://")
    with grpc.insecure_channel(address, options=[("grpc.use_local_subchannel_pool", 1)]) as channel:
        yield channel.unary_unary("/opentelemetry.proto.collector.trace.v1.TraceService/Export")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SQLiteStore]:
    with SQLiteStore(tmp_path / "a.db") as opened:
        yield opened


@pytest.fixture
def server(store: SQLiteStore) -> Iterator[Server]:
    with Server(store, decoders=1, limits=Limits(decode_seconds=15)) as started:
        yield started


@pytest.fixture
def aside() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as threads:
        yield threads


def stopped(server: Server) -> int:
    """Its one decoder, which has answered a request, and is stopped."""
    assert post(server.url, request(span(attributes=[LARGE_TEXT]))).status_code == 200
    [pid] = processes()
    os.kill(pid, signal.SIGSTOP)
    return pid


def in_flight(server: Server, aside: ThreadPoolExecutor, body: bytes) -> Future[httpx.Response]:
    sent = aside.submit(post, server.url, body)
    until(lambda: numbers(server.url, "spanwise_pending_bytes")[0] >= len(body))
    return sent


# what comes of a request


@pytest.mark.process
def test_a_process_makes_of_a_request_what_the_server_would(tmp_path):
    spans = [span("whole", attributes=[LARGE_TEXT]), span("bad", trace_id=b""), *(span(f"{n}") for n in range(600))]
    found = []
    for decoders in (0, 1):
        with SQLiteStore(tmp_path / f"{decoders}.db") as store, Server(store, decoders=decoders) as server:
            answer = post(server.url, request(*spans))
            told = httpx.get(f"{server.url}/metrics").text.splitlines()
            counted = [
                line for line in told if line.startswith(("spanwise_received", "spanwise_stored", "spanwise_refused"))
            ]
            runs = [run for one in store.each() for run in store.trace(one.trace_id).runs]
            found.append((answer.content, counted, sorted(runs, key=lambda run: run.span_id)))
            assert (len(runs), bool(numbers(server.url, "spanwise_decoder_requests_total"))) == (601, bool(decoders))
    assert found[0] == found[1]


@pytest.mark.process
def test_a_dictionary_that_is_made_meanwhile_is_used_for_what_comes_next(server, store):
    found = []
    for number in (1, 2):
        large = request(*(span(f"{n}", attributes=[LARGE_TEXT]) for n in range(2)))
        assert post(server.url, large).status_code == 200
        found.append((dictionaries_of(store), len(processes())))
        adopt(store, number)
    assert found == [({0}, 1), ({0, 1}, 1)]
    runs = [run for one in store.each() for run in store.trace(one.trace_id).runs]
    assert [len(str(run.inputs)) for run in runs] == [600_000] * 4


@pytest.mark.process
def test_what_comes_by_grpc_goes_the_same_way(store, aside):
    body = request(span("whole", attributes=[LARGE_TEXT]), span(trace_id=b""))
    with Server(store, decoders=1, grpc_port=0) as server, by_grpc(server) as call:
        call(body, timeout=120)
        assert (store.count()["spans"], numbers(server.url, "spanwise_decoder_requests_total")) == (1, [1.0])
        [pid] = processes()
        os.kill(pid, signal.SIGSTOP)
        answer = aside.submit(call, body, timeout=120)
        until(lambda: numbers(server.url, "spanwise_pending_bytes")[0] >= len(body))
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(grpc.RpcError, match="UNAVAILABLE"):
            answer.result()
        call(request(span("another")), timeout=120)


@pytest.mark.process
def test_a_request_that_is_none_is_refused_alike(server):
    answer = post(server.url, b"\xff" * 600_000)
    assert answer.status_code == 400
    assert b"not an OTLP request" in answer.content
    assert numbers(server.url, "spanwise_decoder_requests_total") == [1.0]


@pytest.mark.process
def test_large_logs_go_the_same_way(server, store):
    kept = log_record("1" * 32, "2" * 16, event_name="gen_ai.evaluation.result")
    kept.attributes.extend(
        [
            attribute("gen_ai.evaluation.name", "ok"),
            attribute("gen_ai.evaluation.score.label", "good"),
            attribute("x", "y" * 600_000),
        ]
    )
    assert post(server.url, logs_request(kept), "/v1/logs").status_code == 200
    assert [one.key for one in store.feedbacks()] == ["ok"]
    assert numbers(server.url, "spanwise_decoder_requests_total") == [1.0]


# what becomes of processes


@pytest.mark.process
def test_one_that_is_killed_costs_what_it_was_at_a_503_and_nothing_else(server, store, aside):
    pid, body = stopped(server), request(*(span(attributes=[LARGE_TEXT]) for _ in range(3)))
    answer = in_flight(server, aside, body)
    os.kill(pid, signal.SIGKILL)
    assert (answer.result().status_code, answer.result().headers["retry-after"]) == (503, "1")
    assert b"SIGKILL" in answer.result().content
    assert store.count()["spans"] == 1
    until(lambda: post(server.url, body).status_code == 200)
    assert store.count()["spans"] == 4
    assert numbers(server.url, 'spanwise_decoder_deaths_total{reason="SIGKILL"}') == [1.0]


@pytest.mark.slow
def test_one_that_is_stopped_is_ended(store, aside):
    with Server(store, decoders=1, limits=Limits(decode_seconds=0.1)) as server:
        pid = stopped(server)
        answer = in_flight(server, aside, request(span(attributes=[LARGE_TEXT])))
        assert (answer.result().status_code, b"too slow" in answer.result().content) == (503, True)
        assert pid not in processes()


@pytest.mark.process
def test_one_that_died_while_it_had_nothing_to_do_costs_nobody_anything(server):
    pid = stopped(server)
    os.kill(pid, signal.SIGKILL)
    until(lambda: numbers(server.url, "spanwise_decoder_deaths_total"))
    assert post(server.url, request(span(attributes=[LARGE_TEXT]))).status_code == 200


@pytest.mark.slow
def test_a_server_that_ends_leaves_none_behind(store):
    with Server(store, decoders=1) as server:
        stopped(server)  # it does not even see that it is to end
    assert processes() == []


@pytest.mark.slow
def test_two_servers_have_their_own(tmp_path):
    with (
        SQLiteStore(tmp_path / "1.db") as one,
        SQLiteStore(tmp_path / "2.db") as other,
        Server(one, decoders=1) as first,
        Server(other, decoders=1) as second,
    ):
        os.kill(stopped(first), signal.SIGKILL)
        assert post(second.url, request(span(attributes=[LARGE_TEXT]))).status_code == 200
        until(lambda: numbers(first.url, "spanwise_decoder_deaths_total"))
        assert numbers(second.url, "spanwise_decoder_deaths_total") == []


def test_without_any_the_server_decodes_alone(server, store, monkeypatch):
    monkeypatch.setattr("sys.executable", "/nowhere/python")
    assert post(server.url, request(span(attributes=[LARGE_TEXT]))).status_code == 200
    assert store.count()["spans"] == 1
    assert numbers(server.url, 'spanwise_decoder_deaths_total{reason="start"}') == [1.0]


@pytest.mark.process
def test_small_requests_are_handed_over_under_load(server, monkeypatch):
    monkeypatch.setattr(decode_pool, "BUSY_SECONDS", 0.01)  # what is load depends on how fast a machine is
    body = request(*(span(attributes=[attribute("input.value", "w" * 400)]) for _ in range(1000)))
    until(lambda: post(server.url, body).status_code == 200 and numbers(server.url, "spanwise_decoder_requests_total"))
    assert len(processes()) == 1


@pytest.mark.parametrize("cores", [1, 2])
def test_with_one_core_there_are_none_and_with_two_there_is_one(cores):
    mine = os.sched_getaffinity(0)
    if len(mine) < cores:
        pytest.skip("this machine has one core")
    try:
        os.sched_setaffinity(0, sorted(mine)[:cores])
        assert default_decoder_count() == cores - 1
    finally:
        os.sched_setaffinity(0, mine)


# one process


@pytest.mark.process
def test_a_process_loads_what_decoding_needs_and_nothing_else():
    told = pickle.dumps(RunEncoder())
    code = f"import pickle, sys, spanwise.collector.ingest.decode_worker; pickle.loads({told}); print(*sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    heavy = {"asyncio", "fastapi", "starlette", "pydantic", "httpx", "grpc", "sqlite3", "jinja2", "opentelemetry.sdk"}
    assert heavy.isdisjoint(found)
    ours = {
        "store_connection",
        "ingest.otlp_receiver",
        "ingest.decode_pool",
        "stores.store_interfaces",
        "stores.sqlite.store",
        "statistics",
    }
    assert {f"spanwise.collector.{name}" for name in ours}.isdisjoint(found)


def exits(runs: Any) -> Any:
    raise SystemExit(3)


def runs_out_of_memory(runs: Any) -> Any:
    return bytearray(2 * MEMORY)


def nests(runs: Any) -> Any:
    return nests(runs)


def hangs(runs: Any) -> Any:
    while True:
        pass


def says_half(runs: Any) -> Any:
    os.write(0, LENGTH_PREFIX.pack(100) + b"half")
    os._exit(4)


def names_what_is_nowhere(runs: Any) -> Any:
    told = b"cspanwise.nowhere\nNothing\n."
    os.write(0, LENGTH_PREFIX.pack(len(told)) + told)


def promises_too_much(runs: Any) -> Any:
    os.write(0, LENGTH_PREFIX.pack(2**61))


def asked(encode: Any, seconds: float = 60) -> Any:
    """What comes of one request in a process with this encoder; how the process ended, if it did."""
    ended: list[str] = []

    async def ask() -> Any:
        process = WorkerProcess(
            WorkerSettings(Limits(), encode, 0, seconds, 120, MEMORY, {}), lambda one, how, job: ended.append(how)
        )
        try:
            return (await process.ask(0, request(span()), True))[0].refused
        except RetryableError as error:
            return str(error)
        finally:
            process.end()
            await asyncio.to_thread(process.wait, 30)

    return asyncio.run(ask()), ended


@pytest.mark.process
def test_a_process_that_has_too_little_memory_says_so_and_lives():
    found, ended = asked(runs_out_of_memory)
    assert (found, ended) == (
        ("too_large", f"decoding this request takes more than {MEMORY:,} bytes: send smaller requests"),
        [],
    )


@pytest.mark.process
def test_a_process_that_fails_on_a_request_says_so_and_lives():
    (reason, told), ended = asked(nests)
    assert (reason, "RecursionError" in told, ended) == ("decoding", True, [])


ENDS = [(exits, 60, "exit status 3"), (hangs, 0.2, "too slow"), (says_half, 60, "exit status 4")]
STRANGE = [(one, 60, "not understood") for one in (names_what_is_nowhere, promises_too_much)]


@pytest.mark.process
@pytest.mark.parametrize(("encode", "seconds", "how"), [*ENDS, *STRANGE])
def test_a_process_that_ends_is_told(encode, seconds, how):
    found, ended = asked(encode, seconds)
    assert (how in found, ended) == (True, [how])


@pytest.mark.process
def test_nothing_of_a_request_stays_in_memory_after_its_answer():
    async def ask() -> None:
        process = WorkerProcess(WorkerSettings(Limits(), None, 0, 60, 120, MEMORY, {}), lambda *how: None)
        try:
            await process.ready
            tracemalloc.start()
            await process.ask(0, request(span(attributes=[attribute("x", "y" * 5_000_000)])), False)
            await asyncio.to_thread(until, lambda: tracemalloc.get_traced_memory()[0] < 1_000_000)
        finally:
            tracemalloc.stop()
            process.end()
            await asyncio.to_thread(process.wait, 30)

    asyncio.run(ask())


@pytest.mark.process
def test_a_request_that_a_process_has_is_not_in_memory_here_as_well():
    async def ask() -> None:
        process = WorkerProcess(WorkerSettings(Limits(), hangs, 0, 60, 120, MEMORY, {}), lambda *how: None)
        try:
            await process.ready
            tracemalloc.start()
            asked = asyncio.ensure_future(
                process.ask(0, request(span(attributes=[attribute("x", "y" * 5_000_000)])), True)
            )
            await asyncio.sleep(0)
            assert tracemalloc.get_traced_memory()[0] > 5_000_000
            await asyncio.to_thread(until, lambda: tracemalloc.get_traced_memory()[0] < 1_000_000)
            assert process.waiting
            asked.cancel()
        finally:
            tracemalloc.stop()
            process.end()
            await asyncio.to_thread(process.wait, 0.1)

    asyncio.run(ask())


@pytest.mark.process
@pytest.mark.parametrize("forwards", [False, True])
def test_a_request_lets_go_of_its_bytes_before_it_is_decoded_elsewhere_unless_they_are_passed_on(
    store, monkeypatch, forwards
):
    seen = list[int]()

    async def ask(self: WorkerProcess, codec: int, body: bytes, rows: bool) -> Any:
        seen.append(len(asked.body))
        raise RetryableError("decoder", "not now")

    monkeypatch.setattr(WorkerProcess, "ask", ask)
    asked = Request(TRACES, TRACES.protobuf, request(span(attributes=[LARGE_TEXT])))
    beside, metrics, keeper = Offloader(), Metrics(), cast("Any", None)

    async def take() -> None:
        decoders = DecodePool(1, store, beside, metrics, Limits())
        try:
            await IngestPipeline([keeper] * (1 + forwards), decoders, beside, metrics).process(asked)
        finally:
            decoders.close()

    with pytest.raises(RetryableError, match="not now"):
        asyncio.run(take())
    beside.close()
    assert [size > 0 for size in seen] == [forwards]


def test_a_body_over_which_processes_end_is_kept_out_after_a_while():
    bodies, body = SuspectBodies(), b"poison" + bytes(10_000)
    assert not bodies.check(body)
    for _ in range(3):
        bodies.record_death(fingerprint_body(body))
    assert not bodies.check(b"another")
    assert not bodies.check(body[:-1] + b"x")
    with pytest.raises(RetryableError, match="3 decode workers have exited") as refused:
        bodies.check(body)
    assert refused.value.retry_after > 30


@pytest.mark.process
def test_one_with_little_to_do_is_ended_and_another_comes_when_there_is_more():
    async def comes_and_goes() -> list[int]:
        pool, pids = (
            WorkerPool(1, WorkerSettings(Limits(), None, 0, 60, 120, MEMORY, {}), Metrics(), idle=0.1),
            list[int](),
        )
        for _ in range(2):
            process = pool.any()
            assert process is not None
            pids.append(process.pid)
            await process.ask(0, request(span()), False)
            await asyncio.to_thread(until, lambda: not len(pool))
        pool.close()
        return pids

    first, second = asyncio.run(asyncio.wait_for(comes_and_goes(), 120))
    assert first != second
    until(lambda: not processes())


def test_where_no_file_may_be_opened_there_is_no_process_and_no_error():
    async def starved() -> list[int]:
        pool, before = (
            WorkerPool(1, WorkerSettings(Limits(), None, 0, 60, 120, MEMORY, {}), Metrics()),
            resource.getrlimit(RLIMIT_NOFILE),
        )
        resource.setrlimit(RLIMIT_NOFILE, (3, before[1]))
        try:
            return [pool.any() is None, len(pool)]
        finally:
            resource.setrlimit(RLIMIT_NOFILE, before)

    assert asyncio.run(starved()) == [True, 0]


def test_deaths_in_a_row_are_followed_by_longer_pauses():
    async def died() -> list[int]:
        pool = WorkerPool(1, WorkerSettings(Limits(), None, 0, 60, 120, MEMORY, {}), Metrics())
        process = pool.any()
        assert process is not None
        os.kill(process.pid, signal.SIGKILL)
        await asyncio.wait([process.ready])
        found = [len(pool), pool.any() is None]
        pool.close()
        return found

    assert asyncio.run(died()) == [0, True]
