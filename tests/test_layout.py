"""The house: a namespace without `__init__.py`, and arrows that run one way."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


def test_the_namespace_has_no_init():
    assert list(ROOT.glob("*/assay/__init__.py")) == []
    assert not (ROOT / "assay").exists()


def test_importing_the_tracer_loads_nothing_of_the_other_folders():
    code = "import sys, assay.tracer; print([m for m in sys.modules if m.startswith('assay.') and m.split('.')[1] != 'tracer'])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


def test_importing_the_tracer_loads_no_heavy_package():
    heavy = ["fastapi", "torch", "openai", "scipy", "numpy", "nltk", "typer", "sentence_transformers"]
    code = f"import sys, assay.tracer; print([m for m in {heavy} if m in sys.modules])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


@pytest.mark.parametrize("module", ["assay.collector.sqlite", "assay.collector.client", "assay.evaluators"])
def test_a_missing_extra_is_told_in_one_line(module):
    code = f"import sys; sys.modules.update(dict.fromkeys(['rich', 'zstandard', 'msgspec', 'httpx'])); import {module}"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False).stderr
    assert said.splitlines()[-1].startswith(f"ModuleNotFoundError: {module} needs ")
    assert said.endswith("which is not installed: pip install 'assay[server]'\n")
    assert "During handling" not in said
