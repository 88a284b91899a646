"""The public face: what is there, and what importing it brings along."""

from __future__ import annotations

import subprocess
import sys

import spanwise.tracer
from spanwise.tracer import testing, trace_capture


def test_all_is_sorted_and_true() -> None:
    for module in (spanwise.tracer, trace_capture, testing):
        assert list(module.__all__) == sorted(module.__all__, key=lambda name: (not name.isupper(), name))
        assert all(hasattr(module, name) for name in module.__all__)


def test_the_import_is_light() -> None:
    code = "import sys; from spanwise.tracer import *; print(*sys.modules)"
    modules = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    heavy = {"requests", "asyncio", "wrapt", "pytest", "numpy", "google.protobuf", "opentelemetry.exporter", "fastapi"}
    assert heavy.isdisjoint(modules)
    assert not [name for name in modules if name.startswith("spanwise.") and not name.startswith("spanwise.tracer")]
