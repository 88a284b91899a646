"""Control backend on a database file."""

from __future__ import annotations

from typing import TYPE_CHECKING

from spanwise.collector.stores.control.control_operations import ControlOperations
from spanwise.collector.stores.sqlite.database_file import DatabaseFile

if TYPE_CHECKING:
    from spanwise.collector.stores.control.control_tables import ControlTables


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

    def control_tables(self) -> ControlTables:
        """Return the tables of this backend as rows, for copies."""
        from spanwise.collector.stores.sqlite.file_copy import SQLiteTables  # only copies need it

        return SQLiteTables(self._file)

    def is_full(self) -> bool:
        return self._file.is_full or self._file.was_full_lately
