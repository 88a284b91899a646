"""`assay cache`: the answers of judges that are kept, so that nothing is asked and paid for twice."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from assay.cli._common import emit, notes, table
from assay.cli._options import JsonOption, YesOption
from assay.collector.errors import Refused
from assay.collector.format import ago, count
from assay.collector.querystring import duration

if TYPE_CHECKING:
    from assay.evaluators.judges._cache import Cache, Stats

app = typer.Typer(
    help="The cache of judges' answers: what it holds, forgetting it.",
    no_args_is_help=True,
    epilog="Example: `assay cache stats`",
)

At = Annotated[str | None, typer.Option("--cache", help="The file; else ASSAY_CACHE, else the user's cache directory.")]
Model = Annotated[str | None, typer.Option(help="Only answers of this model, as `stats` shows it.")]
OlderThan = Annotated[str | None, typer.Option(help="Only answers that were given longer ago, such as 7d.")]


@app.command()
def stats(at: At = None, as_json: JsonOption = False) -> None:
    """How many answers are kept, of which models, since when, and how large the file is.

    Example: `assay cache stats --json`
    """
    with _opened(at) as cache:
        held = cache.stats() if cache is not None else None
        path = str(cache.path) if cache is not None else None
    if as_json:
        emit([{"cache": path, **(held._asdict() if held is not None else {"answers": 0})}])
    elif held is not None:
        table(("model", "answers"), [*((model or "?", count(n)) for model, n in held.models.items()), _whole(held)])


@app.command()
def clear(
    model: Model = None,
    older_than: OlderThan = None,
    at: At = None,
    yes: YesOption = False,
    as_json: JsonOption = False,
) -> None:
    """Forget kept answers: judges are asked anew.

    Example: `assay cache clear --older-than 7d --yes`
    """
    seconds = duration(older_than) / 1e9 if older_than is not None else None
    with _opened(at) as cache:
        if cache is None:
            cleared = 0
        else:
            if not yes:
                typer.confirm(f"Forget {_told(model, older_than)} in {cache.path}?", abort=True, err=True)
            cleared = cache.clear(older_than=seconds, model=model)
    if as_json:
        emit([{"cleared": cleared}])
    else:
        typer.echo(f"{count(cleared)} answers forgotten")


@contextmanager
def _opened(at: str | None) -> Iterator[Cache | None]:
    """The cache that is there; says which on stderr, and None where there is none yet. Raises `Refused`."""
    from assay.evaluators.judges._cache import Cache, default_path

    path = Path(at).expanduser() if at else default_path()
    if path is None:
        raise Refused("ASSAY_CACHE is off: no answers are kept; name a file with --cache")
    notes.print(f"cache: {path}{'' if path.exists() else ' (nothing is kept yet)'}", markup=False, soft_wrap=True)
    if not path.exists():
        yield None
        return
    cache = Cache(path)
    try:
        yield cache
    except sqlite3.Error as error:
        raise Refused(f"{path} cannot be read as a cache of judges ({error}): move it away, or name another") from None
    finally:
        cache.close()


def _whole(held: Stats) -> tuple[str, str]:
    age = f", the oldest {ago(int(held.oldest * 1e9))}" if held.oldest is not None else ""
    return f"together ({held.bytes / 1e6:.1f} MB{age})", count(held.answers)


def _told(model: str | None, older_than: str | None) -> str:
    of = f" of {model}" if model is not None else ""
    return f"answers{of}{f' older than {older_than}' if older_than else ''}" if of or older_than else "all answers"
