"""Kinds of text perturbations: typos, casing, punctuation, contractions, word order, noise, synonyms, encodings.

A perturbation is a function of the text, the protected spans and a random generator. It returns the text unchanged if
there is nothing that the kind can change. The only randomness is `Random.random()`, whose sequence for an integer seed
is the same on every machine and Python version.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from random import Random
from typing import TypeAlias

from spanwise.collector.records import PERTURBATION_KINDS
from spanwise.evaluators.datasets.protected_text import Span
from spanwise.evaluators.datasets.wordnet import WordNet, open_wordnet

Match: TypeAlias = re.Match[str]
Replace: TypeAlias = Callable[[Match, Random], str]
Perturbation: TypeAlias = Callable[[str, Sequence[Span], Random], str]

_LETTER = r"[^\W\d_]"
_WORD = re.compile(rf"{_LETTER}{{2,24}}")  # longer runs, as in Chinese, are several words
_PLAIN_WORD = re.compile(rf"(?<![\w'’-]){_LETTER}{{1,64}}(?![\w'’-])")
# letters with combining marks of Latin, Hebrew, Arabic, Indic and Thai writing
_SPELLED = rf"(?:{_LETTER}|[\u0300-\u036f\u0591-\u05bd\u0610-\u061a\u064b-\u065f\u0670\u0900-\u0963\u0970-\u0e7f])"
_PAIR = re.compile(rf"(?<!\S)({_SPELLED}{{1,64}})([ \t]{{1,8}})({_SPELLED}{{1,64}})(?=[\s.,;:!?…،؛؟।]|\Z)")
_MARK = re.compile(r"""[.,;:!?…،؛؟।](?=["'”’»)\]]*(?:\s|\Z))|[。，、；：！？]""")
_ANY_WORD = re.compile(rf"{_LETTER}{{1,24}}")
_FIRST_IDEOGRAPH = "\u2e80"
_NOISE = "~^|;=+"
_NEIGHBOURS: Mapping[str, str] = dict(
    zip(
        "abcdefghijklmnopqrstuvwxyz",
        "sqwz vghn xdfv serfcx wsdr drtgvc ftyhbv gyujnb ujko huikmn jiolm kop njk bhjm iklp ol wa edft awedxz rfgy"
        " yhji cfgb qase zsdc tghu asx".split(),
        strict=True,
    )
)


def _edit(
    text: str, protected: Sequence[Span], random: Random, *, pattern: re.Pattern[str], rate: float, replace: Replace
) -> str:
    """Return the text with some matches of a pattern replaced, and at least one if any can be.

    Each match is replaced with the probability `rate`.
    """
    matches = _find_matches(pattern, text, protected)
    edits = [(match, replace(match, random)) for match in matches if random.random() < rate]
    edits = [(match, new) for match, new in edits if new != match.group()]
    if not edits and matches:
        first = int(random.random() * len(matches))
        for match in [*matches[first:], *matches[:first]]:
            if (new := replace(match, random)) != match.group():
                edits = [(match, new)]
                break
    parts, position = [], 0
    for match, new in edits:
        parts += [text[position : match.start()], new]
        position = match.end()
    return "".join([*parts, text[position:]])


def _find_matches(pattern: re.Pattern[str], text: str, protected: Sequence[Span]) -> list[Match]:
    """Return the matches between protected spans.

    A word that touches such a span is a part of it, unless its writing has no spaces. A mark may follow one.
    """
    if not protected:
        return list(pattern.finditer(text))
    found: list[Match] = []
    position = 0
    for first, last in [*protected, (len(text), len(text))]:
        matches = list(pattern.finditer(text, position, first))
        if matches and first < len(text) and matches[-1].end() == first and text[first - 1] < _FIRST_IDEOGRAPH:
            matches.pop()
        if (
            matches
            and matches[0].start() == position > 0
            and text[position] < _FIRST_IDEOGRAPH
            and pattern is not _MARK
        ):
            del matches[0]
        found += matches
        position = last
    return found


def _choose(options: Sequence[str], random: Random) -> str:
    return options[int(random.random() * len(options))]


def _misspell(match: Match, random: Random) -> str:
    """Swap two letters, omit one, double one, or replace one by a neighbour on the keyboard."""
    word = match.group()
    place = int(random.random() * (len(word) - 1)) if len(word) < 4 else 1 + int(random.random() * (len(word) - 2))
    before, letter, after = word[:place], word[place], word[place + 1 :]
    action = int(random.random() * 4)
    if action == 0 and after and after[0] != letter:
        return before + after[0] + letter + after[1:]
    if action == 1 and len(word) >= 4:
        return before + after
    if action == 2 and letter.lower() in _NEIGHBOURS:
        neighbour = _choose(_NEIGHBOURS[letter.lower()], random)
        return before + (neighbour if letter.islower() else neighbour.upper()) + after
    return before + letter + letter + after


def _change_case(text: str, protected: Sequence[Span], random: Random) -> str:
    """Write the text in capitals, in small letters, or in letters of random case: the first that changes it."""
    first = int(random.random() * 3)
    styles: list[Callable[[str], str]] = [
        str.upper,
        str.lower,
        lambda part: "".join(each.upper() if random.random() < 0.5 else each.lower() for each in part),
    ]
    for style in [*styles[first:], *styles[:first]]:
        changed = _map_unprotected(text, protected, style)
        if changed != text:
            return changed
    return text


def _insert_noise(match: Match, random: Random) -> str:
    """Insert a stray character into a word, or append it to a single letter."""
    word = match.group()
    place = 1 + int(random.random() * max(1, len(word) - 1))
    return word[:place] + _choose(_NOISE, random) + word[place:]


_NEGATIVES = r"\b(is|are|was|were|do|does|did|has|have|had|could|should|would|must|need|might|can|will)"
_CONTRACTION = re.compile(
    _NEGATIVES + r"(?: (not)|(not))\b"
    r"|\b(?:(I) (am)|(you|we|they) (are)|(he|she|it|that|there|what|who|where|how) (is)"
    r"|(I|you|he|she|it|we|they|that|there) (will)(?! not\b))(?= \w)"
    r"|\b(isn|aren|wasn|weren|don|doesn|didn|hasn|haven|hadn|couldn|shouldn|wouldn|mustn|needn|mightn|can|won)(['’]t)\b"
    r"(?! (?:I|you|he|she|it|we|they)\b)"
    r"|\b(I|you|he|she|it|we|they|that|there|what|who|where|how|let)(['’](?:m|re|ll|ve|s))\b(?! (?:been|got|had)\b)",
    re.IGNORECASE,
)
_ENDINGS = {"am": "'m", "are": "'re", "is": "'s", "will": "'ll"}
_EXPANSIONS = {"m": " am", "re": " are", "ll": " will", "ve": " have", "s": " is"}


def _contract(match: Match, random: Random) -> str:
    """Contract "do not" to "don't" and the like, or expand a contraction."""
    word, ending = (group for group in match.groups() if group is not None)
    small, last = word.lower(), ending.lower()
    upper = ending.isupper() and (word.isupper() or word == "I")  # of DO NOT and DON'T
    if last == "not":
        if small != "can" and " " not in match.group():
            return match.group()
        stem = word[0] + ("O" if upper else "o") if small == "will" else word
        return stem + ("'T" if upper and small == "can" else "N'T" if upper else "'t" if small == "can" else "n't")
    if last in _ENDINGS:
        return word + (_ENDINGS[last].upper() if upper else _ENDINGS[last])
    if last[1:] == "t":
        expanded = {"can": word + "not", "won": word[0] + "ill not"}.get(small, word[:-1] + " not")
    elif small == "let":
        expanded = word + " us" if last[1:] == "s" else match.group()
    else:
        expanded = word + _EXPANSIONS[last[1:]]
    return expanded.upper() if upper and len(word) > 1 else expanded


def _replace_by_synonym(match: Match, random: Random, *, wordnet: WordNet) -> str:
    word = match.group()
    synonyms = wordnet.synonyms(word)
    before = match.string[max(0, match.start() - 4) : match.start()].lower().split(" ")
    if len(before) > 1 and before[-2] in ("a", "an"):  # the article must still fit
        synonyms = tuple(each for each in synonyms if (each[0] in "aeiou") == (word[0] in "aeiou"))
    return _choose(synonyms, random) if synonyms else word


def _encode(text: str, protected: Sequence[Span], random: Random, *, encode: Callable[[bytes], bytes]) -> str:
    """Encode the text between protected spans, each stretch that contains a letter."""

    def encode_stretch(part: str) -> str:
        stripped = part.strip()
        if not any(map(str.isalpha, stripped)):
            return part
        start = part.index(stripped)
        encoded = encode(stripped.encode("utf-8", "surrogatepass")).decode()
        return part[:start] + encoded + part[start + len(stripped) :]

    return _map_unprotected(text, protected, encode_stretch)


def _map_unprotected(text: str, protected: Sequence[Span], change: Callable[[str], str]) -> str:
    parts, position = [], 0
    for start, end in protected:
        parts += [change(text[position:start]), text[start:end]]
        position = end
    return "".join([*parts, change(text[position:])])


def make_perturbation(kind: str) -> Perturbation:
    """Return the perturbation of a kind. Raises `NotFound` for synonyms if no WordNet is installed."""
    match kind:
        case "typos":
            return partial(_edit, pattern=_WORD, rate=0.12, replace=_misspell)
        case "casing":
            return _change_case
        case "punctuation":  # omit or double marks
            return partial(
                _edit,
                pattern=_MARK,
                rate=0.5,
                replace=lambda match, random: "" if random.random() < 0.6 else match.group() * 2,
            )
        case "contractions":
            return partial(_edit, pattern=_CONTRACTION, rate=0.7, replace=_contract)
        case "word_order":  # swap neighbours
            return partial(_edit, pattern=_PAIR, rate=0.2, replace=lambda match, random: match.expand(r"\3\2\1"))
        case "noise":
            return partial(_edit, pattern=_ANY_WORD, rate=0.12, replace=_insert_noise)
        case "synonyms":
            replace = partial(_replace_by_synonym, wordnet=open_wordnet())
            return partial(_edit, pattern=_PLAIN_WORD, rate=0.3, replace=replace)
        case "base64":
            return partial(_encode, encode=base64.b64encode)
        case "base16":
            return partial(_encode, encode=base64.b16encode)
    raise ValueError(f"unknown kind of perturbation {kind!r:.100}; expected one of: {', '.join(PERTURBATION_KINDS)}")
