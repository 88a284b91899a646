"""Keys, annotation queues, retention."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from spanwise.collector.records._feedback import Target
from spanwise.collector.records._values import QueueStatus


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """An API key as it is kept: never the secret, only its SHA-256."""

    id: str
    name: str
    sha256: str
    project: str | None = None  # None: all projects
    scopes: tuple[str, ...] = ("read", "write")
    created_ns: int = field(default_factory=time.time_ns)
    expires_ns: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditEvent:
    """Something that was deleted, or a key that was made or revoked. `action` is the verb of the store.

    Who: the id and the name of a key; without one the user of the process that holds the store, or nobody who is known.
    From where: a network address, or "process" and its number.
    """

    action: str
    about: str = "{}"  # what was asked for, as JSON; a long one is cut off
    count: int = 0  # how many it took
    key: str = ""
    name: str = ""
    address: str = ""
    at_ns: int = field(default_factory=time.time_ns)
    id: str = ""  # the store's, rising


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueItem:
    """A target that waits in an annotation queue for a person's feedback."""

    queue: str
    target: Target
    status: QueueStatus = "waiting"
    assignee: str | None = None
    note: str = ""
    created_ns: int = field(default_factory=time.time_ns)
    id: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    """How long, and up to which size on disk, the traces of a project are kept (None: of every project, together)."""

    project: str | None = None
    max_age_ns: int | None = None
    max_bytes: int | None = None

    def __post_init__(self) -> None:
        for name in ("max_age_ns", "max_bytes"):
            if (value := getattr(self, name)) is not None and value < 0:  # would give up what is yet to come
                raise ValueError(f"{name} of a retention is {value!r}; it cannot be below 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlet:
    """Where feedback is sent on to, and how far that is. `cursor` numbers the last that was sent or given up."""

    name: str
    url: str
    cursor: int
    sent: int = 0
    dropped: int = 0  # refused there, for good
    waiting: int = 0
    error: str | None = None  # of the last try; None: it went well
    updated_ns: int = 0
