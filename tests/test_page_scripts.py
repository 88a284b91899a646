"""The build of the pages' scripts: the bundle, its licence texts and sizes, and wheels with and without it."""

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from page_scripts import PAGES, ROOT, require_scripts
from spanwise.collector.pages.components import rendering

BUNDLE = "spanwise/collector/pages/bundle/"


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A copy of what the build reads."""
    pytest.importorskip("hatchling")
    target = tmp_path / "checkout"
    shutil.copytree(PAGES, target / PAGES.relative_to(ROOT), ignore=shutil.ignore_patterns("bundle*", "__pycache__"))
    for package in ("tracer", "evaluators", "cli"):
        (target / package / "spanwise").mkdir(parents=True)
    for name in ("pyproject.toml", "hatch_build.py", "package.json", "package-lock.json", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, target)
    return target


def build_wheel(checkout: Path, **environment: str) -> tuple[zipfile.ZipFile, str]:
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", "dist"]
    done = subprocess.run(
        command, cwd=checkout, env={**os.environ, **environment}, capture_output=True, text=True, check=True
    )
    (wheel,) = (checkout / "dist").glob("*.whl")
    return zipfile.ZipFile(wheel), done.stderr


@pytest.mark.process
def test_a_wheel_has_the_scripts_and_the_licence_texts_of_their_packages(checkout):
    require_scripts()
    wheel, _ = build_wheel(checkout)
    files = {name.removeprefix(BUNDLE) for name in wheel.namelist() if name.startswith(BUNDLE)}
    assert files == {name for name, folder in rendering.ASSETS.items() if folder == "bundle"} | {"licenses.txt"}
    assert not [name for name in wheel.namelist() if name.endswith(".ts") or "node_modules" in name]


@pytest.mark.process
def test_without_npms_registry_the_wheel_is_built_with_one_warning(checkout, tmp_path):
    nowhere = {"npm_config_registry": "http://127.0.0.1:9", "npm_config_cache": str(tmp_path / "cache")}
    wheel, said = build_wheel(checkout, **nowhere)
    assert not [name for name in wheel.namelist() if name.startswith(BUNDLE)]
    assert said.count("The scripts of the pages were not built") == 1


@pytest.mark.process
def test_without_node_the_wheel_is_built_with_one_warning(checkout, tmp_path):
    wheel, said = build_wheel(checkout, PATH=str(tmp_path))
    assert not [name for name in wheel.namelist() if name.startswith(BUNDLE)]
    assert "there is no Node.js with npm" in said


@pytest.mark.process
def test_scripts_that_are_current_are_not_built_again(checkout, tmp_path):
    bundle = checkout / "collector/spanwise/collector/pages/bundle"
    bundle.mkdir()
    (bundle / "spanwise.js").write_text("already built")
    wheel, said = build_wheel(checkout, PATH=str(tmp_path))
    assert (wheel.read(f"{BUNDLE}spanwise.js"), said.count("not built")) == (b"already built", 0)


def test_the_lock_file_names_no_registry_and_no_package_is_committed():
    assert "resolved" not in (ROOT / "package-lock.json").read_text()
    ignored = subprocess.run(
        ["git", "check-ignore", "node_modules", str(PAGES / "bundle" / "spanwise.js")],
        cwd=ROOT,
        capture_output=True,
        check=False,
    )
    assert len(ignored.stdout.splitlines()) == 2
