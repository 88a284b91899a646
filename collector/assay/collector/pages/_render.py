"""Templates to responses. Every value that a template prints is made visible, then escaped; nothing inline may run."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from hashlib import sha256
from importlib.resources import files
from typing import Any
from urllib.parse import quote

from jinja2 import Environment, PackageLoader, StrictUndefined
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from assay.collector.pages import _chart, _format, _payload, _query
from assay.collector.pages._text import breakable, visible

POLICY = (
    "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}
_TYPES = {"css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}


@cache
def asset(name: str) -> bytes:
    """A file of `static/`."""
    return (files("assay.collector.pages") / "static" / name).read_bytes()


@cache
def _versioned(name: str) -> str:
    return f"/static/{name}?{sha256(asset(name)).hexdigest()[:12]}"


@cache
def environment() -> Environment:
    """The templates with their helpers."""
    made = Environment(
        loader=PackageLoader("assay.collector.pages"),
        autoescape=True,
        finalize=visible,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.globals |= {"static": _versioned, "zone": _format.zone, "chart": _chart, "verbs": _query.VERBS}
    made.globals |= {"ranges": _query.RANGE_NAMES, "layout": _payload.layout, "block": _payload.block}
    made.filters |= {name: getattr(_format, name) for name in _FORMATS}
    made.filters |= {
        "glimpse": _payload.glimpse,
        "gist": _payload.gist,
        "path": path,
        "breakable": breakable,
        "tame": dict,
    }
    return made


_FORMATS = (
    "duration",
    "milliseconds",
    "number",
    "signed",
    "count",
    "cost",
    "when",
    "iso",
    "ago",
    "characters",
    "percent",
)


def path(text: object) -> str:
    """A text as one segment of an address."""
    return quote(str(text), safe="", errors="replace")


def html(request: Request, template: str, /, *, status: int = 200, **context: Any) -> Response:
    """A page, with the headers that keep a trace's text from acting."""
    body = environment().get_template(template).render(here=request.url.path, **context)
    return HTMLResponse(body.encode("utf-8", "replace"), status, HEADERS)


def static(_store: object, request: Request) -> Response:
    """The style sheet, the script or the icon; kept by the browser for a year, since their addresses bear a hash."""
    name = request.path_params["name"]
    if name not in ("assay.css", "assay.js", "assay.svg"):
        return Response("not found", 404, HEADERS, media_type="text/plain")
    headers: Mapping[str, str] = {**HEADERS, "Cache-Control": "public, max-age=31536000, immutable"}
    return Response(asset(name), headers=headers, media_type=_TYPES[name.rpartition(".")[2]])
