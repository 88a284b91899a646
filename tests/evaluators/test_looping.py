"""Loops: against brute force, at the limits, and in time."""

import random
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from looped_cases import loop_over
from spanwise.evaluators import get_evaluator, score
from spanwise.evaluators.builtin.case_text import split_sentences
from spanwise.evaluators.builtin.looping import find_longest_repeat
from spanwise.evaluators.builtin.text import compression_ratio, repeated_share, unique_sentences


def brute_force(text):
    for length in range(len(text) // 2, 0, -1):
        windows = {text[start : start + length] for start in range(len(text) - length + 1)}
        counts = [text.count(window) for window in windows]  # occurrences that do not overlap
        if max(counts) > 1:
            return length, max(counts)
    return 0, 0


@given(st.one_of(st.text(alphabet="ab", max_size=40), st.text(alphabet="abc é北", max_size=40), st.text(max_size=30)))
def test_the_longest_repeat_is_that_of_brute_force(text):
    found = find_longest_repeat(text)
    assert (len(found.text), found.count) == brute_force(text)
    if found.count:
        assert text.count(found.text) == found.count


@given(st.text(min_size=1))
def test_the_repeated_share_lies_between_0_and_1(text):
    assert 0 <= repeated_share(text) <= 1


@given(st.text(min_size=1, max_size=20), st.integers(2, 9))
def test_a_loop_is_nearly_all_repeat(part, times):
    assert repeated_share(part * times) > 0.6
    assert repeated_share(part * 2 * times) == 1.0


@pytest.mark.parametrize("text", ["", "a"])
def test_nothing_repeats_in_less_than_two_characters(text):
    assert find_longest_repeat(text).count == 0


def test_texts_with_half_surrogates_are_texts():
    assert find_longest_repeat("\ud800\ud800").text == "\ud800"
    assert compression_ratio("\ud800") > 1


@pytest.mark.process
@pytest.mark.parametrize("text", ["A" * 250_000, "I am sorry, I cannot. " * 11_000], ids=["one letter", "one sentence"])
def test_what_repeats_all_the_way_takes_no_longer(text):
    assert repeated_share(text) > 0.99  # quadratic would be hours


@pytest.mark.process
def test_a_megabyte_of_words_takes_seconds():
    words = [f"w{number}" for number in range(5000)]
    text = " ".join(random.Random(1).choices(words, k=180_000))
    assert repeated_share(text) < 0.01


def test_short_sentences_are_left_out_above_and_below():
    assert unique_sentences("Yes. Yes. This one is long. This one is long. Another long one.") == pytest.approx(2 / 3)
    assert unique_sentences("Yes. Yes.", shortest=1) == 0.5


def test_compression_is_zlibs_at_its_highest_level():
    text = "naïve " * 100
    raw = text.encode()
    assert compression_ratio(text) == len(zlib.compress(raw, 9)) / len(raw)


def test_three_metrics_and_what_repeats():
    unique, repeat, compression = score(get_evaluator("looping"), outputs="The cat sat down. " * 20)
    assert (unique.key, unique.score) == ("looping_unique_sentences", 0.05)
    assert repeat.score == pytest.approx(1.0)
    assert repeat.metadata["count"] == 2
    assert compression.score < 0.2


def test_only_the_metric_that_is_undefined_is_skipped():
    outcomes = [one.outcome for one in score(get_evaluator("looping"), outputs="Short.")]
    assert outcomes == ["skip", "score", "score"]
    assert {one.outcome for one in score(get_evaluator("looping"), outputs="")} == {"skip"}


@loop_over(
    ("text", "count"),
    [
        ("Dr. Smith went to Washington. He arrived at 5 p.m. It was late.", 3),
        ("The value is 3.14. That is pi.", 2),
        ("Hello! How are you? Fine.", 3),
        ("今天天气很好。我们去公园吧！好吗？", 3),
        ("هل أنت بخير؟ نعم.", 2),
        ("यह एक वाक्य है। यह दूसरा है।", 2),
        ('He said "Stop!" and left. Then silence.', 2),
        ("J. R. R. Tolkien wrote it. Great.", 2),
        ("1. First item\n2. Second item\n3. Third", 3),
        ("See e.g. Fig. 3 for details. Done.", 2),
        ("Wait... what? Yes.", 2),
        ("Really?! Yes.", 2),
        ("Visit example.com. It works.", 2),
        ("Das ist z.B. Berlin. Ja.", 2),
        ("A heading\n\nThe text. The end.", 3),
        ("no mark at all", 1),
        ("", 0),
    ],
)
def test_sentences(text, count):
    assert len(split_sentences(text)) == count


@given(st.text())
def test_sentences_lose_nothing_but_space(text):
    assert "".join("".join(split_sentences(text)).split()) == "".join(text.split())


@pytest.mark.process
@pytest.mark.parametrize("text", ["." * 500_000, '."' * 250_000, "a. " * 150_000, "x\n " * 200_000, "Mr. " * 100_000])
def test_hostile_texts_split_in_time(text):
    assert "".join(split_sentences(text)).count(text[0]) == text.count(text[0])


@pytest.mark.parametrize("shortest", [0, -3])
def test_a_shortest_sentence_of_nothing_is_refused(shortest):
    with pytest.raises(ValueError, match=f"1 character or more, not {shortest}"):
        get_evaluator("looping", shortest=shortest)
