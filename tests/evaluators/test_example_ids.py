"""Which example a row is: its inputs and its occurrence say it, a given id wins, and what is stored keeps its id."""

import hashlib
import json
import math
import subprocess
import sys
import unicodedata
from dataclasses import replace

import numpy as np
import orjson
import pandas
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from looped_cases import loop_over
from spanwise.collector.errors import Refused
from spanwise.collector.records import Document, Example, canonical_json, number_duplicates
from spanwise.collector.stores.sqlite import SQLiteStore
from spanwise.evaluators import compare, datasets, evaluate


@pytest.fixture
def store(tmp_path):
    with SQLiteStore(tmp_path / "a.db") as store:
        yield store


def told(question, answer=None, **fields):
    return Example(inputs={"q": question}, reference_outputs=answer, **fields)


def lower(q):
    return q.lower()


def as_once(example):
    """The example under the id that earlier versions made: of inputs and reference."""
    fields = (
        example.inputs,
        example.reference_outputs,
        example.expected_documents,
        example.conditions,
        example.guidelines,
        example.categories,
        example.history,
        example.base_id,
    )
    content = orjson.dumps(fields, default=repr, option=orjson.OPT_SORT_KEYS | orjson.OPT_NON_STR_KEYS)
    return replace(example, id=hashlib.sha256(content).hexdigest()[:32])


def references(store, name):
    return {example.id: example.reference_outputs for example in store.examples(name)}


def test_a_corrected_reference_is_a_change_of_the_same_example(store, tmp_path):
    for version, answer in enumerate(("a", "a2"), 1):
        (tmp_path / "faq.csv").write_text(f"question,expected\nA?,{answer}\n")
        assert datasets.save(store, "faq", tmp_path / "faq.csv").version == version
    (example,) = store.examples("faq")
    assert example.reference_outputs == "a2"
    change = datasets.diff(store.examples("faq", 1), store.examples("faq", 2))
    assert (change.added, change.removed, change.changed) == ((), (), {example.id: ("reference_outputs",)})


def test_experiments_before_and_after_a_correction_share_their_examples(store, tmp_path):
    for name, answers in (("before", "ab"), ("after", "xb")):
        rows = [{"q": q, "expected": answer} for q, answer in zip("AB", answers, strict=True)]
        (tmp_path / "faq.jsonl").write_text("\n".join(map(json.dumps, rows)))
        evaluate(str(tmp_path / "faq.jsonl"), lower, ["exact"], name=name, store=store)
    assert compare("before", "after", store=store).contrasts()["exact"].pairs == 2


def test_corrected_lists_stay_one_dataset(store):
    names = {evaluate([told("A", a)], lower, ["exact"], name=a, store=store).record.dataset for a in "ab"}
    assert [one.version for one in store.versions(names.pop())] == [2, 1]
    assert not names


def test_rows_that_ask_the_same_are_told_apart_by_their_occurrence():
    rows = [{"q": "A", "expected": 1}, {"q": "B"}, {"q": "A", "expected": 2}, {"q": "A", "expected": 3}]
    first, _, second, third = datasets.read(rows)
    assert first.id == told("A").id
    assert (second.id, third.id) == (f"{first.id}-2", f"{first.id}-3")


def test_reordered_rows_that_ask_the_same_change_nothing(store):
    datasets.save(store, "d", [told("A", "one"), told("A", "two"), told("A", "three")])
    saved = datasets.save(store, "d", [told("A", "three"), told("A", "one"), told("A", "two")], replace=True)
    assert saved.version == 1


def test_an_appended_double_is_one_more_and_moves_no_other(store):
    datasets.save(store, "d", [told("A", "one"), told("A", "two")])
    before = references(store, "d")
    datasets.save(store, "d", [told("A", "new"), told("A", "one"), told("A", "two")], replace=True)
    after = references(store, "d")
    assert after.items() >= before.items()
    assert list(after.values()) == ["one", "two", "new"]


def test_two_files_with_one_question_change_each_other(store):
    datasets.save(store, "d", [told("A", "one"), told("B", "one")])
    datasets.save(store, "d", [told("A", "two"), told("C", "two")])
    assert [example.reference_outputs for example in store.examples("d")] == ["two", "one", "two"]


def test_a_given_id_wins_wherever_it_stands():
    key = told("A").id
    rows = [{"q": "A"}, {"id": key, "inputs": {"q": "other"}}, {"q": "A"}, {"id": f"{key}-2", "q": "third"}]
    assert [example.id for example in datasets.read(rows)] == [f"{key}-3", key, f"{key}-4", f"{key}-2"]


def test_equal_given_ids_lose_no_row():
    ids = [example.id for example in datasets.read([{"id": id, "q": n} for n, id in enumerate(["x", "x", "x-2", "x"])])]
    assert len(set(ids)) == 4
    assert ids[0] == "x"


def test_an_edited_question_under_a_kept_id_is_not_overwritten_by_the_old_question(store):
    datasets.save(store, "d", [told("A", "a")])
    (example,) = store.examples("d")
    datasets.save(store, "d", [replace(example, inputs={"q": "edited"})])
    datasets.save(store, "d", [told("A", "again")])
    assert [one.inputs["q"] for one in store.examples("d")] == ["edited", "A"]


def test_a_correction_may_name_the_second_of_two(store):
    datasets.save(store, "d", [told("A", "one"), told("A", "two")])
    second = store.examples("d")[1]
    datasets.save(store, "d", [{"id": second.id, "inputs": {"q": "A"}, "reference_outputs": "corrected"}])
    assert [one.reference_outputs for one in store.examples("d")] == ["one", "corrected"]


def test_a_dataset_of_an_earlier_version_keeps_its_ids(store):
    old = [as_once(told("A", "a")), as_once(told("B", "b")), as_once(told("A", "a2"))]
    store.save_examples("d", old)
    datasets.save(store, "d", [told("A", "a2"), told("A", "corrected"), told("B", "b"), told("C", "c")])
    kept = references(store, "d")
    assert [kept[example.id] for example in old] == ["corrected", "b", "a2"]
    assert len(kept) == 4
    assert kept[told("C").id] == "c"


def test_runs_over_a_file_of_an_earlier_version_meet_those_of_this_one(store, tmp_path):
    old = as_once(told("A", "a"))
    store.save_examples("faq", [old])
    (tmp_path / "faq.jsonl").write_text('{"q": "A", "expected": "b"}\n')
    experiment = evaluate(str(tmp_path / "faq.jsonl"), lower, [], store=store, name="now")
    assert [row.example_id for row in experiment.rows()] == [old.id]


def test_a_row_without_an_id_is_the_stored_example_that_was_given_one(store):
    datasets.save(store, "d", [told("A", "a", id="faq-7")])
    datasets.save(store, "d", [told("A", "corrected")])
    assert references(store, "d") == {"faq-7": "corrected"}
    datasets.save(store, "d", [told("A", "named", id="faq-7"), told("A", "other")])
    assert references(store, "d") == {"faq-7": "named", told("A").id: "other"}


def test_earlier_turns_are_part_of_what_is_asked():
    alone, empty = told("and then?"), told("and then?", history=[])
    earlier = told("and then?", history=[{"role": "user", "content": "hi"}])
    assert alone.id == empty.id != earlier.id


def test_nothing_but_what_is_asked_counts():
    other = told("A", "b", metadata={"k": 1}, split="s", outputs="o", expected_documents=(Document("d"),), base_id="x")
    assert other.id == told("A", "a").id


@loop_over(
    ("one", "other"),
    [
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
        ({"k": 1}, {"k": 1.0}),
        ({"k": -0.0}, {"k": 0}),
        ({"k": 1e16}, {"k": 10**16}),
        ({"k": math.nan}, {"k": None}),
        ({"k": "é"}, {"k": unicodedata.normalize("NFD", "é")}),
        ({unicodedata.normalize("NFD", "é"): 1}, {"é": 1.0}),
        ({"k": (1, 2)}, {"k": [1, 2]}),
        ({1: "x"}, {"1": "x"}),
        ({"k": 10**30}, {"k": str(10**30)}),
        ({"k": {"b", "a"}}, {"k": ["a", "b"]}),
    ],
)
def test_spellings_of_one_value_are_one_question(one, other):
    assert Example(inputs=one).id == Example(inputs=other).id


@loop_over(("one", "other"), [("1", 1), (True, 1), (None, ""), ("a", "A"), ([], None), (1.5, 1), (0.1, 0.2)])
def test_other_values_are_other_questions(one, other):
    assert Example(inputs=one).id != Example(inputs=other).id


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


@pytest.mark.process
@settings(max_examples=100, deadline=None)
@given(JSON)
def test_what_a_store_gives_back_asks_the_same(value):
    assert canonical_json(orjson.loads(orjson.dumps(value))) == canonical_json(value)


def test_values_that_hold_themselves_have_an_id():
    ring = {"q": "A"}
    ring["self"], ring["again"] = ring, [ring, ring]
    assert len(Example(inputs=ring).id) == 32
    deep = []
    for _ in range(10_000):
        deep = [deep]
    assert len(Example(inputs=deep).id) == 32


def test_a_value_that_holds_itself_is_refused_by_a_store(store):
    ring = {"q": "A"}
    ring["again"] = [ring, ring]
    with pytest.raises(Refused, match="cannot be stored"):
        datasets.save(store, "d", [{"inputs": ring}])


def test_foreign_objects_have_the_same_id_in_every_process():
    code = "from spanwise.collector.records import Example\nclass A: pass\nprint(Example(inputs={'a': A(), 's': {'x', 'yy', 'z'}}).id)"
    said = {subprocess.check_output([sys.executable, "-c", code], env=None, text=True) for _ in range(2)}
    assert len(said) == 1


def test_ids_of_a_column_with_gaps_are_no_floats():
    first, second = datasets.read(pandas.DataFrame({"id": [7, None], "q": ["A", "B"]}))
    assert (first.id, second.id) == ("7", told("B").id)


@pytest.mark.process
def test_thousands_of_rows_may_ask_the_same(store):
    same = [told("A", n) for n in range(3000)]
    datasets.save(store, "d", same)
    assert datasets.save(store, "d", same[::-1], replace=True).version == 1


def test_a_store_keeps_every_example_of_a_call(store):
    store.save_examples("d", [told("A", "one"), told("A", "two")])
    assert [example.reference_outputs for example in store.examples("d")] == ["one", "two"]


@pytest.mark.process
@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.sampled_from("AB"), st.sampled_from(["", "x", told("A").id, f"{told('A').id}-2"]))))
def test_ids_are_always_distinct_and_keep_their_order(rows):
    examples = [told(question, place, id=id) for place, (question, id) in enumerate(rows)]
    apart = number_duplicates(examples)
    assert len({example.id for example in apart}) == len(examples)
    assert [example.reference_outputs for example in apart] == list(range(len(rows)))


NOT_JSON = [
    np.int64(3),
    np.float32(0.1),
    np.float64(2.5),
    np.array([1, 2]),
    np.array(["a"]),
    [np.int8(1)],
    {"b", "a", "c"},
]


@pytest.mark.parametrize("value", NOT_JSON, ids=lambda value: type(value).__name__)
def test_inputs_that_are_no_json_are_the_same_example_when_they_come_again(store, value):
    for _ in range(2):
        kept = datasets.save(store, "odd", [{"inputs": {"value": value}}, {"inputs": {"value": 0}}])
    assert (kept.version, kept.example_count) == (1, 2)


def test_a_corrected_reference_is_that_of_its_own_split(store):
    both = [told(1, "a", split="train"), told(1, "b", split="test")]
    datasets.save(store, "split", both)
    datasets.save(store, "split", [told(1, "c", split="test")])
    kept = store.examples("split")
    assert [(example.split, example.reference_outputs) for example in kept] == [("train", "a"), ("test", "c")]
