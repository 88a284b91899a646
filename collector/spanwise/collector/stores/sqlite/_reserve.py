"""Room on the disk that is given up when there is no other, so that something can be deleted.

To delete, too, takes room: SQLite writes what changes into the log first, and to empty the log it takes what the
database then grows by. That much is kept beside the database, as `<file>.reserve`, which holds nothing. While it is
given up only what makes room is written.
"""

from __future__ import annotations

import os
from contextlib import suppress

from spanwise.collector.stores.sqlite._lock import PRIVATE
from spanwise.collector.stores.sqlite._maintenance import size_of

LITTLE = 2**20  # bytes, with which a database cannot even be opened for long
FROM = 4 * 2**20  # bytes of a database from which on it has one
SHARE, LEAST, MOST = 8, 4 * 2**20, 64 * 2**20  # one part in so many of database and log, within these bytes
MOST_LOG = 512 * 2**20  # bytes of log for which there is room: the database may grow by all of the log


class Reserve:
    """Of the database at `path`. For its holder; `held` says whether there is one now, or none is needed."""

    def __init__(self, path: str) -> None:
        self._of, self._path = path, path + ".reserve"
        self._bytes = size_of(self._path)
        self.held = True

    def open_on_a_full_disk(self) -> None:
        """Give it up where there would be no room even to open the database."""
        if self._bytes and not self.has_room_for(size_of(self._of) + LITTLE, 1):
            self.give_up()

    def give_up(self) -> bool:
        """Leave the room to what makes more; whether there was any."""
        had, self._bytes = self._bytes > 0, 0
        with suppress(OSError):
            os.unlink(self._path)
        self.held = not had and self.held
        return had

    def keep(self) -> bool:
        """Have the room that the database's size asks for; False where the disk has none to spare."""
        size, log = size_of(self._of), size_of(self._of + "-wal")
        share = min(MOST, max(LEAST, (size + log) // SHARE))
        wanted = 0 if size + log < FROM else max(share, min(log, MOST_LOG))
        if wanted >= self._bytes + self._bytes // 4 + 1 or not self.held:
            self.held = self._allocate(max(wanted, LEAST))
        return self.held

    def has_room_for(self, pages: int, page_size: int) -> bool:
        """Whether the database can grow to so many pages: to begin and fail would eat up the room."""
        disk = os.statvfs(os.path.dirname(self._of) or ".")
        return pages * page_size - size_of(self._of) <= disk.f_bavail * disk.f_frsize

    def _allocate(self, size: int) -> bool:
        try:
            descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, PRIVATE)
        except OSError:
            return False
        try:
            os.posix_fallocate(descriptor, 0, size)
        except OSError:
            os.truncate(descriptor, self._bytes)
            return False
        finally:
            os.close(descriptor)
        self._bytes = size
        return True
