"""Other processes, for tests of what several do to one file."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

HOLDER = """
import sys
from spanwise.collector.errors import StoreError
from spanwise.collector.stores.sqlite import SQLiteStore
from collector.making import run

try:
    store = SQLiteStore(sys.argv[1])
except StoreError as error:
    sys.exit(f"{error}")
print("open", flush=True)
for line in sys.stdin:
    try:
        store.append([run(line.strip())])
        print("kept", flush=True)
    except StoreError as error:
        print(f"{type(error).__name__}: {error}", flush=True)
store.close()
"""


def python(code: str, *arguments: str | Path, before: tuple[str, ...] = ()) -> subprocess.Popen[str]:
    """A process that runs this code; `before` stands before it, as in `nice python …`. Forks may have threads."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [*before, sys.executable, "-W", "ignore::DeprecationWarning", "-c", code, *map(str, arguments)]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True, env=env)


def outcome(code: str, *arguments: str | Path, before: tuple[str, ...] = ()) -> str:
    """All that such a process says until its end, its errors too."""
    with python(code, *arguments, before=before) as process:
        said, errors = process.communicate(timeout=200)
    return said.strip() + errors.strip()


@contextmanager
def holding(path: Path) -> Iterator[Callable[[str], str]]:
    """Another process that holds a store at a path: what is called writes a run of this name there, and says what came
    of it.
    """
    with python(HOLDER, path) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        tell, told = process.stdin, process.stdout
        assert told.readline().strip() == "open"

        def write(name: str) -> str:
            tell.write(f"{name}\n")
            tell.flush()
            return told.readline().strip()

        try:
            yield write
        finally:
            tell.close()
            process.wait(60)
