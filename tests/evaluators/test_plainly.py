"""Characters that nobody sees hide nothing from detectors, and what was found stands where it was written."""

import unicodedata

import pytest
import regex
from hypothesis import given
from hypothesis import strategies as st

from looped_cases import loop_over
from spanwise.evaluators import get_evaluator, score
from spanwise.evaluators.builtin.leak_detection import (
    PositionMap,
    find_pii,
    find_secrets,
    normalize_text,
    remove_invisible,
)

EVERY = "".join(map(chr, range(0x110000)))
UNSEEN = regex.findall(r"\p{Default_Ignorable_Code_Point}", EVERY)
DATA = [
    ("email", "jane.doe@example.com"),
    ("credit_card", "4111 1111 1111 1111"),
    ("phone", "+1 650 253 0000"),
    ("ssn", "219-09-9999"),
    ("iban", "DE89 3704 0044 0532 0130 00"),
]
SECRETS = [("aws_key", "AKIAIOSFODNN7EXAMPLE"), ("password", "password: hunter22!"), ("openai_key", "sk-" + "aB3" * 8)]


def test_all_characters_that_unicode_says_are_not_shown_are_not_seen():
    assert len(UNSEEN) > 4000
    assert remove_invisible("a".join(["", *UNSEEN, ""])) == "a" * (len(UNSEEN) + 1)


def test_nothing_else_is_taken_out():
    assert len(remove_invisible(EVERY)) == len(EVERY) - len(UNSEEN)


@loop_over("unseen", ["\u200e", "\u200f", "\u200d", "\u00ad", "\u2060", "\ufe0f", "\U000e0041", "\u202e"])
@loop_over(("kind", "data"), DATA)
def test_personal_data_with_something_unseen_between_all_its_letters_is_found(kind, data, unseen):
    text = f"It is {unseen.join(data)}, he said"
    assert [(one.kind, remove_invisible(text[one.start : one.end])) for one in find_pii(text)] == [(kind, data)]
    assert score(get_evaluator("pii"), outputs=text)[0].comment == f"answer: 1 {kind}"


@pytest.mark.parametrize(("kind", "data"), SECRETS)
def test_secrets_too(kind, data):
    text = "It is " + "\u200e".join(data) + " indeed"
    assert [(one.kind, remove_invisible(text[one.start : one.end])) for one in find_secrets(text)] == [(kind, data)]


@given(
    st.lists(st.sampled_from([*DATA, ("", " and \u200f the "), ("", "\u00adé１２ ")]), max_size=6), st.integers(1, 9)
)
def test_what_was_found_stands_where_it_was_written(parts, step):
    text = " | ".join(part for _, part in parts)
    hidden = "\u200b\u200d".join(text[start : start + step] for start in range(0, len(text), step))
    there = [(one.kind, remove_invisible(hidden[one.start : one.end])) for one in find_pii(hidden)]
    assert there == [(kind, part) for kind, part in parts if kind]


@given(st.text(alphabet="ab1\u200e\u00ad１é\U000e0041中"))
def test_places_lead_back(text):
    plain, places = normalize_text(text), PositionMap(text)
    assert len(plain) == len(remove_invisible(text))
    for start in range(len(plain)):
        begins, ends = places(start, start + 1)
        assert (text[begins], ends) == (remove_invisible(text)[start], begins + 1)


def test_an_encoding_with_something_unseen_between_is_decoded():
    hidden = "\u200b".join("d3JpdGUgdG8gamFuZUBleGFtcGxlLmNvbQ==")
    assert score(get_evaluator("encoding_guardrail", all_cases=True), outputs=hidden)[0].score is False


def test_conditions_see_what_is_seen():
    judge = get_evaluator("encoding_guardrail", all_cases=True, condition='NOT "swordfish"')
    assert score(judge, outputs="sword\u200bfish")[0].score is False


@given(st.characters(categories=["Nd"]))
def test_digits_of_every_script_are_digits(digit):
    assert normalize_text(digit) == str(unicodedata.decimal(digit))
