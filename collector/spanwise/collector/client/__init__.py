"""The Python client: both store contracts over HTTP."""

from spanwise.collector.extras import needing

with needing("server", __name__):
    from spanwise.collector.client._store import HTTPStore

__all__ = ["HTTPStore"]
