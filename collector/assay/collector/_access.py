"""Which store a request sees: the one place where routes and pages get theirs."""

from __future__ import annotations

from starlette.requests import Request

from assay.collector.stores import Store


def store_of(request: Request) -> Store:
    """The store as this request may see it."""
    store: Store = request.app.state.store
    return store
