"""Sizes of the style sheet and scripts that each kind of page loads, compressed, against their budgets; and what pages
of large traces cost.

python benchmarks/pages.py --sizes --check
python benchmarks/pages.py --traces               CPU time and size of pages over 10,000 spans and values of 5 MB
"""

from __future__ import annotations

import argparse
import gc
import gzip
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from spanwise.collector.records import Document, Run, Usage

PAGES = Path(__file__).parent.parent / "collector/spanwise/collector/pages"
STYLE, EVERYWHERE = PAGES / "static/spanwise.css", PAGES / "bundle/spanwise.js"
# page → files that it loads, and their budget in KB (1,000 bytes)
PAGE_FILES = {
    "list": ((STYLE, EVERYWHERE), 35),
    "trace": ((STYLE, EVERYWHERE, PAGES / "bundle/trace.js"), 60),
    "overview": ((STYLE, EVERYWHERE, PAGES / "bundle/overview.css", PAGES / "bundle/overview.js"), 75),
}


def measure_sizes() -> list[tuple[str, float, float]]:
    """Return the page, its size in KB, and the budget, of each kind of page."""
    return [
        (page, sum(len(gzip.compress(path.read_bytes())) for path in paths) / 1_000, budget)
        for page, (paths, budget) in PAGE_FILES.items()
    ]


TRACE, VALUE, TEXT, CHAT = ("a" * 31 + str(number) for number in range(4))
SPANS, REPETITIONS = 10_000, 20
# page → path, headers
TRACE_PAGES: dict[str, tuple[str, dict[str, str]]] = {
    "trace of 10,000 spans": (f"/traces/{TRACE}", {}),
    "trace of 10,000 spans, a run far down": (f"/traces/{TRACE}?run=span-9000", {}),
    "click on a model call of 10,000 spans": (f"/traces/{TRACE}?run=span-9002", {"Spanwise-Part": "run"}),
    "JSON value of 5 MB": (f"/traces/{VALUE}", {}),
    "text of 5 MB": (f"/traces/{TEXT}", {}),
    "chat of 2,000 messages": (f"/traces/{CHAT}", {}),
    "session of 20 turns": ("/sessions/session", {}),
    "10,000 spans beside themselves": (f"/traces/compare?ids={TRACE},{TRACE}", {}),
}


def make_traces() -> Iterator[list[Run]]:
    """Yield the runs of an agent with 10,000 spans, large values, and a session, in batches."""
    start = 1_750_000_000 * 10**9

    def make_run(trace_id: str, number: int, **fields: object) -> Run:
        parent = {"parent_id": "span-0"} if number else {}
        begin = start + number * 1_000_000
        given = {"name": "step", "status": "ok", "start_ns": begin, "end_ns": begin + 900_000, **parent, **fields}
        return Run(trace_id=trace_id, span_id=f"span-{number}", **given)  # type: ignore[arg-type]

    documents = tuple(Document(f"passage {number} " * 40, f"d{number}", 0.5) for number in range(3))
    kinds: tuple[dict[str, object], ...] = (
        {"name": "search", "kind": "retriever", "documents": documents},
        {"name": "lookup", "kind": "tool"},
        {"name": "chat", "kind": "llm", "usage": Usage(900, 80), "cost": 0.002},
    )
    runs = [make_run(TRACE, 0, name="agent", kind="agent", inputs={"question": "What?"}, outputs="That. " * 50)]
    for number in range(1, SPANS):
        values = {"inputs": {"q": f"question {number} " * 30}, "outputs": "answer " * 60}
        runs.append(make_run(TRACE, number, **kinds[number % 3], **values))
    yield from (runs[first : first + 2_000] for first in range(0, SPANS, 2_000))
    items = [{"id": number, "text": f"value {number} " * 8, "deep": {"a": [number]}} for number in range(36_000)]
    chat = [
        {"role": ("user", "assistant")[number % 2], "content": f"message {number} " * 200} for number in range(2_000)
    ]
    yield [make_run(VALUE, 0, outputs={"items": items}), make_run(TEXT, 0, outputs="word " * 1_000_000)]
    yield [make_run(CHAT, 0, kind="llm", inputs=chat, outputs="ok")]
    answer = "# Answer\n\n" + "- **bold** `code`\n" * 50
    yield [make_run(f"{number:032x}", 0, session_id="session", inputs="Why?", outputs=answer) for number in range(20)]


def measure_traces() -> None:
    """Print CPU time of the whole process and size of each page, without a network between."""
    from fastapi.testclient import TestClient

    from spanwise.collector.api import create_app
    from spanwise.collector.stores.sqlite import SQLiteStore

    with tempfile.TemporaryDirectory() as folder, SQLiteStore(Path(folder) / "pages.db") as store:
        for runs in make_traces():
            store.append(runs)
        gc.collect()
        gc.freeze()
        gc.set_threshold(10_000)  # as `spanwise serve` does
        with TestClient(create_app(store)) as client:
            for name, (path, headers) in TRACE_PAGES.items():
                client.get(path, headers=headers)  # the first one fills caches
                times = []
                for _ in range(REPETITIONS):
                    begin = time.process_time()
                    answer = client.get(path, headers=headers)
                    times.append((time.process_time() - begin) * 1e3)
                    answer.raise_for_status()
                times.sort()
                size, packed = len(answer.content) / 1e3, len(gzip.compress(answer.content)) / 1e3
                p50, p95 = times[REPETITIONS // 2], times[int(REPETITIONS * 0.95) - 1]
                print(f"{name:40} CPU p50 {p50:4.0f} p95 {p95:4.0f} ms  {size:4.0f} KB, {packed:.0f} KB compressed")


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--sizes", action="store_true", help="only the sizes")
    arguments.add_argument("--check", action="store_true", help="fail if a budget is exceeded")
    arguments.add_argument("--traces", action="store_true", help="the pages of large traces")
    options = arguments.parse_args()
    if options.traces:
        measure_traces()
        return
    if not EVERYWHERE.exists():
        sys.exit("the scripts are not built: run `npm ci && npm run build` in the checkout")
    exceeded = False
    for name, value, budget in measure_sizes():
        exceeded |= value > budget
        print(f"{name}: CSS and JS {value:.1f} KB, budget {budget} KB{'  EXCEEDED' if value > budget else ''}")
    if options.check and exceeded:
        sys.exit(1)


if __name__ == "__main__":
    main()
