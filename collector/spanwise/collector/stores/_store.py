"""Both contracts in one."""

from __future__ import annotations

from typing import Protocol

from spanwise.collector.stores._control import ControlStore
from spanwise.collector.stores._traces import TraceStore


class Store(TraceStore, ControlStore, Protocol):
    """What `connect()` returns: both contracts in one object."""
