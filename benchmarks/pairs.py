"""The figures that have a budget, of this checkout beside another one, in alternating pairs.

    git worktree add ../before 6614c5c && python -m venv ../before/.venv   # and install it there, as the README says
    python benchmarks/pairs.py ../before ../before/.venv/bin/python
    python benchmarks/pairs.py ../before ../before/.venv/bin/python --only evaluate --pairs 15

Each script runs in turn from this checkout and from the other, so that a machine whose speed drifts slows both. A figure
is the median over the pairs of its ratio, this one over the other one: above 1 is worse. CPU time stands for rates where
a script tells it. A script with a figure above 1.05 after five pairs is run again, for fifteen pairs, which decide.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from statistics import median

HERE = Path(__file__).parent.parent
NUMBER = r"([\d,.]+)"
WORST = 1.05


@dataclass(frozen=True)
class Figure:
    """One number in what a script prints, less of which is better: a pattern with one group."""

    name: str
    pattern: str


@dataclass(frozen=True)
class Script:
    """A script with its arguments. `{file}` is replaced by a copy of the large file, `{read}` by the file itself."""

    name: str
    arguments: tuple[str, ...]
    figures: tuple[Figure, ...]


def row(name: str, column: int) -> str:
    """A number in a row of a table of plain columns that begins with a name."""
    return rf"(?m)^{re.escape(name)}\s+" + r"(?:[\d,.]+\s+)" * column + NUMBER


def cell(name: str, column: int) -> str:
    """A number in a row of a table that rich has drawn."""
    return rf"│\s*{re.escape(name)}\s*│" + r"[^│]*│" * column + rf"\s*{NUMBER}"


CPU = Figure("CPU a span", rf"collector's CPU\s+{NUMBER}")
P99 = Figure("acknowledgement p99", rf"acknowledgement p50 / p99 / max\s+[\d,.]+ ms / {NUMBER}")
MEMORY = Figure("memory, most", rf"memory idle / most\s+[\d,.]+ / {NUMBER}")
READY = Figure("ready after", rf"ready after\s+{NUMBER}")
DISK = Figure("bytes a span on disk", rf"on disk\s+{NUMBER}")
IDLE = Figure("memory idle", rf"memory idle / most\s+{NUMBER}")
CALLS = ("sync", "async", "nested", "10 KB", "documents", "generator")
QUESTIONS = (
    "latest 50 before a moment",
    "name and an hour",
    "feedback < any threshold",
    "one trace with its spans",
    "text: a rare word",
    "text: a frequent word",
    "text: a beginning",
    "text: absent",
)
SCRIPTS = (
    Script("ingest", ("ingest.py", "--spans", "100000"), (CPU, P99, IDLE, MEMORY, READY, DISK)),
    Script("ingest json", ("ingest.py", "--json", "--spans", "60000", "--no-index"), (CPU, P99)),
    Script("ingest small", ("ingest.py", "--traces", "1", "--spans", "30000", "--no-index"), (CPU, P99)),
    Script("ingest onto", ("ingest.py", "--store", "{file}", "--spans", "60000", "--no-index"), (CPU, P99)),
    Script(
        "ingest with feedback",
        ("ingest.py", "--spans", "40000", "--share", "0.5", "--feedback", "4", "--no-index"),
        (CPU, P99),
    ),
    Script("queries", ("queries.py", "{read}", "--rounds", "60"), tuple(Figure(q, row(q, 1)) for q in QUESTIONS)),
    Script(
        "evaluate",
        ("evaluate.py", "noop", "async", "sync"),
        (
            Figure("no-op, CPU an example", row("noop", 3)),
            Figure("async, x ideal", row("async", 4)),
            Figure("sync, x ideal", row("sync", 4)),
        ),
    ),
    Script(
        "evaluators",
        ("evaluators.py",),
        (
            Figure("wrapping a bool", cell("1 argument, bool", 0)),
            Figure("wrapping a dict", cell("dict with key, score, comment", 0)),
            Figure("a skip", cell("a need is missing", 0)),
            Figure("13 together, bodies", cell("together", 0)),
            Figure("13 together, to feedback", cell("together", 1)),
            Figure("bleu", cell("bleu", 1)),
            Figure("bleu, punctuation", cell("bleu, punctuation", 1)),
            Figure("rouge", cell("rouge", 1)),
            Figure("looping, words", cell("words", 2)),
            Figure("looping, two letters", cell("two letters by chance", 2)),
        ),
    ),
    Script(
        "tracer calls",
        ("tracer.py", "calls", "--quick"),
        tuple(Figure(name, rf"(?m)^\s*{name}(?:\s+[\d,.]+){{2}}\s+{NUMBER}") for name in CALLS),
    ),
)


def run(tree: Path, python: str, script: Script, large: Path) -> dict[str, float]:
    """One run in a tree: its figures by name."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "large.db"
        if "{file}" in script.arguments:
            shutil.copy(large, copy)
        arguments = [one.format(file=copy, read=large) for one in script.arguments]
        path, rest = tree / "benchmarks" / arguments[0], arguments[1:]
        environment = {**os.environ, "TMPDIR": folder}
        said = subprocess.run(
            [python, str(path), *rest], cwd=tree, env=environment, capture_output=True, text=True, check=True
        ).stdout
    return {figure.name: _number(figure, said) for figure in script.figures}


def _number(figure: Figure, said: str) -> float:
    match = re.search(figure.pattern, said)
    if match is None:
        raise ValueError(f"{figure.name!r} ({figure.pattern}) is not in:\n{said}")
    return float(match[1].replace(",", ""))


def paired(script: Script, other: Path, python: str, large: Path, pairs: int) -> dict[str, list[float]]:
    """Ratios by figure, this checkout over the other one; which of them goes first changes from pair to pair."""
    ratios: dict[str, list[float]] = {figure.name: [] for figure in script.figures}
    for number in range(pairs):
        trees = [(HERE, sys.executable), (other, python)]
        order = (0, 1) if number % 2 else (1, 0)
        results = {place: run(*trees[place], script, large) for place in order}
        for name, ours in results[0].items():
            theirs = results[1][name]
            ratios[name].append(ours / theirs if theirs else 1.0 if not ours else float("inf"))
    return ratios


def show(script: Script, ratios: dict[str, list[float]]) -> bool:
    """Print the medians; whether all are within bounds."""
    for name, values in ratios.items():
        spread = f"{min(values):.2f}–{max(values):.2f}, {len(values)} pairs"
        late = " <-- above" if median(values) > WORST else ""
        print(f"{script.name:22} {name:28} {median(values):6.3f}  {spread}{late}", flush=True)
    return all(median(values) <= WORST for values in ratios.values())


def filled(other: Path, python: str, folder: Path, spans: int) -> Path:
    """A file with many spans, made by the other checkout: what both can read."""
    path = folder / "large.db"
    command = [python, str(other / "benchmarks" / "store.py"), "--spans", str(spans), "--keep", str(path)]
    subprocess.run(command, cwd=other, check=True, capture_output=True)
    return path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("other", type=Path, help="another checkout")
    parser.add_argument("python", help="the interpreter of the environment that it is installed in")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--again", type=int, default=15, help="pairs for what is above the bound then; 0: none")
    parser.add_argument("--only", default="", help="only scripts whose name has this in it")
    parser.add_argument("--spans", type=int, default=200_000, help="in the file for queries")
    args = parser.parse_args()
    for tree, python in ((HERE, sys.executable), (args.other, args.python)):  # neither shall compile while it is timed
        subprocess.run(
            [python, "-m", "compileall", "-q", "tracer", "collector", "evaluators", "cli"], cwd=tree, check=True
        )
    with tempfile.TemporaryDirectory() as folder:
        large = filled(args.other.resolve(), args.python, Path(folder), args.spans)
        for script in SCRIPTS:
            if args.only not in script.name:
                continue
            within = show(script, paired(script, args.other.resolve(), args.python, large, args.pairs))
            if not within and args.again:
                show(script, paired(script, args.other.resolve(), args.python, large, args.again))


if __name__ == "__main__":
    main()
