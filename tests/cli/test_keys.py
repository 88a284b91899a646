"""`spanwise keys`, run as people run it: on a file, and through the server that holds it."""

from __future__ import annotations

import hashlib
import json
import subprocess
import time
from pathlib import Path
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner

from integration.serving import COMMAND, environment
from spanwise.cli.app import app, report_errors
from spanwise.collector.errors import Refused
from spanwise.collector.records import Key
from spanwise.collector.server import Server
from spanwise.collector.stores.sqlite import SQLiteStore


def spanwise(*arguments: object, **options: Any) -> Any:
    return CliRunner().invoke(app, ["keys", *map(str, arguments)], **options)


def refusal(*arguments: object) -> str:
    with pytest.raises(SystemExit) as told, report_errors():
        app(["keys", *map(str, arguments)])
    return str(told.value)


def created(*arguments: object) -> dict[str, Any]:
    made: dict[str, Any] = json.loads(spanwise("create", *arguments, "--json").stdout)
    return made


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "spanwise.db"


def kept(path: Path) -> list[Key]:
    with SQLiteStore(path) as store:
        return store.keys()


def test_the_secret_alone_stands_on_stdout(path: Path) -> None:
    told = spanwise("create", "the bot", "--scope", "ingest", "--store", path)
    secret = told.stdout.strip()
    assert secret.startswith("spanwise_")
    assert len(secret) == len("spanwise_") + 43
    (key,) = kept(path)
    assert (key.name, key.scopes, key.project, key.expires_ns) == ("the bot", ("ingest",), None, None)
    assert key.sha256 == hashlib.sha256(secret.encode()).hexdigest()
    assert key.id in told.stderr
    assert secret not in told.stderr


def test_scopes_project_and_expiry(path: Path) -> None:
    before = time.time_ns()
    scopes = ("--scope", "read", "--scope", "feedback", "--scope", "read")
    made = created("a", *scopes, "--project", "shop", "--expires", "90d", "--store", path)
    (key,) = kept(path)
    assert (key.scopes, key.project) == (("read", "feedback"), "shop")
    assert before <= (key.expires_ns or 0) - 90 * 86_400 * 10**9 <= time.time_ns()
    assert {name: made[name] for name in ("id", "scopes", "project")} == {
        "id": key.id,
        "scopes": ["read", "feedback"],
        "project": "shop",
    }


def test_no_secret_is_listed(path: Path) -> None:
    made = created("ann", "--store", path)
    shown, told = spanwise("list", "--store", path).stdout, spanwise("list", "--json", "--store", path).stdout
    assert "ann" in shown
    assert json.loads(told) == {name: value for name, value in made.items() if name != "key"}
    for hidden in (made["key"], hashlib.sha256(made["key"].encode()).hexdigest()):
        assert hidden not in shown + told
        assert made["key"].encode() not in path.read_bytes()


def test_a_key_is_revoked_by_id_or_name(path: Path) -> None:
    first, _ = created("a", "--store", path), created("b", "--store", path)
    assert json.loads(spanwise("revoke", first["id"], "--yes", "--json", "--store", path).stdout)["name"] == "a"
    assert spanwise("revoke", "b", "--yes", "--store", path).exit_code == 0
    assert kept(path) == []


def test_revoking_asks_first(path: Path) -> None:
    created("a", "--store", path)
    assert spanwise("revoke", "a", "--store", path, input="n\n").exit_code == 1
    assert len(kept(path)) == 1


def test_of_two_keys_of_one_name_neither_is_revoked_by_it(path: Path) -> None:
    created("a", "--store", path), created("a", "--store", path)
    assert "2 keys have the name 'a'" in refusal("revoke", "a", "--yes", "--store", str(path))
    assert len(kept(path)) == 2


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("create", "a", "--scope", "all"), "unknown scope 'all'"),
        (("create", " "), "the name of a key must have 1 to 200 printable characters"),
        (("create", "a\nb"), "the name of a key must have 1 to 200 printable characters"),
        (("create", "a", "--expires", "soon"), "invalid duration 'soon'"),
        (("create", "a", "--expires", "0d"), "must be a positive duration such as 90d"),
        (("create", "a", "--expires", "9" * 30 + "d"), "must be a positive duration such as 90d"),
        (("revoke", "none", "--yes"), "there is no key 'none'"),
    ],
)
def test_what_cannot_be_is_refused_in_a_line(path: Path, arguments: tuple[str, ...], told: str) -> None:
    SQLiteStore(path).close()
    assert told in refusal(*arguments, "--store", str(path))
    assert kept(path) == []


def test_a_mistyped_file_is_no_empty_one(tmp_path: Path) -> None:
    assert "there is no file" in refusal("list", "--store", str(tmp_path / "none.db"))
    assert not (tmp_path / "none.db").exists()


def test_the_first_key_opens_the_server_that_asked_for_one(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SPANWISE_API_KEY", raising=False)
    with SQLiteStore(path) as store, pytest.raises(Refused, match="spanwise keys create"):
        Server(store, host="0.0.0.0")
    secret = created("first", "--store", path)["key"]
    with SQLiteStore(path) as store, Server(store, host="0.0.0.0") as server:
        assert httpx.get(f"{server.url}/api/count", headers={"x-api-key": secret}, timeout=60).status_code == 200


def test_through_the_server_that_holds_the_file(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPANWISE_API_KEY", "master")
    with SQLiteStore(path) as store, Server(store, host="0.0.0.0") as server:
        made = created("ann", "--scope", "admin", "--store", server.url)
        assert "ann" in spanwise("list", "--store", server.url).stdout
        monkeypatch.setenv("SPANWISE_API_KEY", made["key"])
        assert spanwise("revoke", "ann", "--yes", "--store", server.url).exit_code == 0
        events = [(one.action, one.key, one.address) for one in store.audit()]
    assert events == [("delete_key", made["id"], "127.0.0.1"), ("save_key", "SPANWISE_API_KEY", "127.0.0.1")]


def test_a_key_that_does_not_administer_makes_none(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    secret = created("ann", "--store", path)["key"]
    with SQLiteStore(path) as store, Server(store, host="0.0.0.0") as server:
        monkeypatch.setenv("SPANWISE_API_KEY", secret)
        assert "the API key lacks the scope 'admin'" in refusal("create", "b", "--store", server.url)


def test_the_audit_says_who_did_what(path: Path) -> None:
    made = created("ann [bold]", "--store", path)
    spanwise("revoke", made["id"], "--yes", "--store", path)
    newest, first = map(json.loads, spanwise("audit", "--json", "--store", path).stdout.splitlines())
    assert [newest["action"], first["action"]] == ["delete_key", "save_key"]
    assert json.loads(newest["about"]) == {"id": made["id"], "name": "ann [bold]"}
    shown = spanwise("audit", "--limit", 1, "--store", path).stdout
    assert ("delete_key" in shown, "save_key" in shown, "ann [bold]" in shown) == (True, False, True)


@pytest.mark.process
@pytest.mark.parametrize(
    ("options", "env", "why"),
    [(["--require-key"], {}, "--require-key"), ([], {"SPANWISE_API_KEY": "master"}, "SPANWISE_API_KEY is set")],
)
def test_serve_says_why_it_requires_keys_on_loopback(
    path: Path, options: list[str], env: dict[str, str], why: str
) -> None:
    created("first", "--store", path)
    command = [*COMMAND, "serve", "--port", "0", "--no-grpc", "--store", str(path), *options]
    with subprocess.Popen(command, env=environment() | env, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        lines: list[str] = []
        while not lines or "API keys are required" not in lines[-1]:
            lines.append(process.stderr.readline())
            assert lines[-1], lines
        assert lines[-1].strip() == f"API keys are required ({why})"
        url = lines[0].split()[0]
        assert httpx.get(f"{url}/api/count", timeout=60).status_code == 401
        process.terminate()
        process.communicate(timeout=60)
