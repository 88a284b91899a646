"""The words of the Penn Treebank, as NLTK's `NLTKWordTokenizer` splits them: its patterns, in its order.

The patterns are those of NLTK 3.10 (`nltk/tokenize/destructive.py`, Copyright (C) 2001-2026 NLTK Project, Apache
License 2.0; authors Liling Tan and Tom Aarsen, contractions after Robert MacIntyre). They stand here because importing
NLTK takes seconds: it imports scipy and scikit-learn where they are installed. The tests hold them to NLTK's.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from typing import Any, TypeAlias

Rules: TypeAlias = tuple[tuple[str, str], ...]  # (pattern, replacement)

STARTING_QUOTES: Rules = (
    ("([«“‘„]|[`]+)", r" \1 "),
    (r"^\"", r"``"),
    (r"(``)", r" \1 "),
    (r"([ \(\[{<])(\"|\'{2})", r"\1 `` "),
    (r"(?i)(?<!\w)(\')(?!(?:re|ve|ll|m|t|s|d|n)\b)(?=\w)", r"\1 "),
)
PUNCTUATION: Rules = (
    (r'([^\.])(\.)([\]\)}>"\'»”’ ]*+)\s*$', r"\1 \2 \3 "),
    (r"([:,])([^\d])", r" \1 \2"),
    (r"([:,])$", r" \1 "),
    (r"\.{2,}", r" \g<0> "),
    (r"[;@#$%&]", r" \g<0> "),
    (r"[\u2012-\u2015]", r" \g<0> "),
    (r'([^\.])(\.)([\]\)}>"\']*)\s*$', r"\1 \2\3 "),
    (r"[?!]", r" \g<0> "),
    (r"([^'])' ", r"\1 ' "),
    (r"[*]", r" \g<0> "),
)
PARENS_BRACKETS: Rules = ((r"[\]\[\(\)\{\}\<\>]", r" \g<0> "),)
DOUBLE_DASHES: Rules = ((r"--", r" -- "),)
ENDING_QUOTES: Rules = (
    ("([»”’])", r" \1 "),
    (r"''", " '' "),
    (r'"', " '' "),
    (r"\s+", " "),
    (r"([^' ])('[sS]|'[mM]|'[dD]|') ", r"\1 \2 "),
    (r"([^' ])('ll|'LL|'re|'RE|'ve|'VE|n't|N'T) ", r"\1 \2 "),
)
CONTRACTIONS2 = (
    r"(?i)\b(can)(?#X)(not)\b",
    r"(?i)\b(d)(?#X)('ye)\b",
    r"(?i)\b(gim)(?#X)(me)\b",
    r"(?i)\b(gon)(?#X)(na)\b",
    r"(?i)\b(got)(?#X)(ta)\b",
    r"(?i)\b(lem)(?#X)(me)\b",
    r"(?i)\b(more)(?#X)('n)\b",
    r"(?i)\b(wan)(?#X)(na)(?=\s)",
)
CONTRACTIONS3 = (r"(?i) ('t)(?#X)(is)\b", r"(?i) ('t)(?#X)(was)\b")

_FIRST = STARTING_QUOTES + PUNCTUATION + PARENS_BRACKETS + DOUBLE_DASHES
_THEN = ENDING_QUOTES + tuple((pattern, r" \1 \2 ") for pattern in CONTRACTIONS2 + CONTRACTIONS3)
# White space to `re`, and none to `regex`, which NLTK takes for all but the contractions.
_UNLIKE = re.compile(r"[\x1c-\x1f]")


def words(text: str) -> list[str]:
    """The words of a text, which is not split into sentences first."""
    first, then = _compiled(_UNLIKE.search(text) is not None)
    for sub, by in first:
        text = sub(by, text)
    text = f" {text} "
    for sub, by in then:
        text = sub(by, text)
    return text.split()


@cache
def _compiled(as_nltk: bool) -> tuple[list[tuple[Callable[..., str], str]], ...]:
    """The steps before and after the text gets a space at either end; `re` is the faster engine, `regex` NLTK's."""
    engine: Any = re
    if as_nltk:
        import regex as engine
    return tuple(
        [
            ((re if pattern in CONTRACTIONS2 + CONTRACTIONS3 else engine).compile(pattern).sub, by)
            for pattern, by in rules
        ]
        for rules in (_FIRST, _THEN)
    )
