"""Loading of modules: lazy imports of the names that a package exports, and Python files that users edit."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module
from importlib.machinery import SourceFileLoader
from types import CodeType
from typing import Any

# Lazy imports of the names that a package exports.
#
# Importing a module runs the `__init__` of every enclosing package, which should therefore import little. For type
# checkers, packages also contain ordinary imports under `TYPE_CHECKING`. If type checkers saw `__getattr__`, they
# would accept any name.


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


# Loader of Python files that users edit and run: evaluations and rules. It always reads the source.
#
# Python takes compiled code from its cache if the source has the same size and modification time. A file that was
# edited twice within a second may then run in its old form.


class UncachedSourceLoader(SourceFileLoader):
    """Loader that compiles the source on each import, and writes no bytecode."""

    def get_code(self, fullname: str) -> CodeType:
        """Return the compiled source of the file."""
        path = self.get_filename(fullname)
        code: CodeType = self.source_to_code(self.get_data(path), path)
        return code
