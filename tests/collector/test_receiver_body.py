"""Bodies: what is inflated, how far, and what all of them together may hold."""

from __future__ import annotations

import asyncio
import gzip
import zlib
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from looped_cases import loop_over
from spanwise.collector.ingest import Limits
from spanwise.collector.ingest.otlp_receiver import (
    BodyBuffer,
    ClientDisconnected,
    PendingBytes,
    Receive,
    RequestBody,
    make_buffer,
)
from spanwise.collector.ingest.request_decoder import LARGE_BODY_BYTES, PermanentError, RetryableError

LIMIT = 1000
LIMITS = Limits(request_bytes=LIMIT, stall_seconds=0.05)
SQUEEZE: dict[bytes, Callable[[bytes], bytes]] = {b"": bytes, b"gzip": gzip.compress, b"deflate": zlib.compress}


def pieces(*bodies: bytes, more: bool = False) -> Receive:
    """An ASGI channel that brings these, and then nothing more; if `more` is promised, it never comes."""
    messages = [{"type": "http.request", "body": body, "more_body": True} for body in bodies]
    if messages and not more:
        messages[-1]["more_body"] = False

    async def receive() -> dict[str, Any]:
        return messages.pop(0) if messages else await asyncio.Event().wait()  # type: ignore[return-value]

    return receive


def read(receive: Receive, pending: PendingBytes, encoding: bytes = b"") -> bytes:
    async def whole() -> bytes:
        body = RequestBody(pending, LIMITS)
        try:
            return await body.read({b"content-encoding": encoding}, receive)
        finally:
            body.release()

    return asyncio.run(whole())


def refusal(work: Callable[[], Any]) -> str:
    with pytest.raises((PermanentError, RetryableError)) as refused:
        work()
    return refused.value.reason


@loop_over("encoding", SQUEEZE)
@loop_over(("size", "fits"), [(LIMIT - 1, True), (LIMIT, True), (LIMIT + 1, False)])
def test_the_bound_is_of_the_body_as_inflated(encoding, size, fits):
    body, pending = bytes(size), PendingBytes(10**6)
    if fits:
        assert read(pieces(SQUEEZE[encoding](body)), pending, encoding) == body
    else:
        assert refusal(lambda: read(pieces(SQUEEZE[encoding](body)), pending, encoding)) == "too_large"
    assert pending.size == 0


@pytest.mark.parametrize("held", [0, 1, LIMIT - 1, LIMIT])
def test_a_bomb_is_inflated_one_byte_beyond_the_bound_and_no_further(held):
    bomb = BodyBuffer(LIMIT, 31)
    if held:
        bomb.feed(gzip.compress(bytes(held)))
    assert bomb.size == held
    assert refusal(lambda: bomb.feed(gzip.compress(bytes(10**6)))) == "too_large"
    assert bomb.size == LIMIT + 1


@given(st.lists(st.binary(max_size=40), max_size=4), st.sampled_from(sorted(SQUEEZE)), st.integers(1, 30))
def test_a_body_in_any_pieces_is_the_same_body(members: list[bytes], encoding: bytes, step: int) -> None:
    members = members if encoding != b"deflate" else members[:1]
    wire = b"".join(map(SQUEEZE[encoding], members)) or SQUEEZE[encoding](b"")
    cut = [wire[start : start + step] for start in range(0, len(wire), step)] or [b""]
    assert read(pieces(*cut), PendingBytes(10**6), encoding) == b"".join(members)


@loop_over("encoding", [b"gzip", b"deflate"])
@loop_over("damage", [lambda wire: wire[:-1], lambda wire: b"no" + wire, lambda wire: b""])
def test_what_is_not_the_compression_that_it_claims(encoding, damage):
    wire = damage(SQUEEZE[encoding](b"hello"))
    assert refusal(lambda: read(pieces(wire), PendingBytes(10**6), encoding)) == "bad_compression"


@pytest.mark.parametrize(("claimed", "sent"), [(b"gzip", b"deflate"), (b"deflate", b"gzip")])
def test_one_compression_is_not_taken_for_the_other(claimed, sent):
    assert refusal(lambda: read(pieces(SQUEEZE[sent](b"hello")), PendingBytes(10**6), claimed)) == "bad_compression"


@loop_over(
    ("headers", "outcome"),
    [
        ({b"content-length": b"1000"}, None),
        ({b"content-length": b"1001"}, "too_large"),
        ({b"content-length": b"nine"}, None),
        ({b"content-encoding": b" GZIP "}, 31),
        ({b"content-encoding": b"deflate"}, 15),
        ({b"content-encoding": b"identity"}, None),
        ({b"content-encoding": b"br"}, "encoding"),
    ],
)
def test_headers_decide_before_a_byte_is_read(headers, outcome):
    if isinstance(outcome, str):
        assert refusal(lambda: make_buffer(headers, LIMIT)) == outcome
    else:
        assert make_buffer(headers, LIMIT).wbits == outcome


def test_what_was_sent_is_told():
    with pytest.raises(PermanentError, match="1,001 bytes in one request, at most 1,000: send less"):
        make_buffer({b"content-length": b"1001"}, LIMIT)
    with pytest.raises(PermanentError, match="content-encoding 'br' is not one of"):
        make_buffer({b"content-encoding": b"br"}, LIMIT)


def test_a_body_counts_as_pending_until_it_is_released():
    pending = PendingBytes(10**6)
    pending.add(7, 7)
    body = RequestBody(pending, LIMITS)
    assert asyncio.run(body.read({}, pieces(bytes(300), bytes(200)))) == bytes(500)
    assert (body.size, pending.size) == (500, 507)
    body.release()
    assert pending.size == 7


@pytest.mark.parametrize(("pending", "reason"), [(PendingBytes(500), None), (PendingBytes(499), "overload")])
def test_all_bodies_together_have_a_bound(pending, reason):
    if reason is None:
        assert len(read(pieces(bytes(300), bytes(200)), pending)) == 500
    else:
        assert refusal(lambda: read(pieces(bytes(300), bytes(200)), pending)) == reason
    assert pending.size == 0


def test_a_body_that_stalls_is_given_up_and_released():
    pending = PendingBytes(10**6)
    assert refusal(lambda: read(pieces(b"half", more=True), pending)) == "stalled"
    assert pending.size == 0


def test_a_client_that_went_away_is_not_answered():
    async def gone() -> dict[str, Any]:
        return {"type": "http.disconnect"}

    with pytest.raises(ClientDisconnected):
        read(gone, PendingBytes(10**6))


def test_large_bodies_leave_room_for_small_ones():
    pending = PendingBytes(6 * LARGE_BODY_BYTES)
    pending.add(5 * LARGE_BODY_BYTES, 5 * LARGE_BODY_BYTES)
    pending.add(LARGE_BODY_BYTES - 1, LARGE_BODY_BYTES - 1)
    with pytest.raises(RetryableError):
        pending.add(1, LARGE_BODY_BYTES)


def test_a_compressed_body_may_have_as_many_bytes_as_the_limit() -> None:
    packed = gzip.compress(bytes(LIMIT))
    body = BodyBuffer(LIMIT, 31)
    for place in range(len(packed)):
        assert body.feed(packed[place : place + 1]) == b""
    assert body.finish() == bytes(LIMIT)
