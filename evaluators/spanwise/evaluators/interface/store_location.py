"""Store arguments: an open store, or the path or URL of one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from os import PathLike
from typing import TypeAlias

from spanwise.collector import connect
from spanwise.collector.stores import Store

StoreLocation: TypeAlias = "Store | str | PathLike[str]"


@contextmanager
def open_store_location(store: StoreLocation) -> Iterator[Store]:
    """Yield the given open store, or open the store at a path or URL and close it after the block."""
    if not isinstance(store, str | PathLike):
        yield store
        return
    with closing(connect(store)) as opened:
        yield opened


def resolve_store(store: StoreLocation) -> Store:
    """Return an open store unchanged, or open the store at a path or URL. That store stays open for later reads."""
    return connect(store) if isinstance(store, str | PathLike) else store
