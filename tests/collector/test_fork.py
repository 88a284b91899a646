"""A store that was open when its process forked: it says so, and the parent's goes on."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from assay.collector import connect
from assay.collector.server import Server
from assay.collector.stores.sqlite import SQLiteStore
from collector.others import outcome

# `store` is what was inherited; what is printed in the child stands in `said`
FORK = """
import os, signal, sys
from assay.collector import connect
from assay.collector.errors import StoreError
from collector.making import run

def tell(action):
    try:
        print(action(), flush=True)
    except StoreError as error:
        print(f"{type(error).__name__}: {error}", flush=True)

path = sys.argv[1]
store = connect(path)
store.append([run("before")])
pid = os.fork()
if pid == 0:
    signal.alarm(60)
    %s
    os._exit(0)
_, status = os.waitpid(pid, 0)
assert status == 0, status
store.append([run("after")])
print([one.name for one in store.traces()], store.check(deep=True))
store.close()
"""


def of_fork(child: str, path: Path) -> list[str]:
    return outcome(FORK % child.strip().replace("\n", "\n    "), path).splitlines()


@pytest.mark.parametrize(
    "verb",
    [
        "store.append([run()])",
        "store.append_async([run()])",
        "store.traces()",
        "store.feedback('1' * 32, 'k', 1)",
        "store.health()",
        "store.vacuum()",
    ],
)
def test_an_inherited_store_says_so_at_once(tmp_path: Path, verb: str) -> None:
    told, parent = of_fork(f"tell(lambda: {verb})", tmp_path / "a.db")
    assert told.startswith("Closed: this store was opened by process")
    assert parent == "['after', 'before'] []"


def test_closing_an_inherited_store_does_nothing_to_the_parents(tmp_path: Path) -> None:
    assert of_fork("tell(store.close)\ntell(store.close)", tmp_path / "a.db") == [
        "None",
        "None",
        "['after', 'before'] []",
    ]


def test_an_inherited_store_that_ends_with_its_process_does_nothing_either(tmp_path: Path) -> None:
    assert of_fork("del store\nsys.exit(0)", tmp_path / "a.db") == ["['after', 'before'] []"]


def test_a_child_opens_a_file_of_its_own(tmp_path: Path) -> None:
    child = (
        "own = connect(path + '2')\nown.append([run('own')])\ntell(lambda: next(iter(own.traces())).name)\nown.close()"
    )
    assert of_fork(child, tmp_path / "a.db")[0] == "own"


def test_a_child_is_told_who_holds_the_file_that_its_parent_has_open(tmp_path: Path) -> None:
    assert "is being written by process" in of_fork("tell(lambda: connect(path))", tmp_path / "a.db")[0]


def test_a_child_that_outlives_its_parent_is_told_to_start_afresh(tmp_path: Path) -> None:
    child = "parent = os.getppid()\nos.kill(parent, signal.SIGKILL)\nwhile os.getppid() == parent: pass\n"
    [told] = of_fork(child + "tell(lambda: connect(path))", tmp_path / "a.db")
    assert "start this process afresh" in told
    SQLiteStore(tmp_path / "a.db").close()  # and holds nothing


def test_a_child_of_a_server_speaks_to_it(tmp_path: Path) -> None:
    with SQLiteStore(tmp_path / "a.db") as store, Server(store) as server:
        if (pid := os.fork()) == 0:
            signal.alarm(60)
            os._exit(connect(tmp_path / "a.db").where != server.url)
        assert os.waitpid(pid, 0)[1] == 0
