"""Would the tests notice? Small faults, drawn at random, put one by one into the modules that everything leans on.

    python benchmarks/mutants.py                     # 60 mutants, 6 in each of ten modules; half an hour and more
    python benchmarks/mutants.py --seed 7 --each 2   # others, and fewer

A mutant is the module with one comparison, boolean, number, operator or call changed. It goes into a copy of the checkout,
where the tests nearest to the module run first, and only what they let live meets the whole suite without the slow tests. A test that fails,
and a run that takes more than its time, kills it. What cannot be told from the original by any test is named in `EQUIVALENT`
with the reason, and left out of the share.
"""

from __future__ import annotations

import argparse
import ast
import copy
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
FOLDERS = ("tracer", "collector", "evaluators", "cli")
NEAR_SECONDS, SUITE_SECONDS = 300, 1_800
SWAPS: dict[type[ast.AST], type[ast.AST]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.And: ast.Or,
    ast.Or: ast.And,
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Add,
    ast.Div: ast.Mult,
}
# module: the tests nearest to it, the fastest first: the first that fails ends the run
MODULES = {
    "evaluators/spanwise/evaluators/interface/outcomes.py": "evaluators: outcomes protocol make evaluate_outcomes",
    "evaluators/spanwise/evaluators/interface/argument_binding.py": "evaluators: binding protocol evaluator_here make",
    "collector/spanwise/collector/statistics/score_comparison.py": "collector: paired contrast statistics",
    "collector/spanwise/collector/statistics/feedback_tally.py": "collector: tally statistics standing",
    "collector/spanwise/collector/stores/trace_summary.py": "collector: rollup append conformance",
    "collector/spanwise/collector/stores/sqlite/write/span_writer.py": "collector: append growing rollup sqlite conformance",
    "collector/spanwise/collector/ingest/otlp_receiver.py": "collector: receiver_body receiver receiver_intake",
    "tracer/spanwise/tracer/otel/live_span.py": "tracer: spans finish values context privacy",
    "tracer/spanwise/tracer/export/disk_spool.py": "tracer: spool delivery",
    "tracer/spanwise/tracer/streaming.py": "tracer: streams streams_as_before callables",
}
EQUIVALENT: dict[str, str] = {
    "span_writer.py Appender.__init__: 0 is 1 #1": "`forget()`, called at the end of it, sets the same number to 0",
}


@dataclass(frozen=True)
class Mutant:
    """A module with one fault; `name` says which, without line numbers."""

    module: str
    name: str
    source: str


def mutants(module: str) -> list[Mutant]:
    """Every mutant of a module, in the order of its text."""
    tree = ast.parse((ROOT / module).read_text())
    found: list[Mutant] = []
    counts: dict[str, int] = {}
    for place, (node, where) in enumerate(_nodes(tree)):
        for what, change in _changes(node):
            number = counts[f"{where}: {what}"] = counts.get(f"{where}: {what}", 0) + 1
            mutated = copy.deepcopy(tree)
            change(next(n for i, (n, _) in enumerate(_nodes(mutated)) if i == place))
            name = f"{module.rpartition('/')[2]} {where}: {what} #{number}"
            found.append(Mutant(module, name, ast.unparse(ast.fix_missing_locations(mutated))))
    return found


def _nodes(tree: ast.AST, where: str = "") -> Iterator[tuple[ast.AST, str]]:
    """Nodes inside functions with the names of these; neither annotations nor decorators nor docstrings."""
    for name, value in ast.iter_fields(tree):
        if name in ("annotation", "returns", "decorator_list", "type_params", "bases"):
            continue
        for node in value if isinstance(value, list) else [value]:
            if not isinstance(node, ast.AST) or _is_docstring(node):
                continue
            inside = where
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                inside = f"{where}.{node.name}" if where else node.name
            if where:
                yield node, where
            yield from _nodes(node, inside)


def _is_docstring(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _changes(node: ast.AST) -> Iterator[tuple[str, object]]:
    """What can be done to a node: a description, and a function that does it to a copy."""
    if isinstance(node, ast.Compare):
        for place, operator in enumerate(node.ops):
            new = SWAPS[type(operator)]
            yield f"{ast.unparse(node)} with {new.__name__}", lambda n, p=place, new=new: n.ops.__setitem__(p, new())
    elif isinstance(node, ast.BoolOp | ast.BinOp) and type(node.op) in SWAPS and not _is_union(node):
        new = SWAPS[type(node.op)]
        yield f"{ast.unparse(node)} with {new.__name__}", lambda n, new=new: setattr(n, "op", new())
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield f"{ast.unparse(node)} without not", lambda n: setattr(n, "op", ast.UAdd()) or _doubled(n)
    elif isinstance(node, ast.Constant) and isinstance(node.value, bool):
        yield f"{node.value} is {not node.value}", lambda n: setattr(n, "value", not n.value)
    elif isinstance(node, ast.Constant) and isinstance(node.value, int):
        yield f"{node.value} is {node.value + 1}", lambda n: setattr(n, "value", n.value + 1)
    elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call | ast.Await):
        yield f"no {ast.unparse(node)}", lambda n: setattr(n, "value", ast.Constant(None))


def _is_union(node: ast.AST) -> bool:
    return isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr)


def _doubled(node: ast.UnaryOp) -> None:
    """`not x` becomes `not not x`."""
    node.op, node.operand = ast.Not(), ast.UnaryOp(ast.Not(), node.operand)


def drawn(seed: int, each: int, only: str) -> list[Mutant]:
    """A sample of every module's mutants, each module's the same whichever others there are."""
    found = []
    for module in MODULES:
        if only in module:
            known = mutants(module)
            found += random.Random(f"{seed} {module}").sample(known, min(each, len(known)))
    return found


class Copy:
    """A copy of the checkout, in which one mutant at a time is tried."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "checkout"
        ignored = shutil.ignore_patterns(".git", ".venv*", "__pycache__", ".*_cache", "*.db", "results")
        shutil.copytree(ROOT, self.root, ignore=ignored)
        self.environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(str(self.root / name) for name in FOLDERS),
            "PYTHONDONTWRITEBYTECODE": "1",
            "HOME": str(folder),
        }

    def verdict(self, mutant: Mutant) -> str:
        """`near`, or `suite` with the test that fails, for what kills it, else `alive`."""
        path = self.root / mutant.module
        original = path.read_text()
        path.write_text(mutant.source)
        try:
            if self.failure(self.near(mutant.module), NEAR_SECONDS):
                return "near"
            killer = self.failure([], SUITE_SECONDS)
            return f"suite ({killer})" if killer else "alive"
        finally:
            path.write_text(original)

    def near(self, module: str) -> list[str]:
        """The files with the tests nearest to a module."""
        folder, names = MODULES[module].split(": ")
        return [f"tests/{folder}/test_{name}.py" for name in names.split()]

    def failure(self, tests: list[str], seconds: float) -> str | None:
        """The first test that fails, or what else keeps them from passing in time; None if they pass."""
        selection = ["-m", "not slow and not real_model"]
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *selection, *tests]
        process = subprocess.Popen(
            command,
            cwd=self.root,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            text=True,
        )
        try:
            said, _ = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, 9)
            process.communicate()
            return f"more than {seconds} s"
        failed = [line.split()[1] for line in said.splitlines() if line.startswith(("FAILED ", "ERROR "))]
        return None if process.returncode == 0 else next(iter(failed), f"exit {process.returncode}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=20261121)
    parser.add_argument("--each", type=int, default=6, help="mutants of each module")
    parser.add_argument("--jobs", type=int, default=2, help="mutants tried at the same time")
    parser.add_argument("--only", default="", help="only modules whose path has this in it")
    parser.add_argument("--list", action="store_true", help="show them, and try none")
    args = parser.parse_args()
    chosen = drawn(args.seed, args.each, args.only)
    if args.list:
        return print("\n".join(one.name for one in chosen))
    tried(chosen, args.jobs)
    return None


def tried(chosen: list[Mutant], jobs: int) -> None:
    """Try them all and print what became of each, and the share that was killed."""
    began, verdicts = time.monotonic(), dict[str, str]()
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(jobs) as pool:
        places = [Copy(Path(folder) / str(number)) for number in range(jobs)]
        for module in dict.fromkeys(mutant.module for mutant in chosen):
            if failed := places[0].failure(places[0].near(module), NEAR_SECONDS):
                raise SystemExit(f"{failed}, near to {module}, fails without any fault: it would kill everything")

        def work(mutant: Mutant) -> tuple[Mutant, str]:
            if mutant.name in EQUIVALENT:
                return mutant, "equivalent"
            place = places.pop()
            try:
                return mutant, place.verdict(mutant)
            finally:
                places.append(place)

        for mutant, verdict in pool.map(work, chosen):
            verdicts[mutant.name] = verdict
            print(f"{verdict:10} {mutant.name}", flush=True)
    counted = [one for one in verdicts.values() if one != "equivalent"]
    killed = sum(one != "alive" for one in counted)
    near = counted.count("near")
    print(f"{killed} of {len(counted)} killed ({killed / len(counted):.0%}), {near} by the nearest tests, ", end="")
    print(f"{len(verdicts) - len(counted)} equivalent, {time.monotonic() - began:,.0f} s")


if __name__ == "__main__":
    main()
