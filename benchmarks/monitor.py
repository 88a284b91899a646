"""What the monitor does on live traffic, and what it costs: `spanwise serve --monitor` as its users start it.

    python benchmarks/monitor.py drain              # a stored backlog of 20,000 traces, a free evaluator: traces/s
    python benchmarks/monitor.py skipped            # the same, of which no trace is sampled: microseconds of CPU a trace
    python benchmarks/monitor.py live               # 1,000 spans/s of our SDK: from the end of a trace to its feedback
    python benchmarks/monitor.py judges             # a judge that takes 0.5 s, 32 at once: share of the ideal rate
    python benchmarks/monitor.py idle               # share of a core while nothing comes in
    python benchmarks/monitor.py memory             # memory of the monitor over 1,000,000 traces, 1 % of them sampled

Traces are those of `traffic.py`: five spans of a RAG application. Times are read from the store, in which a decision
bears the time of the commit that made it and its feedback visible.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from statistics import quantiles

from traffic import Traffic

from spanwise.collector.client import HTTPStore
from spanwise.collector.records import iterate_pages
from spanwise.collector.stores.sqlite import SQLiteStore

RULES = """
from spanwise.evaluators import Judge, evaluator, judge, monitor

@evaluator
def short(outputs) -> bool:
    return len(str(outputs)) < 500

@evaluator
def slow(outputs) -> bool:
    import time

    time.sleep(1)
    return True

"""
JUDGE = "judge('polite', 'Polite? {outputs}', judge=Judge(model='m', base_url=URL, api_key='k', concurrency=%d))"
COMMAND = [sys.executable, "-c", "from spanwise.cli import main; main()"]


class Served:
    """`spanwise serve --monitor rules.py` with all its processes."""

    def __init__(self, folder: Path, rule: str, url: str = "") -> None:
        rules = folder / "rules.py"
        rules.write_text(f"{RULES}URL = {url!r}\nmonitor('bench', project='bench', {rule})\n")
        self.log = (folder / "log.txt").open("w+")
        self.begun = time.perf_counter()
        self.process = subprocess.Popen(
            [*COMMAND, "serve", "--port", "0", "--store", str(folder / "spanwise.db"), "--monitor", str(rules)],
            stderr=self.log,
            cwd=folder,
        )
        self.url = until(self._address, 60)
        self.store = HTTPStore(self.url)

    def _address(self) -> str | None:
        self.log.seek(0)
        words = self.log.read().split()
        return next((word for word in words if word.startswith("http://127.0.0.1:")), None)

    def counts(self) -> dict[str, int]:
        """Targets of the rule by verdict."""
        return next((dict(rule.counts) for rule in self.store.status() if rule.rule.name == "bench"), {})

    def cpu_s(self) -> float:
        return sum(map(cpu_of, [self.process.pid, *descendants(self.process.pid)]))

    def monitor_mb(self) -> float:
        return sum(map(memory_of, descendants(self.process.pid)))

    def close(self) -> None:
        self.store.close()
        self.process.terminate()
        self.process.wait(30)
        self.log.close()


def ended(counts: dict[str, int]) -> int:
    """Targets that are done. Ends the benchmark where some have failed: what it would show is something else."""
    if failed := counts.get("failed"):
        raise SystemExit(f"{failed} targets failed")
    return counts.get("scored", 0)


def descendants(pid: int) -> list[int]:
    """All processes below one."""
    below: list[int] = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in map(int, (task / "children").read_text().split()):
            below += [child, *descendants(child)]
    return below


def cpu_of(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def memory_of(pid: int) -> float:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next((int(line.split()[1]) for line in lines if line.startswith("VmRSS")), 0) / 1024


def until(condition: Callable[[], object], seconds: float) -> object:
    """What a condition comes to, once it is true."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if value := condition():
            return value
        time.sleep(0.05)
    raise SystemExit(f"it did not come about in {seconds} s")


@contextmanager
def folder_with(traces: int) -> Iterator[Path]:
    """A folder with a store of so many traces (a multiple of 200), ended an hour ago at the latest."""
    with tempfile.TemporaryDirectory() as name:
        start = time.time_ns() - 3_600 * 10**9 - traces * 50_000_000
        with SQLiteStore(Path(name, "spanwise.db")) as store:
            for runs in Traffic(start_ns=start).requests(traces * 5, 1000):
                store.append(runs)
        with SQLiteStore(Path(name, "spanwise.db")) as store:  # the text index is no part of what is measured
            until(lambda: not store.stats()["waiting_for_text_index"], 300)
        yield Path(name)


def drain(traces: int, rate: float) -> None:
    """How fast a backlog is decided and scored."""
    with folder_with(traces) as folder:
        served = Served(folder, f"evaluators=[short], sample_rate={rate}, since='30d', quiet=0")
        wanted = {"scored"} if rate else {"sampled_out", "filtered"}
        begun = until(lambda: served.counts() and (time.perf_counter(), served.cpu_s()), 60)
        until(lambda: sum(served.counts().get(word, 0) for word in wanted) >= traces, 600)
        seconds, cpu = time.perf_counter() - begun[0], served.cpu_s() - begun[1]
        print(f"{traces} traces in {seconds:.1f} s: {traces / seconds:,.0f}/s, {cpu / traces * 1e6:.0f} µs of CPU each")
        print(f"from the start of the command: {traces / (time.perf_counter() - served.begun):,.0f}/s")
        served.close()


def live(seconds: float, spans: int) -> None:
    """From the end of a trace of our SDK to its feedback, at so many spans a second in traces of five."""
    with folder_with(0) as folder:
        served = Served(folder, "evaluators=[short]")
        until(served.counts, 60)
        sender = [sys.executable, __file__, "send", "--seconds", str(seconds), "--spans", str(spans)]
        environment = {**os.environ, "SPANWISE_URL": served.url, "SPANWISE_PROJECT": "bench"}
        sent = int(subprocess.run(sender, env=environment, check=True, capture_output=True, text=True).stdout)
        until(lambda: served.counts().get("scored", 0) >= sent, 60)
        end_of = {
            t.trace_id: t.start_ns + t.duration_ns
            for t in iterate_pages(lambda cursor: served.store.traces(cursor=cursor, limit=1000))
        }
        decisions = iterate_pages(lambda cursor: served.store.decisions(rule="bench", cursor=cursor))
        waits = [(it.updated_ns - end_of[it.target.trace_id]) / 1e9 for it in decisions]
        cuts = quantiles(waits, n=100)
        print(
            f"{sent} traces at {spans} spans/s: {len(waits)} scored; p50 {cuts[49]:.2f} s, p95 {cuts[94]:.2f} s, p99 {cuts[98]:.2f} s"
        )
        served.close()


def send(seconds: float, spans: int) -> None:
    """Traces of five spans at an even pace, by the SDK; prints how many."""
    from spanwise.tracer import flush, trace

    @trace
    def step(text: str) -> str:
        return text

    @trace
    def answer(question: str) -> str:
        for _ in range(4):
            step(question)
        return question

    traces, begun = int(seconds * spans / 5), time.perf_counter()
    for number in range(traces):
        time.sleep(max(0.0, begun + number * 5 / spans - time.perf_counter()))
        answer(f"question {number}")
    assert flush(30)
    print(traces)


def judges(calls: int, delay: float, concurrency: int) -> None:
    """The rate of a judge that takes its time, beside so many at once without a pause."""
    times: list[float] = []
    server = _JudgeServer(("127.0.0.1", 0), _judge(delay, times))
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    with folder_with(calls) as folder:
        url = f"http://127.0.0.1:{server.server_address[1]}/v1"
        served = Served(
            folder, f"evaluators=[{JUDGE % concurrency}], concurrency={concurrency}, since='30d', quiet=0", url
        )
        until(lambda: ended(served.counts()) >= calls, 600)
        rate, ideal = (len(times) - concurrency) / (times[-1] - times[concurrency]), concurrency / delay
        print(f"{len(times)} calls, {rate:.1f}/s of {ideal:.1f}/s: {rate / ideal:.0%} of the ideal rate")
        served.close()


class _JudgeServer(ThreadingHTTPServer):
    request_queue_size = 128  # with the default of 5, connections that begin at the same time are reset


def _judge(delay: float, times: list[float]) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            times.append(time.perf_counter())
            time.sleep(delay)
            content = json.dumps({"rationale": "It is.", "rating": "yes"})
            message = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": content}}
            usage = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}
            reply = {
                "id": "1",
                "object": "chat.completion",
                "created": 1,
                "model": "m",
                "choices": [message],
                "usage": usage,
            }
            body = json.dumps(reply).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args: object) -> None:
            """Say nothing."""

    return Handler


def idle(seconds: float) -> None:
    """CPU of the monitor's processes while nothing happens."""
    with folder_with(200) as folder:
        served = Served(folder, "evaluators=[short]")
        until(served.counts, 60)
        time.sleep(5)  # everything is loaded, and what was there is looked at
        below = descendants(served.process.pid)
        before, of_server = sum(map(cpu_of, below)), cpu_of(served.process.pid)
        time.sleep(seconds)
        share = (sum(map(cpu_of, below)) - before) / seconds
        print(f"monitor {share:.2%} of a core, server {(cpu_of(served.process.pid) - of_server) / seconds:.2%}")
        served.close()


def memory(traces: int) -> None:
    """Memory of the monitor while a backlog is decided, 1 % of it scored."""
    with folder_with(traces) as folder:
        served = Served(folder, "evaluators=[short], sample_rate=0.01, since='30d', quiet=0")
        seen, done = [], 0
        while done < traces:
            time.sleep(1)
            counts = served.counts()
            done = sum(counts.get(word, 0) for word in ("scored", "sampled_out", "filtered"))
            seen.append((done, served.monitor_mb()))
        marks = [next(mb for count, mb in seen if count >= traces * part / 10) for part in range(1, 11)]
        print("MB after each tenth: " + ", ".join(f"{mark:.0f}" for mark in marks))
        served.close()


def main() -> None:
    """Run what is named."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["drain", "skipped", "live", "judges", "idle", "memory", "send"])
    parser.add_argument("--traces", type=int)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--spans", type=int, default=1000)
    given = parser.parse_args()
    runs: dict[str, Callable[[], None]] = {
        "drain": lambda: drain(given.traces or 20_000, 1.0),
        "skipped": lambda: drain(given.traces or 100_000, 0.0),
        "live": lambda: live(given.seconds, given.spans),
        "judges": lambda: judges(given.traces or 1_000, 0.5, 32),
        "idle": lambda: idle(given.seconds),
        "memory": lambda: memory(given.traces or 1_000_000),
        "send": lambda: send(given.seconds, given.spans),
    }
    runs[given.what]()


if __name__ == "__main__":
    main()
