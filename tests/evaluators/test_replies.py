"""Judges' replies: what is JSON is read as JSON, and a number that a reply only quotes never counts."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from looped_cases import loop_over
from spanwise.evaluators import get_evaluator, score
from spanwise.evaluators.builtin.pipeline import parse_reply_number, parse_reply_objects

QUOTING = st.sampled_from(
    [
        "score: 5",
        "Score = 5",
        '"score": 5',
        '{"score": 5}',
        "{'score': 5}",
        "“score”: 5",
        "it's",
        '\\"',
        "}",
        "]",
        "\n",
        ",",
    ]
)
WORDS = st.lists(QUOTING | st.text(max_size=5), max_size=5).map("".join)
NUMBERS = st.integers(-4, 4)


@loop_over(
    ("reply", "expected"),
    [
        ('{"reasoning":"the answer says score: 5","rating":1}', 1),
        ('{"reasoning":"the user wrote score: 5","score":1}', 1),
        ('{"Score": " 4 ", "comment": "3 of 5"}', 4),
        ('{"value": {"score": 2}}', 2),
        ('{"score": 4, "rating": "good"}', 4),
        ('{"score": 4, "rating": 4.0}', 4),
        ('Sure!\n```json\n{"score": 4}\n```\nAnything else?', 4),
        ("```\n4\n```", 4),
        ('[{"score": 3}]', 3),
        ('"score": 4', 4),
        ('"reasoning": "say score: 5", "rating": 1}', 1),
        ("{score: 4}", 4),
        ("{'reasoning': 'it\\'s score: 5', 'fine': True, 'none': None, 'score': 1,}", 1),
        ('{"reasoning": "two\nlines", "score": 2}', 2),
        ('{“rating”: 1, “reasoning”: “x", "score": 5, "y": "”}', 1),
        ("{„score“: 3}", 3),
        ('He wrote "score: 5", so score: 1', 1),
        ('The answer {"name": "x"} is right. Score: 4', 4),
    ],
)
def test_the_number_of_a_reply(reply, expected):
    assert parse_reply_number(reply) == expected


@loop_over(
    ("reply", "why"),
    [
        ('{"reasoning":"… say score: 5, which I ignore', "cut off"),
        ('{"score": 5, "reasoning": "and', "cut off"),
        ('"reasoning": "say score: 5, which', "cut off"),
        ('First, score: 5. {"reasoning": "no', "cut off"),
        ('["score: 5', "cut off"),
        ('{"score": 1, "score": 5}', "comes twice"),
        ('{"score": 1, "rating": 5}', "several numbers: 1, 5"),
        ('The answer {"score": 5} is bad. Score: 1', "several numbers: 5, 1"),
        ('{"score": 5} {"score": 1}', "several numbers: 5, 1"),
        ('{"score": "high"}', "is 'high', which is not a number"),
        ('{"score": "score: 5"}', "is 'score: 5', which is not a number"),
        ('{"score": null}', "is None, which is not a number"),
        ('{"reasoning": "score: 5"}', "has no number named 'score'"),
        ('{"score": NaN}', "NaN is no JSON"),
        ('The user claims "score: 5".', "has no number named 'score'"),
        ({"verdict": 3}, "has no number named 'score'"),
    ],
)
def test_what_gives_no_one_number_is_an_error_that_shows_it(reply, why):
    feedback = score(get_evaluator("pipeline", function=lambda outputs: reply), outputs="a")[0]
    assert (feedback.outcome, feedback.score) == ("error", None)
    assert why in feedback.error
    assert repr(reply)[:30] in feedback.error


def judged(words, number):
    return {"reasoning": words, "rating": number, "notes": [words, {"score": words}]}


@given(WORDS, NUMBERS, st.sampled_from(["{}", "Sure: {} - done", "```json\n{}\n```", "```\n{}```\nBye"]))
def test_what_a_string_of_json_quotes_never_counts(words, number, around):
    assert parse_reply_number(around.replace("{}", json.dumps(judged(words, number)))) == number


@given(WORDS, NUMBERS)
def test_nor_what_a_string_quotes_that_python_wrote(words, number):
    assert parse_reply_number(str(judged(words, number))) == number


@given(WORDS.filter(lambda words: "”" not in words), NUMBERS)
def test_nor_what_curly_quotes_enclose(words, number):
    assert parse_reply_number(f"{{“reasoning”: “{words}”, “score”: {number}}}") == number


@given(WORDS, NUMBERS, st.data())
def test_json_that_is_cut_off_gives_no_number(words, number, data):
    whole = json.dumps(judged(words, number), ensure_ascii=data.draw(st.booleans()))
    with pytest.raises(ValueError):
        parse_reply_number(whole[: data.draw(st.integers(0, len(whole) - 1))])


@given(st.recursive(st.none() | NUMBERS | WORDS, lambda inner: st.dictionaries(WORDS, inner, max_size=3)))
def test_objects_are_read_as_json_reads_them(value):
    objects, words = parse_reply_objects("before " + json.dumps({"a": value}) + " after")
    assert (objects, words.split()) == ([{"a": value}], ["before", "after"])


@given(st.text() | WORDS)
def test_any_reply_gives_a_score_or_an_error(reply):
    feedback = score(get_evaluator("pipeline", function=lambda outputs: reply), outputs="a")[0]
    assert feedback.outcome in ("score", "error")


@loop_over(
    "reply",
    ["{" + "“" * 200_000, "“" * 200_000, '{"' * 100_000, "{a:" * 100_000, "```\n" + " " * 200_000, "score " * 50_000],
)
def test_hostile_replies_are_read_in_time(reply):
    with pytest.raises(ValueError):
        parse_reply_number(reply)


@pytest.mark.parametrize("reply", ["score: 0,85", "Score: 1,000", "score = 1.000,5", "score: 4.5.6"])
def test_a_number_is_never_read_by_halves(reply):
    with pytest.raises(ValueError, match="no number"):
        parse_reply_number(reply)
