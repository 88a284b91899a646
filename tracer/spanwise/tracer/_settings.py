"""What can be set: argument of `configure`, then environment variable, then default."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args
from urllib.parse import urlsplit

from spanwise.tracer import _otlp, destinations
from spanwise.tracer.addresses import url_problem
from spanwise.tracer.cache_folder import cache_folder
from spanwise.tracer.certificates import trusted_authorities

Capture: TypeAlias = Literal["none", "metadata", "full"]
Compression: TypeAlias = Literal["gzip", "none"]
Redactor: TypeAlias = "str | re.Pattern[str] | Callable[[str, Any], Any]"

MIB = 1 << 20
DEFAULT_URL = "http://127.0.0.1:4318"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Everything that `configure` takes but the provider, resolved."""

    url: str = DEFAULT_URL
    traces_url: str | None = None  # where spans go, if that is not `<url>/v1/traces`
    api_key: str | None = field(default=None, repr=False)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    compression: Compression | None = None  # None: gzip, but not to this machine itself
    timeout: float = 10.0  # seconds of one request
    certificate: str | None = None  # a file or folder with the certificate authorities to trust
    by_otel: bool = False  # the address is that of OpenTelemetry's own variables
    project: str = "default"
    environment: str = "default"
    capture: Capture = "full"
    redact: tuple[Redactor, ...] = ()
    sample_rate: float = 1.0
    max_value_bytes: int = MIB
    spill_dir: Path | None = None
    threads: bool = True
    sigterm: bool = True
    propagate_to: tuple[str, ...] = ()  # hosts that get session, user and tags, with wildcards
    resource: Mapping[str, Any] = field(default_factory=dict)

    @property
    def shown_url(self) -> str:
        """The address without what stands before an @."""
        parts = urlsplit(self.url)
        return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()


_KEY = re.compile(r"[\x21-\x7e]+")
_NOT_GIVEN: tuple[Any, ...] = (None, "", (), {})


def resolve(**given: Any) -> Settings:
    """Settings from what was given (None: not given) over the environment over the defaults. Raises `ValueError`."""
    values = {**_environment(), **{k: v for k, v in given.items() if v is not None}}
    if given.get("url") is not None:  # what the environment says of another address does not go to this one
        values |= {"traces_url": None, "by_otel": False}
        values["headers"] = given.get("headers") or {}
    values["url"] = _url(values.get("url", DEFAULT_URL))
    values["redact"] = tuple(values.get("redact", ()))
    values["propagate_to"] = destinations.patterns(values.get("propagate_to", ()))
    if isinstance(values["spill_dir"], str):
        values["spill_dir"] = _spill_dir(values["spill_dir"])
    settings = Settings(**values)
    _check(settings)
    return settings


def salvaged() -> Settings:
    """The environment where it can be read. Where the rules for content cannot, content is withheld."""
    kept: dict[str, Any] = {}
    withheld = False
    for key, read in _readers().items():
        try:
            value = read()
            if value not in _NOT_GIVEN:
                kept[key] = _READ.get(key, _as_it_is)(value)
                _check(Settings(**{key: kept[key]}))
        except (ValueError, re.error):
            kept.pop(key, None)
            withheld = withheld or key in ("capture", "redact")
    if withheld and kept.get("capture") != "none":
        kept["capture"] = "metadata"
    return Settings(**kept)


def _environment() -> dict[str, Any]:
    values = {key: read() for key, read in _readers().items()}
    return {key: value for key, value in values.items() if value not in _NOT_GIVEN or key == "spill_dir"}


def _readers() -> dict[str, Callable[[], Any]]:
    get = os.environ.get
    otlp = _otlp.of_environment
    return {
        "url": lambda: get("SPANWISE_URL") or otlp().url,
        "by_otel": lambda: not get("SPANWISE_URL") and otlp().url is not None,
        "traces_url": lambda: None if get("SPANWISE_URL") else otlp().traces_url,
        "headers": lambda: {} if get("SPANWISE_URL") else otlp().headers,
        "compression": lambda: otlp().compression,
        "timeout": lambda: otlp().timeout,
        "certificate": trusted_authorities,
        "api_key": lambda: get("SPANWISE_API_KEY"),
        "project": lambda: get("SPANWISE_PROJECT"),
        "environment": lambda: get("SPANWISE_ENVIRONMENT") or _otlp.environment(),
        "capture": lambda: "none" if _switch("OTEL_SDK_DISABLED") else get("SPANWISE_CAPTURE", "").lower(),
        "redact": lambda: tuple(_redactors(get("SPANWISE_REDACT", ""))),
        "sample_rate": lambda: _number("SPANWISE_SAMPLE_RATE"),
        "threads": lambda: _switch("SPANWISE_THREADS"),
        "sigterm": lambda: _switch("SPANWISE_SIGTERM"),
        "propagate_to": lambda: tuple(filter(None, map(str.strip, get("SPANWISE_PROPAGATE_TO", "").split(",")))),
        "spill_dir": lambda: _spill_dir(get("SPANWISE_SPILL_DIR")),
    }


def _spill_dir(value: str | None) -> Path | None:
    """`off` or an empty value switches the spool off; unset means the user's cache directory."""
    if value is None:
        return cache_folder() / "spill"
    return None if value.strip().lower() in ("", "0", "off", "none") else Path(value)


def _redactors(text: str) -> Iterable[Redactor]:
    """Comma-separated keys; `/…/` is a pattern."""
    for part in filter(None, (p.strip() for p in text.split(","))):
        is_pattern = len(part) > 2 and part[0] == part[-1] == "/"
        yield re.compile(part[1:-1]) if is_pattern else part


def _number(name: str) -> float | None:
    text = os.environ.get(name)
    try:
        return float(text) if text else None
    except ValueError:
        raise ValueError(f"{name} is a number, not {text!r}") from None


def _switch(name: str) -> bool | None:
    text = os.environ.get(name, "").strip().lower()
    return None if not text else text not in ("0", "off", "false", "no")


def _url(value: str) -> str:
    if problem := url_problem(value):
        raise ValueError(f"url is the collector's address such as {DEFAULT_URL!r}, not {value!r}: {problem}")
    return value.rstrip("/").removesuffix("/v1/traces")


def _as_it_is(value: Any) -> Any:
    return value


_READ: Mapping[str, Callable[[Any], Any]] = {"url": _url, "propagate_to": destinations.patterns}


def _check(settings: Settings) -> None:
    if settings.capture not in get_args(Capture):
        raise ValueError(f"capture is one of {get_args(Capture)}, not {settings.capture!r}")
    if not 0.0 <= settings.sample_rate <= 1.0:
        raise ValueError(f"sample_rate is between 0 and 1, not {settings.sample_rate!r}")
    if settings.compression not in (None, *get_args(Compression)):
        raise ValueError(f"compression is one of {get_args(Compression)}, not {settings.compression!r}")
    if not 0 < settings.timeout <= 600:
        raise ValueError(f"timeout is in seconds, up to 600, not {settings.timeout!r}")
    for name, value in settings.headers.items():
        if not _otlp.is_header(name, value):
            raise ValueError(f"no HTTP header can be {name!r}, or hold what is given for it")
    if settings.api_key and not _KEY.fullmatch(settings.api_key):  # quotes that an editor has curled, for one
        odd = _KEY.sub("", settings.api_key)
        raise ValueError(f"api_key goes into an HTTP header, which cannot hold {odd!r}: copy the key alone")
    for redactor in settings.redact:
        if not (isinstance(redactor, (str, re.Pattern)) or callable(redactor)):
            raise ValueError(f"redact takes keys, compiled patterns and functions (key, value), not {redactor!r}")
