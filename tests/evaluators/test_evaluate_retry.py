"""Resume runs again what failed, tasks and evaluators alike, and nothing that was right; only the newest result counts."""

import threading

import pytest

from spanwise.collector import connect
from spanwise.collector.errors import Unavailable
from spanwise.collector.server import Server
from spanwise.evaluators import Experiment, compare, evaluate, evaluator
from spanwise.tracer import current_run

QUESTIONS = [{"inputs": {"q": f"Q{n}"}, "reference_outputs": f"a q{n}"} for n in range(6)]


class Net:
    """What tasks and judges reach, but for questions that are listed as unreachable."""

    def __init__(self, *away):
        self.away, self.asked = set(away), []

    def answer(self, q):
        self.asked.append(q)
        if q in self.away:
            raise ConnectionError("net down")
        return f"a {q.lower()}"


def run(task, store, *evaluators, **settings):
    options = {"name": "x", "resume": True, "concurrency": 1, "progress": False, **settings}
    return evaluate(QUESTIONS, task, ["exact", *evaluators], store=store, **options)


def counts(experiment):
    summary = experiment.summary()
    return summary.runs, summary.failed, summary["exact"].n, summary["exact"].mean


@pytest.fixture
def net():
    return Net("Q1", "Q4")


@pytest.fixture
def failed(store, net):
    return run(net.answer, store)


def test_failed_runs_are_run_again_and_no_others(store, net, failed):
    assert counts(failed) == (6, 2, 4, 1.0)
    net.away.clear()
    again = run(net.answer, store)
    assert net.asked[6:] == ["Q1", "Q4"]
    assert (again.id, counts(again)) == (failed.id, (6, 0, 6, 1.0))


def test_the_failed_run_is_gone_wherever_runs_are_counted(store, net, failed):
    net.away.clear()
    again = run(net.answer, store)
    assert [row.outputs for row in again.rows()] == [f"a q{n}" for n in range(6)]
    assert counts(Experiment.load(store, "x")) == (6, 0, 6, 1.0)
    assert (len(store.traces(experiment=again.id)), store.count()["traces"]) == (6, 6)
    assert len(compare("x", again, store=store).contrasts()["exact"].differences) == 6


def test_what_fails_again_is_kept_as_it_failed_last(store, net, failed):
    net.away.remove("Q1")
    again = run(net.answer, store)
    assert counts(again) == counts(Experiment.load(store, "x")) == (6, 1, 5, 1.0)
    assert len(list(again.rows())) == 6


def test_over_http_it_is_the_same(store, net):
    with Server(store) as server:
        remote = connect(server.url)
        run(net.answer, remote)
        net.away.clear()
        assert counts(run(net.answer, remote)) == (6, 0, 6, 1.0)
        remote.close()
    assert store.count()["traces"] == 6


def test_a_kill_before_the_failed_run_was_taken_away_leaves_no_double(store, net, failed):
    class Killed:
        def __getattr__(self, name):
            return getattr(store, name)

        def delete(self, **conditions):
            raise KeyboardInterrupt

    net.away.clear()
    with pytest.raises(KeyboardInterrupt):
        run(net.answer, Killed())
    assert counts(Experiment.load(store, "x")) == (6, 0, 6, 1.0)
    assert counts(run(net.answer, store)) == (6, 0, 6, 1.0)
    assert (len(net.asked), store.count()["traces"]) == (8, 6)


def test_a_store_that_is_away_meanwhile_takes_old_for_new_when_it_is_back(store, net, failed, tmp_path, monkeypatch):
    class Away:
        def __getattr__(self, name):
            return getattr(store, name)

        def append(self, runs, feedback=()):
            raise Unavailable("away", 0.01)

    monkeypatch.chdir(tmp_path)
    net.away.clear()
    assert run(net.answer, Away()).unstored.runs == 2
    assert counts(run(net.answer, store)) == (6, 0, 6, 1.0)
    assert (len(net.asked), store.count()["traces"]) == (8, 6)


def test_repetitions_fail_one_by_one(store):
    net, seen = Net(), []

    def second_time(q):
        seen.append(q)
        if seen.count(q) == 2 and q == "Q3":
            raise ConnectionError("net down")
        return net.answer(q)

    assert run(second_time, store, repetitions=2).summary().failed == 1
    again = run(second_time, store, repetitions=2)
    assert (len(seen), again.summary().runs, again.summary()["exact"].n) == (13, 12, 12)


def flaky():
    down = threading.Event()
    down.set()

    @evaluator(key="judge")
    def judge(outputs):
        if down.is_set() and outputs in ("a q2", "a q3"):
            raise ConnectionError("judge down")
        return [{"key": "clear", "score": 1.0}, {"key": "kind", "score": 0.5}]

    return judge, down


@pytest.mark.parametrize("way", ["resume", "evaluate"])
def test_evaluators_that_failed_look_again_where_they_failed(store, way):
    net, (judge, down) = Net(), flaky()
    first = run(net.answer, store, judge)
    assert (first.summary()["judge"].failed, first.summary()["clear"].n) == (2, 4)
    down.clear()
    again = run(net.answer, store, judge) if way == "resume" else first.evaluate([judge], progress=False)
    assert (again.summary()["clear"].n, again.summary()["kind"].n, len(net.asked)) == (6, 6, 6)
    assert "judge" not in again.summary()
    assert "judge" not in Experiment.load(store, "x").summary()
    assert store.count()["feedbacks"] == 6 * 3


def test_an_evaluator_that_fails_again_has_one_error(store):
    net, (judge, _) = Net(), flaky()
    run(net.answer, store, judge)
    again = run(net.answer, store, judge)
    assert again.summary()["judge"].failed == Experiment.load(store, "x").summary()["judge"].failed == 2


def test_what_a_task_said_of_a_run_that_failed_goes_with_it(store):
    first = threading.Event()
    first.set()

    def noting(q):
        current_run().feedback("note", True)
        if first.is_set() and q == "Q2":
            raise ConnectionError("net down")
        return q

    run(noting, store)
    first.clear()
    assert run(noting, store).summary()["note"].n == 6


def test_stored_traces_that_failed_are_only_scored(store, net, failed):
    live = list(store.traces(experiment=failed.id))
    options = {"store": store, "name": "live", "progress": False, "resume": True}
    assert evaluate(live, None, ["exact"], **options).summary().failed == 2
    again = evaluate(live, None, ["exact"], **options)
    assert (again.summary().runs, again.summary().failed) == (6, 2)
