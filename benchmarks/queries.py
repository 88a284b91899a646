"""How long queries and pages take through HTTP, on one kept connection to `spanwise serve` over a large file.

python benchmarks/store.py --spans 1000000 --keep big.db    make the file (some minutes)
python benchmarks/queries.py big.db                         the API; with --pages the pages, too
python benchmarks/queries.py big.db --only text             those whose name has "text" in it
python benchmarks/queries.py big.db --busy 10               what is cheap, while ten ask for aggregates over everything
python benchmarks/queries.py big.db --large                 a trace of 20,000 spans, added to the file: by pages, and how
                                                            long others wait while it and other large answers are given

Every question is asked with other arguments each time: names, ids, words, thresholds, moments and pages are drawn at
random. The budget is for the 95th percentile.
"""

from __future__ import annotations

import argparse
import http.client
import json
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from ingest import Collector
from traffic import MODELS, NAMES, Traffic

from spanwise.collector.records import Run
from spanwise.collector.stores.sqlite import SQLiteStore

HOUR = 3600 * 10**9
BUDGET, TEXT_BUDGET = 50.0, 150.0  # milliseconds
LONGEST = 8.0  # seconds for one question in all its forms
PAGES = 20  # how far a list is followed


class Connection:
    """One connection that is kept; answers as they come."""

    def __init__(self, port: int) -> None:
        self._http = http.client.HTTPConnection("127.0.0.1", port)

    def get(self, address: str) -> bytes:
        self._http.request("GET", address)
        answer = self._http.getresponse()
        body = answer.read()
        assert answer.status == 200 or b'"TooSlow"' in body[:100], (address, answer.status, body[:300])
        return body

    def json(self, path: str, **params: Any) -> Any:
        return json.loads(self.get(_address(path, **params)))


def _address(path: str, **params: Any) -> str:
    return f"{path}?{urlencode(params)}"


class Questions:
    """Addresses with arguments drawn at random from what the file holds."""

    def __init__(self, connection: Connection, seed: int) -> None:
        self._ask, self._pick = connection, random.Random(seed)
        [whole] = connection.json("/api/aggregate")
        self._first, self._last = whole["start_ns"], whole["start_ns"] + whole["width_ns"]
        self._words = [word for word in Traffic().words if len(word) > 3]
        self._cursors: dict[str, list[str]] = {}
        self._found = [one for _ in range(40) for one in self._some()]

    def _some(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self._ask.json("/api/traces", until_ns=self._moment(), limit=20)["items"]
        return found

    def _moment(self) -> int:
        return self._pick.randrange(self._first + HOUR, self._last)

    def _within(self, hours: float) -> dict[str, int]:
        since = self._moment()
        return {"since_ns": since, "until_ns": since + int(hours * HOUR)}

    def _trace(self) -> dict[str, Any]:
        return self._pick.choice(self._found)

    def _page(self, path: str, **params: Any) -> str:
        """One of the first pages of a list, its cursors having been followed before the clock runs."""
        key = _address(path, **params)
        if key not in self._cursors:
            self._cursors[key] = list(self._follow(path, params))
        cursor = self._pick.choice(["", *self._cursors[key]])
        return _address(path, **params, **({"cursor": cursor} if cursor else {}))

    def _follow(self, path: str, params: dict[str, Any]) -> Iterator[str]:
        cursor = self._ask.json(path, **params)["next"]
        for _ in range(PAGES):
            if cursor is None:
                return
            yield cursor
            cursor = self._ask.json(path, **params, cursor=cursor)["next"]

    def _rare(self) -> str:
        return self._pick.choice(self._words[-500:])

    def _frequent(self) -> str:
        return self._pick.choice(self._words[:20])

    def api(self) -> dict[str, Callable[[], str]]:
        """Name of a question: makes its next address."""
        pick, traces = self._pick, "/api/traces"
        days = (self._last - self._first) // (24 * HOUR) + 1
        return {
            "latest 50": lambda: _address(traces, limit=50),
            "latest 50: a page of the first 20": lambda: self._page(traces, limit=50),
            "latest 50 before a moment": lambda: _address(traces, limit=50, until_ns=self._moment()),
            "a project's latest 50 before a moment": lambda: _address(traces, project="bench", until_ns=self._moment()),
            "name": lambda: self._page(traces, name=pick.choice(NAMES)),
            "name and an hour": lambda: _address(traces, name=pick.choice(NAMES), **self._within(1)),
            "name and two days": lambda: _address(traces, name=pick.choice(NAMES), **self._within(48)),
            "feedback < 0.5": lambda: self._page(traces, feedback="concise<0.5"),
            "feedback < any threshold": lambda: _address(traces, feedback=f"concise<{10 ** pick.uniform(-4, 0):.6f}"),
            "feedback < any, before a moment": lambda: _address(
                traces, feedback=f"concise<{10 ** pick.uniform(-4, 0):.6f}", until_ns=self._moment()
            ),
            "feedback < any, of a name": lambda: _address(
                traces, feedback=f"concise<{10 ** pick.uniform(-4, 0):.6f}", name=pick.choice(NAMES)
            ),
            "two feedbacks": lambda: (
                _address(traces)
                + quote(f"feedback=concise<{pick.random():.3f}", safe="=")
                + "&"
                + quote(f"feedback=correct>{pick.random():.3f}", safe="=")
            ),
            "feedback missing": lambda: self._page(traces, missing="correct"),
            "feedback failed": lambda: self._page(traces, failed="correct"),
            "feedback skipped, before a moment": lambda: _address(traces, skipped="correct", until_ns=self._moment()),
            "one trace with its spans": lambda: f"{traces}/{self._trace()['trace_id']}",
            "text: one trace's own word": lambda: _address(traces, text=self._trace()["inputs"][-16:-1]),
            "text: a rare word": lambda: _address(traces, text=self._rare()),
            "text: a frequent word": lambda: self._page(traces, text=self._frequent()),
            "text: frequent and rare": lambda: _address(traces, text=f"{self._frequent()} {self._rare()}"),
            "text: three words": lambda: _address(traces, text=" ".join(pick.sample(self._words[:2000], 3))),
            "text: a beginning": lambda: _address(traces, text=f"{self._rare()[:4]}*"),
            "text: a phrase": lambda: _address(traces, text=f'"{self._trace()["inputs"][:20].rpartition(" ")[0]}"'),
            "text: absent": lambda: _address(traces, text=f"absent{pick.random()}"),
            "text: frequent, before a moment": lambda: _address(traces, text=self._frequent(), until_ns=self._moment()),
            "text: rare, of a name and a day": lambda: _address(
                traces, text=self._rare(), name=pick.choice(NAMES), **self._within(24)
            ),
            "text: frequent, feedback below": lambda: _address(
                traces, text=self._frequent(), feedback=f"concise<{10 ** pick.uniform(-4, 0):.6f}"
            ),
            "of a session": lambda: _address(traces, session=self._trace()["session_id"]),
            "of a user, with an error": lambda: _address(traces, user=self._trace()["user_id"], status="error"),
            "an error's words": lambda: _address(traces, error="timed out", until_ns=self._moment()),
            "slow ones": lambda: _address(traces, latency_ms=f">{pick.randrange(2400, 3399)}"),
            "slowest ones": lambda: _address(traces, latency_ms=">3397"),
            "many tokens": lambda: _address(traces, tokens=f">{pick.randrange(400, 625)}"),
            "any run's model, before a moment": lambda: _address(
                traces, model=pick.choice(MODELS), until_ns=self._moment()
            ),
            "metadata": lambda: _address(traces, metadata=f"tenant:t{pick.randrange(20)}"),
            "sorted: a day": lambda: _address(
                traces, sort=pick.choice(("-latency_ms", "cost", "errors", "-feedback.concise")), **self._within(24)
            ),
            "sorted: a page": lambda: self._page(traces, sort="-latency_ms"),
            "sessions": lambda: self._page("/api/sessions", limit=50),
            "sessions of a day": lambda: _address("/api/sessions", limit=50, **self._within(24)),
            "sessions of a user": lambda: _address("/api/sessions", user=self._trace()["user_id"]),
            "feedback, newest": lambda: self._page("/api/feedback", limit=100),
            "feedback of a key and a day": lambda: _address(
                "/api/feedback", key="correct", limit=100, **self._within(24)
            ),
            "aggregate: a day by hour": lambda: _address("/api/aggregate", bucket_ns=HOUR, **self._within(24)),
            "aggregate: a day by name": lambda: _address("/api/aggregate", group_by="name", **self._within(24)),
            "aggregate: a day by model": lambda: _address("/api/aggregate", group_by="model", **self._within(24)),
            "aggregate: a day by quarter of an hour": lambda: _address(
                "/api/aggregate", bucket_ns=HOUR // 4, **self._within(24)
            ),
            "aggregate: all": lambda: _address("/api/aggregate"),
            "aggregate: all before a moment": lambda: _address("/api/aggregate", until_ns=self._moment()),
            "aggregate: all since a moment, by 12 hours": lambda: _address(
                "/api/aggregate", bucket_ns=12 * HOUR, since_ns=self._moment()
            ),
            **{
                f"aggregate: all by {group}": partial(_address, "/api/aggregate", group_by=group)
                for group in ("project", "environment", "name", "model", "experiment")
            },
            **{
                f"aggregate: newest 10,000 by {group}": partial(_address, "/api/aggregate", group_by=group)
                for group in ("user", "session")
            },
            "aggregate: a model's newest 10,000, by day": lambda: _address(
                "/api/aggregate", bucket_ns=24 * HOUR, model=pick.choice(MODELS)
            ),
            f"aggregate: {days} days by hour": lambda: _address("/api/aggregate", bucket_ns=HOUR),
            f"aggregate: {days} days by 12 hours": lambda: _address("/api/aggregate", bucket_ns=12 * HOUR),
            f"aggregate: {days} days by day": lambda: _address("/api/aggregate", bucket_ns=24 * HOUR),
            **{
                f"aggregate: {days} days by {length} and {group}": partial(
                    _address, "/api/aggregate", bucket_ns=width, group_by=group
                )
                for length, width in (("hour", HOUR), ("day", 24 * HOUR))
                for group in ("name", "model")
            },
            f"aggregate: a name's {days} days": lambda: _address(
                "/api/aggregate", bucket_ns=24 * HOUR, name=pick.choice(NAMES)
            ),
            "menu": lambda: f"/api/values/{pick.choice(['name', 'model', 'session', 'user', 'feedback', 'project'])}",
            "counts": lambda: "/api/count",
        }

    def rare(self) -> dict[str, Callable[[], str]]:
        """Conditions that no trace, or hardly any, passes: nothing ends the search early."""
        pick, traces = self._pick, "/api/traces"
        absent = lambda: f"absent{pick.random()}"  # noqa: E731
        return {
            "rare: environment": lambda: _address(traces, environment=absent()),
            "rare: kind": lambda: _address(traces, kind=absent()),
            "rare: any run's kind": lambda: _address(traces, any_kind=absent()),
            "rare: any run's name": lambda: _address(traces, any_name=absent()),
            "rare: model": lambda: _address(traces, model=absent()),
            "rare: tag": lambda: _address(traces, tags=absent()),
            "rare: metadata, a value": lambda: _address(traces, metadata=f"tenant:{absent()}"),
            "rare: metadata, a number": lambda: _address(traces, metadata=f"tenant:{pick.randrange(1000)}"),
            "rare: metadata, a key": lambda: _address(traces, metadata=f"{absent()}:t3"),
            "rare: latency": lambda: _address(traces, latency_ms=f">{10_000 + pick.random()}"),
            "rare: tokens": lambda: _address(traces, tokens=f">{10**6 + pick.randrange(1000)}"),
            "rare: cost": lambda: _address(traces, cost=f">{10**6 + pick.random()}"),
            "rare: not complete": lambda: _address(traces, complete="false", until_ns=self._moment()),
            "rare: two feedbacks that contradict": lambda: (
                _address(traces) + quote("feedback=concise<0.3&feedback=concise>0.7", safe="=&")
            ),
            "rare: two feedbacks, of all traces": lambda: (
                _address(traces) + quote("feedback=concise<0.5&feedback=concise>0.5", safe="=&")
            ),
            "rare: feedback's label": lambda: _address(traces, feedback=f"concise={absent()}"),
            "rare: missing what all have": lambda: _address(traces, missing="concise"),
            "rare: feedback of a name": lambda: _address("/api/feedback", name=pick.choice(NAMES), limit=100),
            "rare: feedback of a key": lambda: _address("/api/feedback", key=absent(), limit=100),
            "rare: text, three letters": lambda: _address(traces, text=f"{self._rare()[:3]}*"),
            "rare: text and latency": lambda: _address(
                traces, text=self._frequent(), latency_ms=f">{10_000 + pick.random()}"
            ),
            "rare: text and environment": lambda: _address(traces, text=self._frequent(), environment=absent()),
        }

    def pages(self) -> dict[str, Callable[[], str]]:
        """The same for pages."""
        pick = self._pick
        since = lambda hours: {key[:-3]: value for key, value in self._within(hours).items()}  # noqa: E731
        return {
            "page: traces": lambda: "/traces",
            "page: traces of a name": lambda: _address("/traces", name=pick.choice(NAMES)),
            "page: traces with errors": lambda: _address("/traces", status="error", until=self._moment()),
            "page: traces, feedback below": lambda: _address(
                "/traces", feedback_key="concise", feedback_op="<", feedback_value=f"{10 ** pick.uniform(-4, 0):.6f}"
            ),
            "page: traces, feedback missing": lambda: _address(
                "/traces", feedback_key="correct", feedback_op="missing"
            ),
            "page: traces, text: a rare word": lambda: _address("/traces", text=self._rare()),
            "page: a trace": lambda: f"/traces/{self._trace()['trace_id']}",
            "page: sessions": lambda: "/sessions",
            "page: a session": lambda: f"/sessions/{self._trace()['session_id']}",
            "page: overview of 30 days": lambda: "/?since=30d",
            "page: charts of an hour": lambda: _address("/charts", **since(1)),
            "page: charts of a day": lambda: _address("/charts", **since(24)),
            "page: datasets": lambda: "/datasets",
            "page: experiments": lambda: "/experiments",
        }


class Busy:
    """So many at once that ask for what is counted trace by trace, over everything, each again as soon as it is answered."""

    def __init__(self, port: int, callers: int) -> None:
        self.statuses: Counter[int] = Counter()
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._ask, args=(port, n), daemon=True) for n in range(callers)]
        for thread in self._threads:
            thread.start()

    def _ask(self, port: int, n: int) -> None:
        asker = http.client.HTTPConnection("127.0.0.1", port)
        address = _address("/api/aggregate", group_by="user", newest="all", until_ns=time.time_ns() - n)
        while not self._stop.is_set():
            asker.request("GET", address)
            answer = asker.getresponse()
            answer.read()
            assert answer.status in (200, 422, 503), answer.status  # in time, too slow, or too many at once
            self.statuses[answer.status] += 1

    def stop(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()


def _busy(port: int, questions: Questions, callers: int) -> None:
    """What is cheap, alone and beside aggregates."""
    asked = questions.api()
    cheap = {"/readyz": lambda: "/readyz", "/metrics": lambda: "/metrics"}
    cheap |= {name: asked[name] for name in ("latest 50", "one trace with its spans")}
    for name, address in cheap.items():
        _measure(Connection(port), f"{name}, alone", address, 200)
    for name, address in cheap.items():
        busy = Busy(port, callers)
        time.sleep(1.0)
        _measure(Connection(port), f"{name}, beside {callers}", address, 200, pause=0.02)
        busy.stop()
        print(f"{'':40} aggregates by status: {dict(busy.statuses)}")


LARGE, SPANS = "f" * 32, 20_000


def _add_large(path: Path) -> None:
    """A trace of 20,000 spans, three levels deep, unless the file has it."""
    text = " ".join(Traffic().words[:60])

    def run(n: int, parent: int | None) -> Run:
        begin = 1_750_000_000 * 10**9 + n * 10**6
        parent_id = None if parent is None else f"{parent + 1:016x}"
        values = {"inputs": f"{n} {text}", "outputs": text, "start_ns": begin, "end_ns": begin + 10**6}
        return Run(trace_id=LARGE, span_id=f"{n + 1:016x}", parent_id=parent_id, name="step", **values)

    with SQLiteStore(path) as store:
        if not store.many([LARGE]):
            runs = [run(n, None if n == 0 else n // 100 * 100 if n % 100 else 0) for n in range(SPANS)]
            for start in range(0, SPANS, 1_000):
                store.append(runs[start : start + 1_000])


def _large(collector: Collector) -> None:
    """The large trace by pages; and how long a probe waits while large answers are given, longest and as a rule."""
    whole, connection = f"/api/traces/{LARGE}", Connection(collector.port)
    for name, address in {
        "page: a trace of 20,000 spans": f"/traces/{LARGE}",
        "tree of 1,000": f"{whole}/tree",
        "runs, 1,000": f"{whole}/runs",
        "runs, 1,000 from the middle": f"{whole}/runs?cursor={SPANS // 2:016x}",
    }.items():
        _measure(connection, name, partial(str, address), 20, cpu_s=collector.cpu_s)
    beside = {"nothing": "/healthz", "the trace whole": whole, "aggregate: all by session": SESSIONS + "&newest=all"}
    beside["aggregate: sessions of the newest 10,000"] = SESSIONS
    for name, address in beside.items():
        _probe(collector.port, name, address)


SESSIONS = _address("/api/aggregate", group_by="session")


def _probe(port: int, name: str, address: str) -> None:
    """A request that asks no store, again and again, while something large is asked for three times."""
    large, took, done = Connection(port), list[float](), threading.Event()

    def ask() -> None:
        for _ in range(3):
            large.get(address)
        done.set()

    asking, probe = threading.Thread(target=ask, daemon=True), Connection(port)
    asking.start()
    while not done.is_set() or len(took) < 100:
        begun = time.perf_counter()
        probe.get("/healthz")
        took.append(1e3 * (time.perf_counter() - begun))
        time.sleep(0.001)
    asking.join()
    took.sort()
    at = [took[min(len(took) - 1, int(len(took) * share))] for share in (0.5, 0.95, 0.99)]
    print(f"{'/healthz beside ' + name:56} p50, p95, p99 {at[0]:.1f}, {at[1]:.1f}, {at[2]:.1f}, most {took[-1]:.1f} ms")


def main() -> None:
    options = _options()
    if options.large:
        _add_large(options.path)
    collector = Collector(options.path, [])
    try:
        connection = Connection(collector.port)
        print(", ".join(f"{count:,} {what}" for what, count in connection.json("/api/count").items()))
        questions = Questions(connection, options.seed)
        asked = questions.api() | questions.rare() | (questions.pages() if options.pages else {})
        print(f"{'question':40} {'p50 ms':>8} {'p95 ms':>8} {'most':>8} {'KB':>6} {'CPU ms':>7}")
        if options.large:
            return _large(collector)
        if options.busy:
            return _busy(collector.port, questions, options.busy)
        for name, address in asked.items():
            if options.only in name:
                _measure(connection, name, address, options.rounds, cpu_s=collector.cpu_s)
        print(f"memory {collector.memory_mb():.0f} MB")
    finally:
        collector.stop()


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("path", type=Path, help="file of a store")
    parser.add_argument("--rounds", type=int, default=100, help="times that each question is asked")
    parser.add_argument("--pages", action="store_true", help="the pages, too")
    parser.add_argument("--only", default="", help="only questions whose name has this in it")
    parser.add_argument("--busy", type=int, default=0, help="callers beside which what is cheap is asked")
    parser.add_argument("--large", action="store_true", help="a trace of 20,000 spans, and other large answers")
    parser.add_argument("--seed", type=int, default=1)
    return parser.parse_args()


def _measure(
    connection: Connection,
    name: str,
    address: Callable[[], str],
    rounds: int,
    pause: float = 0.0,
    cpu_s: Callable[[], float] = lambda: 0.0,
) -> None:
    """`cpu_s`: of the server so far; of a question it says something where the machine is busy."""
    took, size, refused, before = [], 0, 0, cpu_s()
    while len(took) < rounds and sum(took) < LONGEST * 1e3:
        time.sleep(pause)
        asked = address()
        begun = time.perf_counter()
        answer = connection.get(asked)
        took.append(1e3 * (time.perf_counter() - begun))
        size, refused = size + len(answer), refused + (b'"TooSlow"' in answer[:100])
    ordered = sorted(took)
    p50, p95 = (ordered[min(len(ordered) - 1, int(len(ordered) * share))] for share in (0.5, 0.95))
    over = "  over budget" if p95 > (TEXT_BUDGET if "text" in name else BUDGET) else ""
    over += f"  {refused} refused as too slow" if refused else ""
    cpu_ms = 1e3 * (cpu_s() - before) / len(took)
    measured = f"{p50:8.1f} {p95:8.1f} {ordered[-1]:8.1f} {size / len(took) / 1024:6.0f} {cpu_ms:7.1f}"
    print(f"{name:40} {measured}{over}", flush=True)


if __name__ == "__main__":
    main()
