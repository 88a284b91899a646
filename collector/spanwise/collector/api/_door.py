"""Whom a server lets in: everybody on its machine, or whoever has a key; over HTTP and gRPC alike."""

from __future__ import annotations

import hmac
from collections.abc import Callable, Collection
from dataclasses import dataclass
from hashlib import sha256

from spanwise.collector._access import Access
from spanwise.collector._credentials import secret_of
from spanwise.collector.api._keys import Keys
from spanwise.collector.api._scopes import opened_by
from spanwise.collector.api._tries import Tries
from spanwise.collector.errors import Refused, Unavailable
from spanwise.collector.records import Key

Headers = Collection[tuple[str | bytes, str | bytes]]
CODES = {400: 3, 401: 16, 403: 7, 429: 8, 503: 14}  # google.rpc.Code of each status
MAY = {"admin": "administer", "feedback": "give feedback"}  # other needs are verbs
MASTER = "SPANWISE_API_KEY"  # the id of the key that this variable holds
NEEDED = "an API key is needed: send it as 'Authorization: Bearer …' (SPANWISE_API_KEY for our clients)"
UNKNOWN = "the API key is unknown, expired or revoked"


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a request is not passed on. `retry_after` is in seconds, for one that may be sent again."""

    status: int
    message: str
    retry_after: float | None = None

    @property
    def code(self) -> int:
        """The same as a google.rpc.Code."""
        return CODES[self.status]


class Door:
    """Check of API keys: a key that is sent must be one of `keys`, or `api_key`, which opens everything.

    Requests without a key are refused if `required`; else they may do everything. Without `keys` nothing is checked.
    """

    def __init__(self, keys: Keys | None = None, api_key: str | None = None, *, required: bool = True) -> None:
        self.keys, self.tries = keys, Tries()
        self._required = required
        self._master = sha256(api_key.encode()).digest() if api_key else None

    @property
    def locked(self) -> bool:
        """Whether a key is needed."""
        return self.keys is not None and self._required

    async def admit(self, headers: Headers, address: str, needed: Callable[[], str]) -> Access | Refusal:
        """What whoever sends these headers (or gRPC metadata) from an address may have, if that is what is needed.

        What is needed is asked only for keys that are right.
        """
        if self.keys is None:
            return Access(address=address)
        try:
            secret = secret_of(headers)
        except Refused as error:
            return Refusal(401, str(error))
        if secret is None:
            return Refusal(401, NEEDED) if self._required else Access(address=address)
        access = await self.tried(hashed(secret), address)
        return access if isinstance(access, Refusal) else enough(access, needed())

    async def tried(self, key: bytes, address: str) -> Access | Refusal:
        """What a key, given as its hash, opens; wrong ones are counted by address, and too many refused."""
        if wait := self.tries.wait(address, key):
            return Refusal(429, "too many wrong API keys came from this address: try again later", wait)
        access = await self.opened(key, address)
        if isinstance(access, Access):
            self.tries.right(address, key)
        elif access.status == 401:
            self.tries.wrong(address)
        return access

    async def opened(self, key: bytes, address: str) -> Access | Refusal:
        """What a key, given as its hash, opens now."""
        if self._is_master(key):
            return Access(key=MASTER, name=MASTER, address=address, bond=key)
        try:
            found = await self.keys.find(key.hex()) if self.keys else None
        except Unavailable as error:
            return Refusal(503, str(error), error.retry_after)
        return Refusal(401, UNKNOWN) if found is None else _access(found, key, address)

    def knows(self, headers: Headers) -> bool:
        """Whether these headers bear a key that opens something, as far as can be told without waiting."""
        try:
            secret = secret_of(headers)
        except Refused:
            return False
        if secret is None or self.keys is None:
            return False
        key = hashed(secret)
        return self._is_master(key) or self.keys.peek(key.hex()) is not None

    def _is_master(self, key: bytes) -> bool:
        return self._master is not None and hmac.compare_digest(key, self._master)


def hashed(secret: str) -> bytes:
    """What a key is known by: its SHA-256. A secret of 256 random bits needs no salt, nor a slow hash."""
    return sha256(secret.encode("utf-8", "replace")).digest()


def enough(access: Access, needed: str) -> Access | Refusal:
    """The access, or why it does not do, and which scope would."""
    if access.may(needed):
        return access
    return Refusal(403, f"the API key may not {MAY.get(needed, needed)}: that takes the scope {needed!r}")


def _access(key: Key, digest: bytes, address: str) -> Access:
    needs = opened_by(key.scopes)
    return Access(key.project, needs=needs, key=key.id, name=key.name, address=address, bond=digest)
