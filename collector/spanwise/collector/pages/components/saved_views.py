"""Saved views of the trace list: names for filters, orders and columns, kept in a cookie of the browser."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from spanwise.collector.address_parsing import safe_redirect_path
from spanwise.collector.errors import Refused
from spanwise.collector.pages.components.filter_form import TRACE_LIST
from spanwise.collector.stores import Store

VIEWS_COOKIE = "spanwise-views"
MAX_NAME = 60  # characters
MAX_COOKIE_BYTES = 3_800  # browsers drop a cookie of more than 4,096 bytes with its name and attributes
_COOKIE_SECONDS = 366 * 86_400
FIELDS = ("action", "name", "new_name", "address", "back")
ACTIONS = ("save", "rename", "delete")


def read_views(request: Request) -> dict[str, str]:
    """Return the URL of the trace list by the name of each view, in the order in which they were saved."""
    pairs = parse_qsl(unquote(request.cookies.get(VIEWS_COOKIE, ""))[: MAX_COOKIE_BYTES * 3], keep_blank_values=True)
    return {name[:MAX_NAME]: f"{TRACE_LIST}?{query}" for name, query in pairs if is_name(name)}


def change_views(_store: Store, request: Request, fields: Mapping[str, str]) -> Response:
    """Save, rename or delete a view: `POST /views`. Raises `Refused` for an invalid name and when there is no room.

    A view of an existing name is replaced. `address` is the URL of the list to save; only its query counts.
    """
    views = read_views(request)
    action, name = fields.get("action", ""), clean_name(fields.get("name", ""))
    back = safe_redirect_path(fields.get("back", ""))
    if action not in ACTIONS:
        raise Refused(f"unknown action {action[:100]!r}; expected one of: {', '.join(ACTIONS)}")
    if action == "save":
        back = views[name] = f"{TRACE_LIST}?{urlsplit(fields.get('address', '')).query}"
    elif name not in views:
        raise Refused(f"there is no view {name!r}; it may have been renamed or deleted in another tab")
    elif action == "rename":
        new_name = clean_name(fields.get("new_name", ""))
        views = {
            new_name if other == name else other: address
            for other, address in views.items()
            if other != new_name or other == name
        }
    else:
        del views[name]
    text = quote(urlencode([(each, urlsplit(address).query) for each, address in views.items()], errors="replace"))
    if len(text) > MAX_COOKIE_BYTES:
        raise Refused(
            "the views of this browser take more than 3.8 kB; delete one, or save a shorter filter: its address can also be "
            "kept as a bookmark"
        )
    response = RedirectResponse(back, 303)
    is_secure = request.url.scheme == "https"
    response.set_cookie(VIEWS_COOKIE, text, _COOKIE_SECONDS, httponly=True, samesite="lax", secure=is_secure)
    return response


def clean_name(text: str) -> str:
    """Return the name of a view on one line. Raises `Refused` for one that is too long or has no visible character."""
    name = " ".join(text.split())
    if not is_name(name):
        raise Refused(f"a view needs a name of 1 to {MAX_NAME} characters, got {name[:80]!r}")
    return name


def is_name(name: str) -> bool:
    """Return whether a text can be the name of a view."""
    return len(name) <= MAX_NAME and any(character.isprintable() and not character.isspace() for character in name)
