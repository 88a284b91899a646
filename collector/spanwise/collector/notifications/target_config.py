"""Configuration of notification targets: one TOML file, with secrets from environment variables."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any
from urllib.parse import SplitResult, urlsplit

from spanwise.collector.errors import Refused
from spanwise.collector.notifications.email_target import PORTS, SECURITY_MODES, EmailTarget
from spanwise.collector.notifications.guarded_connection import AllowedAddresses, parse_allowed
from spanwise.collector.notifications.http_target import ID_HEADER, HTTPTarget
from spanwise.tracer.http_connections import find_url_problem

LOG_TARGET = "log"  # name of the built-in target
TARGETS_VARIABLE = "SPANWISE_TARGETS"
MAX_TIMEOUT_S = 300.0
_COMMON_KEYS = ("kind", "allow", "timeout_s")
_HTTP_KEYS = (*_COMMON_KEYS, "url", "url_env", "headers", "headers_env")
_KEYS_BY_KIND = {
    "webhook": (*_HTTP_KEYS, "secret_env"),
    "slack": _HTTP_KEYS,
    "email": (*_COMMON_KEYS, "host", "port", "security", "username", "password_env", "from", "to"),
}
_URL = re.compile(r"[!-~]+")
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")  # RFC 9110, section 5.6.2
_OWN_HEADERS = {"host", "content-type", "content-length", "transfer-encoding", "connection", ID_HEADER.lower()}
_MAILBOX = re.compile(r"(?:[^<>,\"\r\n]*<)?[!-;=?A-~]+@[!-;=?A-~]+>?")  # address, or name <address>


@dataclass(frozen=True, slots=True)
class NotificationConfig:
    """Targets by name, and the URL under which people reach this server (None: its own address)."""

    targets: Mapping[str, HTTPTarget | EmailTarget] = field(default_factory=dict)
    public_url: str | None = None
    source: str | None = None  # path of the file


def load_targets(path: str | Path, environment: Mapping[str, str]) -> NotificationConfig:
    """Read the file of targets.

    Raises `Refused` with table, key and value for anything malformed, for unknown keys, and for a variable that is not
    set. The message never contains a secret.
    """
    try:
        with open(path, "rb") as file:
            content = tomllib.load(file)
    except OSError as error:
        raise Refused(f"cannot read the targets file {str(path)!r}: {error.strerror or error}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise Refused(f"the targets file {str(path)!r} is not valid TOML: {error}") from error
    _check_keys(f"{str(path)!r}", content, ("public_url", "targets"))
    public_url, tables = content.get("public_url"), content.get("targets", {})
    if public_url is not None and (not isinstance(public_url, str) or find_url_problem(public_url)):
        raise Refused(
            f"{str(path)!r}: public_url must be a URL such as https://spanwise.example.com, got {public_url!r}"
        )
    if not isinstance(tables, dict):
        raise Refused(f"{str(path)!r}: targets must be tables, such as [targets.ops], got {tables!r:.100}")
    targets = {name: _TableReader(str(path), name, table, environment).read() for name, table in tables.items()}
    return NotificationConfig(targets, public_url, str(path))


class _TableReader:
    """Reader of one table `[targets.NAME]`. Its errors name the table."""

    def __init__(self, path: str, name: str, table: Any, environment: Mapping[str, str]) -> None:
        self._name, self._table, self._environment = name, table, environment
        self._where = f"[targets.{name}] of {path!r}"
        if name == LOG_TARGET or not name or not name.isprintable() or len(name) > 100:
            raise Refused(f"{self._where}: the name must be 1 to 100 printable characters, and not {LOG_TARGET!r}")
        if not isinstance(table, dict):
            raise Refused(f"{self._where}: expected a table, got {table!r:.100}")

    def read(self) -> HTTPTarget | EmailTarget:
        kind = self._table.get("kind")
        if kind not in _KEYS_BY_KIND:
            raise self._error("kind", f"expected one of: {', '.join(_KEYS_BY_KIND)}", kind)
        _check_keys(self._where, self._table, _KEYS_BY_KIND[kind])
        try:
            allowed = parse_allowed(self._texts("allow", ()))
        except ValueError as error:
            raise Refused(f"{self._where}: allow must list host names, addresses and networks: {error}") from error
        timeout_s = self._value("timeout_s", (int, float), lambda value: 0 < value <= MAX_TIMEOUT_S, 30.0)
        if kind == "email":
            return self._read_email(allowed, float(timeout_s))
        return HTTPTarget(
            name=self._name,
            kind=kind,
            url=self._read_url(allowed),
            secret=self._variable("secret_env"),
            headers=self._read_headers(),
            allowed=allowed,
            timeout_s=float(timeout_s),
        )

    def _read_url(self, allowed: AllowedAddresses) -> str:
        if ("url" in self._table) == ("url_env" in self._table):
            raise Refused(f"{self._where}: give either url, or url_env (the variable that holds a secret URL)")
        key = "url" if "url" in self._table else "url_env"
        url = self._text("url") if key == "url" else self._variable("url_env")
        problem = find_url_problem(url or "")
        parts = urlsplit(url or "") if problem is None else SplitResult("", "", "", "", "")
        if problem is None and (not _URL.fullmatch(url or "") or "@" in parts.netloc or parts.fragment):
            problem = "it must consist of visible ASCII characters, without credentials and fragment"
        elif problem is None and parts.scheme == "http" and not allowed.includes(parts.hostname or ""):
            problem = "http:// is accepted only for a host or address that `allow` names; use https://"
        if problem is not None:  # the value may be secret, as URLs of Slack are
            raise Refused(f"{self._where}: {key} is not the URL of a webhook: {problem}")
        return str(url)

    def _read_headers(self) -> dict[str, str]:
        given = {name: ("headers", value) for name, value in self._mapping("headers").items()}
        for name, variable in self._mapping("headers_env").items():
            given[name] = ("headers_env", self._lookup("headers_env", variable))
        for name, (key, value) in given.items():
            if not _HEADER_NAME.fullmatch(name) or name.lower() in _OWN_HEADERS or name.lower().startswith("spanwise-"):
                raise Refused(f"{self._where}: {key}: header {name!r} cannot be set")
            if not value.isascii() or not value.isprintable():
                raise Refused(f"{self._where}: {key}: the value of header {name!r} must be printable ASCII")
        return {name: value for name, (_, value) in given.items()}

    def _read_email(self, allowed: AllowedAddresses, timeout_s: float) -> EmailTarget:
        security: Any = self._value("security", (str,), lambda value: value in SECURITY_MODES, "starttls")
        username, password = self._table.get("username"), self._variable("password_env")
        if (username is None) != (password is None):
            raise Refused(f"{self._where}: username and password_env belong together; give both or none")
        if username is not None and security == "none":
            raise Refused(
                f"{self._where}: a password is never sent without encryption; set security to starttls or tls"
            )
        sender, recipients = self._text("from"), self._texts("to", None)
        for address in (sender, *recipients):
            if not address.isascii() or not address.isprintable() or not _MAILBOX.fullmatch(address):
                raise Refused(f"{self._where}: {address!r} is not an e-mail address; expected name@example.com")
        host = self._value(
            "host", (str,), lambda value: value.isascii() and find_url_problem(f"http://{value}") is None
        )
        return EmailTarget(
            name=self._name,
            host=host,
            sender=sender,
            recipients=recipients,
            port=self._value("port", (int,), lambda value: 0 < value < 65536, PORTS[security]),
            security=security,
            username=None if username is None else self._text("username"),
            password=password,
            allowed=allowed,
            timeout_s=timeout_s,
        )

    def _value(self, key: str, kinds: tuple[type, ...], is_valid: Callable[[Any], bool], default: Any = None) -> Any:
        value = self._table.get(key, default)
        if isinstance(value, bool) or not isinstance(value, kinds) or not is_valid(value):
            raise self._error(key, "the value is missing or invalid", value)
        return value

    def _text(self, key: str) -> str:
        return str(self._value(key, (str,), bool))

    def _texts(self, key: str, default: tuple[str, ...] | None) -> tuple[str, ...]:
        value = self._table.get(key, default)
        if default is not None and value == default:
            return default
        if not isinstance(value, list) or not value or not all(isinstance(item, str) and item for item in value):
            raise self._error(key, "expected a list of texts", value)
        return tuple(value)

    def _mapping(self, key: str) -> dict[str, str]:
        value = self._table.get(key, {})
        if not isinstance(value, dict) or not all(isinstance(item, str) for item in value.values()):
            raise self._error(key, "expected a table of texts", value)
        return value

    def _variable(self, key: str) -> str | None:
        """Return the value of the environment variable that a key names; None without the key."""
        return self._lookup(key, self._text(key)) if key in self._table else None

    def _lookup(self, key: str, variable: str) -> str:
        value = self._environment.get(variable, "").strip()
        if not value:
            raise Refused(f"{self._where}: {key}: the environment variable {variable!r} is not set")
        return value

    def _error(self, key: str, reason: str, value: object) -> Refused:
        return Refused(f"{self._where}: {key}: {reason}, got {value!r:.100}")


def _check_keys(where: str, table: Mapping[str, Any], known: Collection[str]) -> None:
    for key in table:
        if key not in known:
            close = get_close_matches(key, known, 1)
            hint = f"did you mean {close[0]!r}?" if close else f"expected one of: {', '.join(known)}"
            raise Refused(f"{where}: unknown key {key!r}; {hint}")
