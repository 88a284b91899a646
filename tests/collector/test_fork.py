"""A store that was open when its process forked: it says so, and the parent's goes on."""

from __future__ import annotations

from pathlib import Path

import pytest

from collector.others import outcome
from spanwise.collector.stores.sqlite import SQLiteStore

# `store` is what was inherited; what is printed in the child stands in `said`
FORK = """
import os, signal, sys
from spanwise.collector import connect
from spanwise.collector.errors import StoreError
from spanwise.collector.stores.sqlite import holder
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
    signal.alarm(100)
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


VERBS = (
    "store.append([run()])",
    "store.append_async([run()])",
    "store.traces()",
    "store.feedback('1' * 32, 'k', 1)",
    "store.health()",
    "store.vacuum()",
)


@pytest.mark.process
def test_an_inherited_store_says_so_at_once(tmp_path: Path) -> None:
    *told, parent = of_fork("\n".join(f"tell(lambda: {verb})" for verb in VERBS), tmp_path / "a.db")
    assert len(told) == len(VERBS)
    assert all(one.startswith("Closed: this store was opened by process") for one in told)
    assert parent == "['after', 'before'] []"


@pytest.mark.process
def test_closing_an_inherited_store_does_nothing_to_the_parents(tmp_path: Path) -> None:
    assert of_fork("tell(store.close)\ntell(store.close)", tmp_path / "a.db") == [
        "None",
        "None",
        "['after', 'before'] []",
    ]


@pytest.mark.process
def test_an_inherited_store_that_ends_with_its_process_does_nothing_either(tmp_path: Path) -> None:
    assert of_fork("del store\nsys.exit(0)", tmp_path / "a.db") == ["['after', 'before'] []"]


@pytest.mark.process
def test_a_child_opens_a_file_of_its_own(tmp_path: Path) -> None:
    child = (
        "own = connect(path + '2')\nown.append([run('own')])\ntell(lambda: next(iter(own.traces())).name)\nown.close()"
    )
    assert of_fork(child, tmp_path / "a.db")[0] == "own"


@pytest.mark.process
def test_a_child_is_told_who_holds_the_file_that_its_parent_has_open(tmp_path: Path) -> None:
    assert "is being written by process" in of_fork("tell(lambda: connect(path))", tmp_path / "a.db")[0]


@pytest.mark.process
def test_a_child_that_outlives_its_parent_is_told_to_start_afresh(tmp_path: Path) -> None:
    # its threads end one after the other: who was forked off may be let go before the last one lets go of the file
    child = (
        "parent = os.getppid()\nos.kill(parent, signal.SIGKILL)\nwhile os.getppid() == parent or holder(path): pass\n"
    )
    [told] = of_fork(child + "tell(lambda: connect(path))", tmp_path / "a.db")
    assert "start the process without a fork" in told
    SQLiteStore(tmp_path / "a.db").close()  # and holds nothing


@pytest.mark.process
def test_a_child_of_a_server_speaks_to_it(tmp_path: Path) -> None:
    server = "from spanwise.collector.server import Server\n    serving = Server(store).__enter__()"
    child = "tell(lambda: connect(path).where)"
    code = FORK.replace("pid = os.fork()", server.replace("    ", "") + "\npid = os.fork()")
    code = code.replace("print([one", "serving.__exit__(None, None, None)\nprint([one")
    told, parent = outcome(code % child, tmp_path / "a.db").splitlines()
    assert told.startswith("http://127.0.0.1:")
    assert parent == "['after', 'before'] []"
