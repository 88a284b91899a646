"""Security of HTTP and gRPC requests: authentication, authorization and browser sessions.

Modules, in the order in which data flows:

- `authentication`: API key authentication: credentials in headers, cached keys, rate limit of failed attempts.
- `authorization`: Authorization: scopes that routes require, access of a request, store restricted to its project.
- `browser_sessions`: Browser sessions: session store, cookie, and CSRF tokens of forms.
"""

# Modules that other packages may import; the others are internal
SHARED_MODULES = [
    "authentication",
    "authorization",
    "browser_sessions",
]
