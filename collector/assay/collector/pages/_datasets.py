"""Datasets, their versions and examples."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from assay.collector.errors import Refused
from assay.collector.pages import _render
from assay.collector.stores import Store

_EXAMPLES = 50


def datasets(store: Store, request: Request) -> Response:
    """`GET /datasets`."""
    return _render.html(request, "datasets.html", datasets=store.datasets())


def dataset(store: Store, request: Request) -> Response:
    """`GET /datasets/{name}?version=&offset=`."""
    name = request.path_params["name"]
    version = whole(request, "version")
    offset = whole(request, "offset") or 0
    found = store.dataset(name, version)
    examples = store.examples(name, found.version, limit=_EXAMPLES, offset=offset)
    return _render.html(
        request,
        "dataset.html",
        dataset=found,
        versions=store.versions(name),
        examples=examples,
        offset=offset,
        next=offset + _EXAMPLES if offset + len(examples) < found.example_count else None,
        previous=max(0, offset - _EXAMPLES) if offset else None,
        experiments=store.experiments(dataset=name, limit=20),
    )


def whole(request: Request, name: str) -> int | None:
    """A whole number from the query string, None if it is not there. Raises `Refused`."""
    text = request.query_params.get(name)
    if not text:
        return None
    if not text.isdecimal() or len(text) > 12:
        raise Refused(f"{name} {text!r} is no whole number")
    return int(text)
