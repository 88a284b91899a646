"""Values of datasets keep their types and meaning, whatever the source: CSV, YAML, DataFrames, rows of LangSmith."""

import numpy
import pandas
import pytest

from looped_cases import loop_over
from spanwise.collector.records import Example
from spanwise.evaluators import datasets, evaluate, get_evaluator, score
from spanwise.evaluators.builtin.text import exact


def outcomes(store, rows, task, evaluators=("exact",)):
    experiment = evaluate(rows, task, evaluators, store=store, progress=False)
    return [row.scores for row in experiment.rows()]


def test_json_text_in_csv_equals_the_same_text(store, tmp_path):
    file = tmp_path / "rows.csv"
    file.write_text('question,expected\na,"{""city"": ""Paris""}"\nb,"[1, 2]"\nc,{not json\nd,42\n')
    answers = {"a": '{"city": "Paris"}', "b": "[1, 2]", "c": "{not json", "d": 42}
    assert outcomes(store, file, lambda question: answers[question]) == [{"exact": 1.0}] * 4


@loop_over(
    ("outputs", "reference", "same"),
    [
        ('{"a": 1, "b": 2}', {"b": 2, "a": 1}, 1.0),
        ({"a": [1]}, '{"a": [1]}', 1.0),
        ("[]", [], 1.0),
        ('{"a": 1}', {"a": 2}, 0.0),
        ("4", 4.0, 1.0),
        (4.0, "4", 1.0),
        ("4.5", 4.5, 1.0),
        ("true", True, 0.0),
        ("null", None, 0.0),
    ],
)
def test_a_difference_of_types_alone_is_none(outputs, reference, same):
    assert exact(outputs, reference) == same


@pytest.mark.parametrize(
    "word", ["no", "yes", "on", "off", "No", "y", "007", "12:30", "2024-01-02", "1_000", "0x1F", "1e"]
)
def test_words_of_yaml_stay_texts(tmp_path, word):
    file = tmp_path / "rows.yaml"
    file.write_text(f"- question: q\n  expected: {word}\n")
    assert datasets.read(file)[0].reference_outputs == word


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("true", True),
        ("False", False),
        ("12", 12),
        ("-3", -3),
        ("1.5", 1.5),
        ("1e3", 1000.0),
        ("'no'", "no"),
        ("[1, x]", [1, "x"]),
    ],
)
def test_values_of_yaml_are_those_of_json(tmp_path, text, value):
    file = tmp_path / "rows.yaml"
    file.write_text(f"- question: q\n  expected: {text}\n  documents: ~\n")
    (example,) = datasets.read(file)
    assert (example.reference_outputs, type(example.reference_outputs)) == (value, type(value))
    assert example.documents is None


def test_what_is_written_as_yaml_is_read_back(tmp_path):
    values = ["no", "007", "2024-01-02", "true", "1e3", "~", "", True, 7, 1.5, None, {"a": ["yes"]}, "<<"]
    examples = [Example(id=str(n), inputs={"v": value}) for n, value in enumerate(values)]
    datasets.write(examples, tmp_path / "rows.yaml")
    assert [one.inputs["v"] for one in datasets.read(tmp_path / "rows.yaml")] == values


def test_a_missing_cell_leaves_whole_numbers_whole(store):
    frame = pandas.DataFrame({"question": ["2+2", "3+3", "4+4"], "expected": [4, 6, None]})
    assert [one.reference_outputs for one in datasets.read(frame)] == [4, 6, None]
    scores = outcomes(store, frame, lambda question: str(2 * int(question[0])))
    assert scores[:2] == [{"exact": 1.0}] * 2


@pytest.mark.parametrize("column", [[4.0, 6.0], [4.5, None], [None, None], [float("inf"), None]])
def test_other_floats_of_a_dataframe_stay_floats(column):
    frame = pandas.DataFrame({"question": ["a", "b"], "expected": numpy.array(column, dtype=float)})
    for example in datasets.read(frame):
        assert isinstance(example.reference_outputs, float | None)


@pytest.mark.parametrize("blank", [",", " , ", "", ",\n,"])
def test_a_row_of_empty_cells_is_no_row(tmp_path, blank):
    file = tmp_path / "rows.csv"
    file.write_text(f"question,expected\nWhere?,Here\n{blank}\nWhen?,Now\n{blank}\n")
    assert [one.inputs for one in datasets.read(file)] == [{"question": "Where?"}, {"question": "When?"}]


def test_numbers_of_numpy_stay_numbers_in_metadata(store):
    given = {"k": numpy.int64(5), "t": numpy.float64(0.5), "r": numpy.bool_(True), "s": numpy.array([1, 2]), "p": store}
    experiment = evaluate([{"inputs": "q"}], lambda q: q, metadata=given, store=store, progress=False)
    kept = experiment.record.metadata
    assert {name: kept[name] for name in "ktrs"} == {"k": 5, "t": 0.5, "r": True, "s": [1, 2]}
    assert isinstance(kept["p"], str)


def langsmith(run, example):
    return {"key": "ok", "score": run.outputs["answer"] == example.outputs["answer"]}


@pytest.mark.parametrize("streamed", [False, True])
def test_outputs_of_langsmiths_rows_are_the_reference_of_a_task(store, streamed):
    rows = [{"inputs": {"question": "2+2?"}, "outputs": {"answer": "4"}, "metadata": {"a": 1}}]
    rows = iter(rows) if streamed else rows
    (scores,) = outcomes(store, rows, lambda question: {"answer": "4"}, [langsmith, "exact"])
    assert scores == {"ok": 1.0, "exact": 1.0}


def test_given_outputs_are_scored_without_a_task(store):
    rows = [{"inputs": "q", "outputs": "4"}]
    assert outcomes(store, rows, None, ["not_empty"]) == [{"not_empty": 1.0}]


def test_outputs_beside_a_reference_stay_outputs(store):
    row = {"inputs": "q", "outputs": "old", "reference_outputs": "new"}
    assert outcomes(store, [row], lambda inputs: "new") == [{"exact": 1.0}]


def test_actual_answer_is_what_was_answered():
    (example,) = datasets.read([{"question": "q", "actual_answer": "a", "expected_answer": "b"}])
    assert (example.outputs, example.reference_outputs, example.inputs) == ("a", "b", {"question": "q"})


def test_prepare_data_may_use_langsmiths_names(store):
    def prepared(run, example):
        return {"prediction": run.outputs["answer"], "reference": example.outputs["x"], "input": "q"}

    rows = [{"inputs": {"q": 1}, "reference_outputs": {"x": "A", "y": 2}}]
    (scores,) = outcomes(
        store, rows, lambda q: {"answer": "A", "z": 3}, [get_evaluator("exact", prepare_data=prepared)]
    )
    assert scores == {"exact": 1.0}


def test_prepare_data_counts_for_evaluators_of_batches():
    seen = []

    def model(texts):
        seen.extend(texts)
        return [[1.0, 0.0] for _ in texts]

    judge = get_evaluator(
        "semantic_similarity", model=model, prepare_data=lambda outputs: {"prediction": "said", "reference": "ref"}
    )
    assert score(judge, outputs="x", reference_outputs="y")[0].outcome == "score"
    assert sorted(seen) == ["ref", "said"]


def test_an_evaluator_that_expects_a_dict_of_a_text_says_so(store):
    def wrong(outputs):
        return outputs["output"] == "a"

    (scored,) = score(wrong, outputs="a")
    assert scored.error.startswith("TypeError: string indices must be integers")
    assert scored.error.endswith(
        "outputs is a text: use outputs itself, or let the task return a dict such as {'output': …}"
    )
