"""`spanwise mcp --eval FILE.py` runs that file as `spanwise eval` does, and nothing else."""

from __future__ import annotations

import hashlib
import os
import time
from pathlib import Path
from typing import Any

import anyio
import pytest

from cli.mcp_clients import calling, failing, given, here, over_http, over_stdio, served, store_access
from spanwise.collector import connect
from spanwise.collector.errors import Refused
from spanwise.collector.records import Key

EVALUATION = """
print("printed on stdout, where the protocol is")
dataset = [{"inputs": {"q": n}, "reference_outputs": str(n)} for n in range(4)]
evaluators = ["exact"]

def task(q):
    print("the task prints, too")
    return str(q) if q else "wrong"
"""


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("SPANWISE_API_KEY", raising=False)
    connect(tmp_path / "a.db").close()
    path = tmp_path / "parcels.py"
    path.write_text(EVALUATION)
    return path


@pytest.mark.slow  # a process that loads what an evaluation needs
def test_it_runs_and_says_how_it_came_out_while_stdout_is_the_protocol_s(file: Path) -> None:
    async def talk(client: Any) -> Any:
        made = await given(client, "run_evaluation", limit=3)
        shown = await given(client, "read_experiment", experiment_id=made["experiment"]["id"], key="exact")
        return made, shown

    made, shown = over_stdio(talk, "--store", str(file.with_name("a.db")), "--eval", str(file))
    assert (made["passed"], made["exit_status"], made["experiment"]["untrusted"]["name"]) == (True, 0, "parcels")
    assert "the task prints, too" in made["untrusted"]["output"]
    assert (shown["runs"], shown["worst"][0]["untrusted"]["scores"]) == (3, {"exact": 0.0})


@pytest.mark.slow  # a process that loads what an evaluation needs
def test_a_file_that_fails_is_told_with_its_error(file: Path) -> None:
    file.write_text("raise RuntimeError('not today')")
    made = here(store_access.StoreAccess(str(file.with_name("a.db"))), calling("run_evaluation"), file=file)
    assert (made["passed"], made["exit_status"]) == (False, 3)
    assert "RuntimeError: not today" in made["untrusted"]["notes"]


@pytest.mark.slow  # a process that loads what an evaluation needs
def test_what_is_named_by_an_agent_is_an_example_never_a_file_or_an_option(file: Path) -> None:
    other = file.with_name("other.py")
    other.write_text("raise SystemExit('ran')")
    place = store_access.StoreAccess(str(file.with_name("a.db")))
    made = here(place, calling("run_evaluation", only=["--pdb", str(other), "; touch hacked"]), file=file)
    assert made["passed"] is False
    assert "ran" not in made["untrusted"]["notes"].split()
    assert not list(file.parent.glob("hacked*"))
    assert "rror" in here(place, failing("run_evaluation", limit="--pdb"), file=file)


def test_there_is_none_unless_it_is_named(file: Path) -> None:
    place = store_access.StoreAccess(str(file.with_name("a.db")))
    assert "nknown tool" in here(place, failing("run_evaluation"))
    with pytest.raises(BaseException) as raised:
        here(place, calling("run_evaluation"), file=file.with_name("none.py"))
    assert raised.group_contains(Refused) if isinstance(raised.value, BaseExceptionGroup) else raised.type is Refused


@pytest.mark.process
def test_over_http_it_needs_a_key_that_writes_of_no_project(file: Path) -> None:
    at = file.with_name("a.db")
    keys = {"reads": (("read",), None), "bound": (("read", "write"), "bank")}
    with connect(at) as store:
        for name, (scopes, project) in keys.items():
            hashed = hashlib.sha256(name.encode()).hexdigest()
            store.save_key(Key(id=name, name=name, sha256=hashed, scopes=scopes, project=project))
    with served(at, "0.0.0.0", file=file) as url:
        assert "lacks the scope 'write'" in over_http(url, failing("run_evaluation"), "reads")
        assert "limited to project 'bank'" in over_http(url, failing("run_evaluation"), "bound")


def _gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    stat = Path(f"/proc/{pid}/stat")
    return not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] == "Z"


@pytest.mark.slow  # a process that loads what an evaluation needs
def test_one_that_hangs_ends_with_whoever_asked_and_no_second_runs_beside_it(file: Path) -> None:
    told = file.with_name("pid")
    file.write_text(f"import os, time\nopen({str(told)!r}, 'w').write(str(os.getpid()))\ntime.sleep(600)")

    async def talk(client: Any) -> int:
        async with anyio.create_task_group() as together:
            together.start_soon(client.call_tool, "run_evaluation")
            deadline = time.monotonic() + 120
            while not (told.exists() and told.read_text()):
                assert time.monotonic() < deadline
                await anyio.sleep(0.02)
            second = await client.call_tool("run_evaluation")
            assert "an evaluation is already running" in second.content[0].text
            together.cancel_scope.cancel()
        return int(told.read_text())

    pid = here(store_access.StoreAccess(str(file.with_name("a.db"))), talk, file=file)
    deadline = time.monotonic() + 60
    while not _gone(pid):
        assert time.monotonic() < deadline
        time.sleep(0.02)
