"""What bodies cost is bounded before they are parsed, alone and together; small ones do not wait for large ones."""

from __future__ import annotations

import asyncio
import gzip
import json
import os
import threading
import tracemalloc
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from collector.otlp import JSON, PROTOBUF, attribute, field, json_request, json_span, request, span
from looped_cases import loop_over
from spanwise.collector.errors import TooLarge
from spanwise.collector.ingest import Limits, check_json
from spanwise.collector.ingest.decode_pool import Offloader, PriorityLane
from spanwise.collector.ingest.otlp_receiver import make_buffer
from spanwise.collector.ingest.otlp_signals import LOGS, METRICS, TRACES
from spanwise.collector.ingest.protobuf_decoder import MAX_MESSAGES, check_messages, split_groups
from spanwise.collector.ingest.request_decoder import (
    HUGE_BODY_BYTES,
    LARGE_BODY_BYTES,
    MAX_GROUPS,
    MAX_JSON_OBJECTS,
    PermanentError,
    count_by_reason,
    decode,
)
from spanwise.collector.server import Server
from spanwise.collector.stores.sqlite import SQLiteStore

EMPTY = b"\x0a\x00"
MANY = 300_000


def in_request(fields: bytes) -> bytes:
    """A request of one span with these fields beside its ids."""
    return field(1, field(2, field(2, field(1, os.urandom(16)) + field(2, os.urandom(8)) + fields)))


BOMBS: dict[str, tuple[str, bytes]] = {
    "groups": (PROTOBUF, EMPTY * MANY),
    "scopes": (PROTOBUF, field(1, b"\x12\x00" * MANY)),
    "spans": (PROTOBUF, field(1, field(2, b"\x12\x00" * MANY))),
    "attributes": (PROTOBUF, in_request(b"\x4a\x00" * 2 * MANY)),
    "events": (PROTOBUF, in_request(b"\x5a\x00" * 2 * MANY)),
    "list": (PROTOBUF, in_request(field(9, field(2, field(5, EMPTY * 2 * MANY))))),
    "map": (PROTOBUF, in_request(field(9, field(2, field(6, EMPTY * 2 * MANY))))),
    "json groups": (JSON, b'{"resourceSpans":[' + b"{}," * MANY + b"{}]}"),
    "json spans": (JSON, b'{"resourceSpans":[{"scopeSpans":[{"spans":[' + b"{}," * MANY + b"{}]}]}]}"),
    "json braces": (JSON, b'{"resourceSpans":[{"y":[' + b"[]," * 3 * MANY + b"0]}]}"),
}


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with SQLiteStore(tmp_path_factory.mktemp("cost") / "a.db") as store, Server(store) as server:
        yield server.url


@pytest.mark.process
@pytest.mark.parametrize("name", BOMBS)
def test_little_that_becomes_much_is_refused_by_its_number(url, name):
    kind, body = BOMBS[name]
    headers = {"content-type": kind, "content-encoding": "gzip"}
    answer = httpx.post(f"{url}/v1/traces", content=gzip.compress(body), headers=headers, timeout=60)
    assert answer.status_code == 413
    assert b"send less" in answer.content


@pytest.mark.parametrize("count", [1, 2])
def test_a_small_body_of_too_many_groups_is_refused_as_a_large_one_is(count):
    body = (EMPTY * (MAX_GROUPS + 1), field(1, b"\x12\x00" * (MAX_GROUPS + 1)))[count - 1]
    assert len(body) < LARGE_BODY_BYTES
    with pytest.raises(PermanentError, match="groups in one request"):
        decode(TRACES.protobuf, body, Limits())


def scopes(kind: str, count: int) -> bytes:
    """A request of two groups by resource that together have `count` groups by scope."""
    if kind == "json":
        groups = [{"scopeSpans": [{}] * (count // 2)}, {"scopeSpans": [{}] * (count - count // 2)}]
        return json.dumps({"resourceSpans": groups}).encode()
    return b"".join(field(1, b"\x12\x00" * half) for half in (count // 2, count - count // 2))


@loop_over("signal", [TRACES, LOGS, METRICS], ids=lambda signal: signal.name)
@loop_over("kind", ["protobuf", "json"])
def test_groups_are_counted_over_the_whole_request(signal, kind):
    codec = getattr(signal, kind)
    body = scopes(kind, MAX_GROUPS + 1).replace(b"Spans", signal.name.title().replace("Traces", "Spans").encode())
    padding = field(9, bytes(LARGE_BODY_BYTES)) if kind == "protobuf" else b" " * LARGE_BODY_BYTES
    for sent in (body, body + padding):
        with pytest.raises(PermanentError, match="groups in one request"):
            decode(codec, sent, Limits())


@pytest.mark.parametrize("kind", ["protobuf", "json"])
def test_as_many_groups_as_allowed_are_read(kind):
    decode(getattr(TRACES, kind), scopes(kind, MAX_GROUPS), Limits())


@pytest.mark.parametrize("values", [9, 10])
def test_values_of_all_spans_together_have_a_bound(values):
    body = request(
        *(span(attributes=[attribute("a", "x")] * (values - 6)) for _ in range(1)),
        span(attributes=[attribute(str(n), "") for n in range(6)]),
    )
    if values == 9:
        assert decode(TRACES.protobuf, body, Limits(values=9)).values == 9
    else:
        with pytest.raises(PermanentError, match="more than 9 values in one request"):
            decode(TRACES.protobuf, body, Limits(values=9))


@pytest.mark.parametrize("kind", ["protobuf", "json"])
def test_a_large_body_is_read_as_a_small_one_is(kind):
    """The good beside the bad, in their order."""
    if kind == "protobuf":
        good, bad = request(span("good")), request(span("NAME")).replace(b"NAME", b"\xff\xfe\xff\xfe")
        parts = good + bad + request(span("x" * LARGE_BODY_BYTES)) + request(span("last"))
        decoded = decode(TRACES.protobuf, parts, Limits())
    else:
        spans = [json_span("good"), {"name": 5}, json_span("x" * LARGE_BODY_BYTES), json_span("last")]
        decoded = decode(TRACES.json, json.dumps(json_request(*spans)).encode(), Limits())
    assert [item.name[:4] for item in decoded.items] == ["good", "xxxx", "last"]
    assert count_by_reason(decoded.refused) == {"malformed": 1}


def test_a_large_body_that_is_cut_short_is_refused():
    with pytest.raises(PermanentError, match="not an OTLP request"):
        decode(TRACES.protobuf, request(span("x" * LARGE_BODY_BYTES), span())[:-3], Limits())


@pytest.mark.parametrize(
    "text", [b'{"a":"' + b"{[," * MAX_JSON_OBJECTS + b'"}', b'{"a":"' + b'\\"[' * MAX_JSON_OBJECTS + b'"}']
)
def test_brackets_within_texts_are_no_objects(text):
    assert check_json(text) == text


@pytest.mark.process
@pytest.mark.parametrize("text", [b"[" * (MAX_JSON_OBJECTS + 1), b'{"":{},' * (MAX_JSON_OBJECTS + 1)])
def test_objects_are_counted(text):
    with pytest.raises(PermanentError, match="objects or"):
        check_json(text)


def test_a_large_item_is_in_memory_once() -> None:
    body = field(1, field(2, field(2, bytes(5_000_000))))
    tracemalloc.start()
    (found,) = split_groups(body, 10)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(found[2][0]) == 5_000_000
    assert peak < 1_000_000


def test_a_body_of_many_pieces_is_in_memory_once() -> None:
    into = make_buffer({}, 10_000_000)
    tracemalloc.start()
    for _ in range(100):
        into.feed(bytes(50_000))
    whole, peak = into.finish(), tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert (len(whole), peak < 7_500_000) == (5_000_000, True)


def test_what_text_holds_is_not_taken_for_messages():
    message = span("\n\x00" * MAX_MESSAGES).SerializeToString()
    assert check_messages(message, "span") == message


def test_an_api_body_of_too_many_objects_is_refused(url):
    answer = httpx.post(f"{url}/api/runs", content=b"[" + b"[[]]," * MAX_JSON_OBJECTS + b"0]")
    assert (answer.status_code, answer.json()["error"]) == (413, TooLarge.__name__)


def test_whole_traces_are_asked_for_by_the_few(url):
    ids = [f"{number:032x}" for number in range(1, 502)]
    assert httpx.post(f"{url}/api/traces/many", json=ids[:500]).json() == []
    answer = httpx.post(f"{url}/api/traces/many", json=ids)
    assert (answer.status_code, answer.json()["error"]) == (413, "TooLarge")


def test_runs_are_brought_by_the_few(url):
    run = {"span_id": "1" * 16, "name": "n", "start_ns": 1, "end_ns": 2}
    runs = [{**run, "trace_id": f"{number:032x}"} for number in range(1, 10_002)]
    assert httpx.post(f"{url}/api/runs", json=runs, timeout=60).status_code == 413


@pytest.mark.parametrize(("members", "status"), [(900, 200), (1_001, 400)])
def test_a_body_of_many_compressed_parts_is_no_body(url, members, status):
    headers = {"content-type": PROTOBUF, "content-encoding": "gzip"}
    answer = httpx.post(f"{url}/v1/traces", content=gzip.compress(b"") * members, headers=headers)
    assert answer.status_code == status


def test_an_api_body_may_be_compressed(url):
    headers = {"content-encoding": "gzip"}
    answer = httpx.post(f"{url}/api/feedback", content=gzip.compress(b"[]"), headers=headers)
    assert (answer.status_code, answer.json()) == (200, [])


# Lanes


def order(*sizes: int) -> list[int]:
    """In which order bodies that come while one is worked on have their turn."""
    done: list[int] = []

    async def work(lane: PriorityLane, size: int) -> None:
        async with lane.turn(size):
            done.append(size)

    async def all_of_them() -> None:
        lane = PriorityLane()
        async with lane.turn(1):
            waiting = [asyncio.ensure_future(work(lane, size)) for size in sizes]
            await asyncio.sleep(0)
        await asyncio.gather(*waiting)

    asyncio.run(all_of_them())
    return done


def test_the_smaller_ones_go_first():
    assert order(30_000_000, 5_000_000, 9_000_000) == [5_000_000, 9_000_000, 30_000_000]


def test_one_that_gives_up_waiting_does_not_stop_the_others():
    async def given_up() -> bool:
        lane = PriorityLane()

        async def wait() -> None:
            async with lane.turn(1):
                pass

        async with lane.turn(1):
            first, second = asyncio.ensure_future(wait()), asyncio.ensure_future(wait())
            await asyncio.sleep(0)
        first.cancel()  # it was its turn just now
        await asyncio.gather(first, return_exceptions=True)
        await asyncio.wait_for(second, 30)
        async with lane.turn(1):
            return True

    assert asyncio.run(given_up())


def test_the_large_do_not_wait_for_the_huge_nor_the_small_for_either():
    async def passes() -> bool:
        beside = Offloader()
        try:
            async with beside.turn(HUGE_BODY_BYTES), beside.turn(LARGE_BODY_BYTES), beside.turn(LARGE_BODY_BYTES - 1):
                return True
        finally:
            beside.close()

    assert asyncio.run(asyncio.wait_for(passes(), 30))


def test_memory_is_given_back_after_a_huge_request_that_failed():
    async def failing() -> bool:
        trimmed, beside = asyncio.Event(), Offloader()
        beside.trim = trimmed.set  # type: ignore[method-assign]
        try:
            with pytest.raises(RuntimeError):
                async with beside.turn(HUGE_BODY_BYTES):
                    raise RuntimeError
            return trimmed.is_set()
        finally:
            beside.close()

    assert asyncio.run(asyncio.wait_for(failing(), 30))


class Waiting:
    """A `Serving` over a store that keeps a batch of more than one run only when it may."""

    is_exclusive = True

    def __init__(self, store: SQLiteStore) -> None:
        self.store, self.where, self.announce = store, store.where, store.announce
        self.health, self.trouble = store.health, store.trouble
        self.go, self.asked = threading.Event(), threading.Event()

    def append_async(self, runs: Any) -> Any:
        if len(runs) > 1:
            self.asked.set()
            assert self.go.wait(60)
        return self.store.append_async(runs)


@pytest.mark.process
def test_a_small_request_is_answered_while_a_huge_one_is_kept(tmp_path):
    body = request(*(span("x" * 9000) for _ in range(600)))
    assert len(body) > HUGE_BODY_BYTES
    headers = {"content-type": PROTOBUF}
    with SQLiteStore(tmp_path / "a.db") as kept, Server(store := Waiting(kept)) as server:  # type: ignore[arg-type]
        statuses: list[int] = []
        post = lambda: statuses.append(  # noqa: E731
            httpx.post(f"{server.url}/v1/traces", content=body, headers=headers, timeout=60).status_code
        )
        huge = threading.Thread(target=post)
        huge.start()
        assert store.asked.wait(30)
        small = httpx.post(f"{server.url}/v1/traces", content=request(span()), headers=headers, timeout=60)
        assert (small.status_code, statuses) == (200, [])
        store.go.set()
        huge.join()
    assert statuses == [200]
