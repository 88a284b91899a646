"""The store on one SQLite file."""

from typing import TYPE_CHECKING

from spanwise.collector.extras import needing
from spanwise.tracer.lazy import lazy

with needing("server", __name__):
    from spanwise.collector.stores.sqlite._codec import Batch, encode

if TYPE_CHECKING:
    from spanwise.collector.stores.sqlite._lock import holder
    from spanwise.collector.stores.sqlite._store import SQLiteStore, opened
else:
    __getattr__, __dir__ = lazy(__name__, _lock="holder", _store="SQLiteStore opened")

__all__ = ["Batch", "SQLiteStore", "encode", "holder", "opened"]
