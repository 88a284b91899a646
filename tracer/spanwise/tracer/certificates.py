"""Certificate authorities that HTTPS requests trust, as the environment names them."""

from __future__ import annotations

import os

# OpenTelemetry's own, Python's and OpenSSL's, those of requests and curl: the first that is set counts.
VARIABLES = (
    "OTEL_EXPORTER_OTLP_TRACES_CERTIFICATE",
    "OTEL_EXPORTER_OTLP_CERTIFICATE",
    "SSL_CERT_FILE",
    "REQUESTS_CA_BUNDLE",
    "CURL_CA_BUNDLE",
)


def trusted_authorities() -> str | None:
    """Return the path of the file (or folder) with the authorities to trust; None means certifi's list.

    Sources: OpenTelemetry specification, "OpenTelemetry Protocol Exporter"; Python's `ssl.get_default_verify_paths`;
    the documentation of requests, "SSL Cert Verification".
    """
    return next((path for variable in VARIABLES if (path := os.environ.get(variable, "").strip())), None)
