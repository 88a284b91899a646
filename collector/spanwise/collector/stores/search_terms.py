"""Search terms of all backends: texts in a JSON value, tokens of Chinese, Japanese and Korean text, terms of a search.

Engines split text into words, but take a whole sentence of Chinese or Japanese for one word. Such text is therefore
split into overlapping pairs of characters before it is indexed, and a search for it becomes a phrase of pairs:
`返品の方法` is indexed as `返品 品の の方 方法 法`, and `返品の` is searched as the phrase `返品 品の`.
"""

from __future__ import annotations

import math
import re
import unicodedata
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from spanwise.collector.errors import Refused
from spanwise.collector.filters import CJK_CHARACTERS, MAX_CONDITION_VALUES, MAX_PREFIXES, parse_search_terms
from spanwise.collector.records import JSON
from spanwise.collector.stores.table_rows import loads


def iterate_leaves(value: JSON) -> Iterator[str]:
    """Yield the texts and numbers in a JSON value, in order."""
    stack = [value]
    while stack:
        item = stack.pop()
        if isinstance(item, str):
            yield item
        elif isinstance(item, dict):
            stack.extend(reversed(item.values()))
        elif isinstance(item, (list, tuple)):
            stack.extend(reversed(item))
        elif isinstance(item, (int, float)) and not isinstance(item, bool):
            yield str(item)


def add_leaves(found: dict[str, None], inputs: JSON, outputs: JSON, payload: bytes) -> None:
    """Add the texts and numbers of inputs and outputs to `found`, in the form in which they are read back from
    `payload`.

    `payload` was encoded from these values. It is parsed only if decoding could change a value.
    """
    if type(inputs) is str and (outputs is None or type(outputs) is str):
        found[inputs] = None
        if outputs is not None:
            found[outputs] = None
        return
    leaves = _plain_leaves([outputs, inputs])
    if leaves is None:
        stored = loads(payload)
        leaves = list(iterate_leaves((stored.get("inputs"), stored.get("outputs"))))
    found.update(dict.fromkeys(leaves))


def _plain_leaves(stack: list[Any]) -> list[str] | None:
    """Return the leaves of values that survive a JSON round trip unchanged; None for others, such as dates or keys that
    are not text.
    """
    found: list[str] = []
    while stack:
        item = stack.pop()
        kind = type(item)
        if kind is str:
            found.append(item)
        elif kind is dict:
            for key in item:
                if type(key) is not str:
                    return None
            stack.extend(reversed(item.values()))
        elif kind is list or kind is tuple:
            stack.extend(reversed(item))
        elif kind is int or (kind is float and math.isfinite(item)):
            found.append(str(item))
        elif not (item is None or kind is bool or kind is float):
            return None
    return found


_CJK_RUN = re.compile(f"[{CJK_CHARACTERS}\u3099\u309a]+")  # with the marks that follow decomposed kana


def split_cjk(text: str) -> str:
    """Return a text in which Chinese, Japanese and Korean text is split into pairs of characters."""
    # most text is ASCII, and the check takes no time
    return text if text.isascii() else _CJK_RUN.sub(_split_run, text)


def _split_run(match: re.Match[str]) -> str:
    """Return the pairs of adjacent characters, and the last character, so that a search for one character finds it."""
    run = unicodedata.normalize("NFC", match[0])
    return f" {' '.join([run[start : start + 2] for start in range(len(run))])} "


class IndexTerm(NamedTuple):
    """Term of a search as the index has it: adjacent tokens, of which the last may be the beginning of a token."""

    tokens: Sequence[str]
    is_prefix: bool


def compile_terms(text: str) -> list[IndexTerm]:
    """Return the terms of a search, all of which must match (see `parse_search_terms`).

    A prefix that another term already implies is left out, because prefixes are costly.
    """
    terms = parse_search_terms(text)
    words = sorted(word for term in terms for word in term.words)
    compiled = []
    for term in terms:
        if term.is_prefix and len(term.words) == 1:
            # The words that begin with the prefix follow each other; the first one is the term's own
            following = bisect_left(words, term.words[0]) + 1
            if following < len(words) and words[following].startswith(term.words[0]):
                continue
        tokens, is_prefix = _CJK_RUN.sub(_split_run, " ".join(term.words)).split(), term.is_prefix
        last_word = term.words[-1]
        if _CJK_RUN.match(last_word[-1]):
            # The run may go on in the text. A pair needs no prefix, and a single character begins all of its pairs
            is_prefix = _CJK_RUN.match(last_word[-2:-1]) is None
            tokens = tokens if is_prefix else tokens[:-1]
        compiled.append(IndexTerm(tokens, is_prefix))
    return compiled


# Prefixes with too many matching words: to merge the lists of 200,000 traces takes at least 0.1 s. From U+3000 on, as
# in Chinese, a single character is as rare as a word
_SHORT_PREFIX = re.compile(r"[^\s\u1100-\u11ff\u3000-\U0010ffff]{1,2}")


def check_terms(terms: Sequence[IndexTerm]) -> None:
    """Raise `Refused` if a search has too many prefixes or words, or a prefix that is too short."""
    prefixes = [term.tokens[-1] for term in terms if term.is_prefix]
    if len(prefixes) > MAX_PREFIXES:
        raise Refused(f"text has more than {MAX_PREFIXES} prefixes such as `pay*`; write some of the words out")
    if short := next(filter(_SHORT_PREFIX.fullmatch, prefixes), None):
        raise Refused(f"the prefix {short + '*'!r} in text is too short; write at least three letters before `*`")
    if (count := sum(len(term.tokens) for term in terms)) > MAX_CONDITION_VALUES:
        raise Refused(f"text has {count:,} words, more than the limit of {MAX_CONDITION_VALUES}")
