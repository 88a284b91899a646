"""Texts as detectors search them: without what is not seen, and in ASCII where other characters stand for its own.

And back: from places in what is seen of a text to places in the text as it was written.
"""

from __future__ import annotations

import re
import unicodedata
from bisect import bisect_right

# Unicode's Default_Ignorable_Code_Point: characters that are not shown, and only hide what stands beside them.
_UNSEEN = re.compile(
    "[\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f\u3164\ufe00-\ufe0f\ufeff"
    "\uffa0\ufff0-\ufff8\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff]+"
)
# Spaces, hyphens, full-width letters and digits as typographers and East Asian keyboards write them, one for one.
_PLAIN = str.maketrans(
    {
        **dict.fromkeys("\u00a0\u2007\u2009\u202f\u3000", " "),
        **dict.fromkeys("\u2010\u2011\u2012\u2013\u2212", "-"),
        **{chr(0xFF00 + place): chr(0x20 + place) for place in range(1, 95)},
    }
)
_TYPOGRAPHIC = re.compile("[\u00a0\u2007\u2009\u202f\u3000\u2010-\u2013\u2212\uff01-\uff5e]")
_OTHER_DIGIT = re.compile(r"[^\D0-9]")  # Arabic-Indic, Devanagari, …
# Scripts that put no spaces between words put none between a word and a number either.
_SPACELESS = "[\u0e00-\u0eff\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]"
_BESIDE = re.compile(rf"{_SPACELESS}(?=[0-9A-Za-z])|(?<=[0-9A-Za-z]){_SPACELESS}")


def seen(text: str) -> str:
    """What is seen of a text: without characters that are not shown."""
    return text if text.isascii() else _UNSEEN.sub("", text)


def plainly(text: str) -> str:
    """What is seen of a text, in ASCII where other letters, digits, spaces and hyphens stand for it, one for one."""
    if text.isascii():
        return text
    text = seen(text)
    if _TYPOGRAPHIC.search(text):  # what most texts have none of is found faster than it is replaced
        text = text.translate(_PLAIN)
    text = _OTHER_DIGIT.sub(lambda match: str(unicodedata.decimal(match.group())), text)
    return _BESIDE.sub(" ", text)


class Places:
    """From places in what is seen of a text to places in the text itself."""

    def __init__(self, text: str) -> None:
        self._gaps, self._taken = [-1], [0]  # where something was taken out, and how much up to there
        for match in () if text.isascii() else _UNSEEN.finditer(text):
            self._gaps.append(match.start() - self._taken[-1])
            self._taken.append(self._taken[-1] + len(match.group()))

    def __call__(self, start: int, end: int) -> tuple[int, int]:
        """Where what is seen from `start` to `end` begins and ends in the text."""
        return self._of(start), self._of(end - 1) + 1

    def _of(self, place: int) -> int:
        return place + self._taken[bisect_right(self._gaps, place) - 1]
