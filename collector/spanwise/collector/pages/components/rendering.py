"""Template rendering: environment, security headers, static files."""

from __future__ import annotations

import gzip
import re
import unicodedata
from collections.abc import Mapping
from datetime import UTC
from functools import cache, lru_cache
from hashlib import sha256
from importlib.resources import files
from inspect import getmembers, isfunction
from typing import Any
from urllib.parse import quote

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from spanwise.collector import content, formatting
from spanwise.collector.diagnostics import trace_completeness
from spanwise.collector.filters import CJK_CHARACTERS, parse_search_terms
from spanwise.collector.pages.components import feedback_display, filter_form, preferences, svg_charts
from spanwise.collector.pages.components.content_view import ContentView, allow_line_breaks, mark_invisible
from spanwise.collector.security import get_access, get_form_secret, get_request_store, make_form_token
from spanwise.collector.stores import Store


def mark_matches(text: str, search: str | None) -> Markup:
    """Return text as HTML, with what a search finds in it in `<mark>` elements."""
    html, end = Markup(), 0
    for match in _compile_search(search).finditer("".join(map(_fold, text))) if search else ():
        before, found = text[end : match.start()], text[match.start() : match.end()]
        html += Markup("{}<mark>{}</mark>").format(mark_invisible(before), mark_invisible(found))
        end = match.end()
    return html + escape(mark_invisible(text[end:]))


@lru_cache(maxsize=16)
def _compile_search(search: str) -> re.Pattern[str]:
    """Return a pattern that finds the terms of a search in folded text."""
    terms = []
    for words, is_prefix in parse_search_terms(search):
        folded = [re.escape("".join(map(_fold, word))) for word in words]
        begin = "" if _IS_CJK.match(words[0]) else r"(?<![^\W_])"
        end = "" if is_prefix or _IS_CJK.match(words[-1][-1]) else r"(?![^\W_])"
        terms.append(begin + r"[\W_]+".join(folded) + end)
    return re.compile("|".join(terms) or "(?!)")


_IS_CJK = re.compile(f"[{CJK_CHARACTERS}]")


@lru_cache(maxsize=4096)
def _fold(character: str) -> str:
    """Return one lower-case character without accents, as in the full-text index."""
    base = unicodedata.normalize("NFD", character)[0] if character < "\u1100" else character
    return base.lower()[:1]


_MAX_BEFORE_MATCH = 32  # characters before the first match of a search that a narrow column still shows


def shorten_preview(text: str, limit: int = 240, search: str | None = None) -> str:
    """Return the preview of a value on one line of at most `limit` characters. It begins near what a search finds."""
    line = " ".join(text.split())
    match = _compile_search(search).search("".join(map(_fold, line))) if search else None
    if match and match.start() > _MAX_BEFORE_MATCH:
        line = "…" + line[match.start() - _MAX_BEFORE_MATCH // 2 :]
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


# Files that pages may load, by their folder. The build makes those of `bundle/`; an install without npm has none.
ASSETS = {
    **dict.fromkeys(("spanwise.css", "spanwise.svg"), "static"),
    **dict.fromkeys(("spanwise.js", "list.js", "overview.js", "overview.css", "trace.js"), "bundle"),
}


MIN_COMPRESSED_BYTES = 1_000
COMPRESSION_LEVEL = 4  # level 9 takes seven times as long, for pages that are 4 % smaller


@cache
def read_asset(name: str) -> bytes | None:
    """Return one of `ASSETS`; None for a script that was not built."""
    path = files("spanwise.collector.pages") / ASSETS[name] / name
    return path.read_bytes() if path.is_file() else None


@cache
def get_versioned_url(name: str) -> str:
    """Return the address of one of `ASSETS`, which changes with its content."""
    return f"/static/{name}?{sha256(read_asset(name) or b'').hexdigest()[:12]}"


def make_style_tag(name: str) -> Markup:
    """Return the element that loads a style sheet of a script, "" if it was not built."""
    if read_asset(name) is None:
        return Markup()
    return Markup('<link rel="stylesheet" href="{}">').format(get_versioned_url(name))


def make_script_tag(name: str) -> Markup:
    """Return the element that loads a script, "" if it was not built."""
    if read_asset(name) is None:
        return Markup()
    return Markup('<script src="{}" defer></script>').format(get_versioned_url(name))


def has_scripts() -> bool:
    """Return whether the scripts of the pages were built."""
    return read_asset("spanwise.js") is not None


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
        "script": make_script_tag,
        "style": make_style_tag,
        "has_scripts": has_scripts,
        "chart": svg_charts,
        "operators": filter_form.OPERATOR_LABELS,
        "sorts": filter_form.SORT_LABELS,
        "ranges": filter_form.RANGE_LABELS,
        "traffic": filter_form.TRAFFIC_LABELS,
        "content_view": ContentView,
        "choices_of": preferences.CHOICES,
        "all_columns": preferences.COLUMNS,
        "resizable": preferences.RESIZABLE,
        "groups": filter_form.GROUP_LABELS,
    }
    # every formatting function becomes a filter of the same name
    environment.filters |= dict(getmembers(formatting, isfunction))
    environment.filters |= {
        "when": lambda ns: formatting.when(ns, preferences.get_time_zone()),
        "iso": lambda ns: formatting.iso(ns, preferences.get_time_zone()),
        "machine_time": format_machine_time,
    }
    environment.filters |= {"summarize_json": shorten_preview, "summarize": content.summarize}
    environment.filters |= {"dropped": trace_completeness.describe_dropped, "since": trace_completeness.describe_start}
    environment.filters["named"] = format_name
    environment.filters["label"] = feedback_display.format_label
    environment.filters |= {"mark_matches": mark_matches}
    environment.filters |= {"path": quote_segment, "breakable": allow_line_breaks, "as_dict": dict}
    return environment


def format_machine_time(ns: int) -> str:
    """Return a time as the attribute `datetime` of HTML has it, in UTC; "" if the calendar has no such time."""
    text = formatting.iso(ns, UTC)
    return "" if text.endswith(" ns") else text.replace(" ", "T")


def format_name(name: str | None) -> str:
    """Return a name for a link: "(no name)" if it has no visible character, at most 200 characters."""
    text = (name or "")[:200]
    visible = "".join(text.split()).strip("\u2800\u3164\u00ad\u200b\u200c\u200d\ufeff")
    return text + ("…" if len(name or "") > 200 else "") if visible else "(no name)"


def quote_segment(text: object) -> str:
    """Quote a text as one segment of a URL path."""
    return quote(str(text), safe="", errors="replace")


def render_page(
    request: Request, template: str, /, *, status: int = 200, switcher: bool = True, **context: Any
) -> Response:
    """Render a page with the headers that prevent content of traces from running scripts.

    The project switcher of the side bar reads the projects from the store. Without `switcher` the store is not read.
    """
    access = get_access(request.scope)
    view = preferences.read_preferences(request)
    address = request.url.path + (f"?{request.url.query}" if request.url.query else "")
    frame = {
        "here": request.url.path,
        "address": address,
        "server_url": str(request.base_url).rstrip("/"),
        "project": request.query_params.get("project", ""),
        "projects": get_request_store(request).values("project") if switcher else [],
        "access": access,
        "display": view,
        "views": filter_form.read_views(request),
        "token": make_form_token(access.bond, secret=get_form_secret(request.scope)),
    }
    with preferences.use_time_zone(view.time_zone):
        body = get_environment().get_template(template).render(frame | context)
    return compress(request, HTMLResponse(body.encode("utf-8", "replace"), status, SECURITY_HEADERS))


def compress(request: Request, response: Response) -> Response:
    """Compress the body of a response if it is long and the browser accepts gzip."""
    body = bytes(response.body)
    if len(body) < MIN_COMPRESSED_BYTES or "gzip" not in request.headers.get("accept-encoding", ""):
        return response
    response.body = gzip.compress(body, COMPRESSION_LEVEL, mtime=0)
    response.headers["content-length"] = str(len(response.body))
    response.headers["content-encoding"] = "gzip"
    response.headers["vary"] = "accept-encoding"
    return response


def serve_static(_store: Store, request: Request) -> Response:
    """Serve a style sheet, script or icon, cacheable for a year because its URL contains a hash."""
    name = request.path_params["name"]
    asset = read_asset(name) if name in ASSETS else None
    if asset is None:
        return Response("not found", 404, SECURITY_HEADERS, media_type="text/plain")
    headers: Mapping[str, str] = {**SECURITY_HEADERS, "Cache-Control": "public, max-age=31536000, immutable"}
    return compress(request, Response(asset, headers=headers, media_type=_TYPES[name.rpartition(".")[2]]))
