"""Whether `evaluate()` that is killed again and again ends as one that ran through: python benchmarks/kills.py [--kills 50]

An experiment of plain or async tasks that attach feedback to their own runs is started, killed with SIGKILL at a random
moment (`--seed`), and resumed, in turn, until it was killed so often; then it runs to its end. Its rows, all of their
feedback, its summary and what a set-level evaluator says of it must equal those of an experiment that nobody killed,
and no run that was stored may have been run again. Exits with 1 and the differences if they do not.
"""

from __future__ import annotations

import argparse
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

SCRIPT = """
import asyncio, sys, time
from spanwise.evaluators import evaluate, evaluator
from spanwise.tracer import current_run, span

EXAMPLES = [{{"inputs": {{"q": f"Q{{n}}"}}, "reference_outputs": f"a q{{n}}"}} for n in range({examples})]

def say(q):
    with open("asked.txt", "a") as asked:
        asked.write(q + "\\n")
    with span("think", kind="llm") as thought:
        thought.set_outputs(q.lower())
        current_run().feedback("thought", len(q))
    current_run().feedback("note", True, comment=f"on {{q}}")
    return "no" if q.endswith("7") else f"a {{q.lower()}}"

def plain(q):
    time.sleep({seconds})
    return say(q)

async def later(q):
    await asyncio.sleep({seconds})
    return say(q)

def length(outputs):
    return float(len(outputs))

def broken(outputs):
    return 1 / (outputs != "no")

@evaluator(key="share", summary=True)
def share(outputs: list, reference_outputs: list):
    return sum(map(str.__eq__, outputs, reference_outputs)) / len(outputs)

task = later if sys.argv[1] == "async" else plain
evaluate(EXAMPLES, task, ["exact", length, broken, share], name="killed", resume=True, concurrency=4, store="spanwise.db",
         progress=False)
"""


def start(folder: Path, kind: str, examples: int, seconds: float) -> subprocess.Popen[bytes]:
    """The evaluation in a process of its own."""
    (folder / "script.py").write_text(SCRIPT.format(examples=examples, seconds=seconds))
    command = [sys.executable, "script.py", kind]
    return subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL, stderr=(folder / "said.txt").open("ab"))


def asked(folder: Path) -> list[str]:
    """The questions that the task was asked so far, by all processes."""
    file = folder / "asked.txt"
    return file.read_text().splitlines() if file.exists() else []


def killed(process: subprocess.Popen[bytes], folder: Path, after: int, more: float) -> bool:
    """Kill once so many more questions were asked, and some seconds later; whether it lived so long."""
    goal, deadline = len(asked(folder)) + after, time.monotonic() + 60
    while process.poll() is None and len(asked(folder)) < goal and time.monotonic() < deadline:
        time.sleep(0.001)
    time.sleep(more)
    alive = process.poll() is None
    process.kill()
    process.wait()
    return alive


def stored(folder: Path) -> set[str]:
    """The questions whose runs are in the store."""
    from spanwise.collector.stores.sqlite import SQLiteStore

    if not (folder / "spanwise.db").exists():
        return set()
    with SQLiteStore(folder / "spanwise.db") as store:
        return {_inputs(store.trace(one.trace_id).root.inputs) for one in _experiment_traces(store)}


def _experiment_traces(store: Any) -> Iterator[Any]:
    for record in store.experiments():
        cursor: str | None = None
        while True:
            page = store.traces(experiment=record.id, limit=500, cursor=cursor)
            yield from page
            cursor = page.next
            if cursor is None:
                break


def _inputs(inputs: Any) -> str:
    return str(inputs["q"])


def result(folder: Path) -> dict[str, Any]:
    """What is left of an experiment at its end: all that must not depend on kills."""
    from spanwise.collector.stores.sqlite import SQLiteStore
    from spanwise.evaluators import Experiment

    with SQLiteStore(folder / "spanwise.db") as store:
        experiment = Experiment.load(store, "killed")
        rows = [
            (
                _inputs(row.inputs),
                row.outputs,
                row.error,
                sorted((f.key, f.score, f.outcome, f.comment, f.target.span_id is None) for f in row.trace.feedback),
                sorted(run.name for run in row.trace.runs),
            )
            for row in experiment.rows()
        ]
        summary = experiment.summary()
        return {
            "experiments": len(store.experiments()),
            "status": experiment.record.status,
            "rows": rows,
            "counts": dict(store.count()),
            "summary": {key: (s.n, s.mean, s.failed, s.skipped) for key, s in summary.items()},
            "runs": (summary.runs, summary.failed),
            "set": {key: said.score for key, said in summary.overall.items()},
        }


def campaign(kind: str, kills: int, seed: int, examples: int = 400, seconds: float = 0.004) -> list[str]:
    """Kill an experiment so often, let it end, and compare it with one that ran through; the differences, in words."""
    moments, wrong, fell = random.Random(seed), [], 0
    with tempfile.TemporaryDirectory() as one, tempfile.TemporaryDirectory() as other:
        clean, folder = Path(one), Path(other)
        if start(clean, kind, examples, seconds).wait(120):
            return [(clean / "said.txt").read_text()]
        wanted = result(clean)
        mean = max(1, examples // (kills + 1))
        for _ in range(kills):
            there, before = stored(folder), len(asked(folder))
            fell += killed(
                start(folder, kind, examples, seconds), folder, moments.randint(0, mean), moments.random() / 20
            )
            if again := there & set(asked(folder)[before:]):
                wrong.append(f"stored runs were run again: {sorted(again)[:5]}")
        if start(folder, kind, examples, seconds).wait(120):
            return [(folder / "said.txt").read_text()]
        found = result(folder)
        twice = sum(Counter(asked(folder)).values()) - examples
    wrong += [f"{name}: {_beside(wanted[name], found[name])}" for name in wanted if wanted[name] != found[name]]
    print(f"{kind}: {fell} of {kills} kills while it ran, {twice} runs were lost by them and run again: ", end="")
    print("differs" if wrong else "equal", flush=True)
    return wrong


def _beside(wanted: Any, found: Any) -> str:
    if isinstance(wanted, list):
        pairs = [(a, b) for a, b in zip(wanted, found, strict=False) if a != b]
        return f"{len(wanted)} and {len(found)} rows, {len(pairs)} differ, as {pairs[:1]}"
    return f"{wanted} without kills, {found} with them"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kinds", nargs="*", default=["sync", "async"])
    parser.add_argument("--kills", type=int, default=25, help="of each kind")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--examples", type=int, default=400)
    args = parser.parse_args()
    wrong = [line for kind in args.kinds for line in campaign(kind, args.kills, args.seed, args.examples)]
    print("\n".join(wrong))
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
