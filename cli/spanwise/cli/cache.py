"""`spanwise cache`: answers of judges and vectors of texts that are kept, so that nothing is asked and paid for
twice."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from spanwise.cli._common import emit, notes, table
from spanwise.cli._options import JsonOption, YesOption
from spanwise.collector.errors import Refused
from spanwise.collector.format import ago, count
from spanwise.collector.querystring import duration

if TYPE_CHECKING:
    from spanwise.evaluators.judges._cache import Cache, Stats
    from spanwise.evaluators.models._kept import VectorFile, VectorStats

app = typer.Typer(
    help="The caches of judges' answers and of texts' vectors: what they hold, forgetting it.",
    no_args_is_help=True,
    epilog="Example: `spanwise cache stats`",
)

At = Annotated[
    str | None,
    typer.Option(
        "--cache", help="One file; else SPANWISE_CACHE and SPANWISE_VECTORS, else the user's cache directory."
    ),
]
Model = Annotated[str | None, typer.Option(help="Only what is of this model, as `stats` shows it.")]
OlderThan = Annotated[str | None, typer.Option(help="Only what was made longer ago, such as 7d.")]


@app.command()
def stats(at: At = None, as_json: JsonOption = False) -> None:
    """How many answers and vectors are kept, of which models, since when, and how large the files are.

    Example: `spanwise cache stats --json`
    """
    with _opened(at) as caches:
        held = [(cache, cache.stats()) for cache in caches]
    if as_json:
        emit([{"cache": str(cache.path), **told._asdict()} for cache, told in held] or [{"cache": None, "answers": 0}])
        return
    for cache, told in held:
        rows = ((model or "?", count(n)) for model, n in told.models.items())
        table(("model", cache.TABLE), [*rows, _whole(told)])


@app.command()
def clear(
    model: Model = None,
    older_than: OlderThan = None,
    at: At = None,
    yes: YesOption = False,
    as_json: JsonOption = False,
) -> None:
    """Forget kept answers and vectors: judges are asked, and texts encoded, anew.

    Example: `spanwise cache clear --older-than 7d --yes`
    """
    seconds = duration(older_than) / 1e9 if older_than is not None else None
    with _opened(at) as caches:
        for cache in () if yes else caches:
            told = _told(cache.TABLE, model, older_than)
            typer.confirm(f"Forget {told} in {cache.path}?", abort=True, err=True)
        cleared = [(cache.TABLE, cache.clear(older_than=seconds, model=model)) for cache in caches]
    if as_json:
        emit([{"cleared": sum(number for _, number in cleared)}])
    else:
        said = (f"{count(number)} {kind}" for kind, number in cleared or [("answers", 0)])
        typer.echo(f"{', '.join(said)} forgotten")


@contextmanager
def _opened(at: str | None) -> Iterator[list[Cache | VectorFile]]:
    """The caches that are there; says which on stderr. Raises `Refused`."""
    caches = [_of(Path(at).expanduser())] if at else _usual()
    for cache in caches:
        there = "" if cache.path.exists() else " (nothing is kept yet)"
        notes.print(f"cache: {cache.path}{there}", markup=False, soft_wrap=True)
    here = [cache for cache in caches if cache.path.exists()]
    try:
        yield here
    except sqlite3.Error as error:
        paths = " or ".join(str(cache.path) for cache in here)
        kinds = " or ".join(cache.OF for cache in here)
        raise Refused(
            f"{paths} cannot be read as a cache of {kinds} ({error}): move it away, or name another"
        ) from None
    finally:
        for cache in here:
            cache.close()


def _usual() -> list[Cache | VectorFile]:
    """Where the environment says. Vectors are kept where somebody asked for it: no file is no news.

    Raises `Refused` where nothing is kept.
    """
    from spanwise.evaluators.judges._cache import Cache, default_path
    from spanwise.evaluators.models import _kept

    answers, vectors = default_path(), _kept.default_path()
    caches: list[Cache | VectorFile] = [Cache(answers)] if answers is not None else []
    if vectors is not None and vectors.exists():
        caches.append(_kept.VectorFile(vectors))
    if not caches:
        raise Refused("SPANWISE_CACHE is off: no answers are kept; name a file with --cache")
    return caches


def _of(path: Path) -> Cache | VectorFile:
    """What a file is of, by the mark that it bears; of answers where it bears none."""
    from spanwise.evaluators.judges._cache import Cache
    from spanwise.evaluators.models._kept import VectorFile

    if not path.is_file():
        return Cache(path)
    with closing(sqlite3.connect(path)) as file, suppress(sqlite3.Error):
        [application] = file.execute("PRAGMA application_id").fetchone()
        if application in (VectorFile.APPLICATION, VectorFile.FORMER_APPLICATION):
            return VectorFile(path)
    return Cache(path)


def _whole(held: Stats | VectorStats) -> tuple[str, str]:
    age = f", the oldest {ago(int(held.oldest * 1e9))}" if held.oldest is not None else ""
    return f"together ({held.bytes / 1e6:.1f} MB{age})", count(held[0])


def _told(kind: str, model: str | None, older_than: str | None) -> str:
    of = f" of {model}" if model is not None else ""
    return f"{kind}{of}{f' older than {older_than}' if older_than else ''}" if of or older_than else f"all {kind}"
