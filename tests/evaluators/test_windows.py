"""Long texts cut into windows, by a tokenizer of words and one of characters."""

from __future__ import annotations

import re
from itertools import pairwise

import pytest

from looped_cases import loop_over
from spanwise.evaluators.models.inference_batching import make_span_finder, split_windows

TEXTS = {
    "words": " ".join(f"word{number}" for number in range(1000)),
    "chinese": "".join(f"{number}法国的首都是巴黎。它在塞纳河上。" for number in range(60)),
    "arabic": "".join(f"{number} ما هي عاصمة فرنسا؟ إنها باريس. " for number in range(60)),
    "emoji": "".join(f"🙂🙃{number} 👩‍👩‍👧 " for number in range(100)),
    "one long word": "".join(f"{number:x}" for number in range(1000)),
    "blanks between": "a" + " " * 2000 + "b" + "\n" * 2000 + " ".join(f"c{number}" for number in range(300)),
}


def words(text):
    return [match.span() for match in re.finditer(r"\S+", text)]


def characters(text):
    return [(place, place + 1) for place, character in enumerate(text) if not character.isspace()]


@loop_over("name", TEXTS)
@loop_over("spans_of", [words, characters])
def test_windows_are_parts_of_the_text_that_cover_it_and_fit(name, spans_of):
    text, covered = TEXTS[name], 0
    for part in split_windows(text, spans_of, 50):
        assert len(spans_of(part)) <= 50
        start = text.index(part, max(0, covered - len(part)))
        assert not text[covered:start].strip()
        covered = start + len(part)
    assert not text[covered:].strip()


def test_a_text_that_fits_is_left_as_it_is():
    text = "  " + "one two " * 25
    assert split_windows(text, words, 50) == [text]
    assert split_windows("", words, 50) == [""]
    assert split_windows(" " * 5000, words, 50) == [" " * 5000]


def test_each_window_overlaps_the_one_before():
    parts = [part.split() for part in split_windows(TEXTS["words"], words, 50)]
    assert all(len(set(one) & set(other)) >= 5 for one, other in pairwise(parts))
    assert len(parts) < 40


def test_cuts_are_between_words_where_one_is_near():
    parts = split_windows("alpha beta gamma delta " * 100, characters, 60)
    assert {word for part in parts for word in part.split()} == {"alpha", "beta", "gamma", "delta"}


@pytest.mark.parametrize("characters", [37, 100, 1000])
def test_a_text_is_looked_at_in_pieces(characters):
    looked = []
    spans_of = lambda text: looked.append(len(text)) or words(text)  # noqa: E731
    parts = split_windows(TEXTS["words"], spans_of, 20, characters=characters)
    assert max(looked) <= characters
    assert all(f"word{number}" in "".join(parts) for number in range(1000))


def test_a_tokenizer_that_cannot_say_where_tokens_stand_is_told():
    class Slow:
        def __call__(self, text, **options):
            raise NotImplementedError("no offsets here")

    with pytest.raises(ValueError, match="a text of 1000 characters is too long, and Slow cannot cut it"):
        split_windows("x" * 1000, make_span_finder(Slow()), 50)
