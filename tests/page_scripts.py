"""The bundled scripts of the pages, for tests that need them: they are built once, if this machine has npm."""

import fcntl
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

import pytest

from spanwise.collector.pages.components import rendering

ROOT = Path(__file__).parent.parent
PAGES = ROOT / "collector/spanwise/collector/pages"


def require_scripts() -> None:
    """Build the scripts unless they are there, or skip the test if they cannot be built."""
    reason = build_once()
    if reason is not None:
        pytest.skip(f"the scripts of the pages cannot be built: {reason}")


@cache
def build_once() -> str | None:
    with (Path(tempfile.gettempdir()) / "spanwise-page-scripts.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # the processes of pytest-xdist build them once
        sources = [ROOT / "package-lock.json", *(PAGES / "scripts").iterdir()]
        built = list((PAGES / "bundle").glob("*.js"))
        if built and min(map(modified, built)) >= max(map(modified, sources)):
            return None
        npm = shutil.which("npm")
        if npm is None:
            return "there is no npm"
        for command in ([npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund"], [npm, "run", "build"]):
            done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
            if done.returncode:
                return done.stderr.strip()[:500]
    rendering.read_asset.cache_clear()
    rendering.get_versioned_url.cache_clear()
    return None


def modified(path: Path) -> float:
    return path.stat().st_mtime
