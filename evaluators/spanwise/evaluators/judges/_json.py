"""Any value as JSON, or as what comes nearest to it."""

from __future__ import annotations

import json
from typing import Any

import orjson


def as_json(value: Any, indent: bool = True) -> str:
    """A value as JSON; where it is none (it holds itself, say) as Python shows it. Equal values give equal texts."""
    option = orjson.OPT_NON_STR_KEYS | (orjson.OPT_INDENT_2 if indent else 0)
    try:
        return orjson.dumps(value, default=_other, option=option).decode()
    except TypeError:  # half of a surrogate pair, a number beyond 64 bits, a value that holds itself
        pass
    try:
        return json.dumps(value, default=_other, ensure_ascii=False, indent=2 if indent else None)
    except (TypeError, ValueError, RecursionError):
        pass
    try:
        return repr(value)
    except Exception:  # nested a thousand levels deep, or of somebody's own
        return f"(a {type(value).__name__} that cannot be written down)"


def _other(value: Any) -> Any:
    return sorted(map(str, value)) if isinstance(value, set | frozenset) else str(value)
