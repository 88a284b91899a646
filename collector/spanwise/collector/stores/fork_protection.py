"""Protection of connections to a database from forked child processes, which must neither use nor close them."""

from __future__ import annotations

import os
import weakref

from spanwise.collector.errors import Closed

_open_holders: weakref.WeakSet[object] = weakref.WeakSet()
# Kept referenced forever: a connection that was in use during the fork cannot be closed.
_inherited_holders: list[object] = []


def protect_from_fork(holder: object) -> None:
    """Prevent forked children from using or closing the connections that `holder` refers to."""
    _open_holders.add(holder)


os.register_at_fork(after_in_child=lambda: _inherited_holders.extend(_open_holders))


class OwnerProcess:
    """Process that opened a resource, to detect use after a fork."""

    __slots__ = ("pid",)

    def __init__(self) -> None:
        self.pid = os.getpid()

    def check(self) -> None:
        """Raise `Closed` in a fork of that process: there, threads that no longer exist may hold locks."""
        if os.getpid() != self.pid:
            raise Closed(
                f"this store was opened by process {self.pid}, a parent of this process; after a fork, open the store"
                " again with connect()"
            )

    @property
    def is_here(self) -> bool:
        return os.getpid() == self.pid
