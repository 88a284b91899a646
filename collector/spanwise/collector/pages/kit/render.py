"""Templates to responses. Every value that a template prints is made visible, then escaped; nothing inline may run."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from hashlib import sha256
from importlib.resources import files
from inspect import getmembers, isfunction
from typing import Any
from urllib.parse import quote

from jinja2 import Environment, PackageLoader, StrictUndefined
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from spanwise.collector import format, gaps
from spanwise.collector._access import access_of
from spanwise.collector._sign_ins import token
from spanwise.collector.pages.kit import chart, filter_form, payload
from spanwise.collector.pages.kit.text import breakable, visible
from spanwise.collector.stores import Store

POLICY = (
    "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
_TYPES = {"css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}


@cache
def asset(name: str) -> bytes:
    """A file of `static/`."""
    return (files("spanwise.collector.pages") / "static" / name).read_bytes()


@cache
def _versioned(name: str) -> str:
    return f"/static/{name}?{sha256(asset(name)).hexdigest()[:12]}"


@cache
def environment() -> Environment:
    """The templates with their helpers."""
    made = Environment(
        loader=PackageLoader("spanwise.collector.pages"),
        autoescape=True,
        finalize=visible,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.globals |= {"static": _versioned, "zone": format.zone, "chart": chart, "verbs": filter_form.VERBS}
    made.globals |= {
        "ranges": filter_form.RANGES,
        "traffic": filter_form.TRAFFIC,
        "layout": payload.layout,
        "block": payload.block,
    }
    made.filters |= dict(getmembers(format, isfunction))  # each under its own name
    made.filters |= {"glimpse": payload.glimpse, "gist": payload.gist}
    made.filters |= {"dropped": gaps.dropped, "since": gaps.since}
    made.filters |= {"path": path, "breakable": breakable, "tame": dict}
    return made


def path(text: object) -> str:
    """A text as one segment of an address."""
    return quote(str(text), safe="", errors="replace")


def html(request: Request, template: str, /, *, status: int = 200, **context: Any) -> Response:
    """A page, with the headers that keep a trace's text from acting."""
    access = access_of(request.scope)
    body = (
        environment()
        .get_template(template)
        .render(here=request.url.path, access=access, token=token(access.bond), **context)
    )
    return HTMLResponse(body.encode("utf-8", "replace"), status, HEADERS)


def static(_store: Store, request: Request) -> Response:
    """The style sheet, the script or the icon; kept by the browser for a year, since their addresses bear a hash."""
    name = request.path_params["name"]
    if name not in ("spanwise.css", "spanwise.js", "spanwise.svg"):
        return Response("not found", 404, HEADERS, media_type="text/plain")
    headers: Mapping[str, str] = {**HEADERS, "Cache-Control": "public, max-age=31536000, immutable"}
    return Response(asset(name), headers=headers, media_type=_TYPES[name.rpartition(".")[2]])
