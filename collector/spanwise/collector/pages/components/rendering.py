"""Template rendering: environment, security headers, static files."""

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

from spanwise.collector import content, formatting
from spanwise.collector.diagnostics import trace_completeness
from spanwise.collector.pages.components import filter_form, sparkline
from spanwise.collector.pages.components.content_view import ContentView
from spanwise.collector.pages.components.escaping import allow_line_breaks, mark_invisible
from spanwise.collector.security.authorization import get_access
from spanwise.collector.security.browser_sessions import make_form_token
from spanwise.collector.stores import Store


def shorten_preview(text: str, limit: int = 240) -> str:
    """Return the preview of a value on one line of at most `limit` characters."""
    line = " ".join(text.split())
    return line if len(line) <= limit else line[: limit - 1] + "…"


CONTENT_SECURITY_POLICY = (
    "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; media-src 'self'; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
SECURITY_HEADERS = {
    "Content-Security-Policy": CONTENT_SECURITY_POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
_TYPES = {"css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}


@cache
def read_asset(name: str) -> bytes:
    """Return a file of `static/`."""
    return (files("spanwise.collector.pages") / "static" / name).read_bytes()


@cache
def get_versioned_url(name: str) -> str:
    """Return the address of a file of `static/`, which changes with its content."""
    return f"/static/{name}?{sha256(read_asset(name)).hexdigest()[:12]}"


@cache
def get_environment() -> Environment:
    """Return the Jinja environment with templates and helpers."""
    environment = Environment(
        loader=PackageLoader("spanwise.collector.pages"),
        autoescape=True,
        finalize=mark_invisible,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals |= {
        "static": get_versioned_url,
        "zone": formatting.zone,
        "chart": sparkline,
        "operators": filter_form.OPERATOR_LABELS,
        "ranges": filter_form.RANGE_LABELS,
        "traffic": filter_form.TRAFFIC_LABELS,
        "content_view": ContentView,
        "groups": filter_form.GROUP_LABELS,
    }
    # every formatting function becomes a filter of the same name
    environment.filters |= dict(getmembers(formatting, isfunction))
    environment.filters |= {"summarize_json": shorten_preview, "summarize": content.summarize}
    environment.filters |= {"dropped": trace_completeness.describe_dropped, "since": trace_completeness.describe_start}
    environment.filters |= {"path": quote_segment, "breakable": allow_line_breaks, "as_dict": dict}
    return environment


def quote_segment(text: object) -> str:
    """Quote a text as one segment of a URL path."""
    return quote(str(text), safe="", errors="replace")


def render_page(request: Request, template: str, /, *, status: int = 200, **context: Any) -> Response:
    """Render a page with the headers that prevent content of traces from running scripts."""
    access = get_access(request.scope)
    body = (
        get_environment()
        .get_template(template)
        .render(here=request.url.path, access=access, token=make_form_token(access.bond), **context)
    )
    return HTMLResponse(body.encode("utf-8", "replace"), status, SECURITY_HEADERS)


def serve_static(_store: Store, request: Request) -> Response:
    """Serve a style sheet, script or icon, cacheable for a year because its URL contains a hash."""
    name = request.path_params["name"]
    if name not in ("spanwise.css", "spanwise.js", "trace.js", "spanwise.svg"):
        return Response("not found", 404, SECURITY_HEADERS, media_type="text/plain")
    headers: Mapping[str, str] = {**SECURITY_HEADERS, "Cache-Control": "public, max-age=31536000, immutable"}
    return Response(read_asset(name), headers=headers, media_type=_TYPES[name.rpartition(".")[2]])
