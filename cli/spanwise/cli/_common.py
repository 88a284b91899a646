"""What every command shares: the store it speaks to, output for people or pipes, errors in one line."""

import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import orjson
from rich.table import Column, Table
from rich.text import Text

from spanwise.collector import connect, default_place, describe, named
from spanwise.collector.errors import Refused, StoreError
from spanwise.collector.filters import EVALUATOR, Filter
from spanwise.collector.querystring import condition, gathered, term
from spanwise.collector.stores import Store
from spanwise.collector.terminal import TerminalConsole, beginning, harmless, on_a_line

__all__ = ["conditions", "console", "emit", "failing_in_one_line", "harmless", "notes", "on_a_line"]
__all__ += ["opened", "reached", "short", "table", "whole_id"]

console = TerminalConsole()
notes = TerminalConsole(stderr=True)
_endless = TerminalConsole(width=2000)
_ENOUGH = 8  # digits of a trace's id that still find it
_IDS = ("trace", "id", "example")  # columns that are there to be copied


@contextmanager
def failing_in_one_line() -> Iterator[None]:
    """Turn the errors that a user can mend into one line on stderr and exit status 1."""
    try:
        yield
    except (StoreError, OSError, ValueError) as error:
        sys.exit(beginning(f"spanwise: {error}"))


@contextmanager
def opened(at: str | None, *, make: bool = False) -> Iterator[Store]:
    """The store that a command speaks to; says on stderr which, and closes it. Only with `make` a new file is begun."""
    store = reached(at, make=make)
    notes.print(f"store: {describe(store)}", markup=False, highlight=False, soft_wrap=True)
    try:
        yield store
    finally:
        store.close()


def reached(at: str | None, *, make: bool = False) -> Store:
    """The same without a word, to be closed by who asks. Raises `Refused`."""
    place = default_place() if at is None else named(at)
    if not make:
        _refuse_absent(place, given=at is not None)
    return connect(place)


def _refuse_absent(place: str, *, given: bool) -> None:
    """A mistyped path is no empty store."""
    if "://" in place or Path(place).exists():
        return
    way_out = "; name another with --store" if given else " here and no server on port 4318; name one with --store"
    raise Refused(f"there is no file {place!r}{way_out}")


def conditions(where: Iterable[str] | None, **options: str | None) -> Filter:
    """The filter that `--where` and options of the same names as conditions say. Raises `ValueError`."""
    named = [condition(name, text) for name, text in options.items() if text is not None]
    return gathered([*map(term, where or ()), *named])


def whole_id(store: Store, given: str) -> str:
    """An id as it is; the beginning of one is looked for among the latest traces, judges' own among them."""
    if len(given) >= 32:
        return given
    latest = [*store.traces(limit=1000), *store.traces(limit=1000, kind=EVALUATOR), *store.running()]
    ids = list({trace.trace_id: None for trace in latest if trace.trace_id.startswith(given.lower())})
    if len(ids) > 1:
        raise Refused(f"{given!r} begins the ids of {len(ids)} traces: {ids[0]!r}, {ids[1]!r}, …; give more of it")
    return ids[0] if ids else given


def emit(rows: Iterable[Any]) -> None:
    """One JSON object per line on stdout."""
    for row in rows:
        sys.stdout.buffer.write(_json(row) + b"\n")
    sys.stdout.buffer.flush()


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """A table on stdout; each text harmless and on a line, as far as a name goes, whole where no terminal ends.

    In a narrow terminal texts fold, ids do not: they are there to be copied. Of a trace's id the beginning is enough.
    """
    out = console if console.is_terminal else _endless
    cells = [list(map(on_a_line, row)) for row in rows]
    made = _table(head, cells)
    if "trace" in head and out.measure(made, options=out.options.update(width=10_000)).maximum > out.width:
        place = head.index("trace")
        made = _table(head, [[*row[:place], row[place][:_ENOUGH], *row[place + 1 :]] for row in cells])
    out.print(made)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    made = Table(*(_column(name, [row[place] for row in rows]) for place, name in enumerate(head)))
    for row in rows:
        made.add_row(*map(Text, row))
    return made


def _column(name: str, texts: Sequence[str]) -> Column:
    if name not in _IDS:
        return Column(name, overflow="fold")
    return Column(name, overflow="fold", no_wrap=True, min_width=max(map(len, texts), default=0))


def short(value: Any, width: int = 60) -> str:
    """A value on one line, cut off where it gets long."""
    text = " ".join((value if isinstance(value, str) else _json(value).decode()).split())
    return text if len(text) <= width else text[: width - 1] + "…"


def _json(value: Any) -> bytes:
    return orjson.dumps(value, default=str, option=orjson.OPT_NON_STR_KEYS)
