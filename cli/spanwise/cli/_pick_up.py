"""A server fetches what its user's programs have left on disk for it, also where none of them will come again."""

from __future__ import annotations

import threading

from spanwise.cli._common import notes

EVERY = 30.0  # seconds


class PickUp:
    """A thread that looks when the server is ready, and then every half minute.

    It takes what is addressed to this server and to nobody else, in the way in that everybody takes, so that what is
    refused there is refused here; and the locks that tracers take, who may be at the same.
    """

    def __init__(self) -> None:
        self._end = threading.Event()
        self._thread: threading.Thread | None = None

    def begin(self, url: str) -> None:
        """The server answers at this address."""
        self._thread = threading.Thread(target=self._run, args=(url,), name="spanwise-pick-up", daemon=True)
        self._thread.start()

    def end(self) -> None:
        """The server has stopped."""
        self._end.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self, url: str) -> None:
        said = ""
        while not self._end.is_set():
            try:
                pick_up(url)
            except Exception as error:  # files are others' as well: it is tried again, and told of once
                if said != (said := f"could not read what waits on disk: {error!r}"):
                    notes.print(said, markup=False, highlight=False, soft_wrap=True)
            self._end.wait(EVERY)


def pick_up(url: str) -> int:
    """Bring what waits for the server at this address to it; returns how many items it has kept."""
    from spanwise.tracer import spool

    kept = 0
    for one in spool.waiting():
        if spool.same_address(one.url, url):
            kept += spool.send(one, url, with_key=True).kept
    if kept:
        notes.print(f"picked up {kept:,} items that waited on disk", markup=False, highlight=False, soft_wrap=True)
    return kept
