"""The words of runs that can be searched for: every text and number of their inputs and outputs."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from spanwise.collector.records import JSON
from spanwise.collector.stores.sqlite._values import loads

CHARACTERS = 200_000  # of one trace that are indexed, counted from its first span


def leaves(value: JSON) -> Iterator[str]:
    """Texts and numbers in a JSON value, in order."""
    stack = [value]
    while stack:
        item = stack.pop()
        if isinstance(item, str):
            yield item
        elif isinstance(item, dict):
            stack.extend(reversed(item.values()))
        elif isinstance(item, (list, tuple)):
            stack.extend(reversed(item))
        elif isinstance(item, (int, float)) and not isinstance(item, bool):
            yield str(item)


def add_leaves(found: dict[str, None], inputs: JSON, outputs: JSON, payload: bytes) -> None:
    """Add the leaves that will be read of a payload which was just made of these; parsed only where it has to be."""
    if type(inputs) is str and (outputs is None or type(outputs) is str):
        found[inputs] = None
        if outputs is not None:
            found[outputs] = None
        return
    some = _plain([outputs, inputs])
    if some is None:
        stored = loads(payload)
        some = list(leaves((stored.get("inputs"), stored.get("outputs"))))
    found.update(dict.fromkeys(some))


def _plain(stack: list[Any]) -> list[str] | None:
    """Leaves of values of which JSON gives back the same; None for any other: a date, a key that is no text."""
    found: list[str] = []
    while stack:
        item = stack.pop()
        kind = type(item)
        if kind is str:
            found.append(item)
        elif kind is dict:
            for key in item:
                if type(key) is not str:
                    return None
            stack.extend(reversed(item.values()))
        elif kind is list or kind is tuple:
            stack.extend(reversed(item))
        elif kind is int or (kind is float and math.isfinite(item)):
            found.append(str(item))
        elif not (item is None or kind is bool or kind is float):
            return None
    return found


def joined(found: dict[str, None]) -> str:
    """The text of a trace whose leaves are these; longer than `CHARACTERS` only to say that there is more."""
    return "\n".join(found)[: CHARACTERS + 1]
