"""Datasets from real objects of Hugging Face, polars and Arrow, and in Parquet files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import datasets as hugging_face
import pandas
import polars
import pyarrow
import pytest
from pyarrow import dataset as arrow_dataset
from typer.testing import CliRunner

from spanwise.cli.app import app
from spanwise.collector.records import Document, Example
from spanwise.collector.stores.sqlite import SQLiteStore
from spanwise.evaluators import datasets, evaluate, evaluator

ROWS = [
    {"question": "Wo wär's?", "expected": "Hier", "split": "test"},
    {"question": "😀", "expected": None, "split": "train"},
    {"question": "Where?", "expected": "", "split": "test"},
]
EXPECTED = datasets.read(ROWS)


def arrow() -> pyarrow.Table:
    return pyarrow.Table.from_pylist(ROWS)


@pytest.mark.parametrize(
    "make",
    [
        lambda: hugging_face.Dataset.from_list(ROWS),
        lambda: hugging_face.Dataset.from_list(ROWS).to_iterable_dataset(),
        lambda: hugging_face.DatasetDict({"all": hugging_face.Dataset.from_list(ROWS)}),
        lambda: polars.DataFrame(ROWS),
        lambda: polars.LazyFrame(ROWS),
        lambda: pandas.DataFrame(ROWS),
        lambda: pandas.DataFrame(ROWS).convert_dtypes(dtype_backend="pyarrow"),
        arrow,
        lambda: arrow().to_batches()[0],
        lambda: arrow().to_reader(),
        lambda: arrow_dataset.dataset(arrow()).scanner().to_reader(),
    ],
    ids=[
        "hf",
        "hf stream",
        "hf dict",
        "polars",
        "polars lazy",
        "pandas",
        "arrow pandas",
        "table",
        "batch",
        "reader",
        "scan",
    ],
)
def test_objects_have_the_examples_of_their_rows(make: Any) -> None:
    found = datasets.read(make())
    assert [(example.inputs, example.reference_outputs or None) for example in found] == [
        (example.inputs, example.reference_outputs or None) for example in EXPECTED
    ]


def test_features_of_hugging_face_keep_their_values() -> None:
    rows = {"inputs": [{"q": 1, "tags": ["a"]}, {"q": None, "tags": []}], "label": [0, 1]}
    features = hugging_face.Features(
        {
            "inputs": {"q": hugging_face.Value("int32"), "tags": hugging_face.List(hugging_face.Value("string"))},
            "label": hugging_face.ClassLabel(names=["no", "yes"]),
        }
    )
    made = hugging_face.Dataset.from_dict(rows, features=features)
    assert [example.inputs for example in datasets.read(made)] == rows["inputs"]


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the id of a local dataset with two splits."""
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    for split in ("train", "test"):
        rows = [row for row in ROWS if row["split"] == split]
        lines = "".join(
            json.dumps({"question": row["question"], "expected": row["expected"] or "Hier"}) + "\n" for row in rows
        )
        (tmp_path / "faq").mkdir(exist_ok=True)
        (tmp_path / "faq" / f"{split}.jsonl").write_text(lines)
    return f"hf://{tmp_path}/faq"


@pytest.mark.process
def test_a_hub_id_is_streamed(hub: str) -> None:
    assert [example.inputs for example in datasets.read(hub, split="test")] == [
        {"question": "Wo wär's?"},
        {"question": "Where?"},
    ]
    assert next(datasets.iterate(hub, split="train")).split == "train"
    with pytest.raises(ValueError, match="has several splits: select one"):
        datasets.read(hub)
    splits = datasets.open_hub_dataset(hub)
    assert type(splits["test"]) is hugging_face.IterableDataset


@pytest.mark.process
def test_an_unknown_hub_id_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(ValueError, match=r"cannot open the dataset 'hf://.*/none'"):
        datasets.read(f"hf://{tmp_path}/none")


@pytest.mark.process
def test_an_experiment_over_a_hub_id(hub: str, tmp_path: Path) -> None:
    @evaluator
    def exact(outputs: Any, reference_outputs: Any) -> bool:
        return bool(outputs == reference_outputs)

    with SQLiteStore(tmp_path / "spanwise.db") as store:
        done = evaluate(hub, lambda question: "Hier", [exact], split=["test"], store=store, progress=False)
        assert [row.scores["exact"] for row in done.rows()] == [True, True]


@pytest.mark.process
def test_import_of_a_hub_id_on_the_command_line(hub: str, tmp_path: Path) -> None:
    done = CliRunner().invoke(
        app, ["datasets", "import", "faq", hub, "--split", "test", "--store", str(tmp_path / "spanwise.db")]
    )
    assert "faq version 1: 2 examples" in done.output


FULL = [
    Example(
        inputs={"q": 1, "nested": [{"a": None}]},
        reference_outputs="text",
        expected_documents=(Document("d", "1", 0.5, {"m": 1}),),
        conditions=["c"],
        metadata={"k": 1.5},
        split="test",
        id="a",
        evaluators=("exact",),
    ),
    Example(inputs={"other": "ä😀"}, reference_outputs={"x": 1}, categories=("c", "d"), id="b", outputs=["o"]),
    Example(inputs="only text", reference_outputs=2**63, id="c"),
]


def test_parquet_keeps_every_field(tmp_path: Path) -> None:
    assert datasets.write(FULL, tmp_path / "faq.parquet") == 3
    assert datasets.read(tmp_path / "faq.parquet") == FULL
    assert list(pandas.read_parquet(tmp_path / "faq.parquet")["id"]) == ["a", "b", "c"]


@pytest.mark.parametrize("values", [["a", None], [1, 2], [1.5, None], [True, False], [1, 2.5, True], ["{}", "[1]"]])
def test_parquet_columns_have_the_type_of_their_values(tmp_path: Path, values: list[Any]) -> None:
    datasets.write_rows([{"inputs": "x", "v": value} for value in values], tmp_path / "a.parquet")
    read = [row.metadata.get("v") for row in datasets.read(tmp_path / "a.parquet")]
    assert read == values
    assert list(map(type, read)) == list(map(type, values))


def test_parquet_of_nothing(tmp_path: Path) -> None:
    datasets.write([], tmp_path / "a.parquet")
    assert datasets.read(tmp_path / "a.parquet") == []


@pytest.mark.process
def test_exports_in_parquet_on_the_command_line(tmp_path: Path) -> None:
    path = str(tmp_path / "spanwise.db")
    with SQLiteStore(path) as store:
        datasets.save(store, "faq", [{"question": "Where?", "expected": "Here"}])
        evaluate("faq", lambda question: "Here", ["exact"], store=store, name="first", progress=False)
    for words in (["datasets", "export", "faq"], ["experiments", "export", "first"]):
        out = tmp_path / f"{words[0]}.parquet"
        done = CliRunner().invoke(app, [*words, str(out), "--store", path])
        assert done.exit_code == 0, done.output
        assert len(pandas.read_parquet(out)) == 1


def test_two_columns_of_one_name_are_refused() -> None:
    table = pyarrow.Table.from_arrays([pyarrow.array(["a"]), pyarrow.array(["b"])], names=["q", "q"])
    with pytest.raises(datasets.BadRow, match="the table has two columns named 'q'"):
        datasets.read(table)
