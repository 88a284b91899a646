"""Authorization: scopes that routes require, access of a request, store restricted to its project."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from re import Pattern
from typing import Any, cast

from starlette.requests import Request
from starlette.routing import compile_path

from spanwise.collector.errors import Forbidden
from spanwise.collector.operations import ProjectScopedStore
from spanwise.collector.request_context import Actor
from spanwise.collector.stores import Store

ACCESS_SCOPE_KEY = "spanwise.access"  # key of the access in an ASGI scope


# scope of a key → permissions. Write includes ingest; admin (keys, retention, bulk deletion) is separate.
SCOPE_PERMISSIONS: dict[str, frozenset[str]] = {
    "read": frozenset(("read",)),
    "write": frozenset(("write", "ingest", "feedback")),
    "ingest": frozenset(("ingest",)),
    "feedback": frozenset(("feedback",)),
    "admin": frozenset(("admin",)),
}


@lru_cache(64)
def get_permissions(scopes: tuple[str, ...]) -> frozenset[str]:
    """Return all permissions that the scopes of a key grant."""
    return frozenset().union(*(SCOPE_PERMISSIONS.get(scope, frozenset()) for scope in scopes))


@dataclass(frozen=True, slots=True)
class Access:
    """Permissions of a request's sender, and its identity if known. All checks of permissions are methods of this class.

    The flag `known` is True if the sender has a key, or if no key is required. CSRF tokens of forms are derived from
    `bond`, a hash of the session id or key.
    """

    project: str | None = None  # None grants access to all projects
    known: bool = True
    permissions: frozenset[str] | None = None  # None grants all
    key: str = ""  # id of the key; "" where none is required
    name: str = ""  # name of the key
    address: str = ""
    bond: bytes = b""
    session: str = ""  # id of the browser session; "" without one

    @property
    def actor(self) -> Actor:
        """Return the caller for the audit log."""
        return Actor(self.key, self.name, self.address, self.may("write"))

    def may(self, permission: str) -> bool:
        """Return whether the sender has this permission."""
        return self.permissions is None or permission in self.permissions

    def require(self, permission: str) -> None:
        """Raise `Forbidden`, with the missing scope, unless the sender has this permission."""
        if not self.may(permission):
            scopes = [repr(scope) for scope, granted in SCOPE_PERMISSIONS.items() if permission in granted]
            raise Forbidden(f"the API key lacks the scope {' or '.join(scopes)}")

    def restrict(self, store: Store) -> Store:
        """Return the store, restricted to the project of the sender's key."""
        return store if self.project is None else cast(Store, ProjectScopedStore(store, self.project))

    def require_all_projects(self, what: str) -> None:
        """Raise `Forbidden` if the sender's key is limited to one project. The error names `what` as the reason."""
        if self.project is not None:
            raise Forbidden(f"the API key is limited to project {self.project!r}; {what} covers all projects")


def get_access(scope: Mapping[str, Any]) -> Access:
    """Return the access of a request; full access without the security middleware."""
    found: Access = scope.get(ACCESS_SCOPE_KEY) or Access()
    return found


def get_request_store(request: Request) -> Store:
    """Return the store, restricted to the project of the request's key."""
    return get_access(request.scope).restrict(request.app.state.store)


READ_METHODS = ("GET", "HEAD", "OPTIONS")


class RoutePermissions:
    """Permissions that requests need, from rows of (method, path, permission).

    `pages` are the paths of HTML pages.
    """

    def __init__(self, rows: Iterable[tuple[str, str, str]], pages: Iterable[str] = ()) -> None:
        self.rows = tuple(rows)
        self._open = frozenset(path for _, path, permission in self.rows if permission == "open")
        self._open_prefixes = tuple(path.partition("{")[0] for path in self._open if "{" in path)
        self._pages = [compile_path(path)[0] for path in pages]
        self._patterns: dict[str, list[tuple[Pattern[str], str]]] = {}
        for method, path, permission in self.rows:
            self._patterns.setdefault(method, []).append((compile_path(path)[0], permission))
        self.needed = lru_cache(4096)(self._needed)
        self.is_page = lru_cache(4096)(self._is_page)

    @property
    def has_pages(self) -> bool:
        """Return whether the application has HTML pages, and thus a sign-in page."""
        return bool(self._pages)

    def is_open(self, path: str) -> bool:
        """Return whether a path needs no permission."""
        return path in self._open or path.startswith(self._open_prefixes)

    def _is_page(self, path: str) -> bool:
        return any(pattern.match(path) for pattern in self._pages)

    def _needed(self, method: str, path: str) -> str:
        """Return the permission that a request needs; for an unknown route, read or write by its method."""
        for pattern, permission in self._patterns.get("GET" if method == "HEAD" else method, ()):
            if pattern.match(path):
                return permission
        return "read" if method in READ_METHODS else "write"
