"""Pages in a browser, and what they load, against their budgets.

    python benchmarks/pages.py --sizes --check   # compressed style sheet and scripts by kind of page; needs no browser
    python benchmarks/pages.py --cpu             # CPU time and size of pages over 10,000 spans and values of 5 MB
    python benchmarks/pages.py                   # sizes, the tree of 10,000 and 100,000 spans, and live updates

Times are medians of `--rounds` new browser profiles; the server is a process of its own, as `spanwise serve` starts it.
"""

from __future__ import annotations

import argparse
import gc
import gzip
import random
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fastapi.testclient import TestClient
from playwright.sync_api import Browser, sync_playwright

from spanwise.collector import connect
from spanwise.collector.api import create_app
from spanwise.collector.records import Run, Usage
from spanwise.collector.stores.sqlite import SQLiteStore

PAGES = Path(__file__).parent.parent / "collector/spanwise/collector/pages"
STYLE, EVERYWHERE = PAGES / "static/spanwise.css", PAGES / "bundle/spanwise.js"
# page → files that it loads, and their budget in KB (1,000 bytes)
PAGE_FILES = {
    "list": ((STYLE, EVERYWHERE, PAGES / "bundle/list.js"), 35),
    "trace": ((STYLE, EVERYWHERE, PAGES / "bundle/trace.js"), 60),
    "overview": ((STYLE, EVERYWHERE, PAGES / "bundle/overview.css", PAGES / "bundle/overview.js"), 75),
}
TRACE, VALUE, TEXT, CHAT = ("a" * 31 + str(number) for number in range(4))
LARGE_SPANS, REQUESTS = 10_000, 20
WITH_SCRIPTS = {"Cookie": "spanwise-zone=UTC"}  # that the script of all pages sets at the first visit
# page → path, headers, budgets of CPU time in ms and of size in KB
LARGE_PAGES: dict[str, tuple[str, dict[str, str], float | None, float | None]] = {
    "10,000 spans: page": (f"/traces/{TRACE}", {}, None, None),
    "10,000 spans: page, browser with scripts": (f"/traces/{TRACE}", WITH_SCRIPTS, 100, 60),
    "10,000 spans: page, the last run selected": (f"/traces/{TRACE}?run={{last}}", {}, None, None),
    "10,000 spans: click on a run": (f"/traces/{TRACE}?run={{last}}", {"Spanwise-Part": "run"}, None, 30),
    "10,000 spans beside themselves": (f"/traces/compare?ids={TRACE},{TRACE}", {}, None, None),
    "JSON value of 5 MB": (f"/traces/{VALUE}", {}, 60, 60),
    "text of 5 MB": (f"/traces/{TEXT}", {}, 60, 60),
    "chat of 2,000 messages": (f"/traces/{CHAT}", {}, None, 60),
    "session of 20 turns": ("/sessions/session", {}, None, None),
}
KINDS = ("agent", "chain", "tool", "llm", "retriever")
ERROR_EVERY = 123  # every 123rd run has failed
CLICKED_ROWS = (3, 5, 7)  # row 7 has failed
CLICK = """async place => {
  const before = document.getElementById("detail"), begin = performance.now();
  document.querySelectorAll(".run-row")[place].click();
  while (document.getElementById("detail") === before) await new Promise(requestAnimationFrame);
  await new Promise(done => requestAnimationFrame(() => setTimeout(done)));
  return performance.now() - begin;
}"""
WATCH_ROWS = """new MutationObserver(() => {
  if (!window.rowsAt && document.querySelector(".run-row")) window.rowsAt = performance.now();
}).observe(document, { subtree: true, childList: true })"""


class Report:
    """Prints figures beside their budgets, and remembers whether one was exceeded."""

    exceeded = False

    def add(self, name: str, value: float, unit: str, budget: float | None = None) -> None:
        """Print one figure."""
        is_over = budget is not None and value > budget
        self.exceeded |= is_over
        limit = "" if budget is None else f"   budget {budget:,g}{'   EXCEEDED' if is_over else ''}"
        print(f"{name:<58} {value:>10,.1f} {unit:<5}{limit}", flush=True)


def measure_sizes(report: Report) -> None:
    """Report the compressed size of what each kind of page loads."""
    for page, (paths, budget) in PAGE_FILES.items():
        size = sum(len(gzip.compress(path.read_bytes())) for path in paths) / 1_000
        report.add(f"{page}: CSS and JS", size, "KB", budget)


def make_trace(trace_id: str, spans: int) -> list[Run]:
    """Return the runs of an agent with up to 12 levels of steps."""
    draw = random.Random(spans)
    begin = time.time_ns() - 600 * 10**9
    path, runs = list[str](), list[Run]()
    for n in range(spans):
        while len(path) > 1 and (len(path) >= 12 or draw.random() < 0.3):
            path.pop()
        is_failed, kind = n % ERROR_EVERY == 7, KINDS[len(path) % 5]
        start = begin + n * 1_000_000
        runs.append(
            Run(
                trace_id=trace_id,
                span_id=f"{draw.getrandbits(64):016x}",
                parent_id=path[-1] if path else None,
                name=f"step {n}" if n % 3 else f"tool {n % 17}",
                kind=kind,
                start_ns=start,
                end_ns=start + draw.randrange(10**5, 5 * 10**6) if n else begin + spans * 1_000_000,
                status="error" if is_failed else "ok",
                error="ValueError: no" if is_failed else None,
                inputs={"question": f"Where is parcel {n}?"},
                outputs={"answer": "In the depot. " * 20},
                usage=Usage(100, 20) if kind == "llm" else None,
                cost=0.0001 if kind == "llm" else None,
            )
        )
        path.append(runs[-1].span_id)
    return runs


def make_large_values() -> list[Run]:
    """Return roots with values of 5 MB, a long chat, and the turns of a session."""
    items = [{"id": number, "text": f"value {number} " * 8, "deep": {"a": [number]}} for number in range(36_000)]
    roles = ("user", "assistant")
    chat = [{"role": roles[number % 2], "content": f"message {number} " * 200} for number in range(2_000)]
    answer = "# Answer\n\n" + "- **bold** `code`\n" * 50
    turn = {"session_id": "session", "inputs": "Why?", "outputs": answer}
    fields: list[tuple[str, dict[str, Any]]] = [
        (VALUE, {"outputs": {"items": items}}),
        (TEXT, {"outputs": "word " * 1_000_000}),
        (CHAT, {"kind": "llm", "inputs": chat, "outputs": "ok"}),
        *((f"{number:032x}", turn) for number in range(1, 21)),
    ]
    times = {"start_ns": time.time_ns() - 10**9, "end_ns": time.time_ns()}
    return [Run(trace_id=id, span_id="1" * 16, name="answer", status="ok", **times, **given) for id, given in fields]


def measure_cpu(report: Report) -> None:
    """Report CPU time (p95) and size of pages of large traces, served in this process without a network between."""
    with tempfile.TemporaryDirectory() as folder, SQLiteStore(Path(folder) / "spanwise.db") as store:
        runs = make_trace(TRACE, LARGE_SPANS)
        for n in range(0, LARGE_SPANS, 5_000):
            store.append(runs[n : n + 5_000])
        last = runs[-1].span_id
        del runs
        store.append(make_large_values())
        gc.collect()
        gc.freeze()
        gc.set_threshold(10_000)  # as `spanwise serve` does
        with TestClient(create_app(store), headers={"Accept-Encoding": "identity"}) as client:
            for name, (path, headers, most_ms, most_kb) in LARGE_PAGES.items():
                times = []
                for _ in range(REQUESTS + 1):
                    begin = time.process_time()
                    answer = client.get(path.format(last=last), headers=headers)
                    times.append((time.process_time() - begin) * 1e3)
                    answer.raise_for_status()
                times = sorted(times[1:])  # the first one fills caches
                report.add(f"{name}: CPU p95", times[int(REQUESTS * 0.95) - 1], "ms", most_ms)
                report.add(f"{name}: size", len(answer.content) / 1e3, "KB", most_kb)


@contextmanager
def serve(store: Path) -> Iterator[str]:
    """Run `spanwise serve` over a file; yields its address."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "spanwise", "serve", "--store", str(store), "--port", str(port), "--no-grpc"]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    url = f"http://127.0.0.1:{port}"
    try:
        for _ in range(200):
            try:
                urllib.request.urlopen(f"{url}/settings").close()
                break
            except OSError:
                time.sleep(0.1)
        yield url
    finally:
        process.terminate()
        process.wait()


def measure_tree(browser: Browser, url: str, rounds: int, report: Report, name: str, is_budgeted: bool) -> None:
    """Report how long a trace page takes to its first paint and until all rows can be reached, and a click on a run."""
    paints, rows, clicks, errors = list[float](), list[float](), list[float](), list[float]()
    nodes = bytes_ = 0.0
    for _ in range(rounds):
        context = browser.new_context(viewport={"width": 1440, "height": 900})
        page = context.new_page()
        page.add_init_script(WATCH_ROWS)
        page.goto(url)
        page.locator(".run-row").first.wait_for(timeout=120_000)
        paints.append(page.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime"))
        rows.append(page.evaluate("window.rowsAt"))
        nodes = max(nodes, page.evaluate("document.querySelectorAll('*').length"))
        for place in CLICKED_ROWS:
            with page.expect_response(lambda answer: "?run=" in answer.url and "/tree" not in answer.url) as answer:
                (errors if place == CLICKED_ROWS[-1] else clicks).append(page.evaluate(CLICK, place))
            sizes = answer.value.request.sizes()
            bytes_ = max(bytes_, sizes["responseBodySize"] + sizes["responseHeadersSize"])
        context.close()
    limit = (lambda value: value) if is_budgeted else (lambda value: None)
    report.add(f"{name}: first paint", statistics.median(paints), "ms", limit(400))
    report.add(f"{name}: all runs can be reached", statistics.median(rows), "ms", limit(600))
    report.add(f"{name}: elements", nodes, "", limit(1_500))
    report.add(f"{name}: click on a run, until it is drawn", statistics.median(clicks), "ms", limit(100))
    report.add(f"{name}: click on a failed run, until it is drawn", statistics.median(errors), "ms", limit(100))
    report.add(f"{name}: click on a run, transferred", bytes_ / 1_000, "KB", limit(30))


def measure_live(url: str, seconds: float, report: Report) -> None:
    """Report what a viewer of the list receives while nothing happens, and for 12 new traces."""
    host, port = url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=5) as connection:
        connection.sendall(f"GET /live HTTP/1.1\r\nHost: {host}:{port}\r\n\r\n".encode())
        received, end = 0, time.monotonic() + seconds
        while time.monotonic() < end:
            try:
                received += len(connection.recv(65_536))
            except TimeoutError:
                continue
    report.add("live: nothing new, with the head of the answer", received * 60 / seconds / 1_000, "KB/m", 1)
    with connect(url) as store:
        for n in range(12):
            store.append(make_trace(f"{n + 1:032x}", 5))
    request = urllib.request.Request(f"{url}/traces", headers={"Accept-Encoding": "gzip"})
    with urllib.request.urlopen(request) as answer:
        report.add("live: 12 new rows", len(answer.read()) / 1_000, "KB", 30)


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--sizes", action="store_true", help="only the sizes of style sheet and scripts")
    arguments.add_argument("--check", action="store_true", help="fail if a budget is exceeded")
    arguments.add_argument("--rounds", type=int, default=7, help="browser profiles per trace (7)")
    arguments.add_argument("--quiet", type=float, default=60, help="seconds in which nothing happens (60)")
    arguments.add_argument("--cpu", action="store_true", help="only CPU time and size of pages of large traces")
    options = arguments.parse_args()
    if not EVERYWHERE.exists():
        sys.exit("the scripts are not built: run `npm ci && npm run build` in the checkout")
    report = Report()
    if options.cpu:
        measure_cpu(report)
    else:
        measure_sizes(report)
    if not (options.sizes or options.cpu):
        with tempfile.TemporaryDirectory() as folder, serve(Path(folder) / "spanwise.db") as url:
            with connect(url) as store:
                for trace_id, spans in (("a" * 32, 10_000), ("b" * 32, 100_000)):
                    runs = make_trace(trace_id, spans)
                    for n in range(0, spans, 5_000):
                        store.append(runs[n : n + 5_000])
            with sync_playwright() as playwright:
                flags = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
                browser = playwright.chromium.launch(executable_path="/usr/bin/chromium", args=flags)
                measure_tree(browser, f"{url}/traces/{'a' * 32}", options.rounds, report, "10,000 spans", True)
                measure_tree(browser, f"{url}/traces/{'b' * 32}", 3, report, "100,000 spans", False)
                browser.close()
            measure_live(url, options.quiet, report)
    if options.check and report.exceeded:
        sys.exit(1)


if __name__ == "__main__":
    main()
