"""Recipes of docs/senders run as they stand, each in a process of its own, beside a collector and a scripted model.

A page names what it needs in `<!-- needs module module -->`, and is skipped where that is not installed. Those of
JavaScript run where SPANWISE_TEST_NODE names a folder with their `node_modules`.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from fixtures.dialects.capture import Model
from spanwise.collector.records import Run
from spanwise.collector.server import Server
from spanwise.collector.stores.sqlite import SQLiteStore

SENDERS = Path(__file__).parent.parent / "docs" / "senders"
NEEDS = re.compile(r"<!-- needs ([\w. ]+) -->")
PYTHON, JAVASCRIPT = (re.compile(rf"^```{fence}\n(.*?)^```$", re.MULTILINE | re.DOTALL) for fence in ("python", "js"))
PAGES = [page for page in sorted(SENDERS.glob("*.md")) if PYTHON.search(page.read_text())]
LONGEST = 240  # seconds


def missing(module: str) -> bool:
    try:
        return find_spec(module) is None
    except ModuleNotFoundError:  # a package above it
        return True


def environment(server: Server, model: Model) -> dict[str, str]:
    at = {"SPANWISE_URL": server.url, "OTEL_EXPORTER_OTLP_ENDPOINT": server.url}
    return {**os.environ, **at, "OPENAI_BASE_URL": model.url, "OPENAI_API_KEY": "none", "DO_NOT_TRACK": "1"}


def run_there(command: list[str], folder: Path) -> list[Run]:
    """What a program has sent, all runs."""
    with SQLiteStore(folder / "a.db") as store, Server(store) as server, Model() as model:
        done = subprocess.run(
            command, cwd=folder, env=environment(server, model), timeout=LONGEST, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr[-3000:]
        return [run for trace in store.each() for run in store.trace(trace.trace_id).runs]


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_recipe(page, tmp_path):
    text = page.read_text()
    needed = [module for found in NEEDS.findall(text) for module in found.split()]
    if absent := [module for module in needed if missing(module)]:
        pytest.skip(f"needs {', '.join(absent)}")
    (tmp_path / "recipe.py").write_text("\n".join(PYTHON.findall(text)))
    runs = run_there([sys.executable, "recipe.py"], tmp_path)
    assert [run for run in runs if run.inputs is not None and run.outputs is not None and not run.error]
    if "gpt-4o-mini" in text:  # the model answers one question with 30 tokens, and they are counted once
        calls = [run for run in runs if run.usage and run.model == "gpt-4o-mini"]
        assert [run.usage.total_tokens for run in calls if run.usage] == [30]
    if "conversation-7" in text:
        assert "conversation-7" in {run.session_id for run in runs}


@pytest.mark.slow
def test_recipe_for_javascript(tmp_path):
    folder = os.environ.get("SPANWISE_TEST_NODE")
    if folder is None or shutil.which("node") is None:
        pytest.skip("needs node, and a folder of packages in SPANWISE_TEST_NODE")
    (program,) = JAVASCRIPT.findall((SENDERS / "vercel-ai-sdk.md").read_text())
    (tmp_path / "recipe.mjs").write_text(program)
    (tmp_path / "node_modules").symlink_to(Path(folder) / "node_modules")
    runs = run_there(["node", "recipe.mjs"], tmp_path)
    assert {(run.session_id, run.user_id, run.tags) for run in runs} == {("conversation-7", "u-42", ("beta",))}
    assert [run.usage.total_tokens for run in runs if run.usage] == [30]
