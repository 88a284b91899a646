"""Whose request is being answered: the verbs of a store that write down who it was ask here."""

from __future__ import annotations

import getpass
import os
from contextvars import ContextVar
from typing import NamedTuple


class Actor(NamedTuple):
    """Who does something: a key's id and name, and from where it came."""

    key: str
    name: str
    address: str
    writes: bool = True  # or gives feedback alone


ACTING: ContextVar[Actor | None] = ContextVar("spanwise.acting", default=None)


def acting() -> Actor:
    """Who sent the request that is being answered; outside of requests the user of this process."""
    return ACTING.get() or Actor("", _user(), f"process {os.getpid()}")


def _user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError, ImportError):  # a container's user without a name
        return f"user {os.getuid()}"
