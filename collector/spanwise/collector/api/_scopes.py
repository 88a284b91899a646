"""What a key must allow for a request: asked of the table of routes, in its order, as the router does."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from re import Pattern

from starlette.routing import compile_path

READING = ("GET", "HEAD", "OPTIONS")
# What a key's scope opens. To write is to send, too; to administer (keys, retention, deleting in bulk) is its own
OPENS: dict[str, frozenset[str]] = {
    "read": frozenset(("read",)),
    "write": frozenset(("write", "ingest", "feedback")),
    "ingest": frozenset(("ingest",)),
    "feedback": frozenset(("feedback",)),
    "admin": frozenset(("admin",)),
}


class Scopes:
    """What requests need, from rows of (method, path, what it needs). `pages` are the paths that readers open."""

    def __init__(self, rows: Iterable[tuple[str, str, str]], pages: Iterable[str] = ()) -> None:
        self.rows = tuple(rows)
        self._open = frozenset(path for _, path, needs in self.rows if needs == "open")
        self._open_below = tuple(path.partition("{")[0] for path in self._open if "{" in path)
        self._pages = [compile_path(path)[0] for path in pages]
        self._patterns: dict[str, list[tuple[Pattern[str], str]]] = {}
        for method, path, needs in self.rows:
            self._patterns.setdefault(method, []).append((compile_path(path)[0], needs))
        self.needed = lru_cache(4096)(self._needed)
        self.is_page = lru_cache(4096)(self._is_page)

    @property
    def has_pages(self) -> bool:
        """Whether readers come here at all, and find where to sign in."""
        return bool(self._pages)

    def is_open(self, path: str) -> bool:
        """Whether nothing is needed."""
        return path in self._open or path.startswith(self._open_below)

    def _is_page(self, path: str) -> bool:
        return any(pattern.match(path) for pattern in self._pages)

    def _needed(self, method: str, path: str) -> str:
        """What a request needs. One that no route answers needs what others of its method do."""
        for pattern, needs in self._patterns.get("GET" if method == "HEAD" else method, ()):
            if pattern.match(path):
                return needs
        return "read" if method in READING else "write"


@lru_cache(64)
def opened_by(scopes: tuple[str, ...]) -> frozenset[str]:
    """All that a key of these scopes opens."""
    return frozenset().union(*(OPENS.get(scope, frozenset()) for scope in scopes))


def may(scopes: Iterable[str], needed: str) -> bool:
    """Whether a key of these scopes may send a request that needs this."""
    return any(needed in OPENS.get(scope, ()) for scope in scopes)
