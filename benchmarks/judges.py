"""Judgements against an endpoint that limits its rate: python benchmarks/judges.py [--calls 500] [--rate 20]

An OpenAI-compatible server in a process of its own allows `--rate` calls a second, as endpoints do: out of a bucket of
tokens, in a fixed window or in a sliding one; it tells that in headers as OpenAI's (`told`), by Retry-After in seconds
(`seconds`), which are whole ones, or by 429 alone (`nothing`). All judgements are asked at once, through openai's client,
by `relevance_to_query`. Ideal is calls / rate. Refusals come at once with `--refuse-at-once`, else as late as replies.
Kind `none` has no limit: ideal is calls × latency / concurrency. Exits with 1 when a judgement failed, when a bucket that
holds one second's calls took more than 1.1 times the ideal, or no limit less than 90 % of the ideal rate.

    python benchmarks/judges.py --calls 300 --rate 5 --latency 1 --kind bucket [--refuse-at-once]
    python benchmarks/judges.py --calls 1280 --latency 0.5 --concurrency 32 --kind none --way nothing
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import math
import os
import random
import subprocess
import sys
import time
from collections import deque
from dataclasses import dataclass, field

KINDS = ("bucket", "small bucket", "window", "sliding", "none")
WAYS = ("told", "seconds", "nothing")
REPLY = json.dumps({"rationale": "it answers", "rating": "yes"})
COMPLETION = {
    "id": "1",
    "object": "chat.completion",
    "created": 1,
    "model": "bench",
    "choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": REPLY}}],
    "usage": {"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 110},
}


@dataclass
class Bucket:
    """Refills at `rate` per second, holds `size`."""

    rate: float
    size: float
    held: float = 0.0
    at: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        self.held = self.size

    def take(self, now: float) -> float:
        """Seconds to wait, 0 when it was taken."""
        self.held, self.at = min(self.size, self.held + (now - self.at) * self.rate), now
        if self.held < 1:
            return (1 - self.held) / self.rate
        self.held -= 1
        return 0.0

    def headers(self, now: float) -> dict[str, str]:
        reset = (self.size - self.held) / self.rate
        return _headers(self.size, self.held, reset)


@dataclass
class Window:
    """At most `size` in each second, or in any second (`sliding`)."""

    size: int
    sliding: bool
    taken: deque[float] = field(default_factory=deque)

    def take(self, now: float) -> float:
        """Seconds to wait, 0 when it was taken."""
        begins = now - 1 if self.sliding else math.floor(now)
        while self.taken and self.taken[0] < begins:
            self.taken.popleft()
        if len(self.taken) < self.size:
            self.taken.append(now)
            return 0.0
        return (self.taken[0] if self.sliding else math.floor(now)) + 1 - now

    def headers(self, now: float) -> dict[str, str]:
        reset = (self.taken[0] if self.sliding and self.taken else math.floor(now)) + 1 - now
        return _headers(self.size, self.size - len(self.taken), max(0.0, reset))


def _headers(limit: float, left: float, reset: float) -> dict[str, str]:
    return {
        "x-ratelimit-limit-requests": str(int(limit)),
        "x-ratelimit-remaining-requests": str(int(left)),
        "x-ratelimit-reset-requests": f"{math.ceil(reset * 1000)}ms",
    }


class Unlimited:
    """Takes everything."""

    def take(self, now: float) -> float:
        return 0.0

    def headers(self, now: float) -> dict[str, str]:
        return {}


Limit = Bucket | Window | Unlimited


def limit_of(kind: str, rate: float) -> Limit:
    if kind == "none":
        return Unlimited()
    if kind.endswith("bucket"):
        return Bucket(rate, rate if kind == "bucket" else rate / 4)
    return Window(int(rate), sliding=kind == "sliding")


class Endpoint:
    """Counts what it gives and refuses; one line per request is all that it costs."""

    def __init__(self, limit: Limit, way: str, latency: float, seed: int, refuses_at_once: bool) -> None:
        self._limit, self._way, self._latency, self._refuses_at_once = limit, way, latency, refuses_at_once
        self._random = random.Random(seed)
        self.refused = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = next(
                    int(line.split(b":")[1])
                    for line in head.split(b"\r\n")
                    if line.lower().startswith(b"content-length")
                )
                await reader.readexactly(length)
                first, second = (self._latency * (0.35 + 0.3 * self._random.random()) for _ in range(2))
                await asyncio.sleep(0 if self._refuses_at_once else first)
                before, reply = self.refused, self._reply()
                if not (self._refuses_at_once and self.refused > before):
                    await asyncio.sleep(second + (first if self._refuses_at_once else 0))
                writer.write(reply)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    def _reply(self) -> bytes:
        now = time.monotonic()
        wait = self._limit.take(now)
        headers = self._limit.headers(now) if self._way == "told" else {}
        if not wait:
            return _http("200 OK", COMPLETION, headers)
        self.refused += 1
        if self._way == "told":
            headers |= {"retry-after-ms": str(math.ceil(wait * 1000))}
        if self._way != "nothing":
            headers |= {"retry-after": str(math.ceil(wait))}
        return _http("429 Too Many Requests", {"error": {"message": "slow down", "code": "rate_limit"}}, headers)


def _http(status: str, body: dict[str, object], headers: dict[str, str]) -> bytes:
    raw = json.dumps(body).encode()
    all_headers = {"content-type": "application/json", "content-length": str(len(raw)), **headers}
    lines = "".join(f"{name}: {value}\r\n" for name, value in all_headers.items())
    return f"HTTP/1.1 {status}\r\n{lines}\r\n".encode() + raw


async def serving(kind: str, options: argparse.Namespace) -> None:
    """Say the port on stdout; when stdin ends, how many calls were refused."""
    limit = limit_of(kind, options.rate)
    endpoint = Endpoint(limit, options.way[0], options.latency, options.seed, options.refuse_at_once)
    server = await asyncio.start_server(endpoint.serve, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await asyncio.to_thread(sys.stdin.read)
    print(endpoint.refused, flush=True)
    os._exit(0)


async def judged(url: str, calls: int, concurrency: int) -> tuple[float, list[float], int]:
    """Seconds for all, seconds of each once it was asked first, how many failed."""
    import openai.resources.chat  # noqa: F401  # what a process loads once is no part of the rate

    from spanwise.evaluators import Judge, ascore, get_evaluator

    judge = Judge(model="bench", base_url=url, api_key="k", cache=False, concurrency=concurrency)
    evaluator = get_evaluator("relevance_to_query", judge=judge)
    began, ended = time.monotonic(), []
    failed = 0

    async def one(number: int) -> None:
        nonlocal failed
        [feedback] = await ascore(evaluator, inputs=f"question {number}?", outputs="an answer")
        ended.append(time.monotonic() - began)
        failed += feedback.score is not True

    await asyncio.gather(*map(one, range(calls)))
    return time.monotonic() - began, sorted(ended), failed


def measured(kind: str, way: str, options: argparse.Namespace) -> tuple[float, int, int, float]:
    """Seconds, refusals, failures, and seconds of the slowest gap between two answers."""
    arguments = ["--serve", kind, "--way", way, "--rate", str(options.rate), "--latency", str(options.latency)]
    arguments += ["--refuse-at-once"] * options.refuse_at_once
    with subprocess.Popen(
        [sys.executable, __file__, *arguments, "--seed", str(options.seed)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        port = int(server.stdout.readline())
        url = f"http://127.0.0.1:{port}/v1"
        seconds, ended, failed = asyncio.run(judged(url, options.calls, options.concurrency))
        server.stdin.close()
        refused = int(server.stdout.readline())
    gaps = sorted(after - before for before, after in itertools.pairwise(ended))
    return seconds, refused, failed, gaps[int(len(gaps) * 0.99)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", type=int, default=500)
    parser.add_argument("--rate", type=float, default=20)
    parser.add_argument("--latency", type=float, default=0.1)
    parser.add_argument("--concurrency", type=int, default=16)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--refuse-at-once", action="store_true")
    parser.add_argument("--kind", action="append", choices=KINDS)
    parser.add_argument("--way", action="append", choices=WAYS)
    parser.add_argument("--serve", choices=KINDS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        asyncio.run(serving(options.serve, options))
    from spanwise.tracer import configure

    configure(spill_dir="off", sample_rate=0.0)  # judgements are traces, and no collector is to be looked for
    unlimited = options.calls * options.latency / options.concurrency
    print(f"{options.calls} judgements, {options.rate:g} a second, load {os.getloadavg()[0]:.1f}")
    print(f"{'limit':14}{'tells':10}{'seconds':>8}{'× ideal':>9}{'429s':>6}{'failed':>8}{'p99 gap':>9}")
    good = True
    for kind in options.kind or KINDS:
        ideal = unlimited if kind == "none" else options.calls / options.rate
        most = {"bucket": 1.1, "none": 1 / 0.9}.get(kind, math.inf)
        for way in options.way or WAYS:
            seconds, refused, failed, gap = measured(kind, way, options)
            good = good and not failed and seconds <= most * ideal
            print(f"{kind:14}{way:10}{seconds:8.1f}{seconds / ideal:9.2f}{refused:6}{failed:8}{gap:8.2f}s", flush=True)
    print(f"load {os.getloadavg()[0]:.1f}")
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
