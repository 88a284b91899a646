"""Python client: a store over the HTTP API.

Modules, in the order in which data flows:

- `http_client`: HTTP client store: transport, requests in batches and pages, errors as store errors.
"""

from spanwise.collector.errors import require_extra

with require_extra("server", __name__):
    from spanwise.collector.client.http_client import HTTPStore

__all__ = ["HTTPStore"]

# Modules that other packages may import; the others are internal
SHARED_MODULES = [
    "http_client",
]
