"""The Python client: both store contracts over HTTP."""

from assay.collector.extras import needing

with needing("server", __name__):
    from assay.collector.client._store import HTTPStore

__all__ = ["HTTPStore"]
