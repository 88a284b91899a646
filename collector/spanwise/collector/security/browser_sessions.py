"""Browser sessions: session store, cookie, and CSRF tokens of forms."""

from __future__ import annotations

import hmac
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable, Collection
from hashlib import sha256
from typing import NamedTuple

from spanwise.collector.address_parsing import parse_port

SESSION_LIFETIME_S = 12 * 3600  # seconds after which whoever has signed in does so again
MAX_SESSIONS, MAX_SESSIONS_PER_KEY = 10_000, 100  # sessions, of all keys and of one; the oldest end first
_SECRET = secrets.token_bytes(32)  # of this process: forms from before it started are sent again


class _Session(NamedTuple):
    key: bytes  # the key's SHA-256
    until: float
    secure: bool  # begun over TLS: its cookie goes nowhere else


class BrowserSessions:
    """Sessions, in memory: they end with the process. A session has a key's hash, which is looked up at each request.

    Of its id, which the browser has, nothing but the hash is kept.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._sessions: OrderedDict[bytes, _Session] = OrderedDict()

    def begin(self, key: bytes, *, secure: bool = False) -> str:
        """A new session of a key; its id, which nobody could have known before."""
        self._make_room(key)
        id = secrets.token_urlsafe(32)
        self._sessions[hash_session_id(id)] = _Session(key, self._now() + SESSION_LIFETIME_S, secure)
        return id

    def key_of(self, id: str, *, secure: bool = False) -> bytes | None:
        """The key of a session; None if it has ended, or was begun over TLS and its id comes in another cookie."""
        session = self._sessions.get(hash_session_id(id))
        if session is None or session.secure > secure:
            return None
        if session.until <= self._now():
            self.end(id)
            return None
        return session.key

    def end(self, id: str) -> None:
        """End a session; one that is unknown changes nothing."""
        self._sessions.pop(hash_session_id(id), None)

    def _make_room(self, key: bytes) -> None:
        own = [bond for bond, session in self._sessions.items() if session.key == key]
        for bond in own[: max(0, len(own) - MAX_SESSIONS_PER_KEY + 1)]:
            del self._sessions[bond]
        while len(self._sessions) >= MAX_SESSIONS:
            self._sessions.popitem(last=False)


def hash_session_id(id: str) -> bytes:
    """What a session's id is kept as, and what tokens of its forms hang on."""
    return sha256(id.encode("utf-8", "replace")).digest()


class SessionCookie(NamedTuple):
    """The session's cookie of a server, as a browser calls that: `localhost:4318` and `localhost:4319` have two.

    A browser has one jar for all ports of a name, so that the port is part of the cookie's name.
    """

    name: str
    secure: bool

    def given(self, id: str) -> str:
        """The header that gives it to a browser."""
        return self._header(f"{id}; Max-Age={SESSION_LIFETIME_S}")

    def taken_back(self) -> str:
        """The header that takes it back."""
        return self._header("; Max-Age=0")

    def _header(self, value: str) -> str:
        # Lax, not Strict: who follows a link from a chat to a trace shall see it
        return f"{self.name}={value}; Path=/; HttpOnly; SameSite=Lax" + ("; Secure" if self.secure else "")


def build_session_cookie(host: str, *, secure: bool) -> SessionCookie:
    """The cookie under this `Host`. Over TLS its name has the prefix that keeps other hosts of the domain from it."""
    port = parse_port(host)
    return SessionCookie(f"{'__Host-' if secure else ''}spanwise-session{f'-{port}' if port else ''}", secure)


def read_session_cookie(headers: Collection[tuple[bytes, bytes]], host: str) -> tuple[str, bool] | None:
    """The session's id that a browser sends, and whether in the cookie that is for TLS; None if it sends none.

    Several of one name are none: another host of the domain has put one beside ours, and nobody can tell which.
    """
    lines = [value for name, value in headers if name == b"cookie"]
    if not lines:
        return None
    for cookie in (build_session_cookie(host, secure=True), build_session_cookie(host, secure=False)):
        if found := _cookie_values(lines, cookie.name.encode()):
            return (found[0].decode("latin-1"), cookie.secure) if len(found) == 1 else None
    return None


def _cookie_values(lines: Collection[bytes], name: bytes) -> list[bytes]:
    pairs = (pair.strip().partition(b"=") for line in lines for pair in line.split(b";"))
    return [value for key, _, value in pairs if key == name]


def make_form_token(bond: bytes) -> str:
    """What a form on a page has to bring back that was made for whoever has this bond."""
    return hmac.new(_SECRET, bond, sha256).hexdigest()


def is_form_token(given: str, bond: bytes) -> bool:
    """Whether it is that token."""
    return hmac.compare_digest(given.encode("utf-8", "replace"), make_form_token(bond).encode())
