"""A socket on an event loop, with a reader of what comes."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from spanwise.collector.ingest.decode_pool import READ_BUFFER_BYTES, MessageReader, SocketLink

SIZES = [3, 0, READ_BUFFER_BYTES + 10, 1, 5, READ_BUFFER_BYTES, 0, 0, 7]
HEAP = bytes(n % 251 for n in range(sum(SIZES)))


def reading(found: list[bytes], done: asyncio.Event) -> MessageReader:
    for size in SIZES:
        found += [bytes((yield size))]
    done.set()
    yield 1


@contextmanager
def linked(
    reader: MessageReader, failed: Callable[[Exception], object] = print
) -> Iterator[tuple[SocketLink, socket.socket]]:
    ours, theirs = socket.socketpair()
    link = SocketLink(ours, reader, failed)
    with theirs:
        yield link, theirs
    link.close()


@pytest.mark.parametrize("step", [len(HEAP), 100_000, 9_999])
def test_what_comes_in_bits_and_in_heaps_is_read_alike(step):
    async def read() -> list[bytes]:
        found, done = list[bytes](), asyncio.Event()
        with linked(reading(found, done)) as (_, theirs):
            for start in range(0, len(HEAP), step):
                await asyncio.to_thread(theirs.sendall, HEAP[start : start + step])
            await asyncio.wait_for(done.wait(), 60)
        return found

    found = asyncio.run(read())
    assert ([len(one) for one in found], b"".join(found)) == (SIZES, HEAP)


@pytest.mark.process
def test_what_there_is_no_room_for_goes_when_there_is_and_in_order():
    async def send() -> bytes:
        with linked(reading([], asyncio.Event())) as (link, theirs):
            for number in range(40):
                link.send(b"%02d" % number, HEAP)
            whole = 40 * (2 + len(HEAP))
            return await asyncio.to_thread(theirs.recv, whole, socket.MSG_WAITALL)

    assert asyncio.run(send()) == b"".join(b"%02d" % number + HEAP for number in range(40))


def strange() -> MessageReader:
    yield 1
    raise ValueError("not this")


@pytest.mark.parametrize(("said", "why"), [(b"", EOFError), (b"?", ValueError)])
def test_why_nothing_more_is_read_is_told_once_and_what_is_sent_then_goes_nowhere(said, why):
    async def fails() -> Any:
        told = asyncio.get_running_loop().create_future()
        with linked(strange(), told.set_result) as (link, theirs):
            theirs.sendall(said)
            theirs.shutdown(socket.SHUT_WR)
            error = await asyncio.wait_for(told, 60)
            link.send(HEAP)
            return error

    assert isinstance(asyncio.run(fails()), why)
