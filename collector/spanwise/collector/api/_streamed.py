"""Large traces as JSON, written while they are read: some runs at a time, in a thread, as fast as they are taken.

No reader of the store is held meanwhile, and no more is in memory than the rows as they are kept.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import Any, TypeGuard

from fastapi import Response
from starlette.concurrency import iterate_in_threadpool

from spanwise.collector import _wire
from spanwise.collector._lanes import Lanes
from spanwise.collector.api._http import reply
from spanwise.collector.errors import NotFound
from spanwise.collector.stores import Streams, TraceStore, Unread

AT_ONCE = 512 * 1024  # bytes of an answer that is given whole
PATIENCE, RATE = 60.0, 16 * 1024  # seconds that a piece may wait to be taken, and a second more for so many bytes
FEEDBACK = 500  # that are written together


def trace(lanes: Lanes, store: Streams, trace_id: str) -> Response:
    """One trace. Raises `NotFound`."""
    found = store.unread([trace_id])
    if not found:
        raise NotFound(f"there is no trace {trace_id!r} in this store")
    return answer(lanes, _trace(found[0]), found[0].size) if isinstance(found[0], Unread) else reply(found[0])


def many(lanes: Lanes, store: Streams, trace_ids: Sequence[str]) -> Response:
    """Traces in a list."""
    found = store.unread(trace_ids)
    large = [one for one in found if isinstance(one, Unread)]
    return answer(lanes, _list(map(_trace, large)), sum(one.size for one in large)) if large else reply(found)


STREAMED: dict[Callable[..., Any], Callable[..., Response]] = {TraceStore.trace: trace, TraceStore.many: many}


def streams(store: object) -> TypeGuard[Streams]:
    """Whether a store is one of these; `isinstance` would take as long as a small query."""
    return hasattr(store, "unread")


def answer(lanes: Lanes, pieces: Iterator[bytes], held: int) -> Response:
    """All of it, or its beginning and then the rest. Raises what the first pieces raise."""
    first, size = list[bytes](), 0
    for piece in pieces:
        first.append(piece)
        size += len(piece)
        if size > AT_ONCE:
            return Streamed(chain(first, pieces), lanes, held)
    return Response(b"".join(first), media_type="application/json")


def _trace(trace: Unread) -> Iterator[bytes]:
    """The bytes of a `Trace` as `_wire.encode` writes it."""
    feedback = [trace.feedback[start : start + FEEDBACK] for start in range(0, len(trace.feedback), FEEDBACK)]
    yield b'{"root":' + _wire.encode(trace.root) + b',"runs":'
    yield from _list(_inside(trace.batches()))
    yield b',"feedback":'
    yield from _list(_inside(feedback))
    rest = {name: getattr(trace, name) for name in ("complete", "dropped", "calls_sent", "running")}
    yield b"," + _wire.encode(rest)[1:]


def _inside(lists: Iterable[Sequence[Any]]) -> Iterator[Iterator[bytes]]:
    """Of each list that is not empty what stands between its brackets."""
    return (iter((_wire.encode(some)[1:-1],)) for some in lists if some)


def _list(items: Iterable[Iterator[bytes]]) -> Iterator[bytes]:
    yield b"["
    for n, pieces in enumerate(items):
        if n:
            yield b","
        yield from pieces
    yield b"]"


class Streamed(Response):
    """An answer in pieces. One that nobody takes is cut off; when too much waits to be taken, it is refused."""

    media_type = "application/json"

    def __init__(self, pieces: Iterator[bytes], lanes: Lanes, held: int) -> None:
        super().__init__(None)
        del self.headers["content-length"]
        self._pieces, self._lanes, self._held = pieces, lanes, held

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Send what there is, until whoever asked has it, or leaves."""
        if not self._lanes.hold(self._held):
            told = {"error": "Unavailable", "message": "many large answers wait to be read; ask again in a moment"}
            refusal = reply(told, 503)
            refusal.headers["retry-after"] = "5"
            return await refusal(scope, receive, send)
        gone = asyncio.ensure_future(_leaves(receive))
        try:
            await self._send(send, gone)
        finally:
            gone.cancel()
            self._lanes.let_go(self._held)

    async def _send(self, send: Any, gone: asyncio.Future[None]) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        async for piece in iterate_in_threadpool(self._pieces):
            if gone.done():
                return
            async with asyncio.timeout(PATIENCE + len(piece) / RATE):
                await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _leaves(receive: Any) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
