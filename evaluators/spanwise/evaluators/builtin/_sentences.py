"""Sentences by rules, in linear time: abbreviations, initials, decimals, lists, quotes, code, marks of many scripts.

A split too few is better than one too many for the metrics that use it: a mark ends a sentence only when what follows
can begin one. A text without marks is one sentence per paragraph or entry of a list: so is Thai, which has none.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import TypeAlias

Splitter: TypeAlias = Callable[[str], Sequence[str]]
"""What tells the parts of a text apart in the place of our rules."""

# Marks that end a sentence wherever they stand: Chinese and Japanese, Arabic, Urdu, Devanagari, Armenian, Ethiopic,
# Burmese, Khmer, Mongolian.
_WIDE = "。！？｡؟۔।॥‼⁇⁈⁉։።፧။។᠃"
_CLOSING = "\"'”’»)]}」』）】〉》"
_QUOTED = re.escape(_CLOSING + "“‘«")  # a quotation may end as others begin: „…“ and »…«
_CJK = "\u3040-\u30ff\u3400-\u9fff"
# A run of marks is looked at once, from its first mark on and without backtracking: a megabyte of periods takes no
# longer than a megabyte of words.
_END = re.compile(
    rf"(?<![.!?…])[.!?…]++(?:[{_QUOTED}]|[ \xa0\u202f]»(?=\s)|\[\d{{1,3}}\])*+(?=\s)"
    rf"|(?<=[{_CJK}])[.!?．]++(?=[{_CJK}])"
    r"|(?<=[Ͱ-Ͼ])[;\u037e](?=\s)"  # a question in Greek
    rf"|(?:[{_WIDE}]++[{re.escape(_CLOSING)}]*+)++"
    r"|\n\s*\n|[\u2028\u2029]"
    r"|\n(?=[ \t]*(?:(?:[-*•‣◦▪]|\(?\d+[.)]|[a-z]\)|#{1,6})\s|\d+、|[（(][\d一二三四五六七八九十]+[)）]|[①-⑳|]))"
)
_CODE = re.compile(r"^[ \t]*(```|~~~).*?(?:^[ \t]*\1[ \t]*$|\Z)", re.DOTALL | re.MULTILINE)
_IN_LINE = re.compile(r"`(?! )[^`\n]+(?<! )`")
_NEXT = re.compile(r"\s*[\"'“‘«„(\[¿¡*_-]*(\S)(\S*)")
_ROMAN = re.compile(r"[IVX]{1,5}")

# Words that a period follows without ending the sentence: before a name, and wherever they stand.
_NEVER_ENDS = frozenset(
    "mr mrs ms dr prof st rev hon gen col capt lt sgt maj gov sen rep pres mt ft m mm mme mlle herr hr fr fa "
    "sr sra srta sres dra ud uds dott sig dhr mevr डॉ प्रो "
    "vs e.g i.e cf approx no nos vol vols pp p ch sec fig figs eq ed eds est dept univ "
    "jan feb mar apr jun jul aug sep sept oct nov dec b.a m.a "
    "z.b bzw ca d.h u.a o.ä nr str bspw ggf evtl vgl inkl zzgl mio mrd tsd tel abs "
    "p.ej ej pág núm art avda aprox p.ex c.-à-d env bd réf bijv d.w.z o.a np tzn "
    "т.е ул им стр рис см тыс млн млрд проф акад просп".split()
)
# Those that may end one: they do where what follows begins with a capital.
_MAY_END = frozenset(
    "etc a.m p.m u.s u.k u.n ph.d inc ltd co corp jr al usw u.s.w ecc enz itd itp b.c a.d т.д т.п др руб".split()
)
_OF_TIME = frozenset(
    "monday tuesday wednesday thursday friday saturday sunday january february march april may june july august "
    "september october november december est edt cst cdt mst mdt pst pdt et ct pt gmt utc cet cest bst".split()
)
_ORDINAL = re.compile(  # "am 3. Oktober", "im 19. Jahrhundert"
    r"(?:Jänner|Januar|Februar|März|April|Mai|Juni|Juli|August|September|Oktober|November|Dezember|Jahrhunderts?|Jh|"
    r"Jahrestag|Geburtstag|Lebensjahr|Klasse|Auflage|Weltkrieg|Etage|Stock|Platz|Kapitel)\b"
)


def sentences(text: str) -> list[str]:
    """The sentences of a text, stripped, none empty; a block of program code counts as one."""
    parts, start = [], 0
    for block in _CODE.finditer(text):
        parts += [*_prose(text[start : block.start()]), block.group().strip()]
        start = block.end()
    return [part for part in (*parts, *_prose(text[start:])) if part]


def split(text: str, splitter: Splitter | None) -> list[str]:
    """The parts of a text by a splitter, else its sentences; none blank. Raises `ValueError` for what is no list of
    texts.
    """
    found = list(sentences(text) if splitter is None else splitter(text))
    if not all(isinstance(one, str) for one in found):
        raise ValueError(f"a splitter gives a list of texts, not {found!r:.200}")
    return [one for one in found if one.strip()]


def _prose(text: str) -> list[str]:
    parts, start = [], 0
    code = [span.span() for span in _IN_LINE.finditer(text)][::-1]
    for match in _END.finditer(text):
        while code and code[-1][1] <= match.start():
            code.pop()
        inside = code and code[-1][0] < match.start()
        if not inside and _ends(text, start, match):
            parts.append(text[start : match.end()].strip())
            start = match.end()
    return [*parts, text[start:].strip()]


def _ends(text: str, start: int, match: re.Match[str]) -> bool:
    mark = match.group()
    if mark[0] in "\n\u2028\u2029":
        return True
    if mark[0] in _WIDE:  # in Japanese と goes on after what was quoted
        return not (mark[-1] in _CLOSING and text.startswith(("と", "って"), match.end()))
    following = _NEXT.match(text, match.end())
    if following is None:
        return False  # the end of the text: the last sentence is taken anyway
    begins, rest = following.groups()
    small = begins.islower() and not rest[:1].isupper()  # iPhone
    if mark[0] == "." and not mark.startswith(".."):
        before = text[max(start, match.start() - 40) : match.start()]
        return not small and _period_ends(before, begins + rest)
    return not small or (mark[0] in "!?" and mark[-1] not in _CLOSING + "“‘«")


def _period_ends(before: str, following: str) -> bool:
    words = ["", "", *before.split(), *[""] * before[-1:].isspace()]
    earlier, word = words[-2], words[-1].lstrip("\"'“‘«„(")
    lower = word.lower()
    if lower in _NEVER_ENDS:
        return False
    if lower in _MAY_END:
        moment = lower in ("a.m", "p.m") and following.rstrip(",.;:!?").lower() in _OF_TIME
        return following[0].isupper() and not moment
    if len(word) == 1 and word.isalpha() and word != "I":
        return word.islower() and earlier[-1:].isdigit()  # an initial; but "10 g" is none
    if before.strip() == word and ((word.isdigit() and len(word) <= 2) or _ROMAN.fullmatch(word)):
        return False  # the number of a list's entry
    return not (word.isdigit() and len(word) <= 2 and _ORDINAL.match(following))
