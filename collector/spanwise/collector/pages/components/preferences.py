"""Display preferences of a reader: theme, time zone, row height, side bar, values, columns. They are kept in cookies.

The cookie `spanwise-view` has the choices of the forms. The script sets `spanwise-zone` to the browser's time zone, so
that the server can print times in it. Without the script, times are in UTC.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import UTC, tzinfo
from urllib.parse import parse_qsl, quote, unquote, urlencode
from zoneinfo import ZoneInfo

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from spanwise.collector.address_parsing import safe_redirect_path
from spanwise.collector.stores import Store

VIEW_COOKIE, ZONE_COOKIE = "spanwise-view", "spanwise-zone"
_COOKIE_SECONDS = 366 * 86_400
# Choices by preference; the first is the default
CHOICES: Mapping[str, Mapping[str, str]] = {
    "theme": {"system": "As the system", "light": "Light", "dark": "Dark"},
    "zone": {"local": "Time zone of this browser", "utc": "UTC"},
    "density": {"normal": "Normal rows", "compact": "Compact rows", "tall": "Tall rows, two lines"},
    "side": {"open": "Side bar open", "closed": "Side bar closed"},
    "view": {"read": "Values as text and messages", "raw": "Values as they were sent"},
}
# Columns of the trace list besides the first, in their order, with their labels
COLUMNS: Mapping[str, str] = {
    "input": "Input",
    "output": "Output",
    "scores": "Scores",
    "kind": "Kind",
    "spans": "Spans",
    "session": "Session",
    "user": "User",
    "environment": "Environment",
    "tags": "Tags",
    "prompt": "Prompt",
    "agent": "Agent",
    "finish_reason": "Finish reason",
    "first_token": "First token",
    "latency": "Latency",
    "tokens": "Tokens",
    "cost": "Cost",
    "started": "Started",
}
DEFAULT_COLUMNS = ("input", "output", "scores", "latency", "tokens", "cost", "started")
FIELDS = (*CHOICES, "columns", "back", *(f"column_{name}" for name in COLUMNS))


@dataclass(frozen=True, slots=True)
class Preferences:
    """Display preferences. `time_zone` is that of the browser, as far as it is known and wanted, otherwise UTC."""

    theme: str = "system"
    zone: str = "local"
    density: str = "normal"
    side: str = "open"
    view: str = "read"
    columns: tuple[str, ...] = DEFAULT_COLUMNS
    time_zone: tzinfo = UTC


def read_preferences(request: Request) -> Preferences:
    """Return the preferences in the cookies of a request. Unknown choices are ignored."""
    fields = _read_fields(request)
    chosen = {name: fields[name] for name, options in CHOICES.items() if fields.get(name) in options}
    columns: tuple[str, ...] = DEFAULT_COLUMNS
    if "columns" in fields:
        columns = tuple(name for name in COLUMNS if name in fields["columns"].split("."))
    time_zone: tzinfo = UTC
    if chosen.get("zone") != "utc" and (key := unquote(request.cookies.get(ZONE_COOKIE, ""))):
        try:
            time_zone = ZoneInfo(key[:64])
        except (KeyError, ValueError, OSError):  # a zone that this machine does not know, or no name of a zone
            time_zone = UTC
    return Preferences(**chosen, columns=columns, time_zone=time_zone)


def _read_fields(request: Request) -> dict[str, str]:
    return dict(parse_qsl(unquote(request.cookies.get(VIEW_COOKIE, ""))[:2_000]))


def save_preferences(_store: Store, request: Request, fields: Mapping[str, str]) -> Response:
    """Set the cookie to the submitted choices, and return to the page: `POST /preferences`.

    Preferences that the form does not contain stay unchanged. The field `columns` marks a form with one checkbox
    `column_{name}` per column.
    """
    changes = {name: fields[name] for name, options in CHOICES.items() if fields.get(name) in options}
    if "columns" in fields:
        changes["columns"] = ".".join(name for name in COLUMNS if f"column_{name}" in fields)
    response = RedirectResponse(safe_redirect_path(fields.get("back", "")), 303)
    set_preferences(request, response, changes)
    return response


def is_raw(request: Request) -> bool:
    """Return whether to show values as they were sent: `view=raw` in the address, or else the remembered choice."""
    return (request.query_params.get("view") or read_preferences(request).view) == "raw"


def remember_view(request: Request, response: Response) -> Response:
    """Remember the choice `view` in the address of a page, if it has one."""
    if (chosen := request.query_params.get("view", "")) in CHOICES["view"]:
        set_preferences(request, response, {"view": chosen})
    return response


def set_preferences(request: Request, response: Response, changes: Mapping[str, str]) -> None:
    """Set the cookie to the choices of the request with some changes, which are valid."""
    fields = {**_read_fields(request), **changes}
    known = {name: text for name, text in fields.items() if name in CHOICES or name == "columns"}
    response.set_cookie(
        VIEW_COOKIE,
        quote(urlencode(known)),
        _COOKIE_SECONDS,
        httponly=True,
        samesite="lax",
        secure=request.url.scheme == "https",
    )


_TIME_ZONE: ContextVar[tzinfo] = ContextVar("spanwise_time_zone", default=UTC)


@contextmanager
def use_time_zone(zone: tzinfo) -> Iterator[None]:
    """Print times in this zone while a template is rendered (see `get_time_zone`)."""
    token = _TIME_ZONE.set(zone)
    try:
        yield
    finally:
        _TIME_ZONE.reset(token)


def get_time_zone() -> tzinfo:
    """Return the zone in which the current page prints times."""
    return _TIME_ZONE.get()
