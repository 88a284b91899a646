"""Where models are asked, and with which key: one line says what is wrong with either."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

OPENAI = "https://api.openai.com/v1"
ADDRESSES = (
    "SPANWISE_JUDGE_URL",
    "SPANWISE_EMBEDDINGS_URL",
    "OPENAI_BASE_URL",
)  # variables; OpenAI's own without the last
ROUTES = ("/chat/completions", "/embeddings")
_SECRETS = {
    "api_key": "SPANWISE_EMBEDDINGS_KEY (and SPANWISE_EMBEDDINGS_URL, to which alone it goes)",
    "token": "HF_TOKEN",
}


def check_address(url: Any, given: str = "base_url") -> str:
    """The address of an endpoint, without the slash at its end; `given` says where it came from.

    Raises `ValueError`; a password in it is not shown.
    """
    parts = _parts(url, given)
    if parts.username or parts.password:
        raise ValueError("base_url bears a name or a password, which feedback would show: give api_key")
    if parts.query or parts.fragment:
        raise ValueError(f"base_url ends with its path, without what follows '?' or '#': {hidden(url)}")
    for route in ROUTES:
        if parts.path.rstrip("/").endswith(route):
            raise ValueError(f"base_url ends before {route}, not {url!r}")
    return str(url).strip().rstrip("/")


def check_key(key: Any) -> str | None:
    """A key as a header can bear it, without the spaces around it. Raises `ValueError`, which does not show it."""
    if key is None:
        return None
    if not isinstance(key, str):
        raise ValueError(f"api_key is a text, not a {type(key).__name__}")
    if not (key.isascii() and key.strip().isprintable()):
        raise ValueError("api_key has characters that no key has, line breaks or letters with accents: is it whole?")
    return key.strip() or None


def check_told(given: Mapping[str, Any], maker: str) -> None:
    """Raises `ValueError` for a secret among the arguments of a model in a dict, which experiments and files keep."""
    for name, way in _SECRETS.items():
        if given.get(name) is not None:
            raise ValueError(
                f"{name} among an evaluator's parameters would be stored with what it says: set {way}, or give "
                f"{maker}(…, {name}=…)"
            )


def first_of(*names: str) -> str | None:
    """The first of these variables of the environment that says something."""
    return next((value for name in names if (value := os.environ.get(name, "").strip())), None)


def hidden(url: Any) -> str:
    """An address as errors show it: without a name, a password, and what follows its path."""
    shown = url.rpartition("@")[2].partition("?")[0].partition("#")[0] if isinstance(url, str) else url
    return repr(shown)[:200]


def redirect_words(base_url: str, status: int | None, headers: Mapping[str, str]) -> str | None:
    """Return what to say of a reply that redirects; None for any other. Redirects are refused: a request that follows
    one sends the judged text to a host that nobody has named.
    """
    if status is None or not 300 <= status < 400 or "location" not in headers:
        return None
    return (
        f"{base_url} redirects to {hidden(headers['location'])} ({status}), and redirects are not followed; give the "
        "address that answers as base_url"
    )


def of_environment(url: Any) -> bool:
    """Whether the environment names this address. Raises `ValueError` for what is none."""
    asked = check_address(url)
    named = {name: value for name in ADDRESSES if (value := first_of(name))}
    return any(asked == check_address(value, name) for name, value in {"OPENAI_BASE_URL": OPENAI, **named}.items())


def _parts(url: Any, given: str) -> Any:
    try:
        parts = urlsplit(url.strip())
        if parts.scheme in ("http", "https") and parts.hostname and parts.port != 0:
            return parts
    except (ValueError, AttributeError, TypeError):
        pass
    raise ValueError(f"{given} is an address such as http://localhost:8000/v1, not {hidden(url)}")
