"""Control backend on a database file: the control operations, and the sums of scores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from spanwise.collector.records import ScoreSums
from spanwise.collector.stores.control.control_operations import ControlOperations
from spanwise.collector.stores.sqlite.database_file import DatabaseFile
from spanwise.collector.stores.sqlite.score_sums.sum_queries import count_groups, read_sums
from spanwise.collector.stores.sqlite.score_sums.window_sums import SumsQuery


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

    def is_full(self) -> bool:
        return self._file.is_full or self._file.was_full_lately

    def score_sums(
        self,
        rule: str,
        *,
        project: str = "default",
        key: str | None = None,
        version: str | None = None,
        since_ns: int,
        until_ns: int,
        block_s: int = 150,
        by: str | None = None,
        groups: Sequence[str] = (),
        joined: bool = True,
        live: bool = False,
    ) -> list[ScoreSums]:
        query = SumsQuery(rule, project, since_ns, until_ns, block_s, key, version, by, groups, joined, live)
        return read_sums(self._file, query)

    def score_groups(
        self,
        rule: str,
        *,
        by: str,
        project: str = "default",
        key: str | None = None,
        version: str | None = None,
        since_ns: int,
        until_ns: int,
        live: bool = False,
    ) -> Mapping[str, int]:
        return count_groups(self._file, SumsQuery(rule, project, since_ns, until_ns, 150, key, version, by, live=live))
