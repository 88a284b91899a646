"""The client as one store."""

from __future__ import annotations

from assay.collector.client._control import Control
from assay.collector.client._traces import Traces
from assay.collector.client._transport import Transport


class HTTPStore(Traces, Control):
    """Implements `assay.collector.stores.Store` over the API of a collector at `url`.

    Makes no connection before the first call. A server that is away raises `Unavailable`; what it refuses, `Refused`.
    """

    def __init__(self, url: str, api_key: str | None = None) -> None:
        self.url = url.rstrip("/")
        self._transport = Transport(self.url, api_key)

    def __repr__(self) -> str:
        return f"HTTPStore({self.url!r})"

    def __enter__(self) -> HTTPStore:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def where(self) -> str:
        """The server's address."""
        return self.url

    def close(self) -> None:
        """Let go of the connections; every write was durable when it returned."""
        self._transport.close()
