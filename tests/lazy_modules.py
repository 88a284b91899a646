"""Modules that are imported on first use, because importing them takes seconds that collection need not spend."""

from __future__ import annotations

import importlib
import importlib.util
from typing import Any

import pytest


class LazyModule:
    """A stand-in for a module that imports it when one of its attributes is first read."""

    def __init__(self, name: str) -> None:
        self.__name__ = name

    def __getattr__(self, attribute: str) -> Any:
        # Plugins of pytest look for these attributes in everything that a test module contains.
        if attribute.startswith("_") or attribute in ("hypothesis", "pytestmark"):
            raise AttributeError(attribute)
        return getattr(importlib.import_module(self.__name__), attribute)


def lazy_importorskip(name: str) -> LazyModule:
    """Return a lazy module, or skip the calling test module if its distribution is not installed."""
    package = name.partition(".")[0]
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed", allow_module_level=True)
    return LazyModule(name)
