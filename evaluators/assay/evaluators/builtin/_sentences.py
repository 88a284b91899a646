"""Sentences by rules, in linear time: abbreviations, initials, decimals, list numbers, quotes, CJK, Arabic, Devanagari.

A split too few is better than one too many for the metrics that use it: a mark ends a sentence only when what follows
can begin one.
"""

from __future__ import annotations

import re

# Marks that end a sentence wherever they stand.
_WIDE = "。！？｡؟۔।॥‼⁇⁈⁉"
_CLOSING = "\"'”’»)]}」』）】"
# A run of marks is looked at once, from its first mark on and without backtracking: a megabyte of periods takes no
# longer than a megabyte of words.
_END = re.compile(
    rf"(?<![.!?…])[.!?…]++[{re.escape(_CLOSING)}]*+(?=\s)"
    rf"|[{_WIDE}]++[{re.escape(_CLOSING)}]*+"
    r"|\n\s*\n|\n(?=[ \t]*(?:[-*•]|\d+[.)])\s)"
)
_LAST_WORD = re.compile(r"(\S+)$")
_NEXT = re.compile(r"\s*[\"'“‘«(\[¿¡*_-]*(\S)")

# Words that a period follows without ending the sentence.
_BEFORE_A_NAME = frozenset(
    {
        "mr",
        "mrs",
        "ms",
        "dr",
        "prof",
        "st",
        "rev",
        "hon",
        "gen",
        "col",
        "capt",
        "lt",
        "sgt",
        "maj",
        "gov",
        "sen",
        "rep",
        "pres",
        "mt",
        "ft",
        "m",
        "mme",
        "mlle",
        "herr",
        "fr",
        "sra",
    }
)
_MAY_END = frozenset(
    {
        "etc",
        "a.m",
        "p.m",
        "u.s",
        "u.k",
        "u.n",
        "ph.d",
        "inc",
        "ltd",
        "co",
        "corp",
        "jr",
        "sr",
        "al",
        "usw",
    }
)
_NEVER_ENDS = frozenset(
    {
        "vs",
        "e.g",
        "i.e",
        "cf",
        "approx",
        "no",
        "nos",
        "vol",
        "vols",
        "pp",
        "p",
        "ch",
        "sec",
        "fig",
        "figs",
        "eq",
        "ed",
        "eds",
        "est",
        "dept",
        "univ",
        "jan",
        "feb",
        "mar",
        "apr",
        "jun",
        "jul",
        "aug",
        "sep",
        "sept",
        "oct",
        "nov",
        "dec",
        "b.a",
        "m.a",
        "z.b",
        "bzw",
        "ca",
        "d.h",
        "nr",
        "str",
        "bspw",
        "ggf",
        "p.ej",
        "ej",
    }
)


def sentences(text: str) -> list[str]:
    """The sentences of a text, stripped, none empty."""
    parts, start = [], 0
    for match in _END.finditer(text):
        if _ends(text, start, match):
            parts.append(text[start : match.end()].strip())
            start = match.end()
    parts.append(text[start:].strip())
    return [sentence for sentence in parts if sentence]


def _ends(text: str, start: int, match: re.Match[str]) -> bool:
    mark = match.group()
    if mark[0] in "\n" + _WIDE:
        return True
    following = _NEXT.match(text, match.end())
    if following is None:
        return False  # the end of the text: the last sentence is taken anyway
    begins = following.group(1)
    if mark[0] == "." and not mark.startswith(".."):
        return _period_ends(text[max(start, match.start() - 40) : match.start()], begins)
    return not begins.islower() or (mark[0] in "!?" and mark[-1] not in _CLOSING)


def _period_ends(before: str, begins: str) -> bool:
    if begins.islower():
        return False
    last = _LAST_WORD.search(before)
    word = last.group(1).lstrip("\"'“‘«(") if last else ""
    lower = word.lower()
    if lower in _BEFORE_A_NAME or lower in _NEVER_ENDS:
        return False
    if lower in _MAY_END:
        return begins.isupper()
    if len(word) == 1 and word.isalpha() and word.isupper() and word != "I":
        return False  # an initial
    return not (word.isdigit() and len(word) <= 2 and before.strip() == word)  # the number of a list's entry
