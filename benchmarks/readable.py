"""Measures of how readable the source tree is.

    python benchmarks/readable.py             all figures
    python benchmarks/readable.py --check     exits with 1 if a figure is worse than its limit in `LIMITS`
    python benchmarks/readable.py --static    without the two figures that run the product

Lines of code exclude blank lines, comments and docstrings. An import goes past a package's face if it names a module
(not a package) from outside that module's package, and the package does not list the module in `SHARED_MODULES` or
`__all__`. The way of a span is the sequence of product files whose functions are called between `flush()` and the
commit of the full-text index, after one span for warming up; a return is a call into a file that the same thread had
called into before and left.
"""

from __future__ import annotations

import argparse
import ast
import io
import re
import sys
import threading
import time
import tokenize
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FrameType
from typing import Any

ROOT = Path(__file__).parent.parent
FOLDERS = ("tracer", "collector", "evaluators", "cli")
DEFS = (ast.FunctionDef, ast.AsyncFunctionDef)
LISTED = re.compile(
    r"\b(whoever|nobody|somebody|beside|stands?|lies|let go|in words|so many|at rest|anew|what (?:is|was|has|comes)"
    r"|comes? of|came of|becomes? of|told|said)\b",
    re.IGNORECASE,
)
QUESTION = re.compile(r"(What|Who|Whether|Which|How)\b")
# First words of docstrings that are not verbs although they could be one.
NOT_VERBS = {"The", "A", "An", "All", "One", "This", "That", "Each", "Every", "Its", "Their", "Where", "When", "Why"}
# The worst value that CI accepts. Lower it when a figure improves. Features raise lines and modules; the figures that
# run the product depend on time.
LIMITS: dict[str, float] = {
    "modules of the largest package": 20,
    "code lines per function": 10.8,
    "private functions of 8 lines or fewer that are called once": 400,
    "modules in import cycles, lazy imports included": 0,
    "modules in import cycles, imports for type checkers included": 0,
    "imports past a package's face": 0,
    "test files that import past a package's face": 60,
    "listed words per 1,000 words of docstrings and comments": 0.2,
    "docstrings and comments that begin with What, Who, Whether, Which, How": 0,
    "function docstrings that begin with a verb, %": 99,
}
AT_LEAST = {"code lines per function", "function docstrings that begin with a verb, %"}


@dataclass
class Module:
    """A parsed source file. `name` is its dotted name, for tests its path."""

    path: Path
    name: str
    text: str
    tree: ast.Module

    @property
    def is_package(self) -> bool:
        return self.path.name == "__init__.py"

    @property
    def package(self) -> str:
        return self.name if self.is_package else self.name.rpartition(".")[0]


def product() -> list[Module]:
    """Return the modules of the product."""
    found = []
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*.py")):
            parts = path.relative_to(ROOT / folder).with_suffix("").parts
            name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
            found.append(parsed(path, name))
    return found


def parsed(path: Path, name: str) -> Module:
    text = path.read_text()
    return Module(path, name, text, ast.parse(text))


def docstring_nodes(tree: ast.AST) -> Iterator[tuple[ast.AST, ast.Constant]]:
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, *DEFS)) and node.body and isinstance(node.body[0], ast.Expr):
            value = node.body[0].value
            if isinstance(value, ast.Constant) and isinstance(value.value, str):
                yield node, value


def code_lines(module: Module) -> int:
    """Return the number of lines that hold code."""
    skipped = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(module.text).readline):
        if token.type not in skipped:
            lines.update(range(token.start[0], token.end[0] + 1))
    for _, value in docstring_nodes(module.tree):
        lines.difference_update(range(value.lineno, (value.end_lineno or value.lineno) + 1))
    return len(lines)


def prose(modules: list[Module]) -> tuple[list[str], list[str], list[str]]:
    """Return all docstrings, the docstrings of functions, and all comments."""
    docstrings, of_functions, comments = [], [], []
    for module in modules:
        for node, value in docstring_nodes(module.tree):
            docstrings.append(str(value.value).strip())
            if isinstance(node, DEFS):
                of_functions.append(str(value.value).strip())
        tokens = tokenize.generate_tokens(io.StringIO(module.text).readline)
        comments += [token.string.lstrip("#:! ") for token in tokens if token.type == tokenize.COMMENT]
    return docstrings, of_functions, comments


def begins_with_verb(docstring: str) -> bool:
    """Return whether the first word looks like an imperative verb: capitalised, no article, no plural or -ed, -ing."""
    first = re.match(r"[A-Z][a-z]+\b", docstring)
    if first is None or first.group() in NOT_VERBS or QUESTION.match(docstring):
        return False
    return first.group() in IMPERATIVES


IMPERATIVES = set(
    """Abort Accept Acknowledge Acquire Add Adjust Admit Advance Aggregate Align Allow Amend Analyze Answer Append Apply Ask Assemble Assert
    Assign Attach Await Back Batch Begin Bind Block Book Bound Break Build Cache Calculate Call Cancel Cap Capture Carry Cast Change Charge
    Check Choose Claim Clamp Classify Clean Clear Clip Close Collapse Collect Combine Come Commit Compact Compare Compile Complete Compress
    Compute Concatenate Configure Confirm Connect Consume Continue Convert Copy Correct Count Cover Create Cut Deactivate Decide Declare Decode
    Decompress Decorate Deduplicate Defer Define Delay Delete Deliver Derive Describe Deserialize Detach Detect Determine Disable Discard
    Disconnect Dispatch Display Divide Do Download Drain Draw Drop Dump Embed Emit Enable Encode End Enforce Enqueue Ensure Enter Escape Estimate
    Evaluate Exclude Execute Exit Expand Expire Explain Export Expose Extend Extract Fail Feed Fetch Fill Filter Finalize Find Finish Fit Flatten
    Flush Follow Forbid Force Forget Format Forward Free Freeze Gather Generate Get Give Grant Group Guard Guess Handle Hash Hold Identify
    Ignore Implement Import Include Increment Index Infer Inherit Initialize Inject Insert Inspect Install Intern Interpolate Interrupt Invalidate
    Invert Invoke Issue Iterate Join Judge Keep Kill Label Launch Leave Let Limit Link List Listen Load Locate Lock Log Look Lower Make Map
    Mark Mask Match Measure Merge Migrate Mirror Move Multiply Name Narrow Normalize Note Notify Number Observe Offer Omit Open Order Overwrite
    Pack Pad Page Parse Partition Pass Patch Pause Pick Pin Place Poll Pool Pop Populate Post Prefer Prefix Prepare Present Prevent Price Print
    Probe Process Produce Promise Propagate Protect Provide Prune Publish Pull Push Put Query Queue Quote Raise Rank Rate Read Rebuild Recompute
    Reconnect Record Recover Redact Redirect Reduce Refresh Refuse Register Reject Release Reload Remember Remove Rename Render Renew Reopen
    Repeat Replace Replay Report Request Require Rerun Reserve Reset Resolve Restart Restore Restrict Resume Retry Return Reuse Reverse Rewrite
    Roll Rotate Round Route Run Sample Save Scale Scan Schedule Score Seal Search Seed Select Send Separate Serialize Serve Set Share Shorten
    Show Shut Shuffle Signal Simulate Skip Sleep Snapshot Sort Spill Split Spool Start State Stop Store Stream Strip Submit Subscribe Substitute
    Subtract Suggest Sum Summarize Suppress Suspend Swap Switch Sync Synchronize Take Tell Terminate Test Throttle Time Tokenize Trace Track
    Train Transform Translate Traverse Treat Trigger Trim Truncate Try Turn Undo Unfreeze Unlock Unpack Unregister Unwrap Update Upgrade Upload
    Use Validate Verify Visit Vote Wait Wake Walk Warm Warn Watch Weigh Weight Widen Withdraw Wrap Write Yield""".split()
)


def single_use_helpers(modules: list[Module]) -> int:
    """Count private functions and methods of at most 8 lines that occur once, in their own module, besides their definition."""
    imported = {
        alias.name
        for module in modules
        for statement, _ in imports(module)
        if isinstance(statement, ast.ImportFrom)
        for alias in statement.names
    }
    count = 0
    for module in modules:
        uses = Counter(re.findall(r"\b_[a-z]\w*", module.text))
        for node in ast.walk(module.tree):
            is_helper = isinstance(node, DEFS) and re.match(r"_[a-z]", node.name) and node.name not in imported
            if is_helper and (node.end_lineno or node.lineno) - node.lineno < 8 and uses[node.name] == 2:
                count += 1
    return count


def imports(module: Module) -> Iterator[tuple[ast.Import | ast.ImportFrom, bool]]:
    """Yield the imports of a module at any depth, and whether they are below `if TYPE_CHECKING:`."""

    def within(node: ast.AST, typing: bool) -> Iterator[tuple[ast.Import | ast.ImportFrom, bool]]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.Import | ast.ImportFrom):
                yield child, typing
            elif isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
                for part, flag in ((child.body, True), (child.orelse, typing)):
                    yield from within(ast.Module(body=part, type_ignores=[]), flag)
            else:
                yield from within(child, typing)

    yield from within(module.tree, False)


def targets(statement: ast.Import | ast.ImportFrom, known: dict[str, Module]) -> set[str]:
    """Return the product's modules that a statement imports."""
    if isinstance(statement, ast.Import):
        return {alias.name for alias in statement.names if alias.name in known}
    names = {f"{statement.module}.{alias.name}" for alias in statement.names}
    return {name if name in known else str(statement.module) for name in names} & set(known)


def exporters(modules: list[Module]) -> dict[str, str]:
    """Return the module that a package's face takes each name from, by the name's path."""
    return {
        f"{module.name}.{alias.asname or alias.name}": f"{statement.module}.{alias.name}"
        for module in modules
        if module.is_package
        for statement, _ in imports(module)
        if isinstance(statement, ast.ImportFrom)
        for alias in statement.names
    }


def defining_modules(
    statement: ast.Import | ast.ImportFrom, known: dict[str, Module], exported: dict[str, str]
) -> set[str]:
    """Return the modules that define what a statement imports, also where it imports through a package's face."""
    if isinstance(statement, ast.Import):
        return targets(statement, known)
    found = set()
    for alias in statement.names:
        name, seen = f"{statement.module}.{alias.name}", set[str]()
        while name in exported and name not in seen:
            seen.add(name)
            name = exported[name]
        found.add(name if name in known else name.rpartition(".")[0])
    return found & set(known)


def cycles(modules: list[Module], *, typing: bool) -> list[list[str]]:
    """Return groups of modules that import each other, with or without imports for type checkers."""
    known = {module.name: module for module in modules}
    exported = exporters(modules)
    graph: dict[str, set[str]] = {name: set() for name in known}
    for module in modules:
        for statement, for_types in imports(module):
            if typing or not for_types:
                graph[module.name] |= defining_modules(statement, known, exported) - {module.name}
    if typing:  # a face names its modules for type checkers only
        for module in modules:
            if module.is_package:
                graph[module.name] = set()
    reach = {name: reachable(graph, name) for name in graph}
    groups = {frozenset(other for other in reach[name] if name in reach[other]) for name in graph}
    return [sorted(group) for group in groups if len(group) > 1]


def reachable(graph: dict[str, set[str]], start: str) -> set[str]:
    seen, waiting = set[str](), [start]
    while waiting:
        for name in graph[waiting.pop()] - seen:
            seen.add(name)
            waiting.append(name)
    return seen


def past_faces(modules: list[Module], importers: list[Module]) -> list[tuple[Module, str]]:
    """Return imports of a module (not a package) from outside its package, unless the package lists the module."""
    known = {module.name: module for module in modules}
    public = {f"{module.name}.{name}" for module in modules if module.is_package for name in listed_names(module)}
    return [
        (importer, target)
        for importer in importers
        for statement, _ in imports(importer)
        for target in targets(statement, known)
        if not known[target].is_package
        and target not in public
        and not f"{importer.package}.".startswith(f"{known[target].package}.")
    ]


def listed_names(module: Module) -> list[str]:
    """Return the names in `SHARED_MODULES` and `__all__`."""
    return [
        name
        for node in module.tree.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) in ("SHARED_MODULES", "__all__")
        for name in ast.literal_eval(node.value)
    ]


class Recorder:
    """Records the product files whose functions are called, one sequence per thread, while `active`."""

    def __init__(self) -> None:
        self.active = False
        self.ways: dict[int, list[str]] = {}
        self._start = str(ROOT)
        threading.setprofile(self._called)
        sys.setprofile(self._called)

    def _called(self, frame: FrameType, event: str, argument: Any) -> None:
        if not self.active or event != "call":
            return
        name = frame.f_code.co_filename
        if not name.startswith(self._start) or name[len(self._start) + 1 :].split("/", 1)[0] not in FOLDERS:
            return
        way = self.ways.setdefault(threading.get_ident(), [])
        if not way or way[-1] != name:
            way.append(name)

    def close(self) -> tuple[int, int]:
        """Return the number of files, and of returns to a file that had been left."""
        threading.setprofile(None)
        sys.setprofile(None)
        files = {name for way in self.ways.values() for name in way}
        return len(files), sum(len(way) - len(set(way)) for way in self.ways.values())


def way_of_a_span() -> tuple[int, int]:
    """Return files and returns on the way of one span from `flush()` to the full-text index."""
    from spanwise import tracer
    from spanwise.collector.server import Server
    from spanwise.collector.stores.sqlite import SQLiteStore

    recorder = Recorder()
    with (
        TemporaryDirectory() as folder,
        SQLiteStore(str(Path(folder, "t.db"))) as store,
        Server(store) as running,
    ):
        tracer.configure(url=running.url)

        def traced(word: str) -> None:
            tracer.trace(lambda text: text, name="question")(word)
            recorder.active = True
            tracer.flush()
            wait_until(lambda: bool(store.traces(text=word, limit=1).items), recorder)

        traced("warmup")
        recorder.ways.clear()
        traced("measured")
        tracer.shutdown()
    return recorder.close()


def wait_until(is_true: Callable[[], bool], recorder: Recorder) -> None:
    """Wait for up to 60 seconds. Calls made by the condition are not recorded."""
    deadline = time.monotonic() + 60
    while True:
        sys.setprofile(None)
        done = is_true()
        if done:
            recorder.active = False
            sys.setprofile(recorder._called)
            return
        if time.monotonic() > deadline:
            raise SystemExit("the span did not reach the full-text index within 60 seconds")
        time.sleep(0.05)


def way_of_an_example() -> int:
    """Return the number of files on the way of one example of `evaluate()` into a store."""
    from spanwise import evaluators

    recorder = Recorder()
    with TemporaryDirectory() as folder:
        for active in (False, True):
            recorder.active = active
            evaluators.evaluate(
                [{"inputs": {"x": 1}, "reference_outputs": "1"}],
                lambda x: str(x),
                evaluators=["exact"],
                store=str(Path(folder, "t.db")),
            )
    return recorder.close()[0]


def measure(*, static: bool) -> dict[str, float]:
    """Return every figure by its name."""
    modules = product()
    tests = [parsed(path, str(path)) for path in sorted((ROOT / "tests").rglob("*.py"))]
    lines = sum(map(code_lines, modules))
    functions = [node for module in modules for node in ast.walk(module.tree) if isinstance(node, DEFS)]
    per_package = Counter(module.package for module in modules if not module.is_package)
    docstrings, of_functions, comments = prose(modules)
    words = sum(len(text.split()) for text in docstrings + comments)
    listed = sum(len(LISTED.findall(text)) for text in docstrings + comments)
    lazy = {name for group in cycles(modules, typing=False) for name in group}
    typed = {name for group in cycles(modules, typing=True) for name in group}
    past_tests = {importer.path for importer, _ in past_faces(modules, tests)}
    figures: dict[str, float] = {
        "lines of code": lines,
        "modules": len(modules),
        "modules of the largest package": max(per_package.values()),
        "code lines per function": round(lines / len(functions), 1),
        "private functions of 8 lines or fewer that are called once": single_use_helpers(modules),
        "modules in import cycles, lazy imports included": len(lazy),
        "modules in import cycles, imports for type checkers included": len(typed),
        "imports past a package's face": len(past_faces(modules, modules)),
        "test files that import past a package's face": len(past_tests),
        "listed words per 1,000 words of docstrings and comments": round(1000 * listed / words, 1),
        "docstrings and comments that begin with What, Who, Whether, Which, How": sum(
            QUESTION.match(text) is not None for text in docstrings + comments
        ),
        "function docstrings that begin with a verb, %": round(
            100 * sum(map(begins_with_verb, of_functions)) / len(of_functions)
        ),
        "lines of test code": sum(map(code_lines, tests)),
    }
    if not static:
        figures["files on the way of a span"], figures["returns to a file already left"] = way_of_a_span()
        figures["files on the way of an example"] = way_of_an_example()
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--static", action="store_true")
    options = parser.parse_args()
    worse = []
    for name, value in measure(static=options.static).items():
        limit = LIMITS.get(name)
        print(f"{value:>10,} {name}" + (f" (limit {limit:,})" if limit is not None else ""))
        if limit is not None and (value < limit if name in AT_LEAST else value > limit):
            worse.append(f"{name}: {value:,} is worse than the limit {limit:,} in {Path(__file__).name}")
    if options.check and worse:
        sys.exit("\n".join(worse))


if __name__ == "__main__":
    main()
