"""Which store a call speaks to: opened for that call alone, as whoever asks may see it.

An agent's session lasts for hours. What it looks at is held for the few milliseconds of a call, so that a server, an
experiment or another agent can have the file meanwhile; and a server that was started since is found.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, cast

from spanwise.cli._common import reached
from spanwise.collector import default_place
from spanwise.collector._access import ACCESS, Access
from spanwise.collector.errors import Forbidden, Refused
from spanwise.collector.records import Key
from spanwise.collector.stores import Store
from spanwise.collector.stores.project import ProjectStore

PATIENCE, PAUSE = 10.0, 0.02  # seconds: for a file that is held, and between two tries
TRIES = 3  # more, where nobody seems to hold it


class Places:
    """Stores for calls. `at` is what `--store` says; `guarded`: every call comes through the guard."""

    def __init__(self, at: str | None, *, guarded: bool = False) -> None:
        self.at, self.guarded = at, guarded

    @contextmanager
    def opened(self) -> Iterator[Store]:
        """The whole store, for a while. A file that somebody else holds is waited for, but not for long."""
        store = self._reached()
        try:
            yield store
        finally:
            store.close()

    def _reached(self) -> Store:
        ends, free = time.monotonic() + PATIENCE, 0
        while True:
            try:
                return reached(self.at)
            except Refused:
                free += not self._held()  # it may have been let go by now
                if time.monotonic() > ends or free > TRIES:
                    raise
            time.sleep(PAUSE)

    def _held(self) -> bool:
        """Whether a process holds the file: another agent's call has it for some milliseconds."""
        from spanwise.collector.stores.sqlite import holder

        place = default_place() if self.at is None else self.at
        return "://" not in place and holder(place) is not None

    @contextmanager
    def seen_by(self, access: Access, needs: str) -> Iterator[Store]:
        """The store as a sender may see it. Raises `Forbidden` for one who may not do what the call needs."""
        if not access.may(needs):
            raise Forbidden(f"the API key may not {needs}: that takes the scope {needs!r}")
        with self.opened() as store:
            yield store if access.project is None else cast(Store, ProjectStore(store, access.project))

    def access(self, scope: Mapping[str, Any] | None) -> Access:
        """What the sender of a request may have: here on stdio everything, elsewhere what the guard has found."""
        if not self.guarded:
            return Access()
        if scope is None or ACCESS not in scope:  # never everything because nobody has looked
            raise Forbidden("nobody has checked this request")
        found: Access = scope[ACCESS]
        return found

    def keys(self) -> Sequence[Key]:
        """The keys of the store, as the guard reads them."""
        with self.opened() as store:
            return store.keys()
