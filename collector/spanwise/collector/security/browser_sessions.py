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

SESSION_LIFETIME_S = 12 * 3600  # seconds until readers must sign in again
# maximum number of sessions in total, and per key; the oldest sessions are ended first
MAX_SESSIONS, MAX_SESSIONS_PER_KEY = 10_000, 100
_SALT_LENGTH = 16  # characters at the beginning of a form token
_SECRET = secrets.token_bytes(32)  # random per process, so forms that were rendered before a restart must be reloaded


class _Session(NamedTuple):
    key: bytes  # the key's SHA-256
    until: float
    secure: bool  # True if started over TLS: then valid only in the secure cookie


class BrowserSessions:
    """In-memory browser sessions; all end with the process.

    A session holds the hash of an API key, which is looked up at each request. The server keeps only the hash of a
    session id; the browser has the id itself.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._sessions: OrderedDict[bytes, _Session] = OrderedDict()

    def begin(self, key: bytes, *, secure: bool = False) -> str:
        """Start a session of a key, and return its new random id."""
        bonds = [bond for bond, session in self._sessions.items() if session.key == key]
        for bond in bonds[: max(0, len(bonds) - MAX_SESSIONS_PER_KEY + 1)]:
            del self._sessions[bond]
        while len(self._sessions) >= MAX_SESSIONS:
            self._sessions.popitem(last=False)
        id = secrets.token_urlsafe(32)
        self._sessions[hash_session_id(id)] = _Session(key, self._now() + SESSION_LIFETIME_S, secure)
        return id

    def key_of(self, id: str, *, secure: bool = False) -> bytes | None:
        """Return the hash of the key of a session; None if the session has ended.

        A session that was started over TLS is valid only if its id is in the secure cookie.
        """
        session = self._sessions.get(hash_session_id(id))
        if session is None or session.secure > secure:
            return None
        if session.until <= self._now():
            self.end(id)
            return None
        return session.key

    def end(self, id: str) -> None:
        """End a session; an unknown id has no effect."""
        self._sessions.pop(hash_session_id(id), None)


def hash_session_id(id: str) -> bytes:
    """Return the hash under which a session is stored, and from which its CSRF tokens are derived."""
    return sha256(id.encode("utf-8", "replace")).digest()


class SessionCookie(NamedTuple):
    """Session cookie of one server.

    Its name includes the port, because browsers share cookies among all ports of a host.
    """

    name: str
    secure: bool

    def format_set_cookie(self, id: str) -> str:
        """Return the header value that sets the cookie."""
        return self._header(f"{id}; Max-Age={SESSION_LIFETIME_S}")

    def format_delete_cookie(self) -> str:
        """Return the header value that deletes the cookie."""
        return self._header("; Max-Age=0")

    def _header(self, value: str) -> str:
        # `SameSite=Lax` instead of `Strict`, so that links from other sites to traces work.
        return f"{self.name}={value}; Path=/; HttpOnly; SameSite=Lax" + ("; Secure" if self.secure else "")


def build_session_cookie(host: str, *, secure: bool) -> SessionCookie:
    """Return the cookie for this `Host`.

    Over TLS its name has the prefix `__Host-`, so that no other host of the domain can set it.
    """
    port = parse_port(host)
    return SessionCookie(f"{'__Host-' if secure else ''}spanwise-session{f'-{port}' if port else ''}", secure)


def read_session_cookie(headers: Collection[tuple[bytes, bytes]], host: str) -> tuple[str, bool] | None:
    """Return the session id that a browser sends, and whether it is in the secure cookie; None without a session.

    Several cookies of the same name count as none, because another host of the domain may have set one of them.
    """
    lines = [value for name, value in headers if name == b"cookie"]
    if not lines:
        return None
    for cookie in (build_session_cookie(host, secure=True), build_session_cookie(host, secure=False)):
        pairs = (pair.strip().partition(b"=") for line in lines for pair in line.split(b";"))
        if values := [value for key, _, value in pairs if key == cookie.name.encode()]:
            return (values[0].decode("latin-1"), cookie.secure) if len(values) == 1 else None
    return None


def make_form_token(bond: bytes, salt: str = "") -> str:
    """Return the CSRF token of forms that are rendered for the session or key with this bond.

    Without `salt`, every token is different, so that the length of compressed pages does not reveal it.
    """
    salt = salt or secrets.token_hex(_SALT_LENGTH // 2)
    return salt + hmac.new(_SECRET, salt.encode("utf-8", "replace") + bond, sha256).hexdigest()


def is_form_token(token: str, bond: bytes) -> bool:
    """Return whether the token was made for this bond."""
    expected = make_form_token(bond, token[:_SALT_LENGTH])
    return hmac.compare_digest(token.encode("utf-8", "replace"), expected.encode("utf-8", "replace"))
