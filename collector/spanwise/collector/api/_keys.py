"""The keys of the store as the guard knows them: read in a thread of its own, one reading at a time."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from math import inf
from typing import Protocol

from spanwise.collector.errors import Unavailable
from spanwise.collector.records import Key


class KeyStore(Protocol):
    """What says which keys there are."""

    def keys(self) -> Sequence[Key]:
        """All of them. Raises `StoreError`."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Ages:
    """Seconds for which the keys of one reading hold, as they were when it began.

    At half of `fresh` the next reading begins, beside the requests; after `fresh` they wait for it, until it has taken
    `patience` (while no keys hold, as at the start: `grace`). While the store does not answer, the last keys hold for
    `grace` more; then none does. A store that fails is asked again after `pause`. A key that is unknown waits for a
    reading that begins after it came, so that a new key opens in its first request; these begin `apart` at least.
    """

    fresh: float = 10.0
    patience: float = 1.0
    grace: float = 20.0
    pause: float = 1.0
    apart: float = 0.05


@dataclass(frozen=True, slots=True)
class _Known:
    """What one reading gave, by SHA-256, and when it began on the monotonic clock."""

    keys: Mapping[str, Key]
    since: float

    @property
    def age(self) -> float:
        return time.monotonic() - self.since


@dataclass(frozen=True, slots=True)
class _Reading:
    """A reading under way, or the last one; its result is why it failed."""

    since: float
    done: Future[Exception | None]


class Keys:
    """The keys of a store, for any event loop: none is ever held up by the store."""

    def __init__(self, store: KeyStore, ages: Ages | None = None) -> None:
        self.store, self.ages = store, ages or Ages()
        self._known, self._reading = _Known({}, -inf), _Reading(-inf, Future())
        self._reading.done.set_result(None)

    async def find(self, sha256: str) -> Key | None:
        """A key; None if it is unknown, revoked or expired. Raises `Unavailable`: the store is silent."""
        asked = time.monotonic()
        key = (await self._keys()).get(sha256) or (await self._keys_after(asked)).get(sha256)
        return key if key and _opens(key) else None

    def peek(self, sha256: str) -> Key | None:
        """A key out of those that are known now, without asking the store."""
        key = self._known.keys.get(sha256) if self._hold else None
        return key if key and _opens(key) else None

    def close(self) -> None:
        """Let a reading under way come to its end, so that the store can be closed; but no longer than `fresh`."""
        with suppress(TimeoutError):
            self._reading.done.result(self.ages.fresh)

    async def _keys(self) -> Mapping[str, Key]:
        if self._known.age > self.ages.fresh / 2:
            self._read_anew()
        if self._known.age > self.ages.fresh:
            await self._answer()
        if not self._hold:
            raise Unavailable(f"the API keys cannot be read now: {self._why()}")
        return self._known.keys

    async def _keys_after(self, moment: float) -> Mapping[str, Key]:
        """The keys of a reading that began after a moment; those that are known if it fails or takes long."""
        end = time.monotonic() + self.ages.patience
        while self._known.since < moment and time.monotonic() < end:
            reading = self._reading
            if reading.done.done():
                if reading.since >= moment:  # it failed
                    break
                await asyncio.sleep(reading.since + self._apart(reading) - time.monotonic())
                self._read_anew()
            await asyncio.wait([asyncio.wrap_future(self._reading.done)], timeout=end - time.monotonic())
        return self._known.keys

    def _apart(self, reading: _Reading) -> float:
        """Seconds between the beginning of a reading and that of the next."""
        return self.ages.apart if reading.done.result() is None else self.ages.pause

    @property
    def _hold(self) -> bool:
        """Whether the keys that are known hold still."""
        return self._known.age <= self.ages.fresh + self.ages.grace

    def _read_anew(self) -> None:
        now = time.monotonic()
        if self._reading.done.done() and now - self._reading.since >= self._apart(self._reading):
            reading = _Reading(now, Future())
            threading.Thread(target=self._read, args=(reading,), name="spanwise-keys", daemon=True).start()
            self._reading = reading  # only now: one whose thread cannot start would never be done

    def _read(self, reading: _Reading) -> None:
        failure = None
        try:
            keys: Sequence[Key] = self.store.keys()
            self._known = _Known(_by_hash(keys), reading.since)
        except Exception as error:
            failure = error
        reading.done.set_result(failure)

    async def _answer(self) -> None:
        """Wait for the reading under way, but not for one that takes long; or as for a first one, if no keys hold."""
        patience = self.ages.patience if self._hold else self.ages.grace
        left = self._reading.since + patience - time.monotonic()
        if left > 0 and not self._reading.done.done():
            await asyncio.wait([asyncio.wrap_future(self._reading.done)], timeout=left)

    def _why(self) -> str:
        done = self._reading.done
        return f"the store failed with {done.result()!r}" if done.done() else "the store does not answer"


def _opens(key: Key) -> bool:
    return key.expires_ns is None or key.expires_ns > time.time_ns()


def _by_hash(keys: Sequence[Key]) -> dict[str, Key]:
    """By SHA-256; of two keys with one secret the wider, one of all projects, holds."""
    return {key.sha256: key for key in sorted(keys, key=lambda key: key.project is None) if _opens(key)}
