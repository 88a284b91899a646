"""Security of HTTP and gRPC requests: authentication, authorization and browser sessions."""

from __future__ import annotations

import asyncio
import binascii
import hmac
import logging
import secrets
import threading
import time
from base64 import b64decode, urlsafe_b64decode, urlsafe_b64encode
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from hashlib import sha256
from math import inf
from re import Pattern
from struct import Struct
from typing import Any, NamedTuple, Protocol, cast

from starlette.requests import Request
from starlette.routing import compile_path

from spanwise.collector.address_parsing import get_client_network, parse_port
from spanwise.collector.errors import Forbidden, Refused, Unavailable
from spanwise.collector.operations import ProjectScopedStore
from spanwise.collector.records import Key
from spanwise.collector.request_context import Actor
from spanwise.collector.stores import Store

# Authorization: scopes that routes require, access of a request, store restricted to its project.

ACCESS_SCOPE_KEY = "spanwise.access"  # key of the access in an ASGI scope
FORM_SECRET_KEY = "spanwise.form_secret"  # key of the secret of forms in an ASGI scope


# scope of a key → permissions. Write includes ingest; admin (keys, retention, bulk deletion) is separate.
SCOPE_PERMISSIONS: dict[str, frozenset[str]] = {
    "read": frozenset(("read",)),
    "write": frozenset(("write", "ingest", "feedback")),
    "ingest": frozenset(("ingest",)),
    "feedback": frozenset(("feedback",)),
    "admin": frozenset(("admin",)),
}


@lru_cache(64)
def get_permissions(scopes: tuple[str, ...]) -> frozenset[str]:
    """Return all permissions that the scopes of a key grant."""
    return frozenset().union(*(SCOPE_PERMISSIONS.get(scope, frozenset()) for scope in scopes))


@dataclass(frozen=True, slots=True)
class Access:
    """Permissions of a request's sender, and its identity if known. All checks of permissions are methods of this class.

    The flag `known` is True if the sender has a key, or if no key is required. CSRF tokens of forms are derived from
    `bond`, a hash of the session id or key.
    """

    project: str | None = None  # None grants access to all projects
    known: bool = True
    permissions: frozenset[str] | None = None  # None grants all
    key: str = ""  # id of the key; "" where none is required
    name: str = ""  # name of the key
    address: str = ""
    bond: bytes = b""
    session: str = ""  # id of the browser session; "" without one

    @property
    def actor(self) -> Actor:
        """Return the caller for the audit log."""
        return Actor(self.key, self.name, self.address, self.may("write"))

    def may(self, permission: str) -> bool:
        """Return whether the sender has this permission."""
        return self.permissions is None or permission in self.permissions

    def require(self, permission: str) -> None:
        """Raise `Forbidden`, with the missing scope, unless the sender has this permission."""
        if not self.may(permission):
            scopes = [repr(scope) for scope, granted in SCOPE_PERMISSIONS.items() if permission in granted]
            raise Forbidden(f"the API key lacks the scope {' or '.join(scopes)}")

    def restrict(self, store: Store) -> Store:
        """Return the store, restricted to the project of the sender's key."""
        return store if self.project is None else cast(Store, ProjectScopedStore(store, self.project))

    def require_all_projects(self, what: str) -> None:
        """Raise `Forbidden` if the sender's key is limited to one project. The error names `what` as the reason."""
        if self.project is not None:
            raise Forbidden(f"the API key is limited to project {self.project!r}; {what} covers all projects")


def get_form_secret(scope: Mapping[str, Any]) -> bytes:
    """Return the secret with which the server signs its forms."""
    found: bytes = scope.get(FORM_SECRET_KEY) or BrowserSessions.form_secret
    return found


def get_access(scope: Mapping[str, Any]) -> Access:
    """Return the access of a request; full access without the security middleware."""
    found: Access = scope.get(ACCESS_SCOPE_KEY) or Access()
    return found


def get_request_store(request: Request) -> Store:
    """Return the store, restricted to the project of the request's key."""
    return get_access(request.scope).restrict(request.app.state.store)


READ_METHODS = ("GET", "HEAD", "OPTIONS")


class RoutePermissions:
    """Permissions that requests need, from rows of (method, path, permission).

    `pages` are the paths of HTML pages.
    """

    def __init__(self, rows: Iterable[tuple[str, str, str]], pages: Iterable[str] = ()) -> None:
        self.rows = tuple(rows)
        self._open = frozenset(path for _, path, permission in self.rows if permission == "open")
        self._open_prefixes = tuple(path.partition("{")[0] for path in self._open if "{" in path)
        self._pages = [compile_path(path)[0] for path in pages]
        self._patterns: dict[str, list[tuple[Pattern[str], str]]] = {}
        for method, path, permission in self.rows:
            self._patterns.setdefault(method, []).append((compile_path(path)[0], permission))
        self.needed = lru_cache(4096)(self._needed)
        self.is_page = lru_cache(4096)(lambda path: any(pattern.match(path) for pattern in self._pages))

    @property
    def has_pages(self) -> bool:
        """Return whether the application has HTML pages, and thus a sign-in page."""
        return bool(self._pages)

    def is_open(self, path: str) -> bool:
        """Return whether a path needs no permission."""
        return path in self._open or path.startswith(self._open_prefixes)

    def _needed(self, method: str, path: str) -> str:
        """Return the permission that a request needs; for an unknown route, read or write by its method."""
        for pattern, permission in self._patterns.get("GET" if method == "HEAD" else method, ()):
            if pattern.match(path):
                return permission
        return "read" if method in READ_METHODS else "write"


# API key authentication: credentials in headers, cached keys, rate limit of failed attempts.

_CREDENTIAL_NAMES = ("authorization", "x-api-key", "api_key")
CREDENTIAL_HEADERS = frozenset(
    (*_CREDENTIAL_NAMES, *(name.encode() for name in _CREDENTIAL_NAMES))
)  # names of HTTP headers and gRPC metadata
NO_KEY = "none"  # placeholder for clients that demand a key although the server needs none


def extract_key(headers: Collection[tuple[str | bytes, str | bytes]]) -> str | None:
    """Return the API key in these headers, whose names are in lower case; None if there is none.

    The key is in `authorization` (as a bearer token, bare, or as the password of Basic), `x-api-key` or
    `api_key`. It may appear in several of them. A value that is malformed, empty, `none` or of another scheme is
    not a key. Raises `Refused` for two different keys, because proxies or later handlers might not use the key
    that was checked here.
    """
    secrets = {
        secret for name, value in headers if name in CREDENTIAL_HEADERS if (secret := _extract_secret(name, value))
    }
    if len(secrets) > 1:
        sent_in = {
            _decode_header(name)
            for name, value in headers
            if name in CREDENTIAL_HEADERS and _extract_secret(name, value)
        }
        raise Refused(
            f"the request has two different API keys, in {' and '.join(map(repr, sorted(sent_in)))}; send only one"
        )
    return next(iter(secrets), None)


def _extract_secret(name: str | bytes, value: str | bytes) -> str:
    text = _decode_header(value).strip()
    secret = _parse_authorization(text) if name in ("authorization", b"authorization") else text
    return "" if secret == NO_KEY else secret


def _parse_authorization(text: str) -> str:
    """Return the key in an `authorization` header; "" if there is none."""
    scheme, divided, value = text.partition(" ")
    match scheme.lower():
        case "bearer":
            return value.strip()
        case "basic":
            try:
                return b64decode(value.strip()).decode().partition(":")[2]
            except (binascii.Error, ValueError):  # not ASCII, not base64, or the decoded bytes are not UTF-8
                return ""
        case _:
            return "" if divided else text


def _decode_header(value: str | bytes) -> str:
    """Decode a header as UTF-8, or else as Latin-1, the former encoding of HTTP headers."""
    if isinstance(value, str):
        return value
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value.decode("latin-1")


class KeyStore(Protocol):
    """Source of API keys."""

    def keys(self) -> Sequence[Key]:
        """Return all keys. Raises `StoreError`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyCacheTimes:
    """Times of the key cache in seconds. The age of cached keys counts from the start of the read that returned them.

    - `fresh`: requests wait for a new read if the keys are older. A background read starts at half of this age.
    - `patience`: maximum wait of a request for a read, if the cached keys are still valid.
    - `grace`: time after `fresh` for which the cached keys stay valid while the store does not answer. Afterwards
      no key is valid. It is also the maximum wait of a request while no cached keys are valid, such as at the
      start.
    - `pause`: delay before the next read after a failed one.
    - `apart`: minimum interval between reads. An unknown key waits for a read that starts after its request, so
      that a new key works in its first request.
    """

    fresh: float = 10.0
    patience: float = 1.0
    grace: float = 20.0
    pause: float = 1.0
    apart: float = 0.05


@dataclass(frozen=True, slots=True)
class _KeySnapshot:
    """Keys from one read, by SHA-256, and the monotonic time at which the read started."""

    keys: Mapping[str, Key]
    since: float

    @property
    def age(self) -> float:
        return time.monotonic() - self.since


@dataclass(frozen=True, slots=True)
class _KeyReading:
    """A read of the keys from the store, in progress or finished. The future `done` holds its error, or None."""

    since: float
    done: Future[Exception | None]


class KeyCache:
    """Cache of a store's API keys, usable from any event loop. A slow store never blocks a loop."""

    def __init__(self, store: KeyStore, ages: KeyCacheTimes | None = None) -> None:
        self.store, self.ages = store, ages or KeyCacheTimes()
        self._snapshot, self._reading = _KeySnapshot({}, -inf), _KeyReading(-inf, Future())
        self._reading.done.set_result(None)

    async def find(self, sha256: str) -> Key | None:
        """Return a key; None if it is unknown, revoked or expired.

        Raises `Unavailable` if the store does not answer.
        """
        start = time.monotonic()
        if self._snapshot.age > self.ages.fresh / 2:
            self._start_read()
        if self._snapshot.age > self.ages.fresh:
            # wait for the read in progress for up to `patience`, or up to `grace` while no keys are valid
            patience = self.ages.patience if self._has_valid_keys else self.ages.grace
            left = self._reading.since + patience - time.monotonic()
            if left > 0 and not self._reading.done.done():
                await asyncio.wait([asyncio.wrap_future(self._reading.done)], timeout=left)
        if not self._has_valid_keys:
            done = self._reading.done
            why = f"the store failed with {done.result()!r}" if done.done() else "the store does not answer"
            raise Unavailable(f"the API keys cannot be read now: {why}")
        key = self._snapshot.keys.get(sha256) or (await self._keys_after(start)).get(sha256)
        return key if key and _is_valid(key) else None

    def peek(self, sha256: str) -> Key | None:
        """Return a key from the cache without a read from the store; None if the cache has no valid key."""
        key = self._snapshot.keys.get(sha256) if self._has_valid_keys else None
        return key if key and _is_valid(key) else None

    def close(self) -> None:
        """Wait up to `fresh` seconds for a read in progress, so that the store can be closed."""
        with suppress(TimeoutError):
            self._reading.done.result(self.ages.fresh)

    async def _keys_after(self, moment: float) -> Mapping[str, Key]:
        """Return the keys of a read that started after `moment`; the cached keys if it fails or takes long."""
        end = time.monotonic() + self.ages.patience
        while self._snapshot.since < moment and time.monotonic() < end:
            reading = self._reading
            if reading.done.done():
                if reading.since >= moment:  # a read that is recent enough has failed
                    break
                await asyncio.sleep(reading.since + self._read_interval(reading) - time.monotonic())
                self._start_read()
            await asyncio.wait([asyncio.wrap_future(self._reading.done)], timeout=end - time.monotonic())
        return self._snapshot.keys

    def _read_interval(self, reading: _KeyReading) -> float:
        """Return the minimum number of seconds between the start of this read and the next one, longer after a
        failure.
        """
        return self.ages.apart if reading.done.result() is None else self.ages.pause

    @property
    def _has_valid_keys(self) -> bool:
        return self._snapshot.age <= self.ages.fresh + self.ages.grace

    def _start_read(self) -> None:
        now = time.monotonic()
        if self._reading.done.done() and now - self._reading.since >= self._read_interval(self._reading):
            reading = _KeyReading(now, Future())
            threading.Thread(target=self._read, args=(reading,), name="spanwise-keys", daemon=True).start()
            self._reading = reading  # after the start: if the thread could not start, `done` would never be set

    def _read(self, reading: _KeyReading) -> None:
        failure = None
        try:
            # of two keys with the same secret, the one for all projects wins
            keys = sorted(filter(_is_valid, self.store.keys()), key=lambda key: key.project is None)
            self._snapshot = _KeySnapshot({key.sha256: key for key in keys}, reading.since)
        except Exception as error:
            failure = error
        reading.done.set_result(failure)


def _is_valid(key: Key) -> bool:
    return key.expires_ns is None or key.expires_ns > time.time_ns()


ATTEMPT_BURST, ATTEMPT_INTERVAL_S = 10, 1.0  # burst of failed attempts, and seconds until one more is allowed
MAX_TRACKED_ADDRESSES = 10_000  # number of tracked addresses; the least recently used are dropped
LOG_INTERVAL_S = 60.0  # seconds between two log lines about one address
logger = logging.getLogger("spanwise.collector")


@dataclass(slots=True)
class _AddressAttempts:
    """Rate limit of one address: `left` is the number of attempts left at the time `at`."""

    left: float
    at: float
    unlogged: int = 0  # failures that were not logged yet
    logged_at: float = -inf


class AttemptLimiter:
    """Rate limit of failed attempts per client network. A key that has worked from a network is never limited there.

    Behind a proxy, all clients share one address. The proxy must therefore limit attempts itself.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._attempts: OrderedDict[str, _AddressAttempts] = OrderedDict()
        self._successes: OrderedDict[tuple[str, bytes], None] = OrderedDict()

    def wait(self, address: str, key: bytes) -> float:
        """Return the seconds until this address may try this key (given as its hash); 0 if it may now."""
        network = get_client_network(address)
        attempts = self._attempts.get(network)
        if attempts is None or (network, key) in self._successes:
            return 0.0
        left = self._left(attempts)
        return 0.0 if left >= 1 else (1 - left) * ATTEMPT_INTERVAL_S

    def record_success(self, address: str, key: bytes) -> None:
        """Record an attempt with a valid key."""
        success = get_client_network(address), key
        self._successes[success] = None
        self._successes.move_to_end(success)
        if len(self._successes) > MAX_TRACKED_ADDRESSES:
            self._successes.popitem(last=False)

    def record_failure(self, address: str) -> None:
        """Record an attempt with an invalid key, and log failures at intervals."""
        network, now = get_client_network(address), self._now()
        attempts = self._attempts.setdefault(network, _AddressAttempts(ATTEMPT_BURST, now))
        self._attempts.move_to_end(network)
        attempts.left, attempts.at = max(0.0, self._left(attempts) - 1), now
        attempts.unlogged += 1
        if now - attempts.logged_at >= LOG_INTERVAL_S:
            logger.warning("%d request(s) with invalid API keys from %s", attempts.unlogged, network)
            attempts.unlogged, attempts.logged_at = 0, now
        if len(self._attempts) > MAX_TRACKED_ADDRESSES:
            self._attempts.popitem(last=False)

    def _left(self, attempts: _AddressAttempts) -> float:
        return min(ATTEMPT_BURST, attempts.left + (self._now() - attempts.at) / ATTEMPT_INTERVAL_S)


Headers = Collection[tuple[str | bytes, str | bytes]]
GRPC_CODES = {400: 3, 401: 16, 403: 7, 429: 8, 503: 14}  # HTTP status → google.rpc.Code
MASTER_KEY_ID = "SPANWISE_API_KEY"  # key id of the key that the environment variable of this name contains
KEY_REQUIRED_MESSAGE = (
    "an API key is required; send it as 'Authorization: Bearer …', or set SPANWISE_API_KEY for Spanwise's clients"
)
KEY_UNKNOWN_MESSAGE = "the API key is unknown, expired or revoked"


@dataclass(frozen=True, slots=True)
class Refusal:
    """Refusal of a request. `retry_after` is in seconds, for requests that may be retried."""

    status: int
    message: str
    retry_after: float | None = None

    @property
    def code(self) -> int:
        """Return the google.rpc.Code of the status."""
        return GRPC_CODES[self.status]


class Authenticator:
    """Check of API keys. A key that a request sends must be in `keys`, or equal `api_key`, which has full access.

    If `required`, requests without a key are refused. Otherwise they have full access. Without `keys` there is no
    check.
    """

    def __init__(self, keys: KeyCache | None = None, api_key: str | None = None, *, required: bool = True) -> None:
        self.keys, self.attempts = keys, AttemptLimiter()
        self._required = required
        self._master = sha256(api_key.encode()).digest() if api_key else None

    @property
    def locked(self) -> bool:
        """Return whether a key is required."""
        return self.keys is not None and self._required

    async def admit(self, headers: Headers, address: str, needed: Callable[[], str]) -> Access | Refusal:
        """Return the access of a request with these headers (or gRPC metadata), or a refusal.

        The callback `needed` returns the required permission. It is called only for valid keys.
        """
        if self.keys is None:
            return Access(address=address)
        try:
            secret = extract_key(headers)
        except Refused as error:
            return Refusal(401, str(error))
        if secret is None:
            return Refusal(401, KEY_REQUIRED_MESSAGE) if self._required else Access(address=address)
        access = await self.authenticate(hash_key(secret), address)
        return access if isinstance(access, Refusal) else check_permission(access, needed())

    async def authenticate(self, key: bytes, address: str) -> Access | Refusal:
        """Return the access of a key, given as its hash, or a refusal. Failed attempts count against the address's rate
        limit.
        """
        if wait := self.attempts.wait(address, key):
            return Refusal(429, "too many requests with invalid API keys from this address; try again later", wait)
        access = await self.find_access(key, address)
        if isinstance(access, Access):
            self.attempts.record_success(address, key)
        elif access.status == 401:
            self.attempts.record_failure(address)
        return access

    async def find_access(self, key: bytes, address: str) -> Access | Refusal:
        """Return the access that a key, given as its hash, has now, or a refusal. The rate limit does not apply."""
        if self._is_master(key):
            return Access(key=MASTER_KEY_ID, name=MASTER_KEY_ID, address=address, bond=key)
        try:
            record = await self.keys.find(key.hex()) if self.keys else None
        except Unavailable as error:
            return Refusal(503, str(error), error.retry_after)
        if record is None:
            return Refusal(401, KEY_UNKNOWN_MESSAGE)
        permissions = get_permissions(record.scopes)
        return Access(
            record.project, permissions=permissions, key=record.id, name=record.name, address=address, bond=key
        )

    def is_known(self, headers: Headers) -> bool:
        """Return whether these headers have a valid key. Only the key cache is used, without waiting for the store."""
        try:
            secret = extract_key(headers)
        except Refused:
            return False
        if secret is None or self.keys is None:
            return False
        key = hash_key(secret)
        return self._is_master(key) or self.keys.peek(key.hex()) is not None

    def _is_master(self, key: bytes) -> bool:
        return self._master is not None and hmac.compare_digest(key, self._master)


def hash_key(secret: str) -> bytes:
    """Return the SHA-256 of a key. A secret of 256 random bits needs neither salt nor a slow hash."""
    return sha256(secret.encode("utf-8", "replace")).digest()


def check_permission(access: Access, permission: str) -> Access | Refusal:
    """Return the access, or a refusal that names the missing scope."""
    try:
        access.require(permission)
    except Forbidden as error:
        return Refusal(403, str(error))
    return access


# Browser sessions: session store, cookie, and CSRF tokens of forms.

SESSION_LIFETIME_S = 12 * 3600  # seconds until readers must sign in again
# maximum number of sessions in total, and per key; the oldest sessions are ended first
MAX_SESSIONS, MAX_SESSIONS_PER_KEY = 10_000, 100
SESSION_HEAD = Struct(">16sQ?")  # of a signed session: random number, end in seconds since 1970, whether secure
_SALT_LENGTH = 16  # characters at the beginning of a form token


class _Session(NamedTuple):
    key: bytes  # the key's SHA-256
    until: float
    secure: bool  # True if started over TLS: then valid only in the secure cookie


class BrowserSessions:
    """In-memory browser sessions; all end with the process.

    A session holds the hash of an API key, which is looked up at each request. The server keeps only the hash of a
    session id; the browser has the id itself.
    """

    form_secret = secrets.token_bytes(32)  # random per process: after a restart, pages with forms must be reloaded

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


class SignedSessions(BrowserSessions):
    """Browser sessions that every collector with the same secret accepts, because the session id holds the session.

    The id consists of a random number, the end of the session, its flags, the encrypted hash of its key, and a
    signature. Signing out ends the session on this collector, and deletes it in the browser. Where else anyone has
    copied the id to, it is valid on other collectors until its end, or until its key is revoked.
    """

    def __init__(self, secret: bytes, now: Callable[[], float] = time.time) -> None:
        super().__init__(now)
        self._signing, self._encrypting, self.form_secret = (
            hmac.new(secret, purpose, sha256).digest() for purpose in (b"sign sessions", b"encrypt keys", b"sign forms")
        )
        self._ended: OrderedDict[bytes, None] = OrderedDict()

    def begin(self, key: bytes, *, secure: bool = False) -> str:
        """Return the id of a new session of a key, given as its hash."""
        head = SESSION_HEAD.pack(secrets.token_bytes(16), int(self._now() + SESSION_LIFETIME_S), secure)
        content = head + self._encrypt(key, head)
        return urlsafe_b64encode(content + self._sign(content)).decode()

    def key_of(self, id: str, *, secure: bool = False) -> bytes | None:
        """Return the hash of the key of a session; None if the session has ended or its id is not valid."""
        try:
            content = urlsafe_b64decode(id.encode("ascii"))
        except (ValueError, binascii.Error):  # not ASCII, or not base64
            return None
        content, signature = content[:-32], content[-32:]
        if len(content) != SESSION_HEAD.size + 32 or not hmac.compare_digest(signature, self._sign(content)):
            return None
        head, key = content[: SESSION_HEAD.size], content[SESSION_HEAD.size :]
        _, until, is_secure = SESSION_HEAD.unpack(head)
        if until <= self._now() or is_secure > secure or hash_session_id(id) in self._ended:
            return None
        return self._encrypt(key, head)

    def end(self, id: str) -> None:
        """End a session on this collector."""
        if self.key_of(id, secure=True) is not None:
            self._ended[hash_session_id(id)] = None
            while len(self._ended) > MAX_SESSIONS:
                self._ended.popitem(last=False)

    def _sign(self, content: bytes) -> bytes:
        return hmac.new(self._signing, content, sha256).digest()

    def _encrypt(self, key: bytes, head: bytes) -> bytes:
        """Encrypt or decrypt the hash of a key by a mask that no other session has."""
        mask = hmac.new(self._encrypting, head, sha256).digest()
        return bytes(first ^ second for first, second in zip(key, mask, strict=True))


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


def make_form_token(bond: bytes, salt: str = "", secret: bytes = BrowserSessions.form_secret) -> str:
    """Return the CSRF token of forms that are rendered for the session or key with this bond.

    The `secret` is that of the server's browser sessions. Without `salt`, every token is different, so that the length of compressed pages does not reveal it.
    """
    salt = salt or secrets.token_hex(_SALT_LENGTH // 2)
    return salt + hmac.new(secret, salt.encode("utf-8", "replace") + bond, sha256).hexdigest()


def is_form_token(token: str, bond: bytes, secret: bytes = BrowserSessions.form_secret) -> bool:
    """Return whether the token was made for this bond."""
    expected = make_form_token(bond, token[:_SALT_LENGTH], secret)
    return hmac.compare_digest(token.encode("utf-8", "replace"), expected.encode("utf-8", "replace"))
