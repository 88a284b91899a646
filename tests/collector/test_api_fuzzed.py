"""Requests made from the API's own description, by schemathesis: none is answered 5xx, with a key or without one."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from collector.making import run
from spanwise.collector.server import Server
from spanwise.collector.stores.sqlite import SQLiteStore

KEY = "master"
# Of each operation. Without a key all are refused before anything of them is looked at but method and path
EXAMPLES = {KEY: 20, None: 2}


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("key", [KEY, None], ids=["with a key", "without one"])
def test_no_request_makes_the_api_fail(tmp_path: Path, key: str | None) -> None:
    description = tmp_path / "openapi.json"
    with SQLiteStore(tmp_path / "spanwise.db") as store, Server(store, host="0.0.0.0", api_key=KEY) as server:
        store.append([run()])
        headers = {"authorization": f"Bearer {KEY}"}
        description.write_text(httpx.get(f"{server.url}/openapi.json", headers=headers, timeout=60).text)
        done = subprocess.run(
            [sys.executable, "-c", "from schemathesis.cli import schemathesis; schemathesis()", "run", str(description)]
            + [
                "--url",
                server.url,
                "--max-examples",
                str(EXAMPLES[key]),
                "--checks",
                "not_a_server_error",
                "--seed",
                "1",
            ]
            + ["--phases", "fuzzing", "--no-color", "--generation-database", "none", "--request-timeout", "120"]
            + ([] if key is None else ["-H", f"Authorization: Bearer {key}"]),
            cwd=tmp_path,
            capture_output=True,
            text=True,
        )
        alive = httpx.get(f"{server.url}/readyz", timeout=60).status_code
    operations = sum(len(methods) for methods in json.loads(description.read_text())["paths"].values())
    assert (done.returncode, alive) == (0, 200), done.stdout[-4000:] + done.stderr[-2000:]
    assert re.search(rf"Tested: {operations}\b", done.stdout), done.stdout[-4000:]
