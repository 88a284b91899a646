"""Lazy imports of the names that a package exports.

Whoever imports a module runs the `__init__` of each package around it. Type checkers see usual imports beside this,
under `TYPE_CHECKING`; a `__getattr__` that they saw would make any name look right to them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any


def lazy(package: str, **modules: str) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """A package's `__getattr__` and `__dir__`; `modules` are its own, with the names that each gives, as words."""
    places = {name: f"{package}.{module}" for module, names in modules.items() for name in names.split()}
    known = vars(sys.modules[package])

    def get(name: str) -> Any:
        if name not in places:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        known[name] = found = getattr(import_module(places[name]), name)
        return found

    return get, lambda: sorted({*known, *places})
