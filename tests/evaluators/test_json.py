"""JSON and JSON Schema: against jsonschema, and what its defaults let through."""

import json
import re

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from looped_cases import loop_over
from spanwise.evaluators import get_evaluator, score
from spanwise.evaluators.builtin.json import is_json

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
SCHEMA = {
    "type": "object",
    "required": ["a"],
    "properties": {"a": {"type": "integer", "minimum": 0}},
    "additionalProperties": False,
}


@given(VALUES)
def test_what_python_writes_is_json(value):
    assert is_json(json.dumps(value))
    assert is_json(json.dumps(value, ensure_ascii=False))


@loop_over(
    ("text", "why"),
    [
        ("", "Expecting value"),
        ("nope", "Expecting value"),
        ("{'a': 1}", "double quotes"),
        ('{"a": 1} x', "Extra data"),
        ("NaN", "NaN is no JSON"),
        ("[1, -Infinity]", "-Infinity is no JSON"),
        ('{"a": 1, "a": 2}', "comes twice"),
        ('{"a": 1,}', ""),
        ("\ufeff{}", "BOM"),
        ("```json\n{}\n```", "Expecting value"),
        ("[" * 100_000, "nested too deeply"),
        ("[" * 100_000 + "]" * 100_000, "nested too deeply"),
    ],
)
def test_what_is_no_json_and_why(text, why):
    feedback = score(get_evaluator("is_json"), outputs=text)[0]
    assert (feedback.outcome, feedback.score) == ("score", False)
    assert why in feedback.comment


def test_very_long_numbers_are_json():
    assert is_json("1" * 10_000)
    assert is_json("-" + "9" * 10_000 + ".5")


def test_lenient_takes_off_a_mark_and_a_fence():
    lenient = get_evaluator("is_json", lenient=True)
    assert score(lenient, outputs='\ufeff```json\n{"a": 1}\n```\n')[0].score is True
    assert score(lenient, outputs="Here: ```{}```")[0].score is False


def test_outputs_that_are_values_are_taken_as_they_are():
    assert score(get_evaluator("json_schema", json_schema=SCHEMA), outputs={"a": 1})[0].score is True


@pytest.mark.process
@given(st.dictionaries(st.sampled_from("ab"), st.integers(-2, 2) | st.text(max_size=2), max_size=2))
def test_validity_is_jsonschemas(value):
    valid = jsonschema.Draft202012Validator(SCHEMA).is_valid(value)
    assert score(get_evaluator("json_schema", json_schema=SCHEMA), outputs=json.dumps(value))[0].score is valid


def test_four_metrics_of_a_valid_and_an_invalid_answer():
    valid, invalid = (
        score(get_evaluator("json_schema", json_schema=SCHEMA), outputs=text) for text in ('{"a": 1}', '{"a": "x"}')
    )
    assert [one.key for one in valid] == [
        "json_schema",
        "json_schema_fail",
        "json_schema_retrieval_fail",
        "json_schema_generation_fail",
    ]
    assert [one.score for one in valid] == [True, False, None, False]
    assert [one.score for one in invalid] == [False, True, None, True]
    assert invalid[0].comment == "'x' is not of type 'integer' at $.a"


def test_json_in_documents_is_judged_by_itself():
    documents = ['{"a": 1}', "plain words", "[broken"]
    feedback = score(get_evaluator("json_schema", json_schema=SCHEMA), outputs='{"a": 1}', documents=documents)
    assert [one.score for one in feedback] == [True, False, True, False]
    assert "document 2" in feedback[0].metadata["documents"][0]


@pytest.mark.parametrize("empty", [{}, "{}", ""])
def test_an_empty_schema_asks_for_json_only(empty):
    assert score(get_evaluator("json_schema", json_schema=empty), outputs="[1]")[0].score is True
    assert score(get_evaluator("json_schema", json_schema=empty), outputs="[1")[0].score is False


@pytest.mark.parametrize("schema", [{"type": "objekt"}, "{", {"properties": []}])
def test_a_schema_that_is_none_is_refused_when_the_evaluator_is_made(schema):
    with pytest.raises(ValueError, match=r"json_schema is not (a )?valid JSON"):
        get_evaluator("json_schema", json_schema=schema)


@pytest.mark.parametrize("reference", ["http://127.0.0.1:9/schema", "#/$defs/none", "other.json", "#nowhere"])
def test_a_reference_to_what_the_schema_does_not_hold_is_refused_when_the_evaluator_is_made(reference):
    schema = {"properties": {"deep": {"items": {"$ref": reference}}}}
    with pytest.raises(ValueError, match=f"json_schema refers to '{re.escape(reference)}', which is not in it"):
        get_evaluator("json_schema", json_schema=schema)


@pytest.mark.parametrize("schema", [{"$ref": "#"}, {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}}])
def test_a_schema_that_only_refers_to_itself_is_refused(schema):
    with pytest.raises(ValueError, match="refers to itself endlessly"):
        get_evaluator("json_schema", json_schema=schema)


@loop_over(
    "schema",
    [
        {"$ref": "#/$defs/a", "$defs": {"a": {"type": "object"}}},
        {"properties": {"child": {"$ref": "#"}}, "type": "object"},
        {"$id": "http://example.com/root", "$defs": {"b": {"$id": "b", "type": "object"}}, "$ref": "b"},
        {"$ref": "#here", "$defs": {"a": {"$anchor": "here", "type": "object"}}},
        {"$ref": "https://json-schema.org/draft/2020-12/schema"},
        {"properties": {"$ref": {"type": "string"}}, "type": "object"},
    ],
)
def test_references_that_lead_somewhere_are_followed(schema):
    judge = get_evaluator("json_schema", json_schema=schema)
    assert [score(judge, outputs=text)[0].score for text in ("{}", "1")] == [True, False]


def test_the_draft_that_a_schema_names_is_used():
    old = {
        "$schema": "http://json-schema.org/draft-04/schema#",
        "type": "number",
        "minimum": 1,
        "exclusiveMinimum": True,
    }
    assert score(get_evaluator("json_schema", json_schema=old), outputs="1")[0].score is False


def test_an_answer_nested_to_the_limit_does_not_crash():
    schema = {"$ref": "#/$defs/a", "$defs": {"a": {"type": "array", "items": {"$ref": "#/$defs/a"}}}}
    feedback = score(get_evaluator("json_schema", json_schema=schema), outputs="[" * 900 + "]" * 900)
    assert feedback[0].outcome == "score"


@pytest.mark.process
def test_a_pattern_that_backtracks_without_end_is_stopped():
    schema = {"properties": {"a": {"pattern": "^(a|a)*$"}}}
    feedback = score(get_evaluator("json_schema", json_schema=schema), outputs=json.dumps({"a": "a" * 40 + "b"}))
    assert (feedback[0].error or "").startswith("TimeoutError")


@pytest.mark.parametrize(("answer", "passes"), [({"xa": 1, "b": "y"}, True), ({"xa": "1"}, False), ({"b": "n"}, False)])
def test_patterns_are_searched_for_as_in_jsonschema(answer, passes):
    schema = {"patternProperties": {"a$": {"type": "integer"}}, "properties": {"b": {"pattern": "y"}}}
    assert jsonschema.Draft202012Validator(schema).is_valid(answer) is passes
    assert score(get_evaluator("json_schema", json_schema=schema), outputs=json.dumps(answer))[0].score is passes


def test_the_schemas_true_and_false():
    assert score(get_evaluator("json_schema", json_schema=True), outputs="1")[0].score is True
    assert score(get_evaluator("json_schema", json_schema=False), outputs="1")[0].score is False
    with pytest.raises(ValueError, match="json_schema must be a dict"):
        get_evaluator("json_schema", json_schema=[1])


@pytest.mark.parametrize(
    ("items", "unique"),
    [
        ([1, 1.0], False),
        ([1, True, 0, False], True),
        ([[1], [True]], True),
        ([{"a": 1, "b": 2}, {"b": 2, "a": 1}], False),
    ],
)
def test_unique_items_are_those_of_jsonschema(items, unique):
    assert jsonschema.Draft202012Validator({"uniqueItems": True}).is_valid(items) is unique
    assert score(get_evaluator("json_schema", json_schema={"uniqueItems": True}), outputs=items)[0].score is unique


@pytest.mark.process
@given(st.lists(VALUES, max_size=5))
def test_uniqueness_is_jsonschemas(items):
    valid = jsonschema.Draft202012Validator({"uniqueItems": True}).is_valid(items)
    assert (
        score(get_evaluator("json_schema", json_schema={"uniqueItems": True}), outputs=json.dumps(items))[0].score
        is valid
    )


@pytest.mark.process
@pytest.mark.parametrize(
    "items", [[{"a": n} for n in range(5000)], [n * (2**61 - 1) for n in range(5000)]], ids=["objects", "equal hashes"]
)
def test_thousands_of_items_are_not_compared_with_one_another(items):
    judge = get_evaluator("json_schema", json_schema={"uniqueItems": True}, seconds=5)
    assert score(judge, outputs=json.dumps(items))[0].score is True


NESTED = {
    "$ref": "#/$defs/n",
    "$defs": {
        "n": {
            "anyOf": [
                {"required": ["b"], "properties": {"a": {"$ref": "#/$defs/n"}}},
                {"required": ["c"], "properties": {"a": {"$ref": "#/$defs/n"}}},
            ]
        }
    },
}


def test_alternatives_that_multiply_are_stopped():
    answer: dict = {}
    for _ in range(60):
        answer = {"a": answer}
    feedback = score(get_evaluator("json_schema", json_schema=NESTED, seconds=0.1), outputs=answer)[0]
    assert "more than 0.1 s: raise the limit with seconds=" in feedback.error


@pytest.mark.process
def test_names_are_held_against_patterns_in_time_also_where_others_are_refused():
    schema = {"patternProperties": {"^(a|a)*$": {}}, "additionalProperties": False}
    feedback = score(get_evaluator("json_schema", json_schema=schema), outputs={"a" * 40 + "b": 1})[0]
    assert (feedback.error or "").startswith("TimeoutError")


@pytest.mark.process
@pytest.mark.parametrize("rest", [False, {"type": "integer"}])
@given(st.dictionaries(st.sampled_from(["a", "xa", "b", "c"]), st.integers() | st.text(max_size=1)))
def test_names_that_no_pattern_matches_are_additional_as_in_jsonschema(rest, answer):
    schema = {"properties": {"b": {}}, "patternProperties": {"a$": {"type": "integer"}}, "additionalProperties": rest}
    valid = jsonschema.Draft202012Validator(schema).is_valid(answer)
    assert score(get_evaluator("json_schema", json_schema=schema), outputs=json.dumps(answer))[0].score is valid


def test_what_grows_with_the_square_of_its_members_is_refused_in_numbers():
    schema = {"contains": {"type": "integer"}, "unevaluatedItems": False}
    assert (
        "5,001 members: the limit is 5,000"
        in score(get_evaluator("json_schema", json_schema=schema), outputs=[1] * 5001)[0].error
    )
    assert score(get_evaluator("json_schema", json_schema=schema), outputs=[1, 2])[0].score is True


def test_of_thousands_of_names_one_that_comes_twice_is_found_in_time():
    names = ",".join(f'"{n}":1' for n in [*range(50_000), 49_999])
    assert (
        score(get_evaluator("is_json"), outputs=f"{{{names}}}")[0].comment
        == "the key '49999' comes twice in one object"
    )


@pytest.mark.parametrize("seconds", [0, -1, float("nan")])
def test_a_time_limit_that_nothing_can_keep_is_refused(seconds):
    for id, needed in (("json_schema", {}), ("regex", {"pattern": "a"})):
        with pytest.raises(ValueError, match="seconds must be a number above 0"):
            get_evaluator(id, seconds=seconds, **needed)


@pytest.mark.parametrize("text", ["```\n" + " " * 200_000, "```" + "\n" * 200_000 + "x```", "`" * 200_000])
def test_fences_are_taken_off_in_time(text):
    assert is_json(text, lenient=True) is False


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_number_that_json_cannot_write_is_missing(value):
    assert score(get_evaluator("is_json"), outputs=value)[0].outcome == "skip"
