"""What a span costs the writer that comes to a trace which is open already, as agents' spans do.

    python benchmarks/agents.py sizes              one more span, to open traces of 5, 10, 100, 1,000 and 20,000
    python benchmarks/agents.py traffic            200 traces open, one span each a second, up to 2,000 spans each
    python benchmarks/agents.py giants             one more span, while two traces of 25,000 are open
    python benchmarks/agents.py plain              traces of five spans that come whole, for comparison

CPU time of the writer's own work: appending, and committing to a file in WAL mode, with nothing beside it. An agent's
spans end from the leaves up, a call of a model and two tools under each step; its root, which names no parent, is last.
"""

from __future__ import annotations

import argparse
import os
import sqlite3
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from itertools import islice

from spanwise.collector.records import Run, Usage
from spanwise.collector.stores.sqlite.database.connections import Reader, open_writable
from spanwise.collector.stores.sqlite.database.store_clock import StoreClock
from spanwise.collector.stores.sqlite.write.run_codec import encode
from spanwise.collector.stores.sqlite.write.span_writer import Appender

START = 1_790_000_000 * 10**9
SIZES = (5, 10, 100, 1_000, 20_000)
TOGETHER = 8  # traces that a commit has one span each of
PREFILL = 2_000  # spans of a commit that is not measured


def agent(number: int) -> Iterator[Run]:
    """Spans of an agent's trace as they end, without its root."""
    trace_id, root = f"{number + 1:032x}", f"{number + 1:016x}"
    for place in range(10**9):
        step, of_step = divmod(place, 4)
        step_id = f"{number + 1:08x}{step + 1:08x}"
        is_step, is_call = of_step == 3, of_step == 0
        yield Run(
            trace_id=trace_id,
            span_id=step_id if is_step else f"{number + 1:06x}{place + 1:010x}",
            parent_id=root if is_step else step_id,
            name="step" if is_step else "chat" if is_call else f"tool {place % 7}",
            kind="chain" if is_step else "llm" if is_call else "tool",
            start_ns=START + place * 10**8,
            end_ns=START + (place + 1) * 10**8,
            status="ok",
            model="gpt-5-mini" if is_call else None,
            usage=Usage(900 + place % 90, 40) if is_call else None,
            cost=0.0004 if is_call else None,
            inputs={"question": f"what is said of {place} in the notes of agent {number}?"},
            outputs={"answer": f"{place} is said to be {place * number}, as far as anybody has counted it so far"},
            attributes={"spanwise.local_root": root, "spanwise.spans.started": place + 2, "spanwise.spans.open": 1},
        )


class Writer:
    """The one writer's work on a file of its own, in this thread."""

    def __init__(self, folder: str) -> None:
        self.db: sqlite3.Connection = open_writable(os.path.join(folder, f"{time.monotonic_ns()}.db"))
        self.appender = Appender(Reader(self.db), StoreClock(self.db))

    def append(self, runs: Sequence[Run]) -> float:
        """Seconds of CPU for these, in a commit of their own."""
        batch = encode(runs)
        began = time.process_time()
        self.db.execute("BEGIN IMMEDIATE")
        self.appender.write([batch])
        self.db.execute("COMMIT")
        return time.process_time() - began

    def fill(self, agents: Sequence[Iterator[Run]], spans: int) -> None:
        """Give each so many spans, without measuring."""
        for one in agents:
            for begin in range(0, spans, PREFILL):
                self.append(list(islice(one, min(PREFILL, spans - begin))))

    def grow(self, agents: Sequence[Iterator[Run]], rounds: int) -> float:
        """Microseconds a span, where each of the traces gets one a round, `TOGETHER` of them in a commit."""
        took, spans = 0.0, 0
        for _ in range(rounds):
            for begin in range(0, len(agents), TOGETHER):
                runs = [next(one) for one in agents[begin : begin + TOGETHER]]
                took += self.append(runs)
                spans += len(runs)
        return took / spans * 1e6


def sizes(folder: str, most: int, rounds: int) -> None:
    """The cost of one more, by how many there are."""
    at_5 = 0.0
    for size in SIZES:
        if size > most:
            break
        best = float("inf")
        with closing((writer := Writer(folder)).db):
            if size <= 100:  # they would not stay so small for long
                for turn in range(4):
                    agents = [agent(turn * 1000 + number) for number in range(TOGETHER * rounds // 4)]
                    writer.fill(agents, size)
                    best = min(best, writer.grow(agents, 2))
            else:
                agents = [agent(number) for number in range(TOGETHER)]
                writer.fill(agents, size)
                best = min(writer.grow(agents, rounds) for _ in range(4))
        at_5 = at_5 or best
        print(f"{size:>7,} spans: {best:8.1f} us for one more, {best / at_5:.2f} x the cost at 5", flush=True)


def traffic(folder: str, spans: int) -> None:
    """200 open traces that grow together."""
    with closing((writer := Writer(folder)).db):
        agents = [agent(number) for number in range(200)]
        before = 0
        for upto in sorted({10, 50, 120, 500, 1000, spans}):
            if upto <= spans:
                print(f"{upto:>7,} spans each: {writer.grow(agents, upto - before):8.1f} us a span since", flush=True)
                before = upto


def giants(folder: str, spans: int, rounds: int) -> None:
    """Two large ones, one span to either in turn."""
    with closing((writer := Writer(folder)).db):
        agents = [agent(number) for number in range(2)]
        writer.fill(agents, spans)
        took = [writer.append([next(agents[turn % 2])]) for turn in range(2 * rounds)]
        print(f"two of {spans:,}: {sum(took) / len(took) * 1e3:.2f} ms for one more, {max(took) * 1e3:.2f} at most")


def plain(folder: str, rounds: int) -> None:
    """Traces of five that come whole, 100 in a commit."""
    with closing((writer := Writer(folder)).db):
        best = []
        for turn in range(rounds):
            runs = [run for number in range(100) for run in islice(agent(turn * 100 + number), 5)]
            best.append(writer.append(runs) / len(runs) * 1e6)
        best.sort()
        print(f"plain: {best[len(best) // 2]:.1f} us a span (median), {best[len(best) // 10]:.1f} (tenth)")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("sizes", "traffic", "giants", "plain"))
    parser.add_argument("--most", type=int, default=20_000, help="sizes: the largest")
    parser.add_argument("--spans", type=int, help="traffic, giants: of each trace")
    parser.add_argument("--rounds", type=int, default=40)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        if asked.what == "sizes":
            sizes(folder, asked.most, asked.rounds)
        elif asked.what == "traffic":
            traffic(folder, asked.spans or 2_000)
        elif asked.what == "giants":
            giants(folder, asked.spans or 25_000, asked.rounds)
        else:
            plain(folder, asked.rounds * 5)


if __name__ == "__main__":
    main()
