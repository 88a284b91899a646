"""HTTP API: OTLP ingest, queries, feedback and control records.

Modules, in the order in which data flows:

- `asgi_application`: ASGI application: routes, pages, error handlers, and the checks of host, origin, proxy and
  access before them.
- `routes`: Routes of the API: store operations, health, metrics, Langfuse's scores, sign-in, OpenAPI description.
- `http_conversion`: Conversion between HTTP and records: bodies, query filters, streamed JSON, error statuses,
  validation of writes.
"""

from spanwise.collector.api.asgi_application import (
    ASGI,
    CorsMiddleware,
    SecurityMiddleware,
    bypass_framework,
    create_app,
)
from spanwise.collector.security import Authenticator, KeyCache, KeyStore, RoutePermissions

__all__ = [
    "ASGI",
    "Authenticator",
    "CorsMiddleware",
    "KeyCache",
    "KeyStore",
    "RoutePermissions",
    "SecurityMiddleware",
    "bypass_framework",
    "create_app",
]

# Modules that other packages may import; the others are internal
SHARED_MODULES = [
    "asgi_application",
]
