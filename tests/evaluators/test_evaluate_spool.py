"""What a store does not take is kept, found again from any folder, and shown meanwhile."""

import fcntl
import resource

import msgspec
import pytest

from collector.making import run
from spanwise.collector import connect
from spanwise.collector.errors import Refused, Unavailable
from spanwise.collector.server import Server
from spanwise.collector.stores.sqlite import SQLiteStore
from spanwise.evaluators import Experiment, evaluate
from spanwise.evaluators.experiments import deliver_spool, result_writer
from spanwise.evaluators.experiments.result_writer import ResultSpool, SpoolBatch, make_spool, make_spooled_store
from spanwise.tracer.process_runtime import get_runtime as tracing

QUESTIONS = [{"inputs": {"q": f"Q{n}"}, "reference_outputs": f"Q{n}"} for n in range(6)]


class Away:
    """A store that takes no runs while it is told so."""

    def __init__(self, store):
        self.store, self.away = store, True

    def __getattr__(self, name):
        return getattr(self.store, name)

    def append(self, runs, feedback=()):
        if self.away:
            raise OSError("disk full")
        self.store.append(runs, feedback)


def go(store, asked=None, **options):
    def task(q):
        if asked is not None:
            asked.append(q)
        return q

    return evaluate(QUESTIONS, task, ["exact"], name="x", store=store, progress=False, resume=True, **options)


def spooled(folder):
    return sorted(folder.glob("spanwise-spool-*"))


def test_a_spool_lies_beside_the_stores_file_and_is_found_from_any_folder(tmp_path, monkeypatch):
    (tmp_path / "d1").mkdir()
    (tmp_path / "d2").mkdir()
    asked = []
    with SQLiteStore(tmp_path / "a.db") as store:
        monkeypatch.chdir(tmp_path / "d1")
        left = go(Away(store), asked).unstored
        assert spooled(tmp_path) == [left.path]
        assert left.path.stat().st_mode & 0o777 == 0o600
        monkeypatch.chdir(tmp_path / "d2")
        assert go(store, asked).summary()["exact"].n == 6
    assert (len(asked), spooled(tmp_path)) == (6, [])


def test_a_store_behind_an_address_has_its_spool_with_the_tracers(store, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    with Server(store) as server:
        remote = connect(server.url)
        left = go(Away(remote)).unstored
        assert left.path.parent == tracing().settings.spill_dir / "experiments"
        assert go(remote).summary()["exact"].n == 6
        remote.close()
    assert not left.path.exists()


def test_a_spool_of_before_in_the_working_folder_is_still_delivered(store, monkeypatch, tmp_path):
    asked = []
    monkeypatch.chdir(tmp_path)
    left = go(Away(store), asked).unstored
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    left.path.rename(f"{left.path.name[:27]}.jsonl")
    go(store, asked)
    assert (len(asked), spooled(tmp_path / "elsewhere")) == (6, [])


def test_where_no_file_can_be_written_memory_keeps_the_results(store, tmp_path):
    (tmp_path / "file").write_text("")
    spool = ResultSpool("e" * 32, [tmp_path / "file", tmp_path / "file" / "below"])
    spool.add(SpoolBatch([run()], []))
    assert (spool.paths, len(list(spool.batches()))) == ([], 1)
    assert spool.deliver(store) == store.count()["spans"] == 1


def test_a_full_disk_takes_no_half_lines_and_the_next_folder_the_rest(store, tmp_path):
    spool = ResultSpool("e" * 32, [tmp_path / "full", tmp_path / "next"])
    line = len(msgspec.json.encode(SpoolBatch([run()], []))) + 1
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    spool.add(SpoolBatch([run()], []))
    resource.setrlimit(resource.RLIMIT_FSIZE, (line + line // 2, hard))
    try:
        spool.add(SpoolBatch([run()], []))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert [path.parent.name for path in spool.paths] == ["full", "next"]
    assert [path.read_bytes().count(b"\n") for path in spool.paths] == [1, 1]
    assert spool.deliver(store) == 2
    spool.close()


def test_what_is_no_json_is_kept_too(store, tmp_path):
    spool = ResultSpool("e" * 32, [tmp_path])
    spool.add(SpoolBatch([run(inputs={"q": 2**90, "s": "\ud800"})], []))
    assert spool.deliver(store) == 1


def test_a_line_that_a_kill_cut_off_is_passed_over_and_any_other_is_told(store, tmp_path):
    file = tmp_path / "spanwise-spool-x.jsonl"
    line = msgspec.json.encode(SpoolBatch([run()], [])) + b"\n"
    file.write_bytes(line + line[:-30])
    assert deliver_spool(file, store) == 1
    assert not file.exists()
    file.write_bytes(line + b"{}\n" + line)
    with pytest.raises(ValueError, match="line 2 is invalid"):
        deliver_spool(file, store)
    assert file.exists()


def test_what_another_process_is_writing_is_left_alone(store, tmp_path, capfd):
    experiment = go(store)
    path = tmp_path / f"spanwise-spool-{experiment.id[:12]}-abc.jsonl"
    path.write_bytes(msgspec.json.encode(SpoolBatch([run()], [])) + b"\n")
    with path.open("ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        go(store)
        assert path.exists()
    assert f"another process is still writing {path}" in capfd.readouterr().err
    go(store)
    assert not path.exists()


def test_no_two_spools_share_a_file(store):
    one, other = make_spool("e" * 32, store), make_spool("e" * 32, store)
    for spool in (one, other):
        spool.add(SpoolBatch([run()], []))
        spool.close()
    assert one.paths != other.paths
    assert one.deliver(store) + other.deliver(store) == 2


def test_rows_are_there_while_the_store_is_not(store):
    away = Away(store)
    experiment = go(away)
    assert [row.outputs for row in experiment.rows()] == [f"Q{n}" for n in range(6)]
    assert [row.scores for row in experiment.rows()] == [{"exact": 1.0}] * 6
    away.away = False
    deliver_spool(experiment.unstored.path, store)
    more = experiment.evaluate([lambda outputs: True], progress=False)
    assert [row.scores for row in more.rows()] == [{"exact": 1.0, "<lambda>": True}] * 6


@pytest.mark.process
def test_rows_come_from_the_spool_while_the_server_is_down(store, monkeypatch):
    monkeypatch.setattr(result_writer, "MAX_PAUSE", 0.05)
    server = Server(store).__enter__()
    remote = connect(server.url)

    def last(q):
        if q == "Q0":
            server.__exit__(None, None, None)
        return q

    experiment = evaluate(QUESTIONS, last, ["exact"], name="y", store=remote, progress=False, concurrency=1)
    assert [row.outputs for row in experiment.rows()] == [f"Q{n}" for n in range(6)]
    remote.close()
    assert deliver_spool(experiment.unstored.path, store) == 6


def test_what_only_the_absent_store_has_is_told_in_one_line(store):
    class Gone(Away):
        def many(self, trace_ids):
            raise Unavailable("gone")

    first = go(store)
    store.delete(trace_ids=(next(first.rows()).trace.trace_id,))
    with pytest.raises(Unavailable, match="5 of the runs are not in the spool file and cannot be read: gone"):
        list(go(Gone(store)).rows())


def test_a_spool_that_is_too_large_is_not_read(store, tmp_path):
    spool = ResultSpool("e" * 32, [tmp_path])
    spool.add(SpoolBatch([run()], []))
    spool.close()
    with pytest.raises(Refused, match=r"spanwise-spool-.*too large to read"):
        make_spooled_store(store, spool, max_bytes=100).many(["1" * 32])


def test_scoring_further_delivers_the_spool_first(store):
    experiment = go(Away(store))
    more = Experiment.load(store, experiment.id).evaluate([lambda outputs: True], progress=False)
    assert (more.summary().runs, more.summary()["exact"].n) == (6, 6)
