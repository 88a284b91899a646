"""Authorization: scopes that routes require, access of a request, store restricted to its project."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from re import Pattern
from typing import Any

from starlette.requests import Request
from starlette.routing import compile_path

from spanwise.collector.errors import Forbidden
from spanwise.collector.request_context import Actor
from spanwise.collector.stores import Store
from spanwise.collector.stores.project_scope import ProjectScopedStore

ACCESS_SCOPE_KEY = "spanwise.access"  # where an ASGI scope holds it


@dataclass(frozen=True, slots=True)
class Access:
    """What the sender of a request may have, and who it is, as far as that is known.

    `known`: it has a key, or none is needed. `bond` is what its session or its key is known by; tokens of forms hang
    on it.
    """

    project: str | None = None  # None: every project
    known: bool = True
    needs: frozenset[str] | None = None  # what it may send requests for; None: for everything
    key: str = ""  # the key's id; "" where none is needed
    name: str = ""  # the key's
    address: str = ""
    bond: bytes = b""
    session: str = ""  # the id of the session in a browser; "" without one

    @property
    def actor(self) -> Actor:
        """Who it is, for what is written down."""
        return Actor(self.key, self.name, self.address, self.may("write"))

    def may(self, needed: str) -> bool:
        """Whether it may send what needs this."""
        return self.needs is None or needed in self.needs


def get_access(scope: Mapping[str, Any]) -> Access:
    """The access of a request; all of it, where nobody guards."""
    found: Access = scope.get(ACCESS_SCOPE_KEY) or Access()
    return found


def get_request_store(request: Request) -> Store:
    """The store as this request may see it."""
    store: Store = request.app.state.store
    project = get_access(request.scope).project
    return store if project is None else ProjectScopedStore(store, project)


def get_unrestricted_store(request: Request) -> Store:
    """The store, for what concerns all of it. Raises `Forbidden` for a key of one project."""
    project = get_access(request.scope).project
    if project is not None:
        raise Forbidden(f"the API key is of project {project!r}: this tells of all of them")
    store: Store = request.app.state.store
    return store


READ_METHODS = ("GET", "HEAD", "OPTIONS")
# What a key's scope opens. To write is to send, too; to administer (keys, retention, deleting in bulk) is its own
SCOPE_PERMISSIONS: dict[str, frozenset[str]] = {
    "read": frozenset(("read",)),
    "write": frozenset(("write", "ingest", "feedback")),
    "ingest": frozenset(("ingest",)),
    "feedback": frozenset(("feedback",)),
    "admin": frozenset(("admin",)),
}


class RoutePermissions:
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
        return "read" if method in READ_METHODS else "write"


@lru_cache(64)
def get_permissions(scopes: tuple[str, ...]) -> frozenset[str]:
    """All that a key of these scopes opens."""
    return frozenset().union(*(SCOPE_PERMISSIONS.get(scope, frozenset()) for scope in scopes))


def is_permitted(scopes: Iterable[str], needed: str) -> bool:
    """Whether a key of these scopes may send a request that needs this."""
    return any(needed in SCOPE_PERMISSIONS.get(scope, ()) for scope in scopes)
