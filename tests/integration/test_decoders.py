"""`spanwise serve` with processes that decode: its end, and many senders at once, leave and lose nothing."""

from __future__ import annotations

import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from collector.otlp import attribute, request, span
from integration.serving import Process
from polling import until

PROTOBUF = {"content-type": "application/x-protobuf"}
TEXT = attribute("input.value", "words " * 100)


def decoders(pid: int) -> list[int]:
    found: list[int] = []
    for thread in Path(f"/proc/{pid}/task").iterdir():
        found += map(int, (thread / "children").read_text().split())
    return found


def gone(pids: list[int]) -> bool:
    """Whether processes have ended; those that nobody has asked for yet are."""
    for pid in pids:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except FileNotFoundError:
            continue
        if state not in "ZX":
            return False
    return True


def post(server: Process, body: bytes) -> int:
    try:
        return httpx.post(f"{server.url}/v1/traces", content=body, headers=PROTOBUF, timeout=120).status_code
    except httpx.TransportError:
        return 0


@pytest.mark.process
def test_the_command_starts_a_process_that_decodes_and_ends_it(tmp_path):
    whole = request(*(span(attributes=[TEXT]) for _ in range(1000)))
    with Process(tmp_path / "a.db", options=["--decoders", "1", "--no-grpc"]) as server:
        assert post(server, whole) == 200
        [pid] = decoders(server.process.pid)
        assert httpx.get(f"{server.url}/api/count", timeout=60).json()["spans"] == 1000
        server.stop()
        until(lambda: gone([pid]))


@pytest.mark.slow
@pytest.mark.parametrize(("number", "answer"), [(signal.SIGTERM, 200), (signal.SIGKILL, 0)])
def test_a_server_that_ends_leaves_no_process(tmp_path, number, answer):
    whole = request(*(span(attributes=[TEXT]) for _ in range(1000)))
    with Process(tmp_path / "a.db", options=["--decoders", "1", "--no-grpc"]) as server, ThreadPoolExecutor(1) as aside:
        assert post(server, whole) == 200
        [pid] = decoders(server.process.pid)
        os.kill(pid, signal.SIGSTOP)
        sent = aside.submit(post, server, whole)
        until(lambda: f"spanwise_pending_bytes {len(whole)}" in httpx.get(f"{server.url}/metrics", timeout=60).text)
        server.process.send_signal(number)
        until(lambda: gone([pid]) if number == signal.SIGKILL else os.kill(pid, signal.SIGCONT) is None)
        assert sent.result() == answer
        server.process.communicate(timeout=60)
        until(lambda: gone([pid]))


@pytest.mark.slow
def test_two_hundred_senders_lose_nothing_while_processes_are_killed(tmp_path):
    bodies = [request(*(span(attributes=[TEXT]) for _ in range(50))) for _ in range(300)]
    with Process(tmp_path / "a.db", options=["--decoders", "2", "--no-grpc"]) as server:

        def delivered(body: bytes) -> int:
            tries = 1
            while (status := post(server, body)) != 200:
                assert status in (0, 429, 503)
                tries += 1
                time.sleep(0.2)
            return tries

        with ThreadPoolExecutor(200) as senders:
            sent = [senders.submit(delivered, body) for body in bodies]
            for _ in range(2):  # three deaths over the same body would keep it out for a minute
                until(lambda: decoders(server.process.pid) or all(one.done() for one in sent))
                for pid in decoders(server.process.pid):
                    os.kill(pid, signal.SIGKILL)
            assert all(one.result() for one in sent)
        assert httpx.get(f"{server.url}/api/count", timeout=60).json()["spans"] == 50 * 300
