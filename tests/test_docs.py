"""Every Python block of the README and of the docs runs, page by page, in an empty directory beside a real server.

A block that begins with the name of a file, as `# rules.py`, becomes that file instead. Lines of a shell block below
`<!-- run -->` are run as well; one that ends with `&` goes on until the page has ended.
"""

import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from typer.testing import CliRunner

from integration.serving import COMMAND
from spanwise.cli.app import app
from spanwise.collector.server import Server
from spanwise.collector.stores.sqlite import SQLiteStore
from spanwise.tracer import process_runtime
from spanwise.tracer.export import delivery_lifecycle, disk_spool

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"
PAGES = [README, *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^(?:```python|<!-- run -->\n```sh)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FILE = re.compile(r"\s*# (\w+\.py)\n")
LONGEST = 300  # seconds for a page


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
# Recipes set up whole processes: tests/test_recipes.py runs each in one of its own.
MADE |= {page for page in PAGES if page.parent.name == "senders"}
# The example of this page runs on a file and on databases: tests/test_scale_out.py
MADE |= {ROOT / "docs" / "scale-out.md"}


MARKS = {
    ROOT / "docs" / "monitoring.md": pytest.mark.slow,  # processes begin, and read a file again
    ROOT / "docs" / "alerts.md": pytest.mark.process,
    ROOT / "docs" / "analysis.md": pytest.mark.process,
    ROOT / "docs" / "comparison.md": pytest.mark.process,
    ROOT / "docs" / "evaluate.md": pytest.mark.process,
    ROOT / "docs" / "gates.md": pytest.mark.process,
    ROOT / "docs" / "judges.md": pytest.mark.process,
    ROOT / "docs" / "mcp.md": pytest.mark.process,
    ROOT / "docs" / "importers.md": pytest.mark.process,
}


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, id=str(page.relative_to(ROOT)), marks=MARKS.get(page, ()))
        for page in PAGES
        if blocks(page) and page not in MADE
    ],
)
def test_blocks_run(page, server, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SPANWISE_URL", server.url)
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # others only take time in a pytest that a page runs
    monkeypatch.setenv("PYTEST_PLUGINS", "spanwise.cli.pytest_plugin")
    process_runtime.replace_runtime(None)  # no page goes on with the set-ups, or what lies on disk, of what was before
    delivery_lifecycle._live.clear()
    disk_spool.forget_after_fork()
    namespace: dict[str, object] = {"__name__": "__docs__"}
    with ExitStack() as stack, no_longer_than(LONGEST):
        for block in blocks(page):
            if commands := re.findall(r"^spanwise .*", block, re.MULTILINE):
                for command in commands:
                    shell(command, stack)
            elif named := FILE.match(block):
                Path(named[1]).write_text(block)
            else:
                exec(compile(block, str(page), "exec"), namespace)


def shell(command: str, stack: ExitStack) -> None:
    """Run a line with this Python's `spanwise`, in this process unless it goes on."""
    words = shlex.split(command.removesuffix("&"))[1:]
    if not command.endswith("&"):
        done = CliRunner().invoke(app, words)
        assert done.exit_code == 0, done.output
        return
    running = subprocess.Popen([*COMMAND, *words], env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)})
    stack.callback(running.wait)
    stack.callback(running.terminate)


@contextmanager
def no_longer_than(seconds: int) -> Iterator[None]:
    """A page that waits for ever fails."""

    def fail(*_: object) -> None:
        raise TimeoutError(f"the page has not ended after {seconds} s")

    before: Callable[..., object] | int | None = signal.signal(signal.SIGALRM, fail)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def test_relative_links_lead_somewhere():
    links = [(page, link) for page in PAGES for link in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text())]
    assert [(page.name, link) for page, link in links if not (page.parent / link).exists()] == []


def test_files_that_the_architecture_page_names_exist():
    folders = ("tracer", "collector", "evaluators", "cli", "tests", "benchmarks", "docs")
    files = [path for folder in folders for path in (ROOT / folder).rglob("*.py")]
    named = set(re.findall(r"[\w/*]+\.py", (ROOT / "docs" / "architecture.md").read_text()))
    assert sorted(name for name in named if not any(path.match(name) for path in files)) == []
    assert "experiment_runner.py" in named


def test_the_architecture_page_is_short():
    assert len((ROOT / "docs" / "architecture.md").read_text().split()) <= 1_000


def test_the_readme_is_short():
    lines = (ROOT / "README.md").read_text().splitlines()
    assert len(lines) <= 150
    assert [line for line in lines if len(line) > 100] == []


@pytest.mark.process
def test_each_block_of_the_readme_runs_alone_and_prints_what_it_shows(tmp_path):
    pairs = re.findall(r"^```python\n(.*?)^```\n\n```text\n(.*?)^```$", README.read_text(), re.MULTILINE | re.DOTALL)
    assert len(pairs) == len(blocks(README)) == 3
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "SPANWISE_URL": ""}
    for number, (code, shown) in enumerate(pairs):
        folder = tmp_path / str(number)
        folder.mkdir()
        done = subprocess.run([sys.executable, "-c", code], cwd=folder, env=env, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert without_times(done.stdout) == without_times(shown)


def without_times(text: str) -> str:
    """Return the text without durations and indentation."""
    return re.sub(r"[\d.]+ ms", "… ms", "\n".join(map(str.strip, text.strip().splitlines())))


def test_the_changelog_is_read_at_a_glance():
    bullets = re.findall(r"^- ((?:.+\n?)(?:  .+\n?)*)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert [bullet for bullet in bullets if len(bullet.split()) > 25] == []
    assert len(bullets) > 50
