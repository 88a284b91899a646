"""What a judge's reply says: strictly first, then with patience, never by guessing."""

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.collector.records import Usage
from assay.evaluators.judges._ask import Ask, Completion, CutOff, ParseFailure
from assay.evaluators.judges._rating import YES_NO, rating_schema
from assay.evaluators.judges._reading import reading
from assay.evaluators.protocol import Unjudged

LEVELS = rating_schema((1, 2, 3, 4, 5))
NO = {"rationale": "It lacks the date.", "rating": "no"}
PLAIN = json.dumps(NO)


def read(text, schema=YES_NO, **more):
    return reading(
        Ask(messages=({"role": "user", "content": "?"},), schema=schema),
        Completion(text=text, **{"finish": "stop", **more}),
    )


@pytest.mark.parametrize("text", [PLAIN, f"\n {PLAIN}\n", f"```json\n{PLAIN}\n```", f"```\n{PLAIN}\n```"])
def test_strict_json_alone_or_in_a_fence_is_read_as_it_is(text):
    assert read(text).value == NO
    assert read(text).notes == ()


@pytest.mark.parametrize(
    "text",
    [
        f"Sure, here it is:\n```json\n{PLAIN}\n```\nAnything else?",
        f"My verdict is {PLAIN} and that is final.",
        "{“rationale”: “It lacks the date.”, “rating”: “no”}",
        "{'rationale': 'It lacks the date.', 'rating': 'no'}",
        '{rationale: "It lacks the date.", rating: "no"}',
        '{"rationale": "It lacks the date.", "rating": "no",}',
        '{"rationale": "It lacks the date.", "rating": no}',
        '{"rationale": "It lacks the date." "rating": "no"}',
        f"{PLAIN}\n{PLAIN}",
    ],
    ids=["fence", "words", "curly", "single", "bare keys", "comma", "bare value", "no comma", "twice the same"],
)
def test_json_as_models_write_it_is_read_with_patience_and_that_is_noted(text):
    assert read(text).value == NO
    assert "with patience" in read(text).notes[0]


def test_quotes_that_are_not_escaped_are_mended():
    assert read('{"rationale": "he said "yes" to it", "rating": "no"}').value == {
        "rationale": 'he said "yes" to it',
        "rating": "no",
    }


@pytest.mark.parametrize(
    "quoted",
    [
        "score: 5",
        "rating: yes",
        'The answer says {"rationale": "great", "rating": "yes"}',
        '"rating": "yes"',
        "```\n{}\n```",
    ],
)
def test_what_a_rationale_quotes_never_counts(quoted):
    said = {"rationale": quoted, "rating": "no"}
    assert read(json.dumps(said)).value == said
    assert read(f"Here: {json.dumps(said)}").value == said


@pytest.mark.parametrize(
    "text",
    [
        'rating: yes {"rationale": "the answer quoted the rating", "rating": "no"}',
        'The answer has {"city": "Paris"}. {"rationale": "wrong", "rating": "no"}',
    ],
)
def test_words_and_other_objects_beside_the_verdict_are_not_looked_at(text):
    assert read(text).value["rating"] == "no"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "empty"),
        ("   \n", "empty"),
        ("Yes, it is polite.", "holds no JSON object"),
        ("rating: yes", "holds no JSON object"),
        ("score: 5", "holds no JSON object"),
        ('{"rationale": "r", "rating": "maybe"}', '\'rating\' is "maybe", which is none of "yes", "no"'),
        ('{"rationale": "r", "rating": "true"}', "none of"),
        ('{"rationale": "r", "rating": "correct"}', "none of"),
        ('{"rationale": "r", "rating": true}', "none of"),
        ('{"rationale": "r", "rating": "yes, mostly"}', "none of"),
        ('{"rationale": "r", "rating": null}', "none of"),
        ('{"rating": "yes"}', "lacks 'rationale'"),
        ('["yes"]', "no object"),
        ('{"verdict": {"rationale": "r", "rating": "yes"}}', "lacks 'rationale', 'rating'"),
        ('{"rationale": "r", "rating": "no", "rating": "yes"}', "more than once"),
        ('{"rationale": "I would not write "rating": "yes" here", "rating": "no"}', "more than once"),
        ('{"rationale": "r", "rating": NaN}', "none of"),
        ('{"rationale": "a", "rating": "yes"} {"rationale": "b", "rating": "no"}', "2 objects that differ"),
        ('{"rating": "yes"} {"rationale": "b", "rating": "no"}', "lacks 'rationale'"),
        ('{"rationale": "it is go', "does not end"),
        ('{"rationale": "r", "Rating": "no", "rating": "yes"}', "Additional properties"),
        ('{"rationale": 3, "rating": "yes"}', "'rationale' is 3, which is no string"),
        ("<html><body>busy</body></html>", "holds no JSON object"),
    ],
)
def test_what_is_not_what_was_asked_for_is_a_failure_that_says_why(text, why):
    with pytest.raises(Unjudged, match=re.escape(why)) as raised:
        read(text)
    if text.strip():
        assert isinstance(raised.value, ParseFailure)
        assert str(raised.value).startswith("parse failure: ")
        assert raised.value.metadata == {"reply": text}


@pytest.mark.parametrize("label", ["NO", " no ", "No.", '"no"', "**no**", "“No”"])
def test_case_and_marks_around_a_label_are_forgiven_and_noted(label):
    came = read(json.dumps({"rationale": "r", "rating": label}))
    assert came.value["rating"] == "no"
    assert came.notes == (f"took {label!r} for 'no'",)


@pytest.mark.parametrize(("given", "meant"), [("4", 4), (4.0, 4), (4, 4), ("4.", 4)])
def test_a_level_may_be_in_quotes(given, meant):
    value = read(json.dumps({"rationale": "r", "rating": given}), LEVELS).value["rating"]
    assert (value, type(value)) == (meant, int)


@pytest.mark.parametrize("given", [6, 0, -4, "4/5", "4,5", 4.5, "four", True, "-4", [4]])
def test_what_is_no_level_is_not_rounded_into_one(given):
    with pytest.raises(ParseFailure, match="none of 1, 2, 3, 4, 5"):
        read(json.dumps({"rationale": "r", "rating": given}), LEVELS)


def test_what_nobody_asked_for_is_left_out_and_the_case_of_names_is_forgiven():
    came = read('{"Rationale": "r", "Rating": "no", "confidence": 0.9}')
    assert came.value == {"rationale": "r", "rating": "no"}
    assert came.notes == ("forgave the case of a property's name", "left out what nobody asked for: confidence")


def test_a_number_and_a_truth_may_be_in_quotes_words_may_not():
    schema = {
        "type": "object",
        "properties": {"p": {"type": "number"}, "ok": {"type": "boolean"}},
        "required": ["p", "ok"],
    }
    assert read('{"p": "0.8", "ok": "True"}', schema).value == {"p": 0.8, "ok": True}
    for wrong in (
        '{"p": "0,8", "ok": true}',
        '{"p": 0.8, "ok": "yes"}',
        '{"p": 0.8, "ok": 1}',
        '{"p": 1e999, "ok": true}',
        '{"p": NaN, "ok": true}',
    ):
        with pytest.raises(ParseFailure):
            read(wrong, schema)


def test_nested_lists_are_held_to_the_schema_too():
    verdicts = {"type": "array", "items": YES_NO, "minItems": 2}
    schema = {"type": "object", "properties": {"verdicts": verdicts}, "required": ["verdicts"]}
    assert read(json.dumps({"verdicts": [NO, {**NO, "rating": "YES"}]}), schema).value["verdicts"][1]["rating"] == "yes"
    with pytest.raises(ParseFailure, match=r"'verdicts.1.rating' is \"perhaps\""):
        read(json.dumps({"verdicts": [NO, {**NO, "rating": "perhaps"}]}), schema)


@pytest.mark.parametrize(
    "text",
    ['{"rationale": "it is go', '{"rationale": "r", "rating": "no', "I think", PLAIN[:-1], f"As I said, {PLAIN} and"],
)
def test_a_reply_that_was_cut_off_is_never_mended(text):
    with pytest.raises(CutOff, match=r"cut off after 9 tokens: give the judge more max_tokens") as raised:
        read(text, finish="length", usage=Usage(1, 9))
    assert raised.value.metadata == {"reply": text}


def test_a_reply_that_is_whole_at_its_last_token_counts():
    assert read(PLAIN, finish="length").value == NO


def test_the_end_is_missed_also_where_the_server_does_not_say_so():
    with pytest.raises(ParseFailure, match="does not end"):
        read('{"rationale": "r", "rating": 1', LEVELS)


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"refusal": "I cannot help with that."}, "the judge refused: I cannot help with that."),
        ({"finish": "content_filter"}, "content filter"),
        ({"finish": "no choices"}, r"empty \(it ended with 'no choices'\)"),
        ({"finish": "length"}, "cut off"),
        ({}, "the judge's answer is empty"),
    ],
)
def test_no_answer_is_no_parse_failure(more, why):
    with pytest.raises(Unjudged, match=why) as raised:
        read("", **more)
    assert not isinstance(raised.value, ParseFailure)


def test_thoughts_before_the_answer_are_not_the_answer():
    thought = '<think>Perhaps {"rationale": "x", "rating": "yes"}? Or rather not.</think>\n'
    assert read(thought + PLAIN).value == NO
    with pytest.raises(ParseFailure, match="without an end"):
        read("<think>" + PLAIN)
    with pytest.raises(CutOff):
        read("<think>hm", finish="length")


def test_without_a_schema_the_words_are_the_answer_if_they_are_all():
    assert read("any words", None).value == "any words"
    with pytest.raises(CutOff):
        read("any wor", None, finish="length")


@given(st.text(alphabet=st.sampled_from("{}[]\":,“”'`\\ \nyesno<>/thinkrationaleg5")))
def test_no_reply_is_read_as_what_it_does_not_say(text):
    try:
        value = read(text).value
    except Unjudged:
        return
    assert set(value) == {"rationale", "rating"}


@pytest.mark.parametrize(
    "text",
    ["{" * 40_000, '{"a":' * 9_000 + "}", "[" * 40_000 + "]", '{"rating' * 5_000 + "}", '"' * 40_000 + "{}"],
)
def test_a_reply_without_sense_costs_little(text):
    with pytest.raises(ParseFailure):
        read(text)
