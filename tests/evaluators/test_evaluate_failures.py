"""A run that failed is seen beside every mean: who looks at the table last is not misled by those that survived."""

import contextvars

import pytest

from spanwise.evaluators import Experiment, evaluate, evaluator
from spanwise.evaluators.experiments import ExperimentTally, make_summary, rerun_command
from spanwise.tracer import current_run

DATA = [{"inputs": {"q": n}, "reference_outputs": n} for n in range(20)]


def survivor(q):
    if q != 7:
        raise ConnectionError("no")
    return q


@pytest.fixture
def experiment(store):
    return evaluate(DATA, survivor, ["exact"], name="s", store=store, progress=False)


def test_task_ok_is_a_key_of_its_own_where_a_task_failed(store, experiment):
    summary = experiment.summary()
    ok = summary["task_ok"]
    assert (list(summary), ok.n, ok.mean, ok.passed, ok.minimum, ok.maximum) == (
        ["task_ok", "exact"],
        20,
        0.05,
        0.05,
        0,
        1,
    )
    assert "task_ok" not in next(experiment.rows()).scores
    assert Experiment.load(store, experiment.id).summary() == summary


def test_failed_tasks_stand_beside_the_mean_of_who_is_left(experiment):
    row = experiment.summary()["exact"]
    assert (row.n, row.mean, row.task_failed, row.failed, row.skipped) == (1, 1.0, 19, 0, 19)
    (line,) = (line for line in str(experiment).splitlines() if line.startswith("│ exact"))
    assert [cell.strip() for cell in line.strip("│").split("│")] == [
        "exact ↑",
        "1",
        "1",
        "[0.207, 1]",
        "19 of 20",
        "",
        "0",
        "19",
    ]
    assert "<th>mean</th><th>95 %</th><th>task failed</th>" in experiment._repr_html_()
    assert "20 runs, 19 failed" in repr(experiment)
    assert "task_failed=19" in repr(row)


def test_where_nothing_failed_nothing_is_added_but_task_ok_can_be_asked_for(store):
    summary = evaluate(DATA, lambda q: q, ["exact"], store=store, progress=False).summary()
    assert (list(summary), summary["task_ok"].mean, "task_ok" in summary) == (["exact"], 1.0, True)
    assert "task failed" not in str(summary)


def test_before_any_run_there_is_no_share_of_failures():
    summary = make_summary("t", ExperimentTally())
    assert (summary["task_ok"].n, summary["task_ok"].mean, list(summary)) == (0, None, [])
    with pytest.raises(KeyError):
        summary["task_okay"]


def test_with_repetitions_it_is_told_where_a_task_fails_now_and_then(store):
    calls = []

    def moody(q):
        calls.append(q)
        return 1 / 0 if calls.count(q) == 2 and q < 3 else q

    ran = evaluate(DATA, moody, repetitions=3, store=store, progress=False)
    for summary in (ran.summary(), Experiment.load(store, ran.id).summary()):
        assert (summary["task_ok"].n, summary["task_ok"].flaky) == (60, 3)


def test_nobody_else_has_that_key(store):
    with pytest.raises(ValueError, match="the key 'task_ok' is reserved"):
        evaluate(DATA, survivor, [evaluator(key="task_ok")(lambda outputs: True)], store=store)
    said = evaluate(DATA, lambda q: current_run().feedback("task_ok", False), store=store, progress=False).summary()
    assert (list(said), said["task_ok"].mean) == ([], 1.0)


def test_the_way_to_run_only_what_failed_is_said(store):
    rerun_command.set(None)  # as if no command had run in this process
    (example,) = DATA[:1]
    failed = evaluate([example], survivor, store=store, progress=False)
    id = next(failed.rows()).example_id
    assert f"run that example alone: evaluate(…, only='{id}', raise_errors=True)" in str(failed)
    contextvars.copy_context().run(_as_command, failed, id)


def _as_command(failed, id):
    rerun_command.set("spanwise eval check.py")
    assert f"run that example alone: spanwise eval check.py --only {id} --pdb" in str(failed)
