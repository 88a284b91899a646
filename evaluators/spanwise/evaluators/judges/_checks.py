"""What a judge may be given: one line says what is wrong with a value, which is shown."""

from __future__ import annotations

import math
from typing import Any


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


def _is_price(value: Any) -> bool:
    return _is_number(value) and bool(value >= 0)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
