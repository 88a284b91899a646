"""A store's verbs as coroutines."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

from spanwise.collector.stores import Store


class AsyncStore:
    """Every verb of a store, to be awaited: it runs beside the event loop, as stores are safe in several threads."""

    def __init__(self, store: Store) -> None:
        self.store = store

    def __getattr__(self, name: str) -> Any:
        verb = getattr(self.store, name)
        return partial(_beside, verb) if callable(verb) else verb

    async def __aenter__(self) -> AsyncStore:
        return self

    async def __aexit__(self, *_: object) -> None:
        await _beside(self.store.close)


def aio(store: Store) -> AsyncStore:
    """The same verbs as coroutines: `await aio(store).traces(limit=5)`."""
    return AsyncStore(store)


async def _beside(verb: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    return await asyncio.to_thread(verb, *args, **kwargs)
