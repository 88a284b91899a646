"""How long the pages take through HTTP, over a store that `benchmarks/store.py --keep bench.db` has made.

python benchmarks/pages.py bench.db
"""

from __future__ import annotations

import argparse
import statistics
import time

import httpx

from assay.collector.protocols import Store
from assay.collector.server import Server
from assay.collector.sqlite import SQLiteStore


def main() -> None:
    options = _options()
    with SQLiteStore(options.path) as store, Server(store) as server, httpx.Client(base_url=server.url) as client:
        counts = store.count()
        print(f"{counts['spans']:,} spans, {counts['traces']:,} traces, {counts['feedbacks']:,} feedbacks")
        print(f"{'page':52} {'p50':>9} {'p95':>9} {'size':>8}")
        for address in _addresses(store):
            _measure(client, address, options.rounds)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("path", help="file of a store")
    parser.add_argument("--rounds", type=int, default=20, help="times that each page is asked for")
    return parser.parse_args()


def _addresses(store: Store) -> list[str]:
    newest = store.traces(limit=1).items[0]
    key = store.values("feedback")[0]
    word = newest.inputs.split()[0].strip('{":,}')
    found = [
        "/", f"/?name={newest.name}", "/?status=error", f"/?feedback_key={key}&feedback_op=%3C&feedback_value=0.2",
        f"/?feedback_key={key}&feedback_op=missing", f"/?text={word}", "/?range=24h", "/?range=7d",
        f"/traces/{newest.trace_id}", "/sessions", "/datasets", "/experiments",
        f"/charts?since={newest.start_ns - 3600 * 10**9}&until={newest.start_ns + 1}",
    ]  # fmt: skip
    return found + ([f"/sessions/{newest.session_id}"] if newest.session_id else [])


def _measure(client: httpx.Client, address: str, rounds: int) -> None:
    client.get(address).raise_for_status()
    took = []
    for _ in range(rounds):
        begun = time.perf_counter()
        answer = client.get(address)
        took.append(1e3 * (time.perf_counter() - begun))
    p95 = statistics.quantiles(took, n=20)[-1]
    size = len(answer.content) / 1024
    print(f"{address[:52]:52} {statistics.median(took):6.1f} ms {p95:6.1f} ms {size:5.0f} KB", flush=True)


if __name__ == "__main__":
    main()
