"""The page on clusters: its example prints the same on a file and, with one line changed, on databases."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from collector.conftest import (  # noqa: F401  fixtures
    clickhouse_server,
    clickhouse_url,
    empty_database,
    postgres,
    reused_database,
)
from integration.serving import ROOT, environment

PAGE = (ROOT / "docs" / "scale-out.md").read_text()
EXAMPLE, EXPECTED = re.findall(r"^```(?:python|text)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)[:2]
[CLUSTER] = re.findall(r"<!-- cluster -->\n```python\n(.*?)\n```", PAGE)
[ON_FILE] = [line for line in EXAMPLE.splitlines() if line.startswith("store = connect(")]


def printed(code: str, folder: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=folder, env=environment(), capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.process
def test_the_example_runs_on_a_file(tmp_path: Path) -> None:
    assert printed(EXAMPLE, tmp_path) == EXPECTED


@pytest.mark.process
def test_the_example_runs_on_databases_with_one_line_changed(
    tmp_path: Path,
    clickhouse_url: str,  # noqa: F811
    empty_database: str,  # noqa: F811
) -> None:
    places = re.findall(r'"((?:clickhouse|postgresql)://[^"]+)"', CLUSTER)
    line = CLUSTER.replace(places[0], clickhouse_url).replace(places[1], empty_database)
    assert printed(EXAMPLE.replace(ON_FILE, line), tmp_path) == EXPECTED


def test_every_anchor_of_the_page_exists() -> None:
    headings = {
        re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-")
        for title in re.findall(r"^## (.+)$", PAGE, re.MULTILINE)
    }
    assert set(re.findall(r"\]\(#([\w-]+)\)", PAGE)) <= headings
