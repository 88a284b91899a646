"""Reading: every format and export becomes the same examples."""

import json

import numpy as np
import pandas
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spanwise.collector.records import Document, Example, Run, Trace, derive_example_id
from spanwise.evaluators import datasets
from spanwise.evaluators.datasets.column_mapping import FIELDS

EXAMPLE = {"inputs": {"question": "Q?"}, "reference_outputs": "A", "metadata": {"level": 2}, "split": "test"}


@pytest.fixture
def files(tmp_path):
    def write(name, text):
        (tmp_path / name).write_text(text, encoding="utf-8")
        return tmp_path / name

    return write


def test_json_lines(files):
    path = files("a.jsonl", json.dumps(EXAMPLE) + "\n\n" + json.dumps({"question": "2?", "expected": "B"}) + "\n")
    first, second = datasets.read(path)
    assert first.inputs == {"question": "Q?"}
    assert (first.reference_outputs, first.metadata, first.split) == ("A", {"level": 2}, "test")
    assert (second.inputs, second.reference_outputs) == ({"question": "2?"}, "B")


def test_the_error_of_a_bad_line_names_file_and_line(files):
    path = files("a.jsonl", '{"question": "Q?"}\nnot json\n')
    with pytest.raises(datasets.BadRow, match=r"a\.jsonl:2 is not JSON"):
        datasets.read(path)


def test_csv_with_prefixed_columns_and_json_in_cells(files):
    path = files(
        "a.csv", 'inputs.q,reference_outputs,documents,metadata.by\nWhy?,"{""a"": 1}","[""one"", ""two""]",ann\n'
    )
    (example,) = datasets.read(path)
    assert (example.inputs, example.reference_outputs) == ({"q": "Why?"}, {"a": 1})
    assert example.documents == (Document("one"), Document("two"))
    assert example.metadata == {"by": "ann"}


def test_csv_with_more_cells_than_columns(files):
    with pytest.raises(datasets.BadRow, match=r"a\.csv:2 has more cells"):
        datasets.read(files("a.csv", "q,expected\n1,2,3\n"))


def test_yaml_with_a_list_under_examples(files):
    path = files("a.yaml", "examples:\n- inputs: {question: why}\n  reference_outputs: A\n")
    assert datasets.read(str(path))[0].reference_outputs == "A"


def test_a_data_frame_leaves_missing_values_out():
    frame = pandas.DataFrame({"question": ["Q1", "Q2"], "expected": ["A", None], "k": [1, 2]})
    first, second = datasets.read(frame)
    assert first.inputs == {"question": "Q1", "k": 1}
    assert second.reference_outputs is None


def test_columns_of_databricks():
    (example,) = datasets.read(
        [
            {
                "request_id": "r1",
                "request": "Q?",
                "response": "B",
                "expected_response": "A",
                "guidelines": ["be brief"],
                "retrieved_context": [{"content": "c", "doc_uri": "u"}],
                "expected_retrieved_context": [{"doc_uri": "u"}],
            }
        ]
    )
    assert (example.id, example.inputs, example.outputs, example.reference_outputs) == ("r1", "Q?", "B", "A")
    assert example.documents == (Document("c", "u", None, {"doc_uri": "u"}),)
    assert example.expected_documents == (Document("", "u", None, {"doc_uri": "u"}),)
    assert example.guidelines == ["be brief"]


def test_an_export_of_langsmith_calls_the_reference_outputs():
    row = {
        "id": "1",
        "dataset_id": "d",
        "inputs": {"q": "Q?"},
        "outputs": {"a": "A"},
        "metadata": {"dataset_split": ["dev"]},
    }
    (example,) = datasets.read([row])
    assert (example.reference_outputs, example.outputs, example.split) == ({"a": "A"}, None, "dev")


def test_an_export_of_langfuse_leaves_archived_items_out(files):
    items = [
        {
            "id": "1",
            "datasetId": "d",
            "status": "ACTIVE",
            "input": {"q": "Q?"},
            "expectedOutput": "A",
            "metadata": None,
        },
        {"id": "2", "datasetId": "d", "status": "ARCHIVED", "input": {"q": "old"}, "expectedOutput": "A"},
    ]
    (example,) = datasets.read(files("a.json", json.dumps({"data": items})))
    assert (example.id, example.inputs, example.reference_outputs) == ("1", {"q": "Q?"}, "A")


def test_an_export_of_phoenix():
    (example,) = datasets.read([{"id": "x", "input": {"q": "Q?"}, "output": {"a": "A"}, "metadata": {"by": "ann"}}])
    assert (example.inputs, example.reference_outputs, example.metadata) == ({"q": "Q?"}, {"a": "A"}, {"by": "ann"})


def test_answer_is_the_reference_unless_there_is_another():
    (qa,) = datasets.read([{"question": "Q?", "answer": "A"}])
    (given,) = datasets.read([{"question": "Q?", "answer": "B", "expected": "A"}])
    assert (qa.inputs, qa.reference_outputs, qa.outputs) == ({"question": "Q?"}, "A", None)
    assert (given.inputs, given.reference_outputs, given.outputs) == ({"question": "Q?"}, "A", "B")


def test_columns_may_be_renamed():
    (example,) = datasets.read(
        [{"q": "Q?", "gold": "A"}], columns={"q": "inputs.question", "gold": "reference_outputs"}
    )
    assert (example.inputs, example.reference_outputs) == ({"question": "Q?"}, "A")


def test_ids_derive_from_contents_and_doubles_get_their_own():
    first, second = datasets.read([{"q": "same"}, {"q": "same"}])
    assert first.id == Example(inputs={"q": "same"}, split="other").id
    assert second.id == first.id + "-2"


def test_traces_are_examples():
    run = Run(
        trace_id="a" * 32, span_id="b" * 16, name="answer", inputs={"q": "Q?"}, outputs="A", documents=(Document("d"),)
    )
    (example,) = datasets.read([Trace(run, (run,))])
    assert (example.inputs, example.outputs, example.documents) == ({"q": "Q?"}, "A", (Document("d"),))


def test_json_lines_are_read_one_by_one(files):
    path = files("a.jsonl", '{"q": 1}\nnot json\n')
    assert next(datasets.iterate(path)).inputs == {"q": 1}


def test_what_is_no_dataset_is_named():
    with pytest.raises(ValueError, match=r"must be a name, .* got 5"):
        datasets.read(5)
    with pytest.raises(datasets.BadRow, match="example 1 has no inputs"):
        datasets.read([{"expected": "A"}])


NAMES = [name for names in FIELDS.values() for name in names] + [
    "q",
    "answer",
    "inputs.q",
    "metadata.a",
    "dataset_id",
    "",
    "a.b.c",
]
VALUES = (
    st.none()
    | st.booleans()
    | st.floats()
    | st.text(max_size=3)
    | st.lists(
        st.text(max_size=2) | st.dictionaries(st.sampled_from(["content", "id"]), st.integers() | st.text(max_size=2))
    )
    | st.dictionaries(st.text(max_size=2), st.integers())
)


def complaint(source):
    """What is said of a source that cannot be read; "" if it can."""
    try:
        datasets.read(source)
    except datasets.BadRow as error:
        return str(error)
    return ""


@pytest.mark.process
@settings(max_examples=300, deadline=None)
@given(st.dictionaries(st.sampled_from(NAMES), VALUES, max_size=6))
def test_any_row_is_an_example_or_a_bad_row(row):
    assert complaint([row]) == "" or "example 1" in complaint([row])


@pytest.mark.process
@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=60), st.sampled_from([".jsonl", ".json", ".csv", ".yaml"]))
def test_any_file_is_examples_or_a_bad_row(tmp_path_factory, content, suffix):
    path = tmp_path_factory.getbasetemp() / f"any{suffix}"
    path.write_bytes(content)
    assert complaint(path) == "" or "any" in complaint(path)


def test_of_two_columns_for_one_field_neither_is_lost():
    (example,) = datasets.read([{"inputs": {"q": "Q?"}, "response": "B", "output": "C"}])
    assert (example.outputs, example.metadata) == ("B", {"output": "C"})


def test_two_columns_of_one_name(files):
    assert complaint(files("a.csv", "q,q\n1,2\n")) == "a.csv has two columns named 'q'"


def test_spreadsheets_that_write_semicolons(files):
    (example,) = datasets.read(files("a.csv", "\ufeffquestion;expected\n1,5 or 2?;2\n"))
    assert (example.inputs, example.reference_outputs) == ({"question": "1,5 or 2?"}, "2")


def test_an_open_quote_does_not_swallow_the_rows_after_it(files):
    with pytest.raises(datasets.BadRow, match=r"a\.csv, after line 3: unexpected end of data"):
        datasets.read(files("a.csv", 'question,expected\n"unclosed,x\nb,c\n'))


def test_a_path_that_is_not_there_names_one_like_it(files):
    path = files("parcels.jsonl", json.dumps(EXAMPLE))
    with pytest.raises(FileNotFoundError, match=r"there is no file '.*parcls.jsonl'; did you mean '.*parcels.jsonl'\?"):
        datasets.read(path.with_name("parcls.jsonl"))


def test_the_hint_at_a_file_names_its_folder(files, monkeypatch):
    path = files("parcels.jsonl", json.dumps(EXAMPLE))
    monkeypatch.chdir(path.parent.parent)
    with pytest.raises(FileNotFoundError) as refused:
        datasets.read(f"{path.parent.name}/parcls.jsonl")
    assert str(refused.value).endswith(f"; did you mean '{path.parent.name}/parcels.jsonl'?")


def test_a_yaml_error_is_one_line_with_its_place(tmp_path):
    (tmp_path / "bad.yaml").write_text("- inputs: one\n- inputs: [1, 2\n- inputs: three\n")
    with pytest.raises(datasets.BadRow) as error:
        datasets.read(tmp_path / "bad.yaml")
    assert str(error.value).startswith("bad.yaml:3 is not YAML: ")
    assert "\n" not in str(error.value)


def test_expectations_of_mlflow_are_fields():
    row = {
        "inputs": {"q": 1},
        "outputs": "o",
        "expectations": {"expected_response": "e", "guidelines": ["g"], "facts": 1},
    }
    (example,) = datasets.read([row])
    assert (example.outputs, example.reference_outputs, example.guidelines) == ("o", "e", ["g"])
    assert example.metadata == {"facts": 1}


def test_a_csv_of_phoenix_says_by_prefixes_what_is_what(files):
    path = files("px.csv", "example_id,input_query,output_response,metadata_source\nR1,Q,A,web\n")
    (example,) = datasets.read(path)
    assert (example.id, example.inputs, example.reference_outputs) == ("R1", {"query": "Q"}, {"response": "A"})
    assert example.metadata == {"source": "web"}


def test_columns_that_only_begin_like_those_of_phoenix_stay():
    (example,) = datasets.read([{"example_id": "1", "input_file": "a.txt", "question": "Q"}])
    assert example.inputs == {"input_file": "a.txt", "question": "Q"}


@pytest.mark.parametrize("names", [("context", "retrieval_context"), ("retrieval_context", "context")])
def test_contexts_of_deepeval(names):
    given = {"context": ["should"], "retrieval_context": ["was"]}
    (example,) = datasets.read([{"input": "q", **{name: given[name] for name in names}}])
    assert [one.content for one in example.documents] == ["was"]
    assert [one.content for one in example.expected_documents] == ["should"]


def test_fine_tuning_lines_of_openai_go_in_and_out(files, tmp_path):
    lines = [
        {
            "messages": [
                {"role": "system", "content": "S"},
                {"role": "user", "content": "Hi"},
                {"role": "assistant", "content": "Hello"},
            ]
        },
        {"messages": [{"role": "user", "content": "Bye"}, {"role": "assistant", "content": "So long"}]},
    ]
    examples = datasets.read(files("train.jsonl", "\n".join(map(json.dumps, lines))))
    assert datasets.infer_kind(examples) == "chat"
    assert examples[0].reference_outputs == {"output": {"role": "assistant", "content": "Hello"}}
    datasets.write(examples, tmp_path / "out.jsonl", format="openai")
    assert [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()] == lines


def test_splits_of_langsmith_other_than_base_count():
    row = {"inputs": {"q": 1}, "outputs": {"a": 1}, "dataset_id": "d", "metadata": {"dataset_split": ["base", "test"]}}
    assert datasets.read([row])[0].split == "test"


@pytest.mark.parametrize("missing", [float("nan"), np.float64("nan"), pandas.NA, pandas.NaT])
def test_a_cell_that_is_missing_is_no_reference_and_no_id(missing):
    example = datasets.read(
        [{"question": "q", "expected": missing, "reference": "a", "id": missing, "context": missing}]
    )[0]
    assert (example.inputs, example.reference_outputs, example.documents) == ({"question": "q"}, "a", None)
    assert example.id == derive_example_id(example)


def test_a_column_of_a_field_may_stand_after_those_of_its_parts():
    rows = [{"metadata.a": 1, "metadata": {"b": 2}, "q": 3}, {"metadata": None, "metadata.a": 1, "q": 3}]
    assert [example.metadata for example in datasets.read(rows)] == [{"b": 2, "a": 1}, {"a": 1}]
    assert [example.inputs for example in datasets.read(rows)] == [{"q": 3}] * 2


def test_half_an_emoji_in_an_id_is_shown_as_a_store_can_hold_it():
    (example,) = datasets.read([{"inputs": 1, "id": "a\ud83d", "split": "ü\ud83d"}])
    assert (example.id, example.split) == ("a?", "ü?")
