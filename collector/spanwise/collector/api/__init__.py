"""HTTP API: OTLP ingest, queries, feedback and control records.

Modules, in the order in which data flows:

- `app_factory`: FastAPI application factory: routes, pages, error handlers, OTLP bypass of the framework.
- `security_middleware`: ASGI security middleware: host, origin and proxy checks, access control, CORS.
- `routes`: Route table of the API, and the endpoint that serves a store operation.
- `operation_validation`: Validation of write operations: batch size, ids, amounts, clock skew; operations the API
  adds.
- `http_conversion`: Conversion between HTTP and records: bodies, query filters, streamed JSON, error statuses.
- `health_endpoints`: Health, readiness and Prometheus endpoints.
- `langfuse_endpoints`: Langfuse-compatible endpoints for scores and score batches.
- `sign_in_routes`: Sign-in and sign-out routes of the browser session.
- `openapi`: OpenAPI description of the API, and its HTML reference page.
"""

from spanwise.collector.api.app_factory import bypass_framework, create_app
from spanwise.collector.api.security_middleware import ASGI, CorsMiddleware, SecurityMiddleware
from spanwise.collector.security.authentication import Authenticator, KeyCache, KeyStore
from spanwise.collector.security.authorization import RoutePermissions

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
    "security_middleware",
]
