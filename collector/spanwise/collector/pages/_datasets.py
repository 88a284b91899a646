"""Datasets, their versions and examples."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from spanwise.collector.pages.kit import render
from spanwise.collector.pages.kit.request import whole
from spanwise.collector.stores import Store

_EXAMPLES = 50


def datasets(store: Store, request: Request) -> Response:
    """`GET /datasets`."""
    return render.html(request, "datasets.html", datasets=store.datasets())


def dataset(store: Store, request: Request) -> Response:
    """`GET /datasets/{name}?version=&offset=`."""
    name = request.path_params["name"]
    version, offset = whole(request, "version"), whole(request, "offset") or 0
    asked = store.dataset(name, version)
    examples = store.examples(name, asked.version, limit=_EXAMPLES, offset=offset)
    return render.html(
        request,
        "dataset.html",
        dataset=asked,
        versions=store.versions(name),
        examples=examples,
        offset=offset,
        next=offset + _EXAMPLES if offset + len(examples) < asked.example_count else None,
        previous=max(0, offset - _EXAMPLES) if offset else None,
        experiments=store.experiments(dataset=name, limit=20),
    )
