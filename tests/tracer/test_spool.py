"""The spool: whatever several processes do to it, nothing is lost uncounted, or sent after it was acknowledged."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any, NamedTuple

import orjson
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from spanwise.tracer import internal_errors
from spanwise.tracer.configuration import Settings
from spanwise.tracer.export.disk_spool import (
    MAX_AGE_S,
    OWNER_FILE,
    Spool,
    count_spooled,
    describe_owner,
    get_spool_folder,
    list_segments,
    open_segment,
    read_records,
)
from spanwise.tracer.export.span_encoding import LOGS_PATH, TRACES_PATH

MAX_BYTES = 2_000

verdicts = st.sampled_from(["ok", "ok", "refused", "too_large", "later"])


class Body(NamedTuple):
    path: str
    body: bytes
    count: int


def dies(*body: Any) -> str:
    os._exit(9)


def on_disk(folder: Path) -> set[Body]:
    """What waits, whoever holds it."""
    bodies = set()
    for segment in list_segments(folder):
        descriptor = os.open(segment, os.O_RDONLY)
        bodies |= {Body(it.path, it.body or b"", it.count) for it in read_records(descriptor)}
        os.close(descriptor)
    return bodies


class Spools(RuleBasedStateMachine):
    """Two live processes and any number that die while they send. `waiting` is what must be on disk."""

    @initialize()
    def begin(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="spanwise-spools-"))
        self.spools = [Spool(self.folder, MAX_BYTES), Spool(self.folder, MAX_BYTES)]
        self.waiting: set[Body] = set()
        self.made = 0

    @rule(
        who=st.integers(0, 1),
        path=st.sampled_from([TRACES_PATH, LOGS_PATH]),
        size=st.integers(10, 600),
        n=st.integers(1, 9),
    )
    def keep(self, who: int, path: str, size: int, n: int) -> None:
        self.made += 1
        body = Body(path, b"%010d" % self.made + b"x" * (size - 10), n)
        kept, lost = self.spools[who].append(*body)
        gone = (self.waiting | {body}) - on_disk(self.folder)
        assert (kept, sum(lost.values())) == (n, sum(body.count for body in gone))
        self.waiting = (self.waiting | {body}) - gone

    @rule(who=st.integers(0, 1), answers=st.lists(verdicts, max_size=5))
    def replay(self, who: int, answers: list[str]) -> None:
        sent = self._replay(self.spools[who], iter(answers))
        assert len(set(sent)) == len(sent)
        assert set(sent) <= self.waiting
        later = len(sent) if len(sent) <= len(answers) and "later" in answers[: len(sent)] else None
        self.waiting -= set(sent[: later - 1] if later else sent)

    @rule(who=st.integers(0, 1), answer=verdicts)
    @precondition(lambda self: self.waiting)
    def replay_both(self, who: int, answer: str) -> None:
        """The other one comes along while the first one sends."""
        others: list[Body] = []
        mine: list[Body] = []

        def send(*body: Any) -> str:
            mine.append(Body(*body))
            others.extend(self._replay(self.spools[1 - who], iter(())))
            return answer

        self.spools[who].replay(send)
        assert not set(mine) & set(others)
        self.waiting -= set(others) | (set(mine) if answer != "later" else set())

    @rule(who=st.integers(0, 1))
    def fail(self, who: int) -> None:
        def send(*body: Any) -> str:
            raise KeyboardInterrupt

        try:
            self.spools[who].replay(send)
        except KeyboardInterrupt:
            pass

    @rule()
    def crash(self) -> None:
        """A third process dies while it sends."""
        pid = os.fork()
        if pid == 0:
            Spool(self.folder, MAX_BYTES).replay(dies)
            os._exit(0)
        os.waitpid(pid, 0)

    @invariant()
    def what_waits_is_on_disk(self) -> None:
        if hasattr(self, "folder"):
            assert on_disk(self.folder) == self.waiting

    def teardown(self) -> None:
        if hasattr(self, "folder"):
            for spool in self.spools:
                spool.close_segment()
            assert set(self._replay(Spool(self.folder, MAX_BYTES), iter(()))) == self.waiting
            assert [file.name for file in self.folder.iterdir() if file.name != OWNER_FILE] == []
            shutil.rmtree(self.folder)

    def _replay(self, spool: Spool, answers: Any) -> list[Body]:
        sent: list[Body] = []

        def send(*body: Any) -> str:
            sent.append(Body(*body))
            return next(answers, "ok")

        spool.replay(send)
        return sent


@pytest.mark.process
@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
@pytest.mark.parametrize("examples", [6, pytest.param(40, marks=[pytest.mark.slow, pytest.mark.long])])
def test_any_processes_in_any_order(examples: int) -> None:
    run_state_machine_as_test(Spools, settings=settings(max_examples=examples, stateful_step_count=15, deadline=None))


def sent_by(spool: Spool) -> list[bytes]:
    bodies: list[bytes] = []
    spool.replay(lambda path, body, count: bodies.append(body) or "ok")  # type: ignore[func-returns-value]
    return bodies


def left_by_another(folder: Path, *bodies: bytes) -> Path:
    """A segment that a process has written which is no more."""
    spool = Spool(folder)
    for body in bodies:
        spool.append(TRACES_PATH, body, 1)
    spool.close_segment()
    return list_segments(folder)[-1]


def test_many_bodies_make_few_files(tmp_path: Path) -> None:
    spool = Spool(tmp_path)
    for number in range(2_000):
        spool.append(TRACES_PATH, b"%d" % number, 1)
    assert len(list_segments(tmp_path)) == 1
    assert sent_by(spool) == [b"%d" % number for number in range(2_000)]


def test_what_was_sent_before_a_break_is_not_sent_again(tmp_path: Path) -> None:
    left_by_another(tmp_path, b"a", b"b", b"c")
    answers = iter(["ok", "later"])
    Spool(tmp_path).replay(lambda path, body, count: next(answers))
    assert sent_by(Spool(tmp_path)) == [b"b", b"c"]


def test_what_another_process_still_writes_is_left_to_it(tmp_path: Path) -> None:
    other = Spool(tmp_path)
    other.append(TRACES_PATH, b"theirs", 1)
    assert sent_by(Spool(tmp_path)) == []
    assert sent_by(other) == [b"theirs"]


def test_what_a_killed_process_holds_is_taken_over(tmp_path: Path) -> None:
    script = (
        "import os, signal, sys; from pathlib import Path; from spanwise.tracer.export.disk_spool import Spool; "
        "Spool(Path(sys.argv[1])).append('/v1/traces', b'last', 1); os.kill(os.getpid(), signal.SIGKILL)"
    )
    subprocess.run([sys.executable, "-c", script, str(tmp_path)], check=False)
    assert sent_by(Spool(tmp_path)) == [b"last"]


def test_a_torn_end_is_counted_and_costs_nothing_before_it(tmp_path: Path) -> None:
    segment = left_by_another(tmp_path, b"whole", b"torn")
    os.truncate(segment, segment.stat().st_size - 1)
    sent: list[bytes] = []
    lost = Spool(tmp_path).replay(lambda path, body, count: sent.append(body) or "ok")  # type: ignore[func-returns-value]
    assert (sent, lost) == ([b"whole"], {"torn": 1})
    assert list_segments(tmp_path) == []


@pytest.mark.parametrize(
    ("age_s", "sent"), [(MAX_AGE_S + 60, []), (MAX_AGE_S - 60, [b"old"]), (-MAX_AGE_S * 9, [b"old"])]
)
def test_what_is_older_than_a_week_is_given_up_and_counted(tmp_path: Path, age_s: float, sent: list[bytes]) -> None:
    segment = left_by_another(tmp_path, b"old")
    segment.rename(segment.with_name(f"{int((time.time() - age_s) * 1e9):020d}{segment.name[20:]}"))
    bodies: list[bytes] = []
    lost = Spool(tmp_path).replay(lambda path, body, count: bodies.append(body) or "ok")  # type: ignore[func-returns-value]
    assert (bodies, lost) == (sent, {} if sent else {"too_old": 1})


def test_beyond_the_bound_the_oldest_segments_go(tmp_path: Path) -> None:
    spool = Spool(tmp_path, max_bytes=MAX_BYTES)
    lost = [spool.append(TRACES_PATH, b"%03d" % number + b"x" * 197, 2)[1] for number in range(20)]
    assert 5 <= len(kept := sent_by(spool)) <= 9
    assert [body[:3] for body in kept] == [b"%03d" % number for number in range(20 - len(kept), 20)]
    assert sum(sum(it.values()) for it in lost) == 2 * (20 - len(kept))


@pytest.mark.parametrize("name", ["01-1-1-n1.traces.part", "junk.spool", "notes.txt"])
def test_files_that_are_nobodys_are_left_alone(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"x")
    spool = Spool(tmp_path)
    spool.append(LOGS_PATH, b"ours", 1)
    assert sent_by(spool) == [b"ours"]
    assert {file.name for file in tmp_path.iterdir()} == {name, OWNER_FILE}


def test_a_segment_that_is_none_of_ours_is_not_sent(tmp_path: Path) -> None:
    (tmp_path / f"{time.time_ns():020d}-1-1.spool").write_bytes(b"garbage" * 10)
    assert sent_by(Spool(tmp_path)) == []


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    elsewhere = left_by_another(tmp_path / "elsewhere", b"theirs")
    (tmp_path / "ours").mkdir()
    (tmp_path / "ours" / elsewhere.name).symlink_to(elsewhere)
    assert sent_by(Spool(tmp_path / "ours")) == []


def test_nobody_else_may_read_what_waits(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir(mode=0o777)
    Spool(tmp_path / "a").append(TRACES_PATH, b"secret", 1)
    assert {file.stat().st_mode & 0o777 for file in (tmp_path / "a").iterdir()} == {0o600}
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o700


def test_a_folder_that_cannot_be_made_costs_the_items_and_is_counted(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    internal_errors.strict = False
    assert Spool(tmp_path / "file" / "below").append(TRACES_PATH, b"x", 3) == (0, {"disk": 3})
    assert internal_errors.counts == {"spill": 1}


def test_without_a_folder_nothing_is_kept_and_nothing_sent() -> None:
    assert Spool(None).append(TRACES_PATH, b"x", 3) == (0, {"collector_away": 3})
    assert sent_by(Spool(None)) == []


def test_a_folder_that_is_not_there_yet_holds_nothing(tmp_path: Path) -> None:
    assert sent_by(Spool(tmp_path / "none")) == []
    assert not (tmp_path / "none").exists()


def test_what_this_process_has_on_disk_is_known(tmp_path: Path) -> None:
    spool = Spool(tmp_path)
    spool.append(TRACES_PATH, b"a", 2)
    spool.append(TRACES_PATH, b"b", 3)
    assert count_spooled(tmp_path) == 5
    answers = iter(["ok", "later"])
    spool.replay(lambda path, body, count: next(answers))
    assert count_spooled(tmp_path) == 3
    with open_segment(list_segments(tmp_path)[0]) as descriptor:
        assert descriptor is not None
    list_segments(tmp_path)[0].unlink()  # another process has sent it
    assert count_spooled(tmp_path) == 0


@pytest.mark.parametrize("other", [{"url": "http://b"}, {"project": "q"}, {"api_key": "k2"}])
def test_each_address_project_and_key_has_a_folder_of_its_own(tmp_path: Path, other: dict[str, str]) -> None:
    known = {"url": "http://a", "project": "p", "api_key": "k"}
    assert get_spool_folder(Settings(**known, spill_dir=tmp_path)) == get_spool_folder(
        Settings(**known, spill_dir=tmp_path)
    )
    assert get_spool_folder(Settings(**known, spill_dir=tmp_path)) != get_spool_folder(
        Settings(**{**known, **other}, spill_dir=tmp_path)
    )
    assert get_spool_folder(Settings(spill_dir=None)) is None


def test_a_folder_says_whose_it_is_without_a_key(tmp_path: Path) -> None:
    whose = Settings(url="http://ann:secret@a:1", project="p", api_key="k", spill_dir=tmp_path)
    Spool(tmp_path, owner=describe_owner(whose)).append(TRACES_PATH, b"x", 1)
    assert orjson.loads((tmp_path / OWNER_FILE).read_bytes()) == {"url": "http://a:1", "project": "p"}


def test_a_child_forked_amid_a_request_does_not_keep_the_segment(tmp_path: Path) -> None:
    segment = left_by_another(tmp_path, b"a")
    children = []

    def send(*body: Any) -> str:
        reading, writing = os.pipe()
        children.append((os.fork(), reading, writing))
        if children[0][0] == 0:
            os.close(writing)
            os.read(reading, 1)  # until the parent has done
            os._exit(0)
        return "later"

    Spool(tmp_path).replay(send)
    sent = sent_by(Spool(tmp_path))
    ((child, *pipe),) = children
    for descriptor in reversed(pipe):
        os.close(descriptor)
    os.waitpid(child, 0)
    assert (sent, segment.exists()) == ([b"a"], False)


def test_a_length_that_is_torn_asks_for_no_more_than_there_is(tmp_path: Path) -> None:
    segment = left_by_another(tmp_path, b"torn")
    with segment.open("r+b") as file:
        file.seek(12)
        file.write(b"\xff\xff\xff\xff")
    lost = Spool(tmp_path).replay(lambda path, body, count: "ok")
    assert lost == {"torn": 1}


@pytest.mark.process
def test_what_is_begun_while_another_process_looks_is_not_taken_for_done(tmp_path: Path) -> None:
    sent: list[bytes] = []
    done = threading.Event()

    def looks() -> None:
        other = Spool(tmp_path)
        while not done.is_set():
            other.replay(lambda path, body, count: sent.append(body) or "ok")  # type: ignore[func-returns-value]

    thread = threading.Thread(target=looks)
    thread.start()
    bodies = [b"%d" % n for n in range(500)]
    for body in bodies:
        mine = Spool(tmp_path)
        mine.append(TRACES_PATH, body, 1)
        mine.close_segment()
    done.set()
    thread.join()
    Spool(tmp_path).replay(lambda path, body, count: sent.append(body) or "ok")  # type: ignore[func-returns-value]
    assert sorted(sent) == sorted(bodies)


def is_locked(segment: Path) -> bool:
    with open_segment(segment) as descriptor:
        return descriptor is None


@pytest.mark.parametrize("kind", ["spooled", "being sent"])
def test_a_forked_child_does_not_keep_a_segment_locked_that_its_parent_closes(kind: str, tmp_path: Path) -> None:
    spool = Spool(tmp_path, MAX_BYTES)
    copy = spool.write_copy(TRACES_PATH, b"body", 1) if kind == "being sent" else None
    if copy is None:
        spool.append(TRACES_PATH, b"body", 1)
    [segment] = list_segments(tmp_path)
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(writer)
        os.read(reader, 1)  # until the parent ends
        os._exit(0)
    os.close(reader)
    try:
        assert is_locked(segment)
        if copy is None:
            spool.close_segment()
        else:
            copy.keep()
        assert not is_locked(segment)
    finally:
        os.close(writer)
        os.waitpid(child, 0)
