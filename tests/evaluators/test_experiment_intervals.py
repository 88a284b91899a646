"""Intervals and repeated runs of an experiment: equal in a running and a loaded experiment and on its page."""

import re
from html import unescape

import pytest
from fastapi.testclient import TestClient
from scipy import stats

from spanwise.collector.api import create_app
from spanwise.collector.filters import Filter
from spanwise.collector.records import Feedback, Target
from spanwise.collector.stores import estimate_keys, experiment_statistics
from spanwise.evaluators import Experiment, evaluate, evaluator

DATA = [{"inputs": {"q": n}} for n in range(24)]


@evaluator(key="small", threshold=0.5)
def small(outputs):
    return outputs < 7


@evaluator(key="grade")
def grade(outputs):
    return outputs / 10


@evaluator(key="tone")
def tone(outputs):
    return "kind" if outputs else "rude"


def task(q, seed):
    if q == 5 and (seed is None or seed % 3 == 0):
        raise RuntimeError("away")
    return (q * 7 + (seed or 0) % 5) % 10


def ran(store, **options):
    return evaluate(DATA, task, [small, grade, tone], store=store, progress=False, name="e", **options)


def aggregated(store, experiment):
    return store.aggregate(Filter(experiments=(experiment.id,)), group_by="experiment", newest="all")[0]


def estimated(store, experiment):
    return estimate_keys(store, experiment.record, aggregated(store, experiment))


@pytest.fixture
def page(store):
    def read(experiment):
        with TestClient(create_app(store)) as client:
            return unescape(client.get(f"/experiments/{experiment.id}").text)

    return read


def test_a_rate_has_wilsons_interval(store):
    row = ran(store).summary()["small"]
    expected = stats.binomtest(round(row.mean * row.n), row.n).proportion_ci(method="wilson")
    assert row.interval == pytest.approx(tuple(expected), abs=1e-9)


def test_task_ok_has_wilsons_interval(store):
    summary = evaluate(DATA, lambda q: 1 / (q > 3), [small], store=store, progress=False).summary()
    expected = stats.binomtest(20, 24).proportion_ci(method="wilson")
    assert summary["task_ok"].interval == pytest.approx(tuple(expected), abs=1e-9)


@pytest.mark.parametrize("options", [{}, {"repetitions": 4, "seed": 1}], ids=["once", "repeated"])
def test_running_loaded_and_stored_experiments_agree(store, options):
    experiment = ran(store, **options)
    running, loaded = experiment.summary(), Experiment.load(store, experiment.id).summary()
    stored = estimated(store, experiment)
    for key in ("small", "grade", "task_ok"):
        assert running[key].interval is not None
        assert running[key] == loaded[key]
        assert running[key].interval == stored[key].interval
    assert running["tone"].interval is None


def test_repeated_runs_are_equal_in_a_running_a_loaded_and_a_stored_experiment(store):
    experiment = ran(store, repetitions=4, seed=1)
    loaded, stored = Experiment.load(store, experiment.id), estimated(store, experiment)
    for key in ("small", "grade", "task_ok"):
        running = experiment.repeats(key)
        for other in (loaded.repeats(key), stored[key].repeats):
            assert (other.within, other.between) == pytest.approx((running.within, running.between))
            assert list(other.flaky) == list(running.flaky)
        if running.can_pass:
            assert running.pass_at(3) == loaded.repeats(key).pass_at(3) == stored[key].repeats.pass_at(3)


def test_repetitions_cluster_by_example(store):
    once = evaluate(DATA, lambda q: q % 5, [grade], store=store, progress=False).summary()["grade"]
    often = evaluate(DATA, lambda q: q % 5, [grade], store=store, progress=False, repetitions=5).summary()["grade"]
    assert often.interval == pytest.approx(once.interval)


def test_several_scores_of_one_run_are_one_cluster_on_the_page_too(store):
    experiment = evaluate(DATA, lambda q: q, [grade], store=store, progress=False)
    for row in experiment.rows():
        for document in range(3):
            target = Target(trace_id=row.trace.trace_id, span_id=row.trace.root.span_id, document=document)
            score = (row.inputs["q"] + document) % 4 / 3
            store.add_feedback([Feedback(target=target, key="relevant", score=score)])
    loaded = Experiment.load(store, experiment.id).summary()["relevant"]
    assert loaded.n == 72
    assert estimated(store, experiment)["relevant"].interval == loaded.interval is not None


def test_labels_of_people_on_a_judges_score_do_not_count_twice(store):
    experiment = evaluate(DATA, lambda q: q, [small], store=store, progress=False)
    for row in experiment.rows():
        target = Target(trace_id=row.trace.trace_id)
        score = float(row.outputs % 3 > 0)
        store.add_feedback([Feedback(target=target, key="good", score=score, source="model")])
        store.add_feedback([Feedback(target=target, key="good", score=0.0, source="human", author="ann")])
    loaded = Experiment.load(store, experiment.id).summary()["good"]
    assert estimated(store, experiment)["good"].interval == loaded.interval is not None


def test_too_many_scores_have_no_interval_on_the_page(store, monkeypatch):
    monkeypatch.setattr(experiment_statistics, "MAX_SCORES", 69)  # 24 runs and 46 scores
    experiment = ran(store)
    assert estimated(store, experiment) == {}


def test_the_table_shows_the_interval_beside_the_mean(store):
    experiment = evaluate(DATA, lambda q: q, [small], store=store, progress=False)
    assert re.search(r"small +│ 24 │ 0\.2917 │ \[0\.149, 0\.492\]", str(experiment))
    assert "<td>[0.149, 0.492]</td>" in experiment.to_html()


def test_the_table_without_any_interval_has_no_column_for_it(store):
    experiment = evaluate(DATA[:3], lambda q: q, [grade], store=store, progress=False)
    assert "95 %" not in str(experiment)


def test_the_ends_of_the_interval_are_columns_of_the_data_frame(store):
    experiment = ran(store)
    table = experiment.summary().to_pandas().set_index("key")
    assert (table.low["grade"], table.high["grade"]) == experiment.summary()["grade"].interval
    assert table.low.isna()["tone"]


def test_the_page_shows_the_interval_beside_the_mean(store, page):
    text = page(evaluate(DATA, lambda q: q, [small], store=store, progress=False))
    assert re.search(r'<span class="mean">29 %</span>\s*<span class="interval[^>]*>\[15 %, 49 %\]</span>', text)


def test_table_and_page_say_whose_mean_the_interval_of_a_judge_is(store, page):
    experiment = evaluate(DATA, lambda q: q, [small], store=store, progress=False)
    for row in experiment.rows():
        feedback = Feedback(target=Target(trace_id=row.trace.trace_id), key="good", score=True, source="model")
        store.add_feedback([feedback])
    assert "that of the judge's mean (see corrected_mean)" in str(Experiment.load(store, experiment.id))
    assert "judge's mean" not in str(experiment)
    assert "95 % interval of the judge's mean; corrected_mean estimates the mean of people's labels" in page(experiment)


def test_the_table_shows_pass_at_k_and_pass_hat_k_of_keys_that_pass(store):
    experiment = ran(store, repetitions=4, seed=1)
    summary = experiment.summary()
    assert summary["small"].pass_at == experiment.repeats("small").pass_at(4).value
    assert summary["small"].pass_hat == experiment.repeats("small").pass_hat(4).value
    assert summary["grade"].pass_at is None
    assert summary._cells()[0][-2:] == ["pass@4", "pass^4"]


def test_the_page_shows_pass_at_k_and_flaky_examples(store, page):
    experiment = ran(store, repetitions=4, seed=1)
    text, found = page(experiment), experiment.repeats("small")
    assert f"pass@4 {100 * found.pass_at(4).value:.0f} % [" in text
    assert f"pass^4 {100 * found.pass_hat(4).value:.0f} % [" in text
    assert f"{len(found.flaky)} flaky" in text


def test_without_repetitions_neither_table_nor_page_shows_pass_at_k(store, page):
    experiment = ran(store)
    assert "pass@" not in str(experiment)
    assert "pass@" not in page(experiment)


def test_a_failed_task_counts_as_not_passed(store):
    calls = []

    def moody(q):
        calls.append(q)
        return 1 / 0 if q == 0 and calls.count(q) == 1 else 1

    experiment = evaluate(DATA[:2], moody, [small], store=store, progress=False, repetitions=3)
    found = experiment.repeats("small")
    assert [(each.passed, each.runs) for each in found.flaky.values()] == [(2, 3)]
    assert (found.pass_at(3).value, found.pass_hat(3).value) == (1, 0.5)
    assert experiment.summary()["small"].flaky == 1


def test_an_experiment_without_repetitions_has_no_repeated_runs(store):
    with pytest.raises(ValueError, match="'e' has no repetitions; run it with"):
        ran(store).repeats("small")


def test_an_unknown_key_has_no_repeated_runs(store):
    with pytest.raises(ValueError, match="no key 'other'; expected one of: small, grade, tone, task_ok"):
        ran(store, repetitions=2).repeats("other")
