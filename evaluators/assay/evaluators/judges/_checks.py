"""What a judge may be given: one line says what is wrong with a value, which is shown."""

from __future__ import annotations

import math
from typing import Any
from urllib.parse import urlsplit


def check_text(name: str, value: Any, *, empty: bool = False) -> str:
    """A text without the spaces around it. Raises `ValueError`."""
    if not isinstance(value, str) or not (value.strip() or empty):
        raise ValueError(f"{name} is the name of a model, not {value!r:.200}")
    return value.strip()


def check_number(name: str, value: Any, *, most: float = math.inf, positive: bool = False, none: bool = False) -> None:
    """Raises `ValueError` for what is no finite number from 0 on, up to `most`."""
    if value is None and none:
        return
    if not _is_number(value) or not 0 <= value <= most or (positive and value == 0):
        bounds = f"{'above 0' if positive else 'from 0 on'}{'' if most == math.inf else f', {most:g} at most'}"
        raise ValueError(f"{name} is a number {bounds}, not {value!r}")


def check_whole(name: str, value: Any, *, least: int | None = 1, none: bool = False) -> None:
    """Raises `ValueError` for what is no whole number from `least` on."""
    if value is None and none:
        return
    if not isinstance(value, int) or isinstance(value, bool) or (least is not None and value < least):
        raise ValueError(f"{name} is a whole number{'' if least is None else f' from {least} on'}, not {value!r}")


def check_price(price: Any) -> None:
    """Raises `ValueError` for what is no pair of prices."""
    if price is None:
        return
    pair: Any = price if isinstance(price, tuple | list) and len(price) == 2 else (None, None)
    if not all(map(_is_price, pair)):
        raise ValueError(f"price is US dollars per million tokens of input and of output, (0.15, 0.6), not {price!r}")


def check_address(url: Any) -> str:
    """The address of an endpoint, without the slash at its end. Raises `ValueError`; a password in it is not shown."""
    parts = _parts(url)
    if parts.username or parts.password:
        raise ValueError("base_url bears a name or a password, which feedback would show: give api_key")
    if parts.query or parts.fragment:
        raise ValueError(f"base_url ends with its path, without what follows '?' or '#': {url.partition('?')[0]!r}")
    if parts.path.rstrip("/").endswith("/chat/completions"):
        raise ValueError(f"base_url ends before /chat/completions, not {url!r}")
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


def _parts(url: Any) -> Any:
    try:
        parts = urlsplit(url.strip())
        if parts.scheme in ("http", "https") and parts.hostname and parts.port != 0:
            return parts
    except (ValueError, AttributeError, TypeError):
        pass
    shown = repr(url.rpartition("@")[2] if isinstance(url, str) else url)[:200]
    given = "base_url (or ASSAY_JUDGE_URL, OPENAI_BASE_URL)"
    raise ValueError(f"{given} is an address such as http://localhost:8000/v1, not {shown}")


def _is_price(value: Any) -> bool:
    return _is_number(value) and bool(value >= 0)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
