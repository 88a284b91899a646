"""Evaluators that an example names: which runs they score, how the summary counts them, resume and rescoring."""

import os
import signal
import sqlite3
import threading
import time
from contextlib import closing

import pytest

from spanwise.collector.records import Example
from spanwise.collector.stores.sqlite import SQLiteStore
from spanwise.evaluators import Experiment, datasets, evaluate, evaluator, get_evaluator
from spanwise.evaluators.datasets import BadRow, to_example, to_row
from spanwise.evaluators.experiments import dry_run


@evaluator
def concise(outputs):
    return len(outputs) < 5


@evaluator
def polite(outputs):
    return "please" in outputs


ROWS = [
    {"id": "all", "inputs": {"q": "a"}, "reference_outputs": "a"},
    {"id": "one", "inputs": {"q": "b"}, "reference_outputs": "b", "evaluators": ["concise"]},
    {"id": "two", "inputs": {"q": "c"}, "reference_outputs": "c", "evaluators": "concise, exact"},
]


def echo(q):
    return q


def run(rows, evaluators, store, task=echo, **options):
    return evaluate(rows, task, evaluators, store=store, name="x", progress=False, **options)


def scores(experiment):
    return {row.example_id: dict(row.scores) for row in experiment.rows()}


def test_the_column_is_a_list_or_comma_separated_text():
    assert to_example(ROWS[2]).evaluators == ("concise", "exact")
    assert to_example(ROWS[1]).evaluators == ("concise",)
    assert to_example(ROWS[0]).evaluators == ()
    assert to_example({"q": "b", "evaluators": " exact ,"}).evaluators == ("exact",)
    assert to_example({"q": "b", "evaluators": None}).evaluators == ()
    with pytest.raises(BadRow, match="evaluators"):
        to_example({"q": "b", "evaluators": 7})
    assert next(iter(datasets.read([Example(inputs=1, evaluators=["exact"])]))).evaluators == ("exact",)


@pytest.mark.parametrize("suffix", ["csv", "jsonl", "json", "yaml"])
def test_files_keep_the_evaluators(tmp_path, suffix):
    examples = [to_example(row) for row in ROWS]
    datasets.write(examples, tmp_path / f"d.{suffix}")
    assert [example.evaluators for example in datasets.read(tmp_path / f"d.{suffix}")] == [
        example.evaluators for example in examples
    ]
    assert "evaluators" not in to_row(examples[0])


def test_the_store_keeps_them_and_plain_examples_are_stored_as_before(store):
    datasets.save(store, "d", ROWS)
    assert [example.evaluators for example in store.examples("d")] == [(), ("concise",), ("concise", "exact")]
    assert datasets.save(store, "d", ROWS).version == 1
    assert datasets.save(store, "d", [{**ROWS[1], "evaluators": ["exact"]}]).version == 2
    with closing(sqlite3.connect(store.where)) as db:
        texts = [row[0] for row in db.execute("SELECT data FROM examples ORDER BY id")]
    assert '"evaluators"' not in texts[0]
    assert '"evaluators"' in texts[1]


def test_an_example_is_scored_by_the_evaluators_that_it_names(store):
    experiment = run(ROWS, [concise, "exact"], store)
    assert scores(experiment) == {
        "all": {"concise": True, "exact": 1.0},
        "one": {"concise": True},
        "two": {"concise": True, "exact": 1.0},
    }
    summary = experiment.summary()
    assert (summary["exact"].n, summary["exact"].skipped, summary["concise"].n) == (2, 0, 3)
    assert summary.partial == {"exact": (2, 3)}
    assert "2 of 3" in str(summary)
    assert " examples " in str(summary)
    loaded = Experiment.load(store, experiment.id).summary()
    assert loaded.partial == {"exact": (2, 3)}
    assert str(loaded) == str(summary)
    assert "2 of 3" in experiment.to_html()


def test_a_summary_without_such_examples_is_as_before(store):
    summary = run([ROWS[0]], [concise, "exact"], store).summary()
    assert summary.partial == {}
    assert " examples " not in str(summary)


def test_ids_of_the_dataset_are_created_from_the_registry(store):
    rows = [ROWS[0], {**ROWS[1], "evaluators": ["levenshtein", "concise"]}]
    experiment = run(rows, [concise], store)
    found = scores(experiment)
    assert found["all"] == {"concise": True}
    assert set(found["one"]) == {"concise", "levenshtein"}
    assert experiment.summary().partial == {"levenshtein": (1, 2)}
    assert [each["key"] for each in experiment.record.evaluators] == ["concise", "levenshtein"]


def test_an_unknown_id_is_an_error_before_the_first_run(store):
    asked = []
    rows = [ROWS[0], {**ROWS[1], "evaluators": ["exakt"]}]
    with pytest.raises(ValueError, match=r"example one names the evaluator 'exakt'.*exact"):
        run(rows, [concise], store, task=asked.append)
    with pytest.raises(ValueError, match=r"example one names the evaluator 'regex'"):  # needs a parameter
        run([ROWS[0], {**ROWS[1], "evaluators": ["regex"]}], [concise], store, task=asked.append)
    assert asked == []
    assert store.experiments() == []


def test_a_set_level_evaluator_cannot_be_named(store):
    with pytest.raises(ValueError, match=r"example one names .*'classification'.* all examples"):
        run([{**ROWS[1], "evaluators": ["classification"]}], [], store)

    @evaluator(summary=True)
    def whole(outputs):
        return len(outputs)

    with pytest.raises(ValueError, match=r"example one names .*'whole'"):
        run([{**ROWS[1], "evaluators": ["whole"]}], [whole], store)


def test_a_name_is_a_key_or_the_id_of_a_registered_evaluator(store):
    renamed = get_evaluator("exact", key="same")
    rows = [{**ROWS[0], "evaluators": ["exact"]}, {**ROWS[1], "evaluators": ["same"]}, {**ROWS[2], "evaluators": []}]
    assert all(set(each) == {"same"} for each in scores(run(rows, [renamed], store)).values())
    twice = run(rows, [renamed, "exact"], store)
    assert {id: set(each) for id, each in scores(twice).items()} == {
        "all": {"exact"},
        "one": {"same"},
        "two": {"same", "exact"},
    }


def test_a_stream_may_name_the_evaluators_of_the_call(store):
    experiment = run(iter(ROWS), [concise, "exact"], store)
    assert experiment.summary().partial == {"exact": (2, 3)}
    assert Experiment.load(store, experiment.id).summary().partial == {"exact": (2, 3)}
    with pytest.raises(ValueError, match=r"example one names the evaluator 'fuzzy'.*evaluators="):
        run(iter([{**ROWS[1], "evaluators": ["fuzzy"]}]), [concise], store)


@pytest.mark.parametrize("asynchronous", [False, True])
def test_repetitions_and_async_tasks(store, asynchronous):
    async def later(q):
        return q

    experiment = run(ROWS, [concise, "exact"], store, task=later if asynchronous else echo, repetitions=3)
    summary = experiment.summary()
    assert (summary["exact"].n, summary["exact"].skipped, summary["concise"].n) == (6, 0, 9)
    assert summary.partial == {"exact": (2, 3)}
    assert summary["exact"].flaky == 0


def test_limit_and_only_count_the_selected_examples(store):
    assert run(ROWS, [concise, "exact"], store, limit=2).summary().partial == {"exact": (1, 2)}
    assert run(ROWS, [concise, "exact"], store, only="two").summary().partial == {}


def test_resume_does_not_score_what_an_example_does_not_name(store):
    calls = []

    @evaluator
    def counted(outputs):
        calls.append(outputs)
        return True

    rows = [{**row, "evaluators": ["concise"]} if n % 2 else row for n, row in enumerate(make_rows(8))]
    stop = []

    def task(q):
        if q == "q5" and not stop:
            stop.append(1)
            os.kill(os.getpid(), signal.SIGINT)
            threading.Event().wait(10)
        return q

    with pytest.raises(KeyboardInterrupt):
        run(rows, [concise, counted], store, task=task, concurrency=1)
    experiment = run(rows, [concise, counted], store, task=task, resume=True)
    assert sorted(calls) == ["q0", "q2", "q4", "q6"]
    assert experiment.summary().partial == {"counted": (4, 8)}
    again = run(rows, [concise, counted], store, task=task, resume=True)
    assert len(calls) == 4
    assert again.summary()["counted"].n == 4
    assert again.summary()["counted"].skipped == 0


def make_rows(count):
    return [{"id": f"e{n}", "inputs": {"q": f"q{n}"}} for n in range(count)]


def test_rescoring_keeps_to_the_names(store):
    rows = [{"id": "a", "inputs": {"q": "a"}, "evaluators": ["concise"]}, {"id": "b", "inputs": {"q": "b"}}]
    experiment = run(rows, [concise], store).evaluate([polite])
    assert scores(experiment) == {"a": {"concise": True}, "b": {"concise": True, "polite": False}}
    assert experiment.summary().partial == {"polite": (1, 2)}
    assert Experiment.load(store, experiment.id).summary().partial == {"polite": (1, 2)}


def test_existing_outputs_are_scored_by_the_named_evaluators(store):
    rows = [{**row, "outputs": row["reference_outputs"]} for row in ROWS]
    assert set(scores(run(rows, [concise, "exact"], store, task=None))["one"]) == {"concise"}


def test_a_dry_run_counts_only_the_named_judges():
    rows = [{**row, "outputs": "x", "evaluators": ["concise"] if n else []} for n, row in enumerate(ROWS)]
    from spanwise.evaluators import scripted

    judged = get_evaluator("correctness", judge=scripted([]))
    assert dry_run(rows, [concise, judged], progress=False).total.calls == 1


@pytest.mark.process
@pytest.mark.parametrize("names", [True, False])
def test_ten_thousand_examples(tmp_path, names):
    rows = [
        {"inputs": {"q": str(n)}, **({"evaluators": ["concise"]} if names and n % 2 else {})} for n in range(10_000)
    ]
    with SQLiteStore(tmp_path / "t.db") as store:
        began = time.perf_counter()
        experiment = run(rows, [concise, polite], store)
        print("seconds", time.perf_counter() - began)
        summary = experiment.summary()
        assert summary["polite"].n == (5_000 if names else 10_000)
        assert summary.partial == ({"polite": (5_000, 10_000)} if names else {})


@pytest.mark.parametrize("remembered", [0, 5_000])
@pytest.mark.parametrize("options", [{}, {"limit": 2}, {"limit": 2, "seed": 1}, {"repetitions": 2}, {"only": "two"}])
def test_a_stored_dataset_is_read_in_advance(store, monkeypatch, remembered, options):
    from spanwise.evaluators.experiments import dataset_source

    monkeypatch.setattr(dataset_source, "MAX_REMEMBERED", remembered)
    datasets.save(store, "d", ROWS)
    experiment = run("d", [concise, "exact"], store, **options)
    named = {"all": {"concise", "exact"}, "one": {"concise"}, "two": {"concise", "exact"}}
    assert all(set(found) == named[id] for id, found in scores(experiment).items())
    assert experiment.summary().runs == {"limit": 2, "repetitions": 6, "only": 1}.get(next(iter(options), ""), 3)
    datasets.save(store, "d", [{"id": "bad", "inputs": {"q": "d"}, "evaluators": ["exakt"]}])
    with pytest.raises(ValueError, match="example bad names"):
        run("d", [concise], store)
