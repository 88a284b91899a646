"""The forms that pages send: one table, and one way for all of them.

Bounded, from our own pages only, read, acted upon, and answered by sending the reader on (303), so that a reload
sends nothing again.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import TypeAlias
from urllib.parse import parse_qsl

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from spanwise.collector._access import access_of, store_of
from spanwise.collector._sign_ins import is_token
from spanwise.collector.errors import Refused
from spanwise.collector.hosts import authority
from spanwise.collector.pages import _rules, traces
from spanwise.collector.pages.kit import render
from spanwise.collector.stores import Store

TOKEN = "token"  # the field in which a form brings back what says that we made it
LARGEST = 64 * 1024  # bytes, unless a form says more
MOST_FIELDS = 20  # that are sent; those that a form does not name are left out
# Does what the fields ask and returns the address to go on to. Raises `Refused`, which the reader sees.
Action: TypeAlias = Callable[[Store, Request, Mapping[str, str]], str]


@dataclass(frozen=True, slots=True)
class Form:
    """Where a form is sent, the fields that its action gets, and how large it may be."""

    path: str
    fields: tuple[str, ...]
    action: Action
    scope: str = "write"  # what an API key must allow
    largest: int = LARGEST


FORMS: tuple[Form, ...] = (
    Form("/rules/{name:path}", ("project", "action"), _rules.change),
    Form("/traces/{trace_id}/feedback", ("key", "value", "comment", "author", "span", "run"), traces.add_feedback),
)


async def answer(form: Form, request: Request) -> Response:
    """Do what a form that was sent asks. Raises `Refused`."""
    fields = await read(form, request)
    check_token(fields.pop(TOKEN, ""), access_of(request.scope).bond)
    address = await run_in_threadpool(form.action, store_of(request), request, fields)
    return RedirectResponse(address, 303, headers=render.HEADERS)


async def read(form: Form, request: Request) -> dict[str, str]:
    """The fields of a form sent by one of our own pages. Raises `Refused` for any other, and one that is too large."""
    return await _fields(request, form.fields, form.largest)


async def read_form(request: Request, names: Collection[str], *, bond: bytes) -> dict[str, str]:
    """The fields of a form beside the table, sent by one of our own pages that was made for who has this bond. Raises
    `Refused`.
    """
    fields = await _fields(request, names, LARGEST)
    check_token(fields.pop(TOKEN, ""), bond)
    return fields


def check_token(given: str, bond: bytes) -> None:
    """Raises `Refused` unless this is the token of a page that this server made for who sends it."""
    if not is_token(given, bond):
        raise Refused("this form was not made for you by this server as it runs now: load its page again, then send it")


async def _fields(request: Request, names: Collection[str], largest: int) -> dict[str, str]:
    if not from_here(request):
        raise Refused("this form can be sent from Spanwise's own pages only")
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > largest:
            raise Refused(f"the form holds more than {largest:,} bytes")
    try:
        pairs = parse_qsl(body.decode("utf-8", "replace"), keep_blank_values=True, max_num_fields=MOST_FIELDS)
    except ValueError:
        raise Refused(f"the form holds more than {MOST_FIELDS} fields") from None
    return {name: text for name, text in pairs if name in names or name == TOKEN}


def from_here(request: Request) -> bool:
    """Whether the browser says that one of our pages sent this; programs that say nothing about it may pass."""
    if request.headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
        return False
    origin, host = request.headers.get("origin"), request.headers.get("host")
    return origin is None or (host is not None and authority(origin) == host)
