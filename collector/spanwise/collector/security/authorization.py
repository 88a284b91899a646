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

ACCESS_SCOPE_KEY = "spanwise.access"  # key of the access in an ASGI scope


@dataclass(frozen=True, slots=True)
class Access:
    """Permissions of a request's sender, and its identity if known.

    The flag `known` is True if the sender has a key, or if no key is required. CSRF tokens of forms are derived from
    `bond`, a hash of the session id or key.
    """

    project: str | None = None  # None grants access to all projects
    known: bool = True
    needs: frozenset[str] | None = None  # granted permissions; None grants all
    key: str = ""  # id of the key; "" where none is required
    name: str = ""  # name of the key
    address: str = ""
    bond: bytes = b""
    session: str = ""  # id of the browser session; "" without one

    @property
    def actor(self) -> Actor:
        """Return the caller for the audit log."""
        return Actor(self.key, self.name, self.address, self.may("write"))

    def may(self, needed: str) -> bool:
        """Return whether the sender has this permission."""
        return self.needs is None or needed in self.needs


def get_access(scope: Mapping[str, Any]) -> Access:
    """Return the access of a request; full access without the security middleware."""
    found: Access = scope.get(ACCESS_SCOPE_KEY) or Access()
    return found


def get_request_store(request: Request) -> Store:
    """Return the store, restricted to the project of the request's key."""
    store: Store = request.app.state.store
    project = get_access(request.scope).project
    return store if project is None else ProjectScopedStore(store, project)


def get_unrestricted_store(request: Request) -> Store:
    """Return the unrestricted store. Raises `Forbidden` for a key of one project."""
    project = get_access(request.scope).project
    if project is not None:
        raise Forbidden(f"the API key is of project {project!r}: this tells of all of them")
    store: Store = request.app.state.store
    return store


READ_METHODS = ("GET", "HEAD", "OPTIONS")
# scope of a key → permissions. Write includes ingest; admin (keys, retention, bulk deletion) is separate.
SCOPE_PERMISSIONS: dict[str, frozenset[str]] = {
    "read": frozenset(("read",)),
    "write": frozenset(("write", "ingest", "feedback")),
    "ingest": frozenset(("ingest",)),
    "feedback": frozenset(("feedback",)),
    "admin": frozenset(("admin",)),
}


class RoutePermissions:
    """Permissions that requests need, from rows of (method, path, permission).

    `pages` are the paths of HTML pages.
    """

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
        """Return whether the application has HTML pages, and thus a sign-in page."""
        return bool(self._pages)

    def is_open(self, path: str) -> bool:
        """Return whether a path needs no permission."""
        return path in self._open or path.startswith(self._open_below)

    def _is_page(self, path: str) -> bool:
        return any(pattern.match(path) for pattern in self._pages)

    def _needed(self, method: str, path: str) -> str:
        """Return the permission that a request needs; for an unknown route, read or write by its method."""
        for pattern, needs in self._patterns.get("GET" if method == "HEAD" else method, ()):
            if pattern.match(path):
                return needs
        return "read" if method in READ_METHODS else "write"


@lru_cache(64)
def get_permissions(scopes: tuple[str, ...]) -> frozenset[str]:
    """Return all permissions that the scopes of a key grant."""
    return frozenset().union(*(SCOPE_PERMISSIONS.get(scope, frozenset()) for scope in scopes))


def is_permitted(scopes: Iterable[str], needed: str) -> bool:
    """Return whether a key with these scopes has the permission."""
    return any(needed in SCOPE_PERMISSIONS.get(scope, ()) for scope in scopes)
