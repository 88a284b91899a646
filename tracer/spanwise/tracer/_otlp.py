"""OpenTelemetry's own variables: where OTLP goes, and with what, for those that have them set already.

Source: opentelemetry-specification, "OpenTelemetry Protocol Exporter" and "SDK environment variables". Of a variable
for traces alone and the one for all signals, the first counts.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import unquote

from spanwise.tracer import _errors
from spanwise.tracer.addresses import url_problem

_TRACES = "/v1/traces"
_MILLISECONDS = 500.0  # from here on a time-out is in milliseconds, as specified; Python's SDK takes seconds
_LONGEST = 600.0  # seconds
_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_VALUE = re.compile(r"[\x20-\x7e\t]*")
_ENVIRONMENTS = ("deployment.environment.name", "deployment.environment")


@dataclass(frozen=True, slots=True)
class Otlp:
    """What the environment says; None and {} where it says nothing."""

    url: str | None = None  # without the path of a signal
    traces_url: str | None = None  # only where it has another path than that
    headers: Mapping[str, str] = field(default_factory=dict)
    compression: str | None = None
    timeout: float | None = None  # seconds


def of_environment() -> Otlp:
    """What `OTEL_EXPORTER_OTLP_*` say. They are others' as well: what of them is not for us is said once, and left."""
    url, traces_url = _urls()
    if url is not None and _variable("PROTOCOL") == "grpc":
        return _left("PROTOCOL", "grpc", "we speak http/protobuf: spans do not go there")
    for address in filter(None, (url, traces_url)):
        if problem := url_problem(address):
            return _left("ENDPOINT", address, f"it is not a usable address: {problem}")
    return Otlp(
        url,
        traces_url,
        _headers(_pairs(_variable("HEADERS") or "")) if url else {},  # they are for its own address
        _compression(_variable("COMPRESSION")),
        _seconds(_variable("TIMEOUT")),
    )


def _left(name: str, value: str, why: str) -> Otlp:
    _errors.say_once(f"otlp:{name}", f"OTEL_EXPORTER_OTLP_{name} is {value!r}: {why}")
    return Otlp()


def environment() -> str | None:
    """The environment's name in `OTEL_RESOURCE_ATTRIBUTES`."""
    known = _pairs(os.environ.get("OTEL_RESOURCE_ATTRIBUTES", ""))
    return next((known[name] for name in _ENVIRONMENTS if known.get(name)), None)


def _urls() -> tuple[str | None, str | None]:
    own = os.environ.get("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "").strip()
    common = os.environ.get("OTEL_EXPORTER_OTLP_ENDPOINT", "").strip()
    if not own:
        return common or None, None
    if own.rstrip("/").endswith(_TRACES):
        return own.rstrip("/").removesuffix(_TRACES), None
    return common or own, own


def _variable(name: str) -> str | None:
    get = os.environ.get
    return get(f"OTEL_EXPORTER_OTLP_TRACES_{name}") or get(f"OTEL_EXPORTER_OTLP_{name}") or None


def _pairs(text: str) -> dict[str, str]:
    parts = (part.partition("=") for part in text.split(",") if "=" in part)
    return {unquote(name.strip()): unquote(value.strip()) for name, _, value in parts}


def is_header(name: str, value: str) -> bool:
    """Whether that can be a header of a request."""
    return bool(_NAME.fullmatch(name) and _VALUE.fullmatch(value))


def _headers(given: dict[str, str]) -> dict[str, str]:
    headers = {name: value for name, value in given.items() if is_header(name, value)}
    if len(headers) < len(given):
        names = ", ".join(name for name in given if name not in headers)  # never what is given for them: keys, mostly
        _errors.say_once("otlp:HEADERS", f"OTEL_EXPORTER_OTLP_HEADERS has what is no HTTP header: {names!r}")
    return headers


def _compression(text: str | None) -> str | None:
    if text not in (None, "gzip", "none"):
        _left("COMPRESSION", str(text), "we know gzip and none")
        return None
    return text


def _seconds(text: str | None) -> float | None:
    try:
        given = float(text or "nan")
    except ValueError:
        _left("TIMEOUT", str(text), "it is no number")
        return None
    given = given / 1000 if given >= _MILLISECONDS else given
    return min(given, _LONGEST) if given > 0 else None
