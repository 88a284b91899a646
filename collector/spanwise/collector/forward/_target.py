"""Where to: a name, an address, and headers out of the environment, where no process list shows them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from urllib.parse import SplitResult, unquote, urlsplit

from spanwise.collector.errors import Refused

HEADERS = "SPANWISE_FORWARD_HEADERS_"  # and the name of the target, in capitals
_NAMED = re.compile(r"([A-Za-z][\w-]*)=(.*)", re.DOTALL)
_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")  # the name of a header, by RFC 9110, 5.6.2


@dataclass(frozen=True, slots=True)
class Target:
    """An OTLP endpoint by HTTP: `url` is its base, to which `/v1/traces` and so on are added."""

    name: str
    url: str
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)

    @property
    def folder(self) -> str:
        """What its folder is called: another address is another target, under whatever name."""
        return f"{re.sub('[^A-Za-z0-9.-]', '_', self.name)}-{sha256(self.url.encode()).hexdigest()[:8]}"


def targets(given: Iterable[str], environment: Mapping[str, str], option: str = "--forward") -> list[Target]:
    """Targets as the command line names them, `URL` or `NAME=URL`, with the headers that the environment has for them.

    Raises `Refused`, which names the `option`, for what is no address, bears a secret, or has the name of another one.
    """
    found: dict[str, Target] = {}
    for one in given:
        target = _target(one, environment, option)
        if target.name in found:
            raise Refused(
                f"{option}: two targets are called {target.name!r}: name them apart, as in other={target.url}"
            )
        found[target.name] = target
    return list(found.values())


def _target(given: str, environment: Mapping[str, str], option: str) -> Target:
    named = _NAMED.fullmatch(given)
    name, url = named.groups() if named else ("", given)
    parts = _parts(url, option)
    name = name or parts.hostname or ""
    variable = HEADERS + re.sub("[^A-Z0-9]", "_", name.upper())
    return Target(name, url.rstrip("/"), _headers(variable, environment.get(variable, "")))


def _parts(url: str, option: str) -> SplitResult:
    """Raises `Refused` where nothing can be sent. What may be a secret is not repeated: what stands before an @, and
    after ? or #.
    """
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        parts, port = SplitResult("", "", "", "", ""), None
    can_be = parts.scheme in ("http", "https") and parts.hostname and port != 0 and not re.search(r"[\s?#]", url)
    if "@" in (parts.netloc if can_be else url):
        raise Refused(f"{option}: an address with a password in it shows to all; put it into {HEADERS}<NAME>")
    if not can_be:
        said = re.split("[?#]", url)[0]
        raise Refused(f"{option} {said!r} is no address of an OTLP endpoint, such as https://host or name=https://host")
    if parts.path.rstrip("/").endswith(("/v1/traces", "/v1/logs", "/v1/metrics")):
        raise Refused(f"{option} {url!r}: give the address without /v1/…, which is added for each signal")
    return parts


def _headers(variable: str, text: str) -> dict[str, str]:
    """`name=value,name=value`, percent-encoded, as `OTEL_EXPORTER_OTLP_HEADERS` has it. Tells no value."""
    found = {}
    for number, pair in enumerate(filter(str.strip, text.split(",")), 1):
        name, divided, value = pair.partition("=")
        name, value = unquote(name).strip().lower(), unquote(value).strip()
        if not divided or not _TOKEN.fullmatch(name) or not value.isascii() or not value.isprintable():
            raise Refused(f"{variable}: header {number} is not name=value in printable ASCII (, is %2C, = may stay)")
        found[name] = value
    return found
