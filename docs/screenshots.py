"""Takes the pictures in docs/images from the demo, as it is on this machine: `python docs/screenshots.py`.

Needs Chromium, `spanwise[all]` and playwright. The fonts are this machine's.
"""

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Literal

from playwright.sync_api import ViewportSize, sync_playwright

from spanwise.collector.server import Server
from spanwise.collector.stores import Store
from spanwise.collector.stores.sqlite import SQLiteStore

IMAGES = Path(__file__).parent / "images"
SIZE: ViewportSize = {"width": 1280, "height": 800}
SECOND = 10**9
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]


def main() -> None:
    """Run the demo into a new file, and look at it."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "spanwise-demo.db"
        demo = "import sys; from spanwise.cli import main; sys.argv[0] = 'spanwise'; main()"
        command = [sys.executable, "-c", demo, "demo", "--no-serve", "--port", "0", "--store", str(path)]
        subprocess.run(command, check=True)
        with SQLiteStore(path) as store, Server(store) as server:
            shoot(server.url, addresses(store))


def addresses(store: Store) -> dict[str, str]:
    """The pages worth a picture, by the name of its file."""
    newer, older = store.experiments(limit=2)
    live = store.traces(experiment="", limit=1000).items
    trace = store.trace(store.traces(experiment=newer.id, limit=1).items[0].trace_id)
    retriever = next(run for run in trace.runs if run.kind == "retriever")
    return {
        "overview": f"/?since={live[-1].start_ns // SECOND * SECOND}&until={(live[0].start_ns // SECOND + 1) * SECOND}",
        "traces": "/traces?traffic=all",
        "trace": f"/traces/{trace.trace_id}?run={retriever.span_id}",
        "rules": "/rules",
        "compare": f"/compare?ids={older.id},{newer.id}",
        "compare-dark": f"/compare?ids={older.id},{newer.id}",
    }


def scheme(name: str) -> Literal["light", "dark"]:
    """Light, unless the name says otherwise."""
    return "dark" if name.endswith("-dark") else "light"


def shoot(base: str, pages: dict[str, str]) -> None:
    """One picture each."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=FLAGS)
        for name, address in pages.items():
            page = browser.new_context(viewport=SIZE, color_scheme=scheme(name), device_scale_factor=1.5).new_page()
            page.goto(base + address)
            page.screenshot(path=IMAGES / f"{name}.png")
            print(f"{(IMAGES / f'{name}.png').stat().st_size / 1024:6.0f} KB  {name}.png")
        browser.close()


if __name__ == "__main__":
    main()
