"""How a worker ended, in words."""

from __future__ import annotations

import re
import signal
import threading
from collections.abc import Iterable, Sequence
from pathlib import Path

_FRAME = re.compile(r'^  File "(?P<file>.+)", line (?P<line>\d+) in (?P<name>.+)$')
_USUAL = {
    signal.SIGSEGV: "it reached for memory that is not its own",
    signal.SIGKILL: "as the system does where memory runs out, or somebody by hand",
    signal.SIGABRT: "a library has given up, as many do where memory runs out",
}
_PYTHON, _OURS = str(Path(threading.__file__).parent), str(Path(__file__).parents[1])
CODES = {64: "it could not begin", 75: "all its slots were held by evaluators that do not come back"}


def cause(code: int) -> str:
    """What an exit status says: `killed by SIGSEGV (…)`, `exit code 3`."""
    if code >= 0:
        return f"exit code {code}" + (f" ({CODES[code]})" if code in CODES else "")
    try:
        found = signal.Signals(-code)
    except ValueError:
        return f"killed by signal {-code}"
    return f"killed by {found.name}" + (f" ({_USUAL[found]})" if found in _USUAL else "")


def place(crash: Iterable[str]) -> str | None:
    """Where a crash happened, as `faulthandler` tells it: the innermost line that is neither Python's own nor ours.

    Frames of the thread that crashed go before those of others.
    """
    lines = list(crash)
    current = next((place for place, line in enumerate(lines) if line.startswith("Current thread")), 0)
    frames = [found for line in lines[current:] + lines[:current] if (found := _FRAME.match(line))]
    frame = next((frame for frame in frames if not _is_usual(frame["file"])), None)
    return f"{frame['name']}, {Path(frame['file']).name}:{frame['line']}" if frame else None


def _is_usual(file: str) -> bool:
    return file.startswith((_OURS, "<")) or (file.startswith(_PYTHON) and "site-packages" not in file)


def held(claims: Sequence[Sequence[str]], most: int = 3) -> str:
    """What it was running: rules and targets."""
    told = [f"rule {rule!r} on {target}" for _, rule, target in claims[:most]]
    more = [f"{len(claims) - most} more"] if len(claims) > most else []
    return " and ".join([*told, *more])
