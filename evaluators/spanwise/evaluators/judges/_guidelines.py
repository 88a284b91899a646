"""Guidelines as a judge reads them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from spanwise.evaluators.judges._values import text_of


def numbered(guidelines: Any) -> str | None:
    """A text as it is, a list with one number each, named ones (a dict) with their names; None where there is none."""
    if isinstance(guidelines, str):
        return guidelines.strip() or None
    listed = list(_each(guidelines))
    return "\n".join(f"{place}. {text}" for place, text in enumerate(listed, 1)) or None


def _each(guidelines: Any, name: str = "") -> Iterator[str]:
    if isinstance(guidelines, Mapping):
        for inner, members in guidelines.items():
            yield from _each(members, f"{inner}: ")
    elif isinstance(guidelines, list | tuple):
        for member in guidelines:
            yield from _each(member, name)
    elif guidelines is not None and (text := text_of(guidelines).strip()):
        yield f"{name}{text}"
