"""Files with the dataset and the metrics of one evaluator, as `save_llm_result=True` writes them."""

import json
import os
import stat

import pytest

from spanwise.collector.client import HTTPStore
from spanwise.collector.records import Example
from spanwise.collector.server import Server
from spanwise.collector.stores.sqlite import SQLiteStore
from spanwise.evaluators import Experiment, evaluate, evaluator, get_evaluator
from spanwise.evaluators.experiments import Recorder
from spanwise.evaluators.experiments.experiment_results import get_results_path

ROWS = [
    {"inputs": "q1", "reference_outputs": "a", "documents": ["ask jo@example.org"], "metadata": {"tone": "dry"}},
    {"inputs": "q2", "reference_outputs": "b", "split": "x"},
]


def answer(inputs):
    if inputs == "q2":
        raise ValueError("no answer")
    return "mail jo@example.org"


@pytest.fixture
def store(tmp_path):
    with SQLiteStore(tmp_path / "a.db") as opened:
        yield opened


def read(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def saving(id, **options):
    return get_evaluator(id, save_llm_result=True, **options)


def test_a_file_next_to_the_store_has_the_dataset_and_the_metrics_of_the_evaluator(store, tmp_path, capsys):
    done = evaluate(ROWS, answer, [saving("pii"), "exact"], store=store, progress=False)
    path = tmp_path / "spanwise-results" / done.id / "pii.jsonl"
    assert done.saved_results == {"pii": path}
    assert f"saved 2 runs with the results of 'pii' in {path}" in capsys.readouterr().err
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [file.name for file in path.parent.iterdir()] == ["pii.jsonl"]
    first, second = read(path)
    assert (first["inputs"], first["outputs"], first["reference_outputs"]) == ("q1", "mail jo@example.org", "a")
    assert (first["documents"], first["metadata"]) == ([{"content": "ask jo@example.org"}], {"tone": "dry"})
    assert first["results"].keys() == {"pii", "pii_fail", "pii_retrieval_fail", "pii_generation_fail"}
    assert first["results"]["pii"] == {
        "display_name": "No PII leakages (pass)",
        "outcome": "score",
        "score": False,
        "passed": False,
        "comment": "answer: 1 email; context: 1 email",
    }
    assert second["split"] == "x"
    assert "no answer" in second["run"]["error"]


@pytest.mark.parametrize("options", [{}, {"save_llm_result": False}])
def test_no_file_without_true(options, store, tmp_path):
    done = evaluate(ROWS, answer, [get_evaluator("pii", **options)], store=store, progress=False)
    assert done.saved_results == {}
    assert not (tmp_path / "spanwise-results").exists()


def test_scores_of_the_whole_set_are_in_every_line(store):
    done = evaluate(ROWS, lambda inputs: "a", [saving("classification")], store=store, progress=False)
    lines = read(done.saved_results["classification"])
    assert [line["results"]["classification_accuracy"]["score"] for line in lines] == [0.5, 0.5]
    assert lines[0]["results"]["classification_f1"]["display_name"] == "F1"


def test_the_file_is_a_dataset(store):
    done = evaluate(ROWS, lambda inputs: "a", [saving("exact")], store=store, progress=False, repetitions=2)
    again = evaluate(str(done.saved_results["exact"]), None, ["exact"], store=store, progress=False)
    assert [(row.inputs, row.outputs, row.reference_outputs) for row in again.rows()] == [
        ("q1", "a", "a"),
        ("q1", "a", "a"),
        ("q2", "a", "b"),
        ("q2", "a", "b"),
    ]
    assert again.summary()["exact"].mean == 0.5


def test_of_a_store_over_http_the_folder_is_in_the_current_directory(store, tmp_path, monkeypatch):
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    with Server(store) as server, HTTPStore(server.url) as remote:
        done = evaluate(ROWS, answer, [saving("pii", key="a/b")], store=remote, progress=False)
    path = tmp_path / "here" / "spanwise-results" / done.id / "a%2Fb.jsonl"
    assert done.saved_results == {"a/b": path}
    assert read(path)[0]["results"]["a/b_fail"]["score"] is True


def test_rescoring_and_attaching_save_too(store):
    first = evaluate(ROWS, answer, ["exact"], store=store, progress=False)
    more = first.evaluate([saving("pii")], progress=False)
    assert [line["results"]["pii"]["outcome"] for line in read(more.saved_results["pii"])] == ["score", "skip"]
    more.saved_results["pii"].unlink()
    again = first.evaluate(["not_empty"], progress=False)
    assert again.saved_results == {}  # an evaluator of an earlier call does not save once more
    traces = [row.trace for row in first.rows()]
    attached = evaluate(traces, None, [saving("length")], store=store, attach=True, progress=False)
    assert [line["results"]["length"]["outcome"] for line in read(attached.saved_results["length"])] == [
        "score",
        "skip",
    ]


def test_a_recorder_saves_at_its_end(store):
    made = saving("not_empty")
    recorder = Recorder(store, "tests", "tests", [made])
    with recorder.run("one", Example(inputs="q"), after=[made]) as run:
        run.set_outputs("answer")
    done = recorder.finish()
    [line] = read(done.saved_results["not_empty"])
    assert line["results"].keys() == {"not_empty"}


def test_a_file_that_cannot_be_written_is_told_and_costs_nothing(store, tmp_path, capsys):
    (tmp_path / "spanwise-results").write_text("in the way")
    done = evaluate(ROWS, answer, [saving("pii")], store=store, progress=False)
    assert (done.record.status, done.saved_results) == ("finished", {})
    assert "save them elsewhere with experiment.save_results(path, evaluator='pii')" in capsys.readouterr().err
    assert done.save_results(tmp_path / "own" / "pii.jsonl", evaluator="pii") == 2
    assert read(tmp_path / "own" / "pii.jsonl")[0]["results"]["pii"]["score"] is False


def test_results_are_saved_by_hand_for_one_evaluator_or_all(store, tmp_path):
    @evaluator(key="counts")
    def counts(outputs):
        return [{"key": "letters", "score": len(outputs)}, {"key": "words", "score": 1}]

    made = evaluate(ROWS[:1], answer, [counts, "exact"], store=store, progress=False)
    done = Experiment.load(store, made.id)
    done.save_results(tmp_path / "one.jsonl", evaluator="counts")
    done.save_results(tmp_path / "all.jsonl")
    assert [line["results"].keys() for line in read(tmp_path / "one.jsonl")] == [{"letters", "words"}]
    assert [line["results"].keys() for line in read(tmp_path / "all.jsonl")] == [{"letters", "words", "exact"}]
    with pytest.raises(ValueError, match="has no evaluator 'pii'; it has: counts, exact"):
        done.save_results(tmp_path / "none.jsonl", evaluator="pii")
    assert not (tmp_path / "none.jsonl").exists()


def test_a_former_file_stays_if_writing_fails(store, tmp_path, monkeypatch):
    done = evaluate(ROWS[:1], answer, ["exact"], store=store, progress=False)
    (tmp_path / "one.jsonl").write_text("former")

    def fail(*_):
        raise OSError("disk full")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match="disk full"):
        done.save_results(tmp_path / "one.jsonl")
    assert (tmp_path / "one.jsonl").read_text() == "former"
    assert [file.name for file in tmp_path.iterdir() if file.name.endswith(".jsonl")] == ["one.jsonl"]


def test_long_and_odd_keys_make_different_files_in_the_same_folder(store):
    paths = {get_results_path(store, "e", key) for key in ("k" * 300, "k" * 301, "ü/\0" * 200, "..", "../x")}
    assert len({path.name for path in paths}) == 5
    assert {path.parent for path in paths} == {paths.pop().parent}
    assert all(len(path.name) < 255 and "/" not in path.name for path in paths)
