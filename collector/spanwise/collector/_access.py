"""What a request may see: the one place where routes and pages get their store."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request

from spanwise.collector._acting import Actor
from spanwise.collector.errors import Forbidden
from spanwise.collector.stores import Store
from spanwise.collector.stores.project import ProjectStore

ACCESS = "spanwise.access"  # where an ASGI scope holds it


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


def access_of(scope: Mapping[str, Any]) -> Access:
    """The access of a request; all of it, where nobody guards."""
    found: Access = scope.get(ACCESS) or Access()
    return found


def store_of(request: Request) -> Store:
    """The store as this request may see it."""
    store: Store = request.app.state.store
    project = access_of(request.scope).project
    return store if project is None else ProjectStore(store, project)


def whole_store(request: Request) -> Store:
    """The store, for what concerns all of it. Raises `Forbidden` for a key of one project."""
    project = access_of(request.scope).project
    if project is not None:
        raise Forbidden(f"the API key is of project {project!r}: this tells of all of them")
    store: Store = request.app.state.store
    return store
