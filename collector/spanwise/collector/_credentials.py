"""The key that a request bears, in every spelling of senders; of HTTP headers and gRPC metadata alike."""

from __future__ import annotations

import binascii
from base64 import b64decode
from collections.abc import Collection

from spanwise.collector.errors import Refused

_NAMES = ("authorization", "x-api-key", "api_key")
PLACES = frozenset((*_NAMES, *(name.encode() for name in _NAMES)))  # headers of HTTP, metadata of gRPC
NO_KEY = "none"  # what a client that demands a key is given where the server requires none


def secret_of(headers: Collection[tuple[str | bytes, str | bytes]]) -> str | None:
    """The one key among these headers, whose names are lower-case; None if there is none. Raises `Refused` for two.

    It stands in `authorization`, as a bearer token, bare, or as the password of Basic, or in `x-api-key` or `api_key`.
    The same key may stand in several places. Where two differ neither is taken: whoever reads on behind us, or a proxy
    before us, might take the other one. What is malformed, empty, `none` or of another scheme is no key.
    """
    found = {secret for name, value in headers if name in PLACES if (secret := _secret(name, value))}
    if len(found) > 1:
        raise Refused(f"two different API keys came, in {_listed(headers)}: send one")
    return next(iter(found), None)


def _listed(headers: Collection[tuple[str | bytes, str | bytes]]) -> str:
    names = {_text(name) for name, value in headers if name in PLACES and _secret(name, value)}
    return " and ".join(map(repr, sorted(names)))


def _secret(name: str | bytes, value: str | bytes) -> str:
    text = _text(value).strip()
    secret = _authorized(text) if name in ("authorization", b"authorization") else text
    return "" if secret == NO_KEY else secret


def _authorized(text: str) -> str:
    """The key in `authorization`; "" if there is none."""
    scheme, divided, value = text.partition(" ")
    match scheme.lower():
        case "bearer":
            return value.strip()
        case "basic":
            return _password(value)
        case _:
            return "" if divided else text


def _password(encoded: str) -> str:
    try:
        return b64decode(encoded.strip()).decode().partition(":")[2]
    except (binascii.Error, ValueError):  # not base64, not UTF-8 within, or not even ASCII
        return ""


def _text(value: str | bytes) -> str:
    """UTF-8 where it is that, else Latin-1, as HTTP once had it."""
    if isinstance(value, str):
        return value
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value.decode("latin-1")
