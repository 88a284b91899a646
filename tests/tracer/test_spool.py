"""The spool: whatever several processes do to it, nothing is lost, sent after it was acknowledged, or out of order."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from assay.tracer import _errors
from assay.tracer._encode import LOGS, TRACES
from assay.tracer._settings import Settings
from assay.tracer._spool import Spool, folder_of

MAX_BYTES = 500
DEAD = 2**22 + 7  # above every process id that Linux gives

verdicts = st.sampled_from(["ok", "ok", "refused", "too_large", "later"])


class Body(NamedTuple):
    path: str
    body: bytes
    count: int


def dies(*body: Any) -> str:
    os._exit(9)


class Spools(RuleBasedStateMachine):
    """Two live processes and any number that die while they send. `waiting` is what must be on disk, oldest first."""

    @initialize()
    def begin(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="assay-spools-"))
        self.spools = [Spool(self.folder, MAX_BYTES, pid) for pid in (os.getpid(), os.getppid())]
        self.waiting: list[Body] = []
        self.made = 0

    @rule(who=st.integers(0, 1), path=st.sampled_from([TRACES, LOGS]), size=st.integers(10, 600), n=st.integers(1, 9))
    def keep(self, who: int, path: str, size: int, n: int) -> None:
        self.made += 1
        self.waiting.append(Body(path, b"%010d" % self.made + b"x" * (size - 10), n))
        lost = 0
        while sum(len(body.body) for body in self.waiting) > MAX_BYTES:
            lost += self.waiting.pop(0).count
        body = Body(path, b"%010d" % self.made + b"x" * (size - 10), n)
        assert self.spools[who].keep(*body) == (n, {"disk_full": lost} if lost else {})

    @rule(who=st.integers(0, 1), answers=st.lists(verdicts, max_size=5))
    def replay(self, who: int, answers: list[str]) -> None:
        sent = self._replay(self.spools[who], iter(answers))
        later = answers.index("later") if "later" in answers else len(self.waiting)
        assert sent == self.waiting[: later + 1]
        del self.waiting[:later]

    @rule(who=st.integers(0, 1), answer=verdicts)
    @precondition(lambda self: self.waiting)
    def replay_both(self, who: int, answer: str) -> None:
        """The other one comes along while the first one sends."""
        others: list[Body] = []

        def send(*body: Any) -> str:
            others.extend(self._replay(self.spools[1 - who], iter(())))
            return answer

        self.spools[who].replay(send)
        assert others == self.waiting[1:]
        del self.waiting[0 if answer != "later" else 1 :]

    @rule(who=st.integers(0, 1))
    @precondition(lambda self: self.waiting)
    def fail(self, who: int) -> None:
        def send(*body: Any) -> str:
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            self.spools[who].replay(send)

    @rule()
    @precondition(lambda self: self.waiting)
    def crash(self) -> None:
        """A third process dies while it sends: its claim stays behind."""
        pid = os.fork()
        if pid == 0:
            Spool(self.folder, MAX_BYTES).replay(dies)
        os.waitpid(pid, 0)
        assert len(list(self.folder.glob(f"*.{pid}.claim"))) == 1

    @invariant()
    def nothing_is_left_that_nobody_would_find(self) -> None:
        if hasattr(self, "folder"):
            names = [file.name for file in self.folder.iterdir()]
            assert len(names) == len(self.waiting)
            assert not [name for name in names if name.endswith((".part", f".{os.getpid()}.claim"))]

    def teardown(self) -> None:
        if hasattr(self, "folder"):
            assert self._replay(Spool(self.folder, MAX_BYTES), iter(())) == self.waiting
            assert list(self.folder.iterdir()) == []
            shutil.rmtree(self.folder)

    def _replay(self, spool: Spool, answers: Any) -> list[Body]:
        sent: list[Body] = []

        def send(*body: Any) -> str:
            sent.append(Body(*body))
            return next(answers, "ok")

        spool.replay(send)
        return sent


TestSpools = Spools.TestCase
TestSpools.settings = settings(max_examples=30, stateful_step_count=15, deadline=None)
TestSpools = pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")(TestSpools)


def sent_by(spool: Spool) -> list[bytes]:
    bodies: list[bytes] = []
    spool.replay(lambda path, body, count: bodies.append(body) or "ok")  # type: ignore[func-returns-value]
    return bodies


def claimed(folder: Path, pid: int, age_s: float = 0.0) -> Path:
    """A body of which that process holds the claim."""
    Spool(folder).keep(TRACES, b"claimed", 1)
    (file,) = folder.glob("*.traces")
    claim = file.rename(f"{file}.{pid}.claim")
    os.utime(claim, (time.time() - age_s,) * 2)
    return claim


@pytest.mark.parametrize(
    ("pid", "age_s", "is_sent"),
    [(DEAD, 0, True), (os.getpid(), 0, False), (os.getpid(), 590, False), (os.getpid(), 610, True)],
    ids=["dead", "alive", "alive for long", "alive for too long"],
)
def test_a_claim_is_given_back_when_its_process_is_dead_or_slow(
    tmp_path: Path, pid: int, age_s: float, is_sent: bool
) -> None:
    claim = claimed(tmp_path, pid, age_s)
    assert sent_by(Spool(tmp_path)) == ([b"claimed"] if is_sent else [])
    assert claim.exists() != is_sent


def test_what_a_dead_process_claimed_counts_against_the_bound(tmp_path: Path) -> None:
    claimed(tmp_path, DEAD)
    assert Spool(tmp_path, max_bytes=10).keep(TRACES, b"12345", 2) == (2, {"disk_full": 1})
    assert sent_by(Spool(tmp_path)) == [b"12345"]


@pytest.mark.parametrize(("bound", "left"), [(10, [b"older", b"newer"]), (9, [b"newer"])])
def test_a_byte_above_the_bound_costs_the_oldest_file(tmp_path: Path, bound: int, left: list[bytes]) -> None:
    spool = Spool(tmp_path, max_bytes=bound)
    spool.keep(TRACES, b"older", 1)
    assert spool.keep(TRACES, b"newer", 1) == (1, {"disk_full": 1} if bound == 9 else {})
    assert sent_by(spool) == left


@pytest.mark.parametrize("name", ["01-1-1-n1.traces.part", "01-1-1-n1.traces.who.claim", "notes.txt"])
def test_files_that_are_nobodys_are_left_alone(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"x")
    Spool(tmp_path).keep(LOGS, b"ours", 1)
    assert sent_by(Spool(tmp_path)) == [b"ours"]
    assert [file.name for file in tmp_path.iterdir()] == [name]


def test_nobody_else_may_read_what_waits(tmp_path: Path) -> None:
    Spool(tmp_path / "a" / "b").keep(TRACES, b"secret", 1)
    (file,) = (tmp_path / "a" / "b").iterdir()
    assert (file.parent.stat().st_mode & 0o777, file.stat().st_mode & 0o777) == (0o700, 0o600)


def test_a_folder_that_cannot_be_made_costs_the_items_and_is_counted(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    _errors.strict = False
    assert Spool(tmp_path / "file" / "below").keep(TRACES, b"x", 3) == (0, {"disk": 3})
    assert _errors.counts == {"spill": 1}


def test_without_a_folder_nothing_is_kept_and_nothing_sent() -> None:
    assert Spool(None).keep(TRACES, b"x", 3) == (0, {"collector_away": 3})
    assert sent_by(Spool(None)) == []


def test_a_folder_that_is_not_there_yet_holds_nothing(tmp_path: Path) -> None:
    assert sent_by(Spool(tmp_path / "none")) == []
    assert not (tmp_path / "none").exists()


def test_each_address_has_a_folder_of_its_own(tmp_path: Path) -> None:
    def folder(url: str) -> Path | None:
        return folder_of(Settings(url=url, spill_dir=tmp_path))

    assert folder("http://a") == folder("http://a") != folder("http://b")
    assert folder_of(Settings(spill_dir=None)) is None
