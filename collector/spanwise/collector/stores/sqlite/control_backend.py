"""Control backend on a database file."""

from __future__ import annotations

from collections.abc import Sequence

from spanwise.collector.stores.control.control_database import WriteConnection
from spanwise.collector.stores.control.control_operations import ControlOperations
from spanwise.collector.stores.control.control_tables import ControlTables
from spanwise.collector.stores.sqlite.database_file import DatabaseFile
from spanwise.collector.stores.table_rows import Connection


class SQLiteTables(ControlTables):
    """Control tables of a database file."""

    def _list_columns(self, db: Connection, table: str) -> Sequence[str]:
        return [row[1] for row in db.execute(f"PRAGMA table_info({table})")]

    def _read_lease_number(self, db: Connection) -> int:
        return int(db.execute("SELECT last FROM numbers").fetchone()[0])

    def _restore_numbers(self, db: WriteConnection, lease_number: int) -> None:
        db.execute("UPDATE numbers SET last = ?", (lease_number,))


class SQLiteControl(ControlOperations):
    """Control backend on a database file: `ControlStore`, and the methods that the combined store needs."""

    def __init__(self, file: DatabaseFile) -> None:
        super().__init__(file)
        self._file = file

    @property
    def where(self) -> str:
        """Return the path of the file, as the caller gave it."""
        return self._file.name

    def close(self) -> None:
        """Write queued jobs, then close the file. Repeated calls do nothing."""
        self._file.close()

    @property
    def control_tables(self) -> ControlTables:
        """Return the tables of this backend as rows, for copies."""
        return SQLiteTables(self._file)

    def is_full(self) -> bool:
        return self._file.is_full or self._file.was_full_lately
