"""Display preferences of a reader: theme, time zone, row height, side bar, values, columns and their widths. They are kept in cookies.

The cookie `spanwise-view` has the choices of the forms. The script sets `spanwise-zone` to the browser's time zone, so
that the server can print times in it. Without the script, times are in UTC. The trace page takes the cookie as a sign
that scripts run.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
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
MIN_WIDTH, MAX_WIDTH = 60, 800  # pixels of a column whose width the reader sets
# Width of a column in pixels that the style sheet gives it; of a column of text, the least that is readable
DEFAULT_WIDTHS: Mapping[str, int] = {
    "name": 216,
    "scores": 216,
    "kind": 100,
    "spans": 64,
    "environment": 112,
    "first_token": 84,
    "latency": 76,
    "tokens": 68,
    "cost": 72,
    "started": 108,
    **dict.fromkeys(("input", "output"), 160),
    **dict.fromkeys(("session", "user", "tags", "prompt", "agent", "finish_reason"), 132),
}
RESIZABLE = {"name": "Trace", **{name: label for name, label in COLUMNS.items() if name != "scores"}}
DEFAULT_COLUMNS = ("input", "output", "scores", "latency", "tokens", "cost", "started")
FIELDS = (
    *(*CHOICES, "columns", "move", "back"),
    *(f"column_{name}" for name in COLUMNS),
    *(f"width_{name}" for name in RESIZABLE),
)
_KEPT = frozenset((*CHOICES, "columns", "widths"))


@dataclass(frozen=True, slots=True)
class Preferences:
    """Display preferences. `time_zone` is that of the browser, as far as it is known and wanted, otherwise UTC."""

    theme: str = "system"
    zone: str = "local"
    density: str = "normal"
    side: str = "open"
    view: str = "read"
    columns: tuple[str, ...] = DEFAULT_COLUMNS
    widths: Mapping[str, int] = field(default_factory=dict)  # in pixels, of the columns that the reader has resized
    time_zone: tzinfo = UTC

    @property
    def table_width(self) -> int:
        """Return the least width in pixels of the trace list in which all of its columns are readable."""
        return sum(self.widths.get(name, DEFAULT_WIDTHS[name]) for name in ("name", *self.columns))


def read_preferences(request: Request) -> Preferences:
    """Return the preferences in the cookies of a request. Unknown choices are ignored."""
    fields = _read_fields(request)
    chosen = {name: fields[name] for name, options in CHOICES.items() if fields.get(name) in options}
    columns: tuple[str, ...] = DEFAULT_COLUMNS
    if (text := request.query_params.get("columns", fields.get("columns"))) is not None:
        columns = tuple(name for name in dict.fromkeys(text.split(".")) if name in COLUMNS)
    time_zone: tzinfo = UTC
    if chosen.get("zone") != "utc" and (key := unquote(request.cookies.get(ZONE_COOKIE, ""))):
        try:
            time_zone = ZoneInfo(key[:64])
        except (KeyError, ValueError, OSError):  # a zone that this machine does not know, or no name of a zone
            time_zone = UTC
    return Preferences(**chosen, columns=columns, widths=_read_widths(fields), time_zone=time_zone)


def _read_fields(request: Request) -> dict[str, str]:
    return dict(parse_qsl(unquote(request.cookies.get(VIEW_COOKIE, ""))[:2_000]))


def _read_widths(fields: Mapping[str, str]) -> dict[str, int]:
    """Return the widths in a cookie: `name-200.input-300`. Others than those of known columns are left out."""
    pairs = (pair.partition("-") for pair in fields.get("widths", "").split("."))
    known = ((name, text) for name, _, text in pairs if name in RESIZABLE and text.isascii() and text.isdecimal())
    return {name: min(MAX_WIDTH, max(MIN_WIDTH, int(text[:6]))) for name, text in known}


def save_preferences(_store: Store, request: Request, fields: Mapping[str, str]) -> Response:
    """Set the cookie to the submitted choices, and return to the page: `POST /preferences`.

    Preferences that the form does not contain stay unchanged. The field `columns` marks a form with one checkbox
    `column_{name}` per column, in the order of the columns; `move={name}.up` moves one of them. A field `width_{name}`
    sets the width of a column, and resets it if it is empty.
    """
    changes = {name: fields[name] for name, options in CHOICES.items() if fields.get(name) in options}
    if "columns" in fields:
        columns = [name for field in fields if (name := field.removeprefix("column_")) in COLUMNS]
        changes["columns"] = ".".join(move_column(columns, *fields.get("move", "").split(".", 1)))
    resized = {name: fields[f"width_{name}"].strip() for name in RESIZABLE if f"width_{name}" in fields}
    if resized:
        widths = {name: str(width) for name, width in _read_widths(_read_fields(request)).items()} | resized
        valid = _read_widths({"widths": ".".join(f"{name}-{width}" for name, width in widths.items())})
        changes["widths"] = ".".join(f"{name}-{width}" for name, width in valid.items())
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


def move_column(columns: list[str], name: str, direction: str = "") -> list[str]:
    """Return the columns with one of them moved `up` or `down` by one place."""
    if name not in columns or direction not in ("up", "down"):
        return columns
    others = [other for other in columns if other != name]
    target = max(0, columns.index(name) + (-1 if direction == "up" else 1))
    return [*others[:target], name, *others[target:]]


def set_preferences(request: Request, response: Response, changes: Mapping[str, str]) -> None:
    """Set the cookie to the choices of the request with some changes, which are valid."""
    fields = {**_read_fields(request), **changes}
    known = {name: text for name, text in fields.items() if name in _KEPT}
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
