"""The collector beside that of another commit, in alternating pairs, with a verdict on each budget.

    git worktree add ../before 6614c5c && python -m venv ../before/.venv   # and install it there, as the README says
    python benchmarks/budgets.py ../before/.venv/bin/python                          # ~10 minutes
    python benchmarks/budgets.py ../before/.venv/bin/python --cpus 0,1               # on a machine with more cores
    python benchmarks/budgets.py ../before/.venv/bin/python --store big.db           # and on top of a million spans
    python benchmarks/budgets.py ../before/.venv/bin/python --only small --pairs 9
    python benchmarks/budgets.py ../before/.venv/bin/python --all --store big.db     # and what other scripts measure

The load is this checkout's for both, in this process, on the same cores: only the interpreter that runs `spanwise serve`
differs. Which of the two goes first changes from pair to pair. CPU is that of all processes of the server, those that
have ended meanwhile included, from the first request until the text index has caught up. `--store` is a file that the
other commit has written (`benchmarks/store.py --spans 1000000 --keep big.db` there): each run gets a copy.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median

from ingest import SPANS_PER_TRACE, Collector, Load, Template, templates, until_indexed

HERE = Path(__file__).parent
MIGRATION = 900.0  # seconds that opening a file of the other commit may take
CONNECTIONS = 4
SMALL = (4, 8, 32)  # connections that send requests of five spans


@dataclass(frozen=True)
class Run:
    """What one run of one server measured, by name."""

    figures: dict[str, float]


@dataclass(frozen=True)
class Budget:
    """What a figure may be: of ours alone, or of ours over the other's; at most, or at least."""

    figure: str
    bound: float
    ratio: bool = False
    least: bool = False
    goal: float | None = None  # the next one

    def verdict(self, ours: list[float], theirs: list[float]) -> str:
        """One line of the table."""
        value = median(a / b for a, b in zip(ours, theirs, strict=True)) if self.ratio else median(ours)
        held = value >= self.bound if self.least else value <= self.bound
        word = "held" if held else "MISSED"
        if held and self.goal is not None and (value >= self.goal if self.least else value <= self.goal):
            word = f"held, and the next goal {self.goal:g}"
        sign, kind = ("≥" if self.least else "≤"), ("x other" if self.ratio else "")
        return f"{value:8.2f} {kind:8} {sign} {self.bound:<7g} {word}"


# --- one run of one server ------------------------------------------------------------------------------------------


def run(python: str, made: list[Template], spans: int, connections: int, store: Path | None) -> Run:
    """Start a server, idle for a moment, send, wait until all is visible and indexed, stop."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "spanwise.db"
        if store is not None:
            shutil.copy(store, path)
        collector = Collector(path, (), python, MIGRATION if store else 60)
        try:
            return Run(_sent(collector, made, spans, connections))
        finally:
            collector.stop()


def _sent(collector: Collector, made: list[Template], spans: int, connections: int) -> dict[str, float]:
    per_request = made[0].traces * SPANS_PER_TRACE
    time.sleep(1)
    idle, before, cpu = collector.memory_mb(), collector.get("/api/count")["spans"], collector.cpu_s()
    load = Load(collector.port, made, max(1, spans // per_request))
    start = time.perf_counter()
    asyncio.run(load.run(connections))
    requests_s = len(load.latencies) / (time.perf_counter() - start)
    kept = len(load.acknowledged) * per_request
    while collector.get("/api/count")["spans"] < before + kept and time.perf_counter() - start < 600:
        time.sleep(0.01)
    rate = kept / (time.perf_counter() - start)
    until_indexed(collector)
    refused = sum(count for status, count in load.statuses.items() if status != 200)
    return {
        "rate": rate,
        "requests/s": requests_s,
        "CPU a span": 1e6 * (collector.cpu_s() - cpu) / max(1, kept),
        "p99 ms": 1000 * sorted(load.latencies)[int(0.99 * (len(load.latencies) - 1))],
        "idle MB": idle,
        "ready s": collector.ready_s,
        "not kept": float(before + kept - collector.get("/api/count")["spans"] + refused),
    }


# --- pairs ----------------------------------------------------------------------------------------------------------


def paired(other: str, pairs: int, once: Callable[[str], Run]) -> tuple[list[Run], list[Run]]:
    """Runs of this checkout and of the other, in turn."""
    ours: list[Run] = []
    theirs: list[Run] = []
    for number in range(pairs):
        order = [(sys.executable, ours), (other, theirs)]
        for python, found in order if number % 2 else reversed(order):
            found.append(once(python))
    return ours, theirs


def shown(name: str, ours: list[Run], theirs: list[Run], budgets: Sequence[Budget]) -> list[str]:
    """All figures of some pairs, and the lines of their budgets."""
    for figure in ours[0].figures:
        mine, its = ([run.figures[figure] for run in runs] for runs in (ours, theirs))
        ratios = sorted(a / b if b else 1.0 for a, b in zip(mine, its, strict=True))
        spread = f"ratio {median(ratios):5.2f} ({ratios[0]:.2f}–{ratios[-1]:.2f})"
        print(f"{name:22} {figure:12} {median(mine):10.2f} other {median(its):10.2f}  {spread}", flush=True)
    lines = []
    for budget in budgets:
        values = [[run.figures[budget.figure] for run in runs] for runs in (ours, theirs)]
        lines.append(f"{name:22} {budget.figure:12} {budget.verdict(*values)}")
    return lines


def whole(args: argparse.Namespace) -> list[str]:
    """Requests of 100 spans onto an empty file."""
    made = templates(20, args.json)
    once = partial(run, made=made, spans=args.spans, connections=CONNECTIONS, store=None)
    budgets = (
        Budget("rate", 1.3, ratio=True, least=True, goal=1.5),
        Budget("CPU a span", 0.85, ratio=True),
        Budget("idle MB", 120),
        Budget("ready s", 1.5),
        Budget("not kept", 0),
    )
    return shown("100 spans a request", *paired(args.python, args.pairs, once), budgets)


def small(args: argparse.Namespace) -> list[str]:
    """Requests of five spans, from few connections and from many."""
    lines, made = [], templates(1, args.json)
    for connections in SMALL:
        once = partial(run, made=made, spans=max(5, args.spans // 8), connections=connections, store=None)
        budgets = (Budget("requests/s", 1200, least=True), Budget("CPU a span", 1.0, ratio=True))
        lines += shown(f"5 spans, {connections} conn.", *paired(args.python, args.pairs, once), budgets)
    return lines


def onto(args: argparse.Namespace) -> list[str]:
    """Requests of 100 spans on top of what a file holds."""
    if args.store is None:
        return ["onto a large file      not run: name one by --store"]
    once = partial(run, made=templates(20, args.json), spans=60_000, connections=CONNECTIONS, store=args.store)
    return shown("onto a large file", *paired(args.python, min(3, args.pairs), once), (Budget("p99 ms", 150),))


def disk(args: argparse.Namespace) -> list[str]:
    """Bytes a span of a file that this checkout alone has written, its log included."""
    with tempfile.TemporaryDirectory() as folder:
        path, made = Path(folder) / "spanwise.db", templates(20, args.json)
        collector = Collector(path)
        try:
            _sent(collector, made, args.stored, CONNECTIONS)
        finally:
            collector.stop()
        size = sum(one.stat().st_size for one in path.parent.glob("spanwise.db*") if not one.name.endswith(".reserve"))
    figures = [Run({"bytes a span": size / args.stored})]
    return shown(f"{args.stored:,} stored", figures, figures, (Budget("bytes a span", 1010),))


# --- what other scripts measure -------------------------------------------------------------------------------------

# Of this checkout alone; `{store}` is a copy of the file. Each says itself what misses its budget, but for SLOWER
OTHERS = (
    "agents.py sizes",
    "agents.py traffic",
    "agents.py giants",
    "queries.py {store} --rounds 40",
    "queries.py {store} --rounds 40 --pages --only page:",
    "file.py migrate {store}",
    "file.py delete {store}",
    "file.py steady {store} --minutes 15",
    "small.py stages",
    "small.py raw",
)
MISSED = re.compile(r"over budget|MISSES|GROWS|OTHER ANSWERS")
SLOWER, SLOWEST = re.compile(r"([\d.]+) x the cost at 5$"), 1.5  # one more span to a long trace, of one to a short


def others(args: argparse.Namespace) -> list[str]:
    """The rest of the budgets: what each script prints, and how many of its lines miss one."""
    lines = []
    for command in OTHERS:
        if "{store}" in command and args.store is None:
            lines.append(f"{command:52} not run: name a file by --store")
            continue
        with tempfile.TemporaryDirectory() as folder:
            copy = shutil.copy(args.store, folder) if "{store}" in command else ""
            name, *rest = command.format(store=copy).split()
            done = subprocess.run([sys.executable, HERE / name, *rest], stdout=subprocess.PIPE, text=True)
        print(f"\n{command}\n{done.stdout}", flush=True)
        missed = [line for line in done.stdout.splitlines() if MISSED.search(line) or _is_slower(line)]
        said = f"{len(missed)} MISSED" if missed else "held"
        lines.append(f"{command:52} {said if done.returncode == 0 else f'FAILED, exit status {done.returncode}'}")
    return lines


def _is_slower(line: str) -> bool:
    match = SLOWER.search(line)
    return match is not None and float(match[1]) > SLOWEST


PAIRED = {"whole": whole, "small": small, "onto": onto, "disk": disk}
PARTS: dict[str, Callable[[argparse.Namespace], list[str]]] = {**PAIRED, "others": others}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("python", help="the interpreter of the environment that another commit is installed in")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--spans", type=int, default=200_000, help="of a run; an eighth of them in small requests")
    parser.add_argument("--stored", type=int, default=1_000_000, help="spans of the file that is weighed")
    parser.add_argument("--store", type=Path, help="a file of the other commit with a million spans")
    parser.add_argument("--cpus", help="the cores for load and servers together, as 0,1")
    parser.add_argument("--json", action="store_true", help="OTLP/JSON")
    parser.add_argument("--only", default=",".join(PAIRED), help=f"some of {', '.join(PARTS)}")
    parser.add_argument("--all", action="store_const", dest="only", const=",".join(PARTS), help="all of them")
    args = parser.parse_args()
    if args.cpus:
        os.sched_setaffinity(0, {int(cpu) for cpu in args.cpus.split(",")})  # servers inherit it
    lines = [line for name in args.only.split(",") for line in PARTS[name](args)]
    print("\nbudgets\n" + "\n".join(lines))


if __name__ == "__main__":
    main()
