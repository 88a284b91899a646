"""Writing, schemas, kinds and differences."""

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spanwise.collector.records import Document, Example
from spanwise.evaluators import datasets
from spanwise.evaluators.datasets import view_example, view_outputs

FULL = Example(
    inputs={"question": "Q?", "k": 3},
    reference_outputs="A",
    outputs='{"not": "an object"}',
    categories=("a", "b"),
    documents=(Document("one", "1", 0.5),),
    expected_documents=(Document("", "1"),),
    metadata={"by": "ann"},
    split="test",
)
CHAT = Example(
    inputs={"input": [{"role": "system", "content": "S"}, {"role": "user", "content": "Q?"}]},
    reference_outputs={"output": [{"role": "assistant", "content": "A"}]},
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=5,
)


@pytest.mark.parametrize("suffix", ["jsonl", "json", "yaml", "csv", "tsv"])
def test_every_format_comes_back_as_it_was(tmp_path, suffix):
    datasets.write([FULL], tmp_path / f"a.{suffix}")
    assert datasets.read(tmp_path / f"a.{suffix}") == [FULL]


@pytest.mark.process
@settings(max_examples=50, deadline=None)
@given(
    st.lists(
        st.builds(Example, inputs=st.dictionaries(st.text(), JSON), reference_outputs=JSON),
        max_size=4,
        unique_by=lambda e: e.id,
    )
)
def test_json_lines_keep_any_json(tmp_path_factory, examples):
    path = tmp_path_factory.getbasetemp() / "any.jsonl"
    datasets.write(examples, path)
    assert datasets.read(path) == examples


def test_a_data_frame_comes_back():
    assert datasets.read(datasets.to_pandas([FULL])) == [FULL]


def test_chat_examples_become_fine_tuning_lines(tmp_path):
    datasets.write(
        [CHAT, Example(inputs={"input": "Q?"}, reference_outputs={"output": "A"})],
        tmp_path / "a.jsonl",
        format="openai",
    )
    first, second = map(orjson.loads, (tmp_path / "a.jsonl").read_bytes().splitlines())
    assert [one["role"] for one in first["messages"]] == ["system", "user", "assistant"]
    assert second == {"messages": [{"role": "user", "content": "Q?"}, {"role": "assistant", "content": "A"}]}


def test_an_example_without_reference_cannot_be_trained_on():
    with pytest.raises(ValueError, match="no reference outputs to train on"):
        datasets.to_openai(Example(inputs="Q?"))


def test_databricks_columns_come_back():
    assert datasets.read([datasets.to_databricks(FULL)])[0].documents == (Document("one", "1", None, {"doc_uri": "1"}),)


def test_the_inferred_schema_names_types_and_what_is_always_there():
    schema = datasets.infer_schema(
        [Example(inputs={"q": "a", "k": 1}), Example(inputs={"q": "b", "k": 1.5, "x": None})]
    )
    assert schema["inputs"]["required"] == ["k", "q"]
    assert schema["inputs"]["properties"] == {"k": {"type": "number"}, "q": {"type": "string"}, "x": {"type": "null"}}


def test_an_example_against_the_schema_is_named_with_its_field():
    schema = datasets.infer_schema([Example(inputs={"q": "a"})])
    with pytest.raises(datasets.SchemaError, match=r"example 2 .* at inputs\.q: 5 is not of type 'string'"):
        datasets.check_schema([Example(inputs={"q": "b"}), Example(inputs={"q": 5})], schema)


@pytest.mark.process
@settings(max_examples=50, deadline=None)
@given(st.lists(st.builds(Example, inputs=JSON, reference_outputs=JSON), min_size=1, max_size=4))
def test_all_examples_follow_the_schema_inferred_from_them(examples):
    datasets.check_schema(examples, datasets.infer_schema(examples))


def test_kinds_are_told_by_the_first_example():
    assert datasets.infer_kind([CHAT]) == "chat"
    assert datasets.infer_kind([Example(inputs={"input": "text"})]) == "llm"
    assert datasets.infer_kind([FULL]) == "kv"
    with pytest.raises(ValueError, match="is not of kind 'chat'"):
        datasets.check_kind([FULL], "chat")


def test_evaluators_see_the_last_turn_of_a_chat():
    seen = view_example(CHAT, "chat")
    assert (seen["inputs"], seen["reference_outputs"]) == ("Q?", "A")
    assert seen["history"] == [{"role": "system", "content": "S"}]
    assert view_outputs({"output": [{"role": "assistant", "content": "B"}]}, "chat") == "B"


def test_messages_of_langchain_are_understood():
    serialised = [{"type": "human", "data": {"content": "Q?"}}, {"id": ["x", "AIMessage"], "kwargs": {"content": "A"}}]
    assert datasets.to_messages(serialised) == [
        {"role": "user", "content": "Q?"},
        {"role": "assistant", "content": "A"},
    ]


def test_a_diff_names_what_changed():
    before = [Example(id="1", inputs="a"), Example(id="2", inputs="b")]
    after = [Example(id="2", inputs="b", split="test"), Example(id="3", inputs="c")]
    change = datasets.diff(before, after)
    assert ([e.id for e in change.added], [e.id for e in change.removed]) == (["3"], ["1"])
    assert change.changed == {"2": ("split",)}
    assert not datasets.diff(before, before)


def test_doubles_are_told_by_their_inputs():
    kept = datasets.deduplicate(
        [Example(inputs={"q": "What  is it?"}), Example(inputs={"q": "what is it?"}), Example(inputs={"q": "no"})]
    )
    assert [example.inputs["q"] for example in kept] == ["What  is it?", "no"]


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        (
            {"type": "object"},
            "unknown key 'type' in the dataset's schema: put a JSON Schema under 'inputs' or 'reference_outputs'",
        ),
        (
            {"inputs": {"properties": {"q": {"type": "strin"}}}},
            r"not a valid JSON Schema at inputs\.properties\.q\.type: 'strin'",
        ),
    ],
)
def test_a_schema_that_is_none_is_refused(schema, said):
    with pytest.raises(datasets.SchemaError, match=said):
        datasets.check_schema([Example(inputs={"q": 5})], schema)
