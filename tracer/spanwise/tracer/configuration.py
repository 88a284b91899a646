"""Settings from `configure`, `SPANWISE_*` and `OTEL_*` environment variables and defaults; user cache directory.

Arguments of `configure` take precedence over environment variables.

Source: opentelemetry-specification, "OpenTelemetry Protocol Exporter" and "SDK environment variables". A variable for
traces takes precedence over the variable for all signals.
"""

from __future__ import annotations

import importlib.util
import os
import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args
from urllib.parse import unquote, urlsplit

from spanwise.tracer import internal_errors
from spanwise.tracer.http_connections import find_trusted_authorities, find_url_problem

Capture: TypeAlias = Literal["none", "metadata", "full"]
Compression: TypeAlias = Literal["gzip", "none"]
Convention: TypeAlias = Literal["openinference", "gen_ai"]
Redactor: TypeAlias = "str | re.Pattern[str] | Callable[[str, Any], Any]"

MIB = 1 << 20
DEFAULT_URL = "http://127.0.0.1:4318"
# entries of the cache directory that show that a directory of the former name `assay` belongs to Spanwise
_FORMER_CONTENT = ("spill", "judges.db", "vectors.db")


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Resolved arguments of `configure`, except for the provider."""

    url: str = DEFAULT_URL
    traces_url: str | None = None  # address for spans if it is not `<url>/v1/traces`
    api_key: str | None = field(default=None, repr=False)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    compression: Compression | None = None  # None: gzip, except for a collector on this machine
    timeout: float = 10.0  # seconds per request
    certificate: str | None = None  # file or directory with the trusted certificate authorities
    by_otel: bool = False  # True if `url` comes from OpenTelemetry's own variables
    project: str = "default"
    environment: str = "default"
    capture: Capture = "full"
    redact: tuple[Redactor, ...] = ()
    sample_rate: float = 1.0
    export_interval: float = 0.5  # seconds between two exports
    max_value_bytes: int = MIB
    spill_dir: Path | None = None
    threads: bool = True
    sigterm: bool = True
    propagate_to: tuple[str, ...] = ()  # hosts that receive session, user and tags; wildcards are allowed
    resource: Mapping[str, Any] = field(default_factory=dict)
    # conventions in which spans are written; empty: the compact form. None: see `wire_conventions`
    conventions: frozenset[str] | None = None
    exporters: tuple[Any, ...] = ()  # OpenTelemetry span exporters, or functions that make one
    delivers: bool = True  # False: spans are passed to `exporters` only

    @property
    def wire_conventions(self) -> frozenset[str]:
        """Return the conventions for the collector at `url`.

        By default, these are both for an address of OpenTelemetry's variables, where any product may receive, and
        none for other addresses, which are those of Spanwise's collectors.
        """
        if self.conventions is not None:
            return self.conventions
        return ALL_CONVENTIONS if self.by_otel else frozenset()

    @property
    def exporter_conventions(self) -> frozenset[str]:
        """Return the conventions for `exporters`."""
        return ALL_CONVENTIONS if self.conventions is None else self.conventions

    @property
    def shown_url(self) -> str:
        """Return the address without credentials, for messages."""
        parts = urlsplit(self.url)
        return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()


ALL_CONVENTIONS: frozenset[str] = frozenset(get_args(Convention))
_API_KEY_PATTERN = re.compile(r"[\x21-\x7e]+")
_HOST_PATTERN = re.compile(r"[a-z0-9_.:/\[\]*-]{1,255}")
_UNSET_VALUES: tuple[Any, ...] = (None, "", (), {})


def resolve_settings(**arguments: Any) -> Settings:
    """Return the settings: arguments that are not None first, then the environment, then defaults.

    Raises `ValueError` for an invalid value.
    """
    values = {key: read() for key, read in _environment_readers().items()}
    values = {key: value for key, value in values.items() if value not in _UNSET_VALUES or key == "spill_dir"}
    values |= {key: value for key, value in arguments.items() if value is not None}
    if arguments.get("url") is not None:  # the environment's values are meant for another address
        values |= {"traces_url": None, "by_otel": False}
        values["headers"] = arguments.get("headers") or {}
        values.pop("otlp_grpc", None)
    _resolve_exporters(values)
    values["url"] = _normalize_url(values.get("url", DEFAULT_URL))
    values["redact"] = tuple(values.get("redact", ()))
    if values.get("conventions") is not None:
        values["conventions"] = _normalize_conventions(values["conventions"])
    values["propagate_to"] = _normalize_hosts(values.get("propagate_to", ()))
    if isinstance(values["spill_dir"], str):
        values["spill_dir"] = _resolve_spill_dir(values["spill_dir"])
    settings = Settings(**values)
    _validate(settings)
    return settings


def resolve_valid_settings() -> Settings:
    """Return the settings of the environment without its invalid values.

    If a variable for capture or redaction is invalid, no content is captured: `capture` is `metadata`, or `none` if
    that is set.
    """
    values: dict[str, Any] = {}
    is_content_limited = False
    for key, read in _environment_readers().items():
        try:
            value = read()
            if value not in _UNSET_VALUES:
                values[key] = _CONVERTERS[key](value) if key in _CONVERTERS else value
                if key != "otlp_grpc":
                    _validate(Settings(**{key: values[key]}))
        except (ValueError, re.error):
            values.pop(key, None)
            is_content_limited = is_content_limited or key in ("capture", "redact")
    if is_content_limited and values.get("capture") != "none":
        values["capture"] = "metadata"
    _resolve_exporters(values)
    return Settings(**values)


def _resolve_exporters(values: dict[str, Any]) -> None:
    """Set `exporters` and `delivers`.

    With exporters, spans also go to a collector only if its address is configured.
    """
    exporters = tuple(values.get("exporters", ()))
    if values.pop("otlp_grpc", False):
        exporters += (make_grpc_exporter,)
    values["exporters"], values["delivers"] = exporters, "url" in values or not exporters


_grpc_process: int | None = None  # the process that has created a gRPC exporter


def make_grpc_exporter() -> Any:
    """Return the exporter of `opentelemetry-exporter-otlp` for gRPC. It reads OpenTelemetry's variables itself.

    Raises `RuntimeError` in a child that was forked after its parent had created one: calls of gRPC can then hang, or
    end the process.
    """
    global _grpc_process
    if _grpc_process not in (None, os.getpid()):
        raise RuntimeError(
            "gRPC cannot be used in a child that was forked after its parent had exported over gRPC; fork before the "
            "first span ends, or set OTEL_EXPORTER_OTLP_PROTOCOL=http/protobuf"
        )
    _grpc_process = os.getpid()
    from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter

    return OTLPSpanExporter()


def _environment_readers() -> dict[str, Callable[[], Any]]:
    get = os.environ.get
    otlp = read_otlp_environment

    def collector() -> str | None:
        # In a process that opens databases directly, this variable is no collector's address
        url = get("SPANWISE_URL")
        return None if url and url.startswith("clickhouse://") else url

    return {
        "url": lambda: collector() or otlp().url,
        "by_otel": lambda: not collector() and otlp().url is not None,
        "traces_url": lambda: None if collector() else otlp().traces_url,
        "headers": lambda: {} if collector() else otlp().headers,
        "otlp_grpc": lambda: not collector() and otlp().grpc,
        "conventions": lambda: _normalize_conventions(get("SPANWISE_CONVENTIONS") or ""),
        "compression": lambda: otlp().compression,
        "timeout": lambda: otlp().timeout,
        "certificate": find_trusted_authorities,
        "api_key": lambda: get("SPANWISE_API_KEY"),
        "project": lambda: get("SPANWISE_PROJECT"),
        "environment": lambda: get("SPANWISE_ENVIRONMENT") or read_deployment_environment(),
        "capture": lambda: "none" if _read_flag("OTEL_SDK_DISABLED") else get("SPANWISE_CAPTURE", "").lower(),
        "redact": lambda: tuple(_parse_redactors(get("SPANWISE_REDACT", ""))),
        "sample_rate": lambda: _read_number("SPANWISE_SAMPLE_RATE"),
        "export_interval": lambda: _read_number("SPANWISE_EXPORT_INTERVAL"),
        "threads": lambda: _read_flag("SPANWISE_THREADS"),
        "sigterm": lambda: _read_flag("SPANWISE_SIGTERM"),
        "propagate_to": lambda: tuple(filter(None, map(str.strip, get("SPANWISE_PROPAGATE_TO", "").split(",")))),
        "spill_dir": lambda: _resolve_spill_dir(get("SPANWISE_SPILL_DIR")),
    }


def _resolve_spill_dir(value: str | None) -> Path | None:
    """Return the spool directory: None for `off` or an empty value, the user's cache directory if unset."""
    if value is None:
        return cache_folder() / "spill"
    return None if value.strip().lower() in ("", "0", "off", "none") else Path(value)


def cache_folder() -> Path:
    """Return `$XDG_CACHE_HOME/spanwise` or `~/.cache/spanwise`. The directory may not exist.

    If only the directory of the product's former name exists, it is renamed.
    """
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    folder, former = Path(base, "spanwise"), Path(base, "assay")
    with suppress(OSError):
        if not folder.exists() and any((former / name).exists() for name in _FORMER_CONTENT):
            former.rename(folder)
    return folder


def _parse_redactors(text: str) -> Iterable[Redactor]:
    """Parse comma-separated keys. A key between slashes is a regular expression."""
    for part in filter(None, (p.strip() for p in text.split(","))):
        is_pattern = len(part) > 2 and part[0] == part[-1] == "/"
        yield re.compile(part[1:-1]) if is_pattern else part


def _read_number(name: str) -> float | None:
    text = os.environ.get(name)
    try:
        return float(text) if text else None
    except ValueError:
        raise ValueError(f"{name} must be a number, got {text!r}") from None


def _read_flag(name: str) -> bool | None:
    text = os.environ.get(name, "").strip().lower()
    return None if not text else text not in ("0", "off", "false", "no")


def _normalize_url(value: str) -> str:
    if problem := find_url_problem(value):
        raise ValueError(f"url must be a collector's address such as {DEFAULT_URL!r}, got {value!r}: {problem}")
    return value.rstrip("/").removesuffix("/v1/traces")


def _normalize_hosts(patterns: Iterable[str]) -> tuple[str, ...]:
    """Return the patterns of `propagate_to` in lower case. Raises `ValueError` for an invalid host."""
    if isinstance(patterns, str):
        raise ValueError(f"propagate_to must be a list of hosts, got the string {patterns!r}; write [{patterns!r}]")
    hosts: list[str] = []
    for target in patterns:
        host = urlsplit(target).netloc if isinstance(target, str) and "://" in target else target
        if not isinstance(host, str) or not _HOST_PATTERN.fullmatch(host.strip().lower()):
            raise ValueError(f"propagate_to takes hosts such as 'api.internal' or '*.internal:8000', got {target!r}")
        hosts.append(host.strip().lower())
    return tuple(hosts)


def _normalize_conventions(given: Iterable[str]) -> frozenset[str] | None:
    """Return the names of conventions. A text has them separated by commas; `none` is no convention, "" the default."""
    if isinstance(given, str):
        parts = [part.strip().lower() for part in given.split(",") if part.strip()]
        if not parts:
            return None
        given = [] if parts == ["none"] else parts
    conventions = frozenset(given)
    if unknown := sorted(map(str, conventions - ALL_CONVENTIONS)):
        known = ", ".join(get_args(Convention))
        raise ValueError(f"conventions must be a set of {known}, got {', '.join(map(repr, unknown))}")
    return conventions


_CONVERTERS: Mapping[str, Callable[[Any], Any]] = {
    "url": _normalize_url,
    "propagate_to": _normalize_hosts,
}
_MAX_EXPORT_INTERVAL = 3600.0  # seconds


def _validate(settings: Settings) -> None:
    if settings.capture not in get_args(Capture):
        raise ValueError(f"capture must be one of {', '.join(get_args(Capture))}, got {settings.capture!r}")
    if not 0.0 <= settings.sample_rate <= 1.0:
        raise ValueError(f"sample_rate must be between 0 and 1, got {settings.sample_rate!r}")
    if not 0 < settings.export_interval <= _MAX_EXPORT_INTERVAL:
        raise ValueError(
            f"export_interval must be a number of seconds > 0 and <= {_MAX_EXPORT_INTERVAL:g}, got {settings.export_interval!r}"
        )
    if settings.compression not in (None, *get_args(Compression)):
        raise ValueError(f"compression must be one of {', '.join(get_args(Compression))}, got {settings.compression!r}")
    if not 0 < settings.timeout <= 600:
        raise ValueError(f"timeout must be a number of seconds > 0 and <= 600, got {settings.timeout!r}")
    for name, value in settings.headers.items():
        if not is_valid_header(name, value):
            raise ValueError(
                f"invalid HTTP header {name!r}: its name or value has characters that headers cannot contain"
            )
    if settings.api_key and not _API_KEY_PATTERN.fullmatch(
        settings.api_key
    ):  # for example, an editor has added typographic quotes
        invalid = _API_KEY_PATTERN.sub("", settings.api_key)
        raise ValueError(f"api_key contains {invalid!r}, which an HTTP header cannot contain; copy the key alone")
    for exporter in settings.exporters:
        if not (callable(getattr(exporter, "export", None)) or callable(exporter)):
            raise ValueError(
                f"exporters takes OpenTelemetry span exporters, or functions that make one, got {exporter!r}"
            )
    for redactor in settings.redact:
        if not (isinstance(redactor, (str, re.Pattern)) or callable(redactor)):
            raise ValueError(f"redact takes keys, compiled patterns and functions (key, value), got {redactor!r}")


_TRACES_PATH = "/v1/traces"
# Values from here on are milliseconds, as specified. Smaller values are seconds, as in OpenTelemetry's Python SDK
_FIRST_MILLISECONDS = 500.0
_MAX_TIMEOUT = 600.0  # seconds
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_HEADER_VALUE = re.compile(r"[\x20-\x7e\t]*")
_ENVIRONMENT_ATTRIBUTES = ("deployment.environment.name", "deployment.environment")


@dataclass(frozen=True, slots=True)
class OtlpEnvironment:
    """Values of the variables `OTEL_EXPORTER_OTLP_*`. The value of a variable that is not set is None or {}."""

    url: str | None = None  # base address, without the path of a signal
    traces_url: str | None = None  # only if its path is not `/v1/traces`
    headers: Mapping[str, str] = field(default_factory=dict)
    compression: str | None = None
    timeout: float | None = None  # seconds
    grpc: bool = False  # spans are sent to the endpoint through gRPC; `url` is then None


def read_otlp_environment() -> OtlpEnvironment:
    """Return the values of `OTEL_EXPORTER_OTLP_*`.

    Other SDKs use these variables as well. A value that Spanwise does not support is ignored, with one warning.
    """
    traces_endpoint = os.environ.get("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "").strip()
    endpoint = os.environ.get("OTEL_EXPORTER_OTLP_ENDPOINT", "").strip()
    url: str | None
    traces_url: str | None
    if not traces_endpoint:
        url, traces_url = endpoint or None, None
    elif traces_endpoint.rstrip("/").endswith(_TRACES_PATH):
        url, traces_url = traces_endpoint.rstrip("/").removesuffix(_TRACES_PATH), None
    else:
        url, traces_url = endpoint or traces_endpoint, traces_endpoint
    if url is not None and _read_variable("PROTOCOL") == "grpc":
        if is_grpc_available():
            return OtlpEnvironment(grpc=True)
        return _ignore_variable(
            "PROTOCOL",
            "grpc",
            "it needs the extra 'otlp', so no spans are sent to the endpoint: pip install 'spanwise[otlp]'",
        )
    for address in filter(None, (url, traces_url)):
        if problem := find_url_problem(address):
            return _ignore_variable("ENDPOINT", address, f"it is not a usable address: {problem}")
    # the variable's headers are meant for the variable's address
    pairs = _parse_pairs(_read_variable("HEADERS") or "") if url else {}
    headers = {name: value for name, value in pairs.items() if is_valid_header(name, value)}
    if len(headers) < len(pairs):
        # the message omits the values, because most of them are keys
        names = ", ".join(name for name in pairs if name not in headers)
        internal_errors.warn_once("otlp:HEADERS", f"OTEL_EXPORTER_OTLP_HEADERS: ignored invalid HTTP headers {names!r}")
    compression = _read_variable("COMPRESSION")
    if compression not in (None, "gzip", "none"):
        _ignore_variable("COMPRESSION", str(compression), "only gzip and none are supported")
        compression = None
    text = _read_variable("TIMEOUT")
    try:
        timeout = float(text or "nan")
    except ValueError:
        _ignore_variable("TIMEOUT", str(text), "it is not a number")
        timeout = float("nan")
    timeout = timeout / 1000 if timeout >= _FIRST_MILLISECONDS else timeout
    return OtlpEnvironment(
        url,
        traces_url,
        headers,
        compression,
        min(timeout, _MAX_TIMEOUT) if timeout > 0 else None,
    )


def is_grpc_available() -> bool:
    """Return whether the gRPC exporter of `opentelemetry-exporter-otlp` is installed, without importing it."""
    try:
        return importlib.util.find_spec("opentelemetry.exporter.otlp.proto.grpc") is not None
    except ImportError:
        return False


def _ignore_variable(name: str, value: str, why: str) -> OtlpEnvironment:
    internal_errors.warn_once(f"otlp:{name}", f"OTEL_EXPORTER_OTLP_{name}={value!r} is ignored: {why}")
    return OtlpEnvironment()


def read_deployment_environment() -> str | None:
    """Return the name of the environment in `OTEL_RESOURCE_ATTRIBUTES`."""
    known = _parse_pairs(os.environ.get("OTEL_RESOURCE_ATTRIBUTES", ""))
    return next((known[name] for name in _ENVIRONMENT_ATTRIBUTES if known.get(name)), None)


def _read_variable(name: str) -> str | None:
    get = os.environ.get
    return get(f"OTEL_EXPORTER_OTLP_TRACES_{name}") or get(f"OTEL_EXPORTER_OTLP_{name}") or None


def _parse_pairs(text: str) -> dict[str, str]:
    parts = (part.partition("=") for part in text.split(",") if "=" in part)
    return {unquote(name.strip()): unquote(value.strip()) for name, _, value in parts}


def is_valid_header(name: str, value: str) -> bool:
    """Return whether a name and a value form a valid HTTP header."""
    return bool(_HEADER_NAME.fullmatch(name) and _HEADER_VALUE.fullmatch(value))
