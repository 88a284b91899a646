"""`spanwise keys`: create, list and revoke API keys; audit log."""

from __future__ import annotations

import hashlib
import secrets
import time
from typing import Annotated, Any

import typer

from spanwise.cli.command_io import (
    JsonOption,
    StoreOption,
    YesOption,
    emit,
    open_store,
    print_line,
    print_note,
    print_table,
)
from spanwise.collector.errors import NotFound, Refused
from spanwise.collector.filters import parse_duration
from spanwise.collector.formatting import ago, when
from spanwise.collector.records import Key, iterate_pages
from spanwise.collector.stores import Store
from spanwise.collector.terminal_escaping import escape_line

app = typer.Typer(
    help="API keys: create, list and revoke them; show the audit log.",
    no_args_is_help=True,
    epilog="Example: `spanwise keys create support-bot --scope ingest`",
)
KEY_SCOPES = ("ingest", "feedback", "read", "write", "admin")

Name = Annotated[str, typer.Argument(help="Name that lists, pages and the audit log show.")]
Scope = Annotated[list[str] | None, typer.Option("--scope", help=f"Scope; may be repeated: {', '.join(KEY_SCOPES)}.")]
Project = Annotated[str | None, typer.Option(help="Restrict the key to this project. Default: all projects.")]
Expires = Annotated[str | None, typer.Option(help="Lifetime of the key, such as 90d.")]
KeyId = Annotated[str, typer.Argument(help="Id of the key, as `list` shows it, or its name if it is unique.")]


@app.command()
def create(
    name: Name,
    scope: Scope = None,
    project: Project = None,
    expires: Expires = None,
    as_json: JsonOption = False,
    at: StoreOption = None,
) -> None:
    """Create a key and show it once: the store keeps only its SHA-256. Without --scope it may read and write.

    If the file of --store does not exist, the command creates it, so that the first key exists before the server
    starts.

    Example: `spanwise keys create support-bot --scope ingest --expires 90d`
    """
    if not name.strip() or len(name) > 200 or not name.isprintable():
        raise Refused(f"the name of a key must have 1 to 200 printable characters, got {name!r:.250}")
    scopes = tuple(dict.fromkeys(scope)) if scope else ("read", "write")
    for value in scopes:
        if value not in KEY_SCOPES:
            raise Refused(f"unknown scope {value!r}; expected one of: {', '.join(KEY_SCOPES)}")
    lifetime = None if expires is None else parse_duration(expires)
    if lifetime is not None and not 0 < lifetime < 2**62:
        raise Refused(f"--expires must be a positive duration such as 90d, got {expires!r}")
    secret = f"spanwise_{secrets.token_urlsafe(32)}"
    key = Key(
        id=f"key_{secrets.token_hex(6)}",
        name=name.strip(),
        sha256=hashlib.sha256(secret.encode()).hexdigest(),
        project=project or None,
        scopes=scopes,
        expires_ns=None if lifetime is None else time.time_ns() + lifetime,
    )
    with open_store(at, make=at is not None) as store:
        store.save_key(key)
    if as_json:
        emit([{**_key_to_dict(key), "key": secret}])
        return
    print_note(f"{key.id} for {key.name!r}: {', '.join(key.scopes)}; it is shown only once, so save it now")
    typer.echo(secret)


@app.command("list")
def list_(as_json: JsonOption = False, at: StoreOption = None) -> None:
    """List the keys, newest first, without their secrets.

    Example: `spanwise keys list`
    """
    with open_store(at) as store:
        keys = store.keys()
    if as_json:
        emit(map(_key_to_dict, keys))
        return
    rows = []
    for key in keys:
        expiry = "never" if key.expires_ns is None else when(key.expires_ns)
        if key.expires_ns is not None and key.expires_ns <= time.time_ns():
            expiry = "has expired"
        rows.append((key.id, key.name, ", ".join(key.scopes), key.project or "all", ago(key.created_ns), expiry))
    print_table(("id", "name", "scopes", "project", "created", "expires"), rows)


@app.command()
def revoke(key: KeyId, yes: YesOption = False, as_json: JsonOption = False, at: StoreOption = None) -> None:
    """Revoke a key. Within ten seconds it stops working, and browser sessions that use it end.

    Example: `spanwise keys revoke key_1f2e3d4c5b6a --yes`
    """
    with open_store(at) as store:
        found = _find_key(store, key)
        if not yes:
            typer.confirm(f"Revoke {found.id} ({escape_line(found.name)})?", abort=True, err=True)
        store.delete_key(found.id)
    if as_json:
        emit([{"revoked": found.id, "name": found.name}])
    else:
        print_line(f"{found.id} is revoked")


@app.command()
def audit(
    limit: Annotated[int, typer.Option(min=1, help="Maximum number, newest first.")] = 100,
    as_json: JsonOption = False,
    at: StoreOption = None,
) -> None:
    """Show the audit log: deletions, and created and revoked keys, with the key used, time and address.

    Example: `spanwise keys audit --json`
    """
    with open_store(at) as store:
        events = [event for event, _ in zip(iterate_pages(store.audit), range(limit), strict=False)]
    if as_json:
        emit(events)
        return
    rows = []
    for event in events:
        actor = f"{event.name} ({event.key})" if event.key and event.key != event.name else event.name or "no key"
        rows.append((when(event.at_ns), event.action, str(event.count), actor, event.address, event.about))
    print_table(("time", "action", "count", "key", "address", "target"), rows)


def _find_key(store: Store, id_or_name: str) -> Key:
    """Return the key with this id, or else with this name. Raises `NotFound`, or `Refused` if several keys have the
    name.
    """
    keys = store.keys()
    matching = [key for key in keys if key.id == id_or_name] or [key for key in keys if key.name == id_or_name]
    if len(matching) > 1:
        raise Refused(f"{len(matching)} keys have the name {id_or_name!r}; use the id that `spanwise keys list` shows")
    if not matching:
        raise NotFound(f"there is no key {id_or_name!r}; `spanwise keys list` lists all keys")
    return matching[0]


def _key_to_dict(key: Key) -> dict[str, Any]:
    return {
        "id": key.id,
        "name": key.name,
        "scopes": key.scopes,
        "project": key.project,
        "created_ns": key.created_ns,
        "expires_ns": key.expires_ns,
    }
