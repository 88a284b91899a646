"""What other products' own classes give and save (see `tests/fixtures/products/make.py`) is read as it is."""

import json
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import pandas
import pytest

from looped_cases import loop_over
from spanwise.collector.records import Document
from spanwise.evaluators import datasets

MADE = Path(__file__).parents[1] / "fixtures" / "products"
PARCEL = {"question": "Where is my parcel?"}


def frame(name, index):
    made = json.loads((MADE / name).read_text())
    return pandas.DataFrame(made["data"], pandas.Index(made["index"], name=index), made["columns"])


def rows(name):
    return [json.loads(line) for line in (MADE / name).read_text().splitlines()]


def test_examples_of_langsmith():
    first, second = datasets.read(MADE / "langsmith_examples.jsonl")
    assert (first.inputs, first.reference_outputs, first.outputs) == (PARCEL, {"answer": "On its way"}, None)
    assert (first.split, first.metadata["dataset_split"]) == ("train", ["base", "train", "hard"])
    assert (second.reference_outputs, second.outputs, second.split) == (None, None, None)
    assert first.id == "00000000-0000-0000-0000-000000000002"


def test_items_of_langfuse():
    (item,) = datasets.read(MADE / "langfuse_items.jsonl")  # the other one is archived
    assert (item.id, item.inputs, item.reference_outputs) == ("i1", PARCEL, {"answer": "On its way"})
    assert item.metadata["level"] == 2


@pytest.mark.parametrize("ending", ["json", "jsonl", "csv"])
def test_goldens_of_deepeval(ending):
    first, second = datasets.read(MADE / f"deepeval_goldens.{ending}")
    assert (first.inputs, first.reference_outputs) == ("Where is my parcel?", "On its way")
    assert first.expected_documents == (Document("Parcels take 3 days"), Document("Ask us"))
    assert first.documents == (Document("Parcels fly"), Document("Ask"))
    assert first.metadata == {"level": 2, "expected_tools": [{"name": "search", "type": "FUNCTION"}]}
    assert (second.documents, second.expected_documents) == (None, (Document("Be polite"),))


@pytest.mark.parametrize("ending", ["json", "jsonl", "csv"])
def test_conversations_of_deepeval(ending):
    said, unsaid = datasets.read(MADE / f"deepeval_conversations.{ending}")
    assert datasets.infer_kind([said]) == "chat"
    assert said.inputs == {"input": [{"role": "user", "content": "It is late"}]}
    assert said.outputs == {"output": {"role": "assistant", "content": "We refund it"}}
    assert (said.reference_outputs, said.metadata["scenario"]) == ("Refund", "A parcel is late")
    assert (unsaid.inputs, unsaid.reference_outputs) == ({"scenario": "A parcel is lost"}, "Sorry")


def test_test_cases_of_deepeval():
    case, chat = datasets.read(MADE / "deepeval_test_cases.jsonl")
    assert (case.inputs, case.outputs, case.reference_outputs) == ("Where is my parcel?", "Here", "On its way")
    assert (chat.inputs["input"][0]["content"], chat.reference_outputs) == ("It is late", "Refund")


def test_a_dataset_of_mlflow():
    other, parcel = datasets.read(MADE / "mlflow_dataset.jsonl")
    assert (parcel.inputs, parcel.reference_outputs, parcel.outputs) == (PARCEL, "On its way", None)
    assert (parcel.guidelines, other.outputs) == (["be brief"], "Hi")
    assert parcel.id.startswith("dr-")


def test_traces_of_mlflow():
    (trace,) = datasets.read(pandas.DataFrame(rows("mlflow_traces.jsonl")))
    assert (trace.inputs, trace.outputs, trace.reference_outputs) == (PARCEL, "On its way", "It is on its way")
    assert trace.metadata["trace_id"].startswith("tr-")


@pytest.mark.parametrize(
    "source",
    [
        MADE / "phoenix_examples.jsonl",
        MADE / "phoenix_dataset.csv",
        frame("phoenix_dataframe.json", "example_id"),
    ],
    ids=["examples", "csv", "frame"],
)
def test_examples_of_phoenix(source):
    first, second = datasets.read(source)
    assert first.id == "RGF0YXNldEV4YW1wbGU6MQ=="
    assert (first.inputs, first.reference_outputs, first.outputs) == (PARCEL, {"answer": "On its way"}, None)
    assert float(first.metadata["level"]) == 2
    assert second.reference_outputs == {"answer": "Hi"}


def test_spans_of_phoenix():
    (span,) = datasets.read(frame("phoenix_spans.json", "context.span_id"))
    assert (span.inputs, span.outputs) == (PARCEL, "On its way")
    assert span.documents == (Document("Parcels take 3 days", "faq-7"),)


class Model:
    """An object as pydantic makes them."""

    def __init__(self, fields):
        self.fields = fields

    def model_dump(self, mode="python"):
        return {**self.fields, "at": "text" if mode == "json" else object()}


@dataclass
class Record:
    inputs: dict
    outputs: str


class Frames:
    """A dataset object as MLflow's is."""

    def to_df(self):
        return pandas.DataFrame({"inputs": [PARCEL], "source": [SimpleNamespace(to_dict=lambda: {"kind": "human"})]})


def test_objects_are_rows():
    model, record = datasets.read([Model({"inputs": PARCEL}), Record(PARCEL, "x")])
    assert (model.inputs, model.metadata) == (PARCEL, {"at": "text"})
    assert (record.inputs, record.outputs) == (PARCEL, "x")


def test_dataset_objects_hold_rows():
    items = SimpleNamespace(items=[Model({"id": "i1", "input": "Q", "status": "ACTIVE"})])
    goldens = SimpleNamespace(goldens=[Model({"input": "G"})], test_cases=[Model({"input": "C"})])
    assert [one.id for one in datasets.read(items)] == ["i1"]
    assert [one.inputs for one in datasets.read(goldens)] == ["G", "C"]
    assert datasets.read(Frames())[0].metadata == {"source": {"kind": "human"}}


@loop_over(
    "row",
    [
        {"turns": "none", "scenario": None},
        {"turns": [1], "scenario": 5},
        {"turns": [{}]},
        {"request": 1, "response": None, "trace_id": None, "assessments": 7},
        {"attributes.input.value": "{", "attributes.input.mime_type": "application/json"},
        {"attributes.input.value": None, "attributes.retrieval.documents": [5, {"document.content": 1}]},
        {"input": "q", "context": 5, "retrieval_context": {}, "additional_metadata": 3},
        {"input": "q", "split": [5, None]},
    ],
)
def test_rows_that_only_look_like_a_products_are_examples_or_refused(row):
    said = ""
    try:
        assert len(datasets.read([row])) == 1
    except datasets.BadRow as error:
        said = str(error)
    assert not said or "example 1" in said


def test_where_the_shape_does_not_tell_outputs_are_what_was_answered():
    (example,) = datasets.read([{"inputs": PARCEL, "outputs": {"a": 1}, "created_at": "today"}])
    assert example.outputs == {"a": 1}
