"""Store on one SQLite file: trace backend, control backend, and the combined store.

Modules, in the order in which data flows:

- `store`: SQLite store: trace backend and control backend over one database file, read-only where it is not writable.
- `trace_backend`: Trace backend: operations on runs, feedback and queries over the database file.
- `database_file`: Open database file: readers, writer thread and statistics; read-only variant; base class of both
  backends.
"""

from typing import TYPE_CHECKING

from spanwise.collector.errors import require_extra
from spanwise.tracer.lazy_imports import lazy

with require_extra("server", __name__):
    from spanwise.collector.stores.sqlite.write.run_codec import Batch, encode

if TYPE_CHECKING:
    from spanwise.collector.stores.sqlite.database.file_lock import holder
    from spanwise.collector.stores.sqlite.store import SQLiteStore, is_store_file, open_snapshot, open_store
else:
    __getattr__, __dir__ = lazy(
        __name__, **{"database.file_lock": "holder"}, store="SQLiteStore is_store_file open_snapshot open_store"
    )

__all__ = ["Batch", "SQLiteStore", "encode", "holder", "is_store_file", "open_snapshot", "open_store"]
