"""Interrupted experiments go on where they were; finished ones can be scored further; a failing store costs no run."""

import os
import signal
import threading

import pytest

from spanwise.collector import connect
from spanwise.collector.errors import Refused, Unavailable
from spanwise.collector.records import Feedback, Target
from spanwise.collector.server import Server
from spanwise.collector.stores.sqlite import SQLiteStore
from spanwise.evaluators import Experiment, compare, evaluate, evaluator, get_evaluator
from spanwise.evaluators.experiments import CannotResume
from spanwise.tracer import current_run

QUESTIONS = [{"inputs": {"q": f"Q{n}"}, "reference_outputs": f"a q{n}"} for n in range(8)]


class Task:
    """Answers, counts how often it was asked, and may interrupt the process as Ctrl-C does."""

    def __init__(self, interrupt_at=None):
        self.asked = []
        self.interrupt_at = interrupt_at

    def __call__(self, q):
        self.asked.append(q)
        if q == self.interrupt_at:
            self.interrupt_at = None  # also says to `resume` that this is no setting
            os.kill(os.getpid(), signal.SIGINT)
            threading.Event().wait(10)
        return f"a {q.lower()}"


def run(task, store, *more, **settings):
    return evaluate(
        QUESTIONS,
        task,
        [get_evaluator("exact"), *more],
        store=store,
        name="x",
        concurrency=1,
        progress=False,
        **settings,
    )


@pytest.fixture
def interrupted(store):
    task = Task(interrupt_at="Q5")
    with pytest.raises(KeyboardInterrupt):
        run(task, store)
    task.interrupt_at = None
    return task


def test_ctrl_c_leaves_what_is_done_and_says_how_to_go_on(store, interrupted, capfd):
    record = store.experiment("x")
    assert record.status == "interrupted"
    assert Experiment.load(store, "x").summary()["exact"].n == 5


def test_resume_runs_only_what_is_missing(store, interrupted):
    experiment = run(interrupted, store, resume=True)
    assert interrupted.asked == [f"Q{n}" for n in (0, 1, 2, 3, 4, 5, 5, 6, 7)]
    assert [row.outputs for row in experiment.rows()] == [f"a q{n}" for n in range(8)]
    assert (experiment.summary().runs, experiment.summary()["exact"].n) == (8, 8)
    assert len(store.experiments()) == 1
    assert store.experiment("x").status == "finished"


def test_resume_without_anything_to_resume_begins(store):
    task = Task()
    assert run(task, store, resume=True).summary().runs == 8
    assert run(task, store, resume=True).summary()["exact"].n == 8
    assert len(task.asked) == 8


def test_what_changed_keeps_an_experiment_from_being_resumed(store, interrupted):
    with pytest.raises(CannotResume, match=r"limit was None and is 2"):
        run(interrupted, store, resume=True, limit=2)


def test_evaluators_added_at_resume_score_what_is_stored(store, interrupted):
    experiment = run(interrupted, store, lambda outputs: float(len(outputs)), resume=True)
    assert [one.n for one in experiment.summary().values()] == [8, 8]
    assert len(interrupted.asked) == 9


def test_evaluators_can_be_added_to_a_finished_experiment(store):
    task = Task()
    first = run(task, store)
    more = first.evaluate([evaluator(key="length")(lambda outputs: float(len(outputs)))], progress=False)
    assert (len(task.asked), more.id) == (8, first.id)
    assert more.summary()["length"].mean == 4.0
    assert list(next(more.rows()).scores) == ["exact", "length"]
    assert [one["key"] for one in store.experiment(first.id).evaluators] == ["exact", "length"]


def test_a_new_version_of_an_evaluator_replaces_the_old_scores(store):
    def scored(value, version):
        return evaluator(key="e", version=version)(lambda outputs: value)

    first = evaluate(QUESTIONS, Task(), [scored(0.0, "1")], store=store, progress=False)
    assert first.evaluate([scored(1.0, "2")], progress=False).summary()["e"].mean == 1.0
    assert first.evaluate([scored(1.0, "2")], progress=False).summary()["e"].n == 8


class Failing:
    """A store whose writes fail while it is told so; everything else is the real one's."""

    def __init__(self, store, error):
        self.store, self.error, self.failing = store, error, True

    def __getattr__(self, name):
        return getattr(self.store, name)

    def append(self, runs, feedback=()):
        if self.failing:
            raise self.error
        self.store.append(runs, feedback)


@pytest.mark.parametrize("error", [Refused("no"), Unavailable("full", 0.01), OSError("disk")])
def test_a_failing_store_costs_no_run(store, tmp_path, monkeypatch, error):
    monkeypatch.chdir(tmp_path)
    task, failing = Task(), Failing(store, error)
    experiment = run(task, failing)
    assert (experiment.unstored.runs, experiment.summary()["exact"].mean) == (8, 1.0)
    failing.failing = False
    again = run(task, failing, resume=True)
    assert (len(task.asked), again.summary()["exact"].n) == (8, 8)
    assert [row.outputs for row in again.rows()] == [f"a q{n}" for n in range(8)]
    assert list(tmp_path.glob("spanwise-spool*")) == []


def test_what_a_task_says_of_its_run_is_stored_with_the_run(store):
    class Dying(Failing):
        def add_feedback(self, feedback):
            raise self.error

    def answer(q):
        current_run().feedback("note", True)
        return q

    dying = Dying(store, OSError("killed"))
    dying.failing = False
    run(answer, dying)
    assert Experiment.load(store, "x").summary()["note"].n == 8


def test_a_store_that_fails_at_the_very_end_does_not_cost_the_results(store, tmp_path, monkeypatch, capfd):
    class Closed(Failing):
        def append(self, runs, feedback=()):
            self.store.append(runs, feedback)

        def save_experiment(self, record):
            if record.status == "finished":
                raise self.error
            self.store.save_experiment(record)

    assert run(Task(), Closed(store, Unavailable("full"))).summary()["exact"].n == 8
    assert "the end of the experiment could not be stored: full" in capfd.readouterr().err


def test_a_finished_experiment_is_not_run_again_by_mistake(store):
    with pytest.raises(ValueError, match="score them with task=None"):
        evaluate(run(Task(), store), Task(), store=store, progress=False)


@pytest.mark.process
def test_a_server_is_a_store_too(store):
    with Server(store) as server:
        remote = connect(server.url)
        task = Task()
        first = run(task, remote)
        again = run(task, remote, lambda outputs: True, resume=True)
        remote.close()
    assert (len(task.asked), first.id, again.summary().runs) == (8, again.id, 8)
    assert [row.scores for row in Experiment.load(store, first.id).rows()] == [{"exact": 1.0, "<lambda>": True}] * 8


def test_experiments_are_compared_example_by_example(store):
    worse = evaluate(
        QUESTIONS,
        lambda q: "no" if q == "Q1" else f"a {q.lower()}",
        [get_evaluator("exact")],
        store=store,
        name="worse",
        progress=False,
    )
    both = compare(run(Task(), store), worse)
    (change,) = both.changes()
    assert (change.before, change.after, change.better) == (1.0, 0.0, False)
    assert (both["exact"].pairs, both["exact"].change, both["exact"].p) == (8, -0.125, 1.0)
    assert both["exact"].word == "inconclusive"


def test_an_experiment_is_the_same_after_loading(store):
    experiment = run(Task(), store, lambda outputs: 1 / 0)
    loaded = Experiment.load(store, experiment.id[:10])
    assert str(loaded.summary()).splitlines()[:7] == str(experiment.summary()).splitlines()[:7]
    assert [row.to_dict() for row in loaded.rows()] == [row.to_dict() for row in experiment.rows()]


def test_the_store_is_readable_by_others_afterwards(tmp_path):
    with SQLiteStore(tmp_path / "a.db") as store:
        id = run(Task(), store).id
    with SQLiteStore(tmp_path / "a.db") as store:
        assert Experiment.load(store, id).summary()["exact"].n == 8


def test_the_same_evaluator_with_other_parameters_under_another_key_is_run(store):
    experiment = run(Task(), store, get_evaluator("regex", pattern="q1"))
    experiment = experiment.evaluate([get_evaluator("regex", pattern="q2", key="has_q2")])
    assert (experiment.summary()["regex"].mean, experiment.summary()["has_q2"].mean) == (1 / 8, 1 / 8)


def test_votes_that_came_since_are_read_when_people_are_asked_again(store):
    people = get_evaluator("human_feedback", of="good")
    experiment = run(Task(), store, people)
    assert experiment.summary()["human_feedback"].skipped == 8
    first = next(experiment.rows()).trace.trace_id
    store.feedback(first, "good", 1, author="ann")
    store.add_feedback([Feedback(target=Target(trace_id=first), key="good", score=0.0, author="bob")])  # as over HTTP
    asked = experiment.evaluate([people]).summary()["human_feedback"]
    assert (asked.n, asked.mean, asked.skipped) == (1, 0.5, 7)


@pytest.mark.parametrize("status", ["interrupted", "running"])
def test_scoring_what_is_there_does_not_make_it_whole(store, interrupted, status):
    before = store.change_experiment(store.experiment("x").id, status=status)
    further = Experiment.load(store, "x").evaluate([get_evaluator("not_empty")], progress=False)
    assert further.summary()["not_empty"].n == 5
    now = store.experiment("x")
    assert (now.status, now.ended_ns, now.seen_ns) == (status, before.ended_ns, before.seen_ns)
