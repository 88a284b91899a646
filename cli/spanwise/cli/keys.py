"""`spanwise keys`: who may speak to a server that is open to others."""

from __future__ import annotations

import hashlib
import secrets
import time
from typing import Annotated, Any

import typer

from spanwise.cli._common import console, emit, notes, on_a_line, opened, table
from spanwise.cli._options import JsonOption, StoreOption, YesOption
from spanwise.collector.errors import NotFound, Refused
from spanwise.collector.format import ago, when
from spanwise.collector.querystring import duration
from spanwise.collector.records import AuditEvent, Key, paged
from spanwise.collector.stores import Store

app = typer.Typer(
    help="API keys of a server that listens beyond this machine: making, listing, revoking them, and who did what.",
    no_args_is_help=True,
    epilog="Example: `spanwise keys create support-bot --scope ingest`",
)
SCOPES = ("ingest", "feedback", "read", "write", "admin")

Name = Annotated[str, typer.Argument(help="What it is for, in words: it stands in lists, on pages and in the audit.")]
Scope = Annotated[
    list[str] | None, typer.Option("--scope", help=f"What it opens, any number of times: {', '.join(SCOPES)}.")
]
Project = Annotated[str | None, typer.Option(help="The one project that it stays inside; else all of them.")]
Expires = Annotated[str | None, typer.Option(help="After what time it opens nothing any more, such as 90d.")]
KeyId = Annotated[str, typer.Argument(help="The key's id, as `list` shows it; or its name, if no other has it.")]


@app.command()
def create(
    name: Name,
    scope: Scope = None,
    project: Project = None,
    expires: Expires = None,
    as_json: JsonOption = False,
    at: StoreOption = None,
) -> None:
    """Make a key and show it, this once: the store keeps its SHA-256 alone. Without --scope it reads and writes.

    On a file that does not exist yet it makes the first key, for the server that is to be started on it.

    Example: `spanwise keys create support-bot --scope ingest --expires 90d`
    """
    secret = f"spanwise_{secrets.token_urlsafe(32)}"
    key = Key(
        id=f"key_{secrets.token_hex(6)}",
        name=_named(name),
        sha256=hashlib.sha256(secret.encode()).hexdigest(),
        project=project or None,
        scopes=_scopes(scope),
        expires_ns=None if expires is None else time.time_ns() + _lasting(expires),
    )
    with opened(at, make=at is not None) as store:
        store.save_key(key)
    if as_json:
        emit([{**_shown(key), "key": secret}])
        return
    notes.print(f"{key.id} for {key.name!r}: {', '.join(key.scopes)}; it is shown this once, so keep it", markup=False)
    typer.echo(secret)


@app.command("list")
def list_(as_json: JsonOption = False, at: StoreOption = None) -> None:
    """The keys that are there, newest first; never what is secret of them.

    Example: `spanwise keys list`
    """
    with opened(at) as store:
        keys = store.keys()
    if as_json:
        emit(map(_shown, keys))
        return
    table(("id", "name", "scopes", "project", "made", "expires"), map(_row, keys))


@app.command()
def revoke(key: KeyId, yes: YesOption = False, as_json: JsonOption = False, at: StoreOption = None) -> None:
    """Take a key back: ten seconds later it opens nothing, and whoever is signed in with it is signed out.

    Example: `spanwise keys revoke key_1f2e3d4c5b6a --yes`
    """
    with opened(at) as store:
        found = _found(store, key)
        if not yes:
            typer.confirm(f"Revoke {found.id} ({on_a_line(found.name)})?", abort=True, err=True)
        store.delete_key(found.id)
    if as_json:
        emit([{"revoked": found.id, "name": found.name}])
    else:
        console.print(f"{found.id} is revoked", markup=False)


@app.command()
def audit(
    limit: Annotated[int, typer.Option(min=1, help="How many, newest first.")] = 100,
    as_json: JsonOption = False,
    at: StoreOption = None,
) -> None:
    """Who deleted what, and who made or revoked keys: the key it was done with, when, and from where.

    Example: `spanwise keys audit --json`
    """
    with opened(at) as store:
        events = [event for event, _ in zip(paged(store.audit), range(limit), strict=False)]
    if as_json:
        emit(events)
        return
    rows = ((when(one.at_ns), one.action, str(one.count), _who(one), one.address, one.about) for one in events)
    table(("when", "what", "count", "who", "from", "of what"), rows)


def _named(name: str) -> str:
    if not name.strip() or len(name) > 200 or not name.isprintable():
        raise Refused(f"a key's name is 1 to 200 printable characters, not {name!r:.250}")
    return name.strip()


def _scopes(given: list[str] | None) -> tuple[str, ...]:
    for scope in given or ():
        if scope not in SCOPES:
            raise Refused(f"there is no scope {scope!r}: there are {', '.join(SCOPES)}")
    return tuple(dict.fromkeys(given)) if given else ("read", "write")


def _lasting(text: str) -> int:
    lasting = duration(text)
    if not 0 < lasting < 2**62:
        raise Refused(f"--expires {text!r} is no time for a key to last: say 90d, or leave it out")
    return lasting


def _found(store: Store, said: str) -> Key:
    """The key of this id, else the one of this name. Raises `NotFound`, or `Refused` for a name of several."""
    keys = store.keys()
    found = [key for key in keys if key.id == said] or [key for key in keys if key.name == said]
    if len(found) > 1:
        raise Refused(f"{len(found)} keys are called {said!r}: name one by its id, as `spanwise keys list` shows it")
    if not found:
        raise NotFound(f"there is no key {said!r}: `spanwise keys list` shows those that are there")
    return found[0]


def _shown(key: Key) -> dict[str, Any]:
    return {
        "id": key.id,
        "name": key.name,
        "scopes": key.scopes,
        "project": key.project,
        "created_ns": key.created_ns,
        "expires_ns": key.expires_ns,
    }


def _row(key: Key) -> tuple[str, ...]:
    return key.id, key.name, ", ".join(key.scopes), key.project or "all", ago(key.created_ns), _ends(key)


def _ends(key: Key) -> str:
    if key.expires_ns is None:
        return "never"
    return "has expired" if key.expires_ns <= time.time_ns() else when(key.expires_ns)


def _who(event: AuditEvent) -> str:
    return f"{event.name} ({event.key})" if event.key and event.key != event.name else event.name or "no key"
