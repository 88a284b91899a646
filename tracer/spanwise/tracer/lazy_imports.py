"""Lazy imports of the names that a package exports.

Importing a module runs the `__init__` of every enclosing package, which should therefore import little. For type
checkers, packages also contain ordinary imports under `TYPE_CHECKING`. If type checkers saw `__getattr__`, they would
accept any name.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any


def lazy(package: str, **modules: str) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return `__getattr__` and `__dir__` for a package.

    `modules` maps the names of its modules to the names that each one exports, separated by spaces.
    """
    places = {name: f"{package}.{module}" for module, names in modules.items() for name in names.split()}
    known = vars(sys.modules[package])

    def get(name: str) -> Any:
        if name not in places:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        known[name] = found = getattr(import_module(places[name]), name)
        return found

    return get, lambda: sorted({*known, *places})
