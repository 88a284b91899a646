"""Files of every ending and encoding, and tables: what can be read, and what is said of what cannot."""

import json
import sys

import pandas
import pytest

from spanwise.collector.records import Document
from spanwise.collector.stores.sqlite import SQLiteStore
from spanwise.evaluators import datasets, evaluate

ROWS = "question,expected\nWo wäre es?,Straße\n"


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-32"])
@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.csv", ROWS),
        ("a.jsonl", '{"question": "Wo wäre es?", "expected": "Straße"}\n'),
        ("a.json", '[{"question": "Wo wäre es?", "expected": "Straße"}]'),
        ("a.yaml", "- {question: 'Wo wäre es?', expected: Straße}\n"),
    ],
)
def test_a_mark_at_the_beginning_says_the_encoding(tmp_path, name, text, encoding):
    (tmp_path / name).write_bytes(text.encode(encoding))
    (example,) = datasets.read(tmp_path / name)
    assert (example.inputs, example.reference_outputs) == ({"question": "Wo wäre es?"}, "Straße")


@pytest.mark.parametrize("name", ["a.csv", "a.jsonl", "a.json", "a.yaml"])
def test_another_encoding_has_to_be_said(tmp_path, name):
    path = tmp_path / name
    row = {"question": "Wo wäre es?", "expected": "Straße"}
    path.write_text(
        ROWS if name == "a.csv" else json.dumps([row] if name != "a.jsonl" else row, ensure_ascii=False), "latin-1"
    )
    with pytest.raises(
        datasets.BadRow, match=rf"{name}.* is not UTF-8 \(byte 0xe4\): .* encoding='cp1252' or 'latin-1'"
    ):
        datasets.read(path)
    assert datasets.read(path, encoding="latin-1")[0].reference_outputs == "Straße"


def test_utf_16_without_a_mark_is_recognised(tmp_path):
    (tmp_path / "a.csv").write_text(ROWS, "utf-16-le")
    with pytest.raises(datasets.BadRow, match=r"a\.csv looks like UTF-16: pass encoding='utf-16-le'"):
        datasets.read(tmp_path / "a.csv")
    assert datasets.read(tmp_path / "a.csv", encoding="utf-16-le")[0].reference_outputs == "Straße"


def test_an_encoding_that_cannot_be_meant(tmp_path):
    (tmp_path / "a.csv").write_text(ROWS, "utf-8")
    with pytest.raises(ValueError, match="encoding 'utf-99' is unknown"):
        datasets.read(tmp_path / "a.csv", encoding="utf-99")
    with pytest.raises(ValueError, match="encoding='latin-1' applies only to text files"):
        datasets.read([{"q": 1}], encoding="latin-1")


def test_json_that_python_writes_of_nan_is_null(tmp_path):
    row = {"q": float("nan"), "r": [float("inf"), 1.5], "text": "NaN"}
    (tmp_path / "a.jsonl").write_text(json.dumps(row))
    assert datasets.read(tmp_path / "a.jsonl")[0].inputs == {"q": None, "r": [None, 1.5], "text": "NaN"}
    (tmp_path / "b.json").write_text(json.dumps([row]))
    assert datasets.read(tmp_path / "b.json")[0].inputs["q"] is None


@pytest.mark.parametrize("number", [2**64 - 1, -(2**63)])
def test_integers_of_64_bits_are_exact(tmp_path, number):
    (tmp_path / "a.jsonl").write_text(json.dumps({"q": number, "text": str(number * 10)}))
    assert datasets.read(tmp_path / "a.jsonl")[0].inputs == {"q": number, "text": str(number * 10)}


@pytest.mark.parametrize("number", [str(2**64), str(-(2**63) - 1), "9" * 6000])
def test_integers_beyond_64_bits_are_no_floats(tmp_path, number):
    (tmp_path / "a.jsonl").write_text(f'{{"q": 1}}\n{{"q": [{number}]}}\n')
    with pytest.raises(
        datasets.BadRow, match=rf"a\.jsonl:2 contains the integer {number[:20]}.*, which exceeds 64 bits: write it"
    ):
        datasets.read(tmp_path / "a.jsonl")
    (tmp_path / "a.csv").write_text(f'q\n"[{number}]"\n')
    assert datasets.read(tmp_path / "a.csv")[0].inputs == {"q": f"[{number}]"}


def test_depth_is_no_crash(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"q": NaN, "r": ' + "[" * 100_000)
    with pytest.raises(datasets.BadRow, match=r"a\.jsonl:1 is not JSON"):
        datasets.read(tmp_path / "a.jsonl")


def test_an_ending_that_is_not_read_lists_those_that_are(tmp_path, monkeypatch):
    (tmp_path / "faq.docx").write_text("x")
    with pytest.raises(
        ValueError, match=r"cannot read 'faq\.docx': supported suffixes are \.jsonl, .*\.parquet, \.xlsx"
    ):
        datasets.read(tmp_path / "faq.docx")
    monkeypatch.chdir(tmp_path)
    with SQLiteStore(tmp_path / "a.db") as store, pytest.raises(ValueError, match=r"cannot read 'faq\.docx'"):
        evaluate("faq.docx", None, ["exact"], store=store)


@pytest.mark.parametrize("name", ["a.parquet", "a.xlsx"])
def test_what_is_not_installed_is_named_with_its_extra(tmp_path, name, monkeypatch):
    (tmp_path / name).write_bytes(b"x")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.setitem(sys.modules, "openpyxl", None)
    with pytest.raises(
        ModuleNotFoundError, match=rf"reading '{name}' needs .*: pip install '\.\[files\]' in a checkout of Spanwise"
    ):
        datasets.read(tmp_path / name)


def test_parquet(tmp_path):
    pytest.importorskip("pyarrow")
    frame = pandas.DataFrame({"question": ["A", "B"], "expected": [None, "b"], "context": [["d"], []], "k": [1, 2]})
    frame.set_index(pandas.Index(["x", "y"], name="example_id")).to_parquet(tmp_path / "a.parquet")
    first, second = datasets.read(str(tmp_path / "a.parquet"))
    assert (first.id, first.inputs, first.documents) == ("x", {"question": "A", "k": 1}, (Document("d"),))
    assert (second.reference_outputs, second.documents) == ("b", ())
    (tmp_path / "b.parquet").write_bytes(b"PAR1 no")
    with pytest.raises(datasets.BadRow, match=r"b\.parquet is not Parquet"):
        datasets.read(tmp_path / "b.parquet")


@pytest.mark.process
def test_a_sheet_of_excel(tmp_path):
    openpyxl = pytest.importorskip("openpyxl")
    book = openpyxl.Workbook()
    for cells in (
        ["question", "expected", "k", None],
        ["A", '{"a": 1}', 2, None],
        [None] * 4,
        ["007", None, 1.5, None],
    ):
        book.active.append(cells)
    book.save(tmp_path / "a.xlsx")
    first, second = datasets.read(tmp_path / "a.xlsx")
    assert (first.inputs, first.reference_outputs) == ({"question": "A", "k": 2}, {"a": 1})
    assert (second.inputs, second.reference_outputs) == ({"question": "007", "k": 1.5}, None)
    (tmp_path / "b.xlsx").write_bytes(b"no archive")
    with pytest.raises(datasets.BadRow, match=r"b\.xlsx is not an Excel file"):
        datasets.read(tmp_path / "b.xlsx")


def test_two_columns_of_one_name_in_a_data_frame():
    with pytest.raises(datasets.BadRow, match="the DataFrame has two columns named 'q'"):
        datasets.read(pandas.DataFrame([[1, 2]], columns=["q", "q"]))


def test_an_index_that_is_named_like_an_id_is_one():
    frame = pandas.DataFrame({"q": ["A"]}, index=pandas.Index(["e1"], name="example_id"))
    assert datasets.read(frame)[0].id == "e1"
    assert datasets.read(frame.rename_axis("row"))[0].id != "e1"
    assert datasets.read(frame.assign(id="mine").rename_axis("id"))[0].id == "mine"


class Part(list):
    """A split as Hugging Face has it: rows, and the names of their columns."""

    column_names = ("q",)


def test_a_dict_of_splits_names_them():
    given = {"train": Part([{"q": n} for n in range(3)]), "test": Part([{"q": 7, "split": "own"}])}
    with pytest.raises(
        ValueError, match=r"has several splits: select one with split='train', .* it has 'train' \(3\), 'test' \(1\)"
    ):
        datasets.read(given)
    with pytest.raises(ValueError, match=r"there is no split 'dev': the dict has 'train'"):
        datasets.read(given, split="dev")
    (example,) = datasets.read(given, split="test")
    assert (example.split, example.inputs, example.metadata) == ("test", {"q": 7}, {"split": "own"})
    assert [one.split for one in datasets.read(given, split=["test", "train"])] == ["test", "train", "train", "train"]
    assert [one.split for one in datasets.read({"only": Part([{"q": 1}])})] == ["only"]


def test_evaluate_takes_a_split_of_a_dict(tmp_path):
    given = {"train": Part([{"q": "a"}]), "test": Part([{"q": "B"}])}
    with SQLiteStore(tmp_path / "a.db") as store:
        experiment = evaluate(given, lambda q: q.upper(), [], split="test", store=store, name="n")
        assert [row.outputs for row in experiment.rows()] == ["B"]


class Endless:
    """Rows as a streaming `IterableDataset` has them: without a length."""

    def __iter__(self):
        number = 0
        while True:
            number += 1
            yield {"q": number}


def test_what_has_no_length_is_streamed(tmp_path):
    with SQLiteStore(tmp_path / "a.db") as store:
        assert evaluate(Endless(), lambda q: q, [], limit=2, store=store, name="n").summary().runs == 2


@pytest.mark.parametrize("row", [{"split": ["base", "a", "b"]}, {"metadata": {"dataset_split": ["base", "a", "b"]}}])
def test_an_example_may_be_in_several_splits(tmp_path, row):
    examples = datasets.read([{"inputs": 1, **row}, {"inputs": 2, "split": "c"}])
    assert (examples[0].split, examples[0].metadata) == ("a", {"dataset_split": ["base", "a", "b"]})
    with SQLiteStore(tmp_path / "a.db") as store:
        datasets.save(store, "d", examples)
        assert [len(store.examples("d", split=split)) for split in ("a", "b", "base", "c", "d")] == [1, 1, 1, 1, 0]
    assert [sum(datasets.in_split(one, split) for one in examples) for split in ("b", ["b", "c"], None, [])] == [
        1,
        2,
        2,
        0,
    ]


def test_a_split_of_a_file(tmp_path):
    (tmp_path / "a.csv").write_text("q,split\n1,train\n2,test\n")
    assert [one.inputs for one in datasets.read(tmp_path / "a.csv", split="test")] == [{"q": "2"}]
