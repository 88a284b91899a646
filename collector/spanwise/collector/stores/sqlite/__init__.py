"""Store on one SQLite file: trace backend, control backend, and the combined store.

Modules, in the order in which data flows:

- `write_connection`: Write connection of a database file: what control operations need besides SQL.
- `store`: SQLite store: operations on runs, feedback and queries, and the combined store over one database file.
- `file_copy`: Copies of all records out of and into a SQLite file, with their numbers: traces, feedback, senders,
  control tables.
- `database_file`: Open database file: readers, writer thread and statistics; read-only variant; base class of the
  trace backend.
- `control_backend`: Control backend on a database file: the control operations, and the sums of scores.
"""

from typing import TYPE_CHECKING

from spanwise.collector.errors import require_extra
from spanwise.tracer.module_loading import lazy

with require_extra("server", __name__):
    from spanwise.collector.stores.sqlite.write.run_codec import Batch, encode

if TYPE_CHECKING:
    from spanwise.collector.stores.sqlite.control_backend import SQLiteControl
    from spanwise.collector.stores.sqlite.database.file_lock import holder
    from spanwise.collector.stores.sqlite.database_file import DatabaseFile
    from spanwise.collector.stores.sqlite.store import (
        SQLiteStore,
        SQLiteTraces,
        is_store_file,
        open_snapshot,
        open_store,
    )
else:
    __getattr__, __dir__ = lazy(
        __name__,
        store="SQLiteStore is_store_file open_snapshot open_store SQLiteTraces",
        control_backend="SQLiteControl",
        database_file="DatabaseFile",
        **{
            "database.file_lock": "holder",
        },
    )

__all__ = [
    "Batch",
    "DatabaseFile",
    "SQLiteControl",
    "SQLiteStore",
    "SQLiteTraces",
    "encode",
    "holder",
    "is_store_file",
    "open_snapshot",
    "open_store",
]
