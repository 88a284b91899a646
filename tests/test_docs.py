"""Every Python block of the README and of the docs runs, page by page, in an empty directory beside a real server."""

import re
from pathlib import Path

import pytest

from assay.collector.server import Server
from assay.collector.stores.sqlite import SQLiteStore
from assay.tracer import _delivery, _runtime, _spool

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(page: Path) -> list[str]:
    """The page's blocks, each padded so that line numbers in a traceback are the page's."""
    text = page.read_text()
    return ["\n" * text[: found.start(1)].count("\n") + found[1] for found in BLOCK.finditer(text)]


@pytest.fixture
def server(tmp_path):
    store = SQLiteStore(tmp_path / "served.db")
    with Server(store) as server:
        yield server
    store.close()


# Pages made from the registry need no server: tests/cli/test_evaluators_and_feedback.py runs them.
MADE = {page for page in PAGES if page.parent.name == "evaluators" and page.name != "protocol.md"}


@pytest.mark.parametrize(
    "page", [page for page in PAGES if blocks(page) and page not in MADE], ids=lambda page: str(page.relative_to(ROOT))
)
def test_blocks_run(page, server, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ASSAY_URL", server.url)
    _runtime.replace(None)  # no page goes on with the set-ups, or what lies on disk, of what was before
    _delivery._live.clear()
    _spool.forget()
    namespace: dict[str, object] = {"__name__": "__docs__"}
    for block in blocks(page):
        exec(compile(block, str(page), "exec"), namespace)


def test_relative_links_lead_somewhere():
    links = [(page, link) for page in PAGES for link in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text())]
    assert [(page.name, link) for page, link in links if not (page.parent / link).exists()] == []


def test_files_that_the_house_names_are_there():
    folders = ("tracer", "collector", "evaluators", "cli", "tests")
    files = [path for folder in folders for path in (ROOT / folder).rglob("*.py")]
    named = set(re.findall(r"[\w/*]+\.py", (ROOT / "docs" / "house.md").read_text()))
    assert sorted(name for name in named if not any(path.match(name) for path in files)) == []
    assert "engine/_line.py" in named


def test_the_changelog_is_read_at_a_glance():
    bullets = re.findall(r"^- ((?:.+\n?)(?:  .+\n?)*)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert [bullet for bullet in bullets if len(bullet.split()) > 25] == []
    assert len(bullets) > 50
