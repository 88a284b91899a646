"""The steps of a procedure, as a text enumerates them: numbered lines, else bullets, else numbers in running text, else
sentences that begin with a word of sequence ("First, …", "然后…").
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from spanwise.evaluators.builtin._sentences import sentences

_BEFORE = r"[ \t]*+(?:[#>]++[ \t]*+)?[*_]{0,3}"  # of Markdown: headings, quotes, bold
_NUMBER = re.compile(
    rf"{_BEFORE}(?:"
    r"(?:step|schritt|[ée]tape|paso|passo|passaggio|stap|steg|krok|шаг|خطوة|الخطوة|चरण|단계)"
    r"[ \t]*\d{1,3}[ \t]*[.:)–—-]?"
    r"|第[ \t]*(?:\d{1,3}|[一二三四五六七八九十]{1,3})[ \t]*步[：:，,、.]?"
    r"|[一二三四五六七八九十]{1,3}、|\d{1,3}[、．]|[①-⑳]"
    r"|\(?\d{1,3}(?:\.\d{1,3})*[.)](?=[*_]{0,3}\s|[*_]{0,3}[^\W\d_])|\(?[a-z]\)(?=\s)|[ivxIVX]{1,5}[.)](?=\s)"
    r")[*_]{0,3}[ \t]*",
    re.IGNORECASE,
)
_BULLET = re.compile(r"[ \t]*+[-*•‣◦▪●–—][ \t]+(?:\[[ xX]\][ \t]+)?")
_FENCE = re.compile(r"[ \t]*+(?:```|~~~)")
_INLINE = re.compile(r"(?<![^\s:：;,])\(?(\d{1,2})[.)]\s+")
_SEQUENCE = re.compile(
    r"(?:(?:first(?:ly)?|to (?:begin|start)(?: with)?|second(?:ly)?|third(?:ly)?|fourth(?:ly)?|then|next"
    r"|after(?:wards| that)|finally|lastly"
    r"|zuerst|zunächst|dann|danach|anschließend|schließlich|zuletzt|d['’]abord|ensuite|puis|enfin"
    r"|primero|luego|después|finalmente|por último|сначала|затем|потом|наконец)\b"
    r"|首先|然后|接着|接下来|最后|まず|次に|最後に|(?:أولا|أولًا|ثم|أخيرا|أخيرًا|पहले|फिर|अंत में)(?=\W))[,،，、:：]?\s*",
    re.IGNORECASE,
)


def steps(text: str) -> list[str]:
    """The steps in their order, without their numbers; none empty, and none where nothing is enumerated."""
    lines = text.splitlines()
    found = list(_listed(lines, _NUMBER)) or list(_listed(lines, _BULLET)) or _inline(text) or _in_sequence(text)
    return [step for one in found if (step := " ".join(one.split()).strip(" *_"))]


def _listed(lines: list[str], marker: re.Pattern[str]) -> Iterator[str]:
    """Entries of lists: a line that begins with a marker, and what follows it up to the next or the end of the list.

    After a blank line only what is indented belongs to the entry; program code does, whatever its lines begin with.
    """
    entry: list[str] | None = None
    fenced = blank = False
    for line in lines:
        fenced ^= bool(_FENCE.match(line))
        begins = None if fenced else marker.match(line)
        if begins or (blank and line[:1].strip() and not fenced):
            if entry:
                yield " ".join(entry)
            entry = [line[begins.end() :]] if begins else None
        elif entry is not None:
            entry.append(line)
        blank = not line.strip()
    if entry:
        yield " ".join(entry)


def _inline(text: str) -> list[str]:
    """What stands behind 1, 2, 3, … in running text, from two on."""
    cuts: list[tuple[int, int]] = []
    for found in _INLINE.finditer(text):
        if int(found.group(1)) == len(cuts) + 1:
            cuts.append(found.span())
    ends = [start for start, _ in cuts[1:]] + [len(text)]
    return [text[begin:end].strip(" ,;") for (_, begin), end in zip(cuts, ends, strict=True)] if len(cuts) > 1 else []


def _in_sequence(text: str) -> list[str]:
    """Sentences from one word of sequence to the next, where there are two of these or more."""
    found: list[list[str]] = []
    for sentence in sentences(text):
        word = _SEQUENCE.match(sentence)
        if word:
            found.append([sentence[word.end() :]])
        elif found:
            found[-1].append(sentence)
    return [" ".join(one) for one in found] if len(found) > 1 else []
