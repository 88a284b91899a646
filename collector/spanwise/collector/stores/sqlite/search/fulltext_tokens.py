"""Tokens of the full-text index: preparation of text for FTS5's tokenizer, and FTS5 expressions for searches.

FTS5's `unicode61` splits text into words, and ignores case and accents. It takes a whole sentence of Chinese or Japanese
for one word. Such text is therefore split into overlapping pairs of characters before it is indexed, and a search for
it becomes a phrase of pairs: `返品の方法` is indexed as `返品 品の の方 方法 法`, and `返品の` is searched as `"返品 品の"`.
"""

from __future__ import annotations

import re
import unicodedata
from bisect import bisect_left

from spanwise.collector.filters import CJK_CHARACTERS, parse_search_terms
from spanwise.collector.stores.sqlite.search.searchable_text import LEAF_SEPARATOR

_CJK_RUN = re.compile(f"[{CJK_CHARACTERS}\u3099\u309a]+")  # with the marks that follow decomposed kana
# A token between two texts of a trace. A search never contains it, because it is neither a letter nor a digit
_BOUNDARY = " \ue000 "


def split_text(text: str) -> str:
    """Return the text of a trace in the form in which FTS5 indexes it."""
    # most text is ASCII, and the check takes no time
    split = text if text.isascii() else _CJK_RUN.sub(_split_run, text)
    return split.replace(LEAF_SEPARATOR, _BOUNDARY)


def _split_run(match: re.Match[str]) -> str:
    """Return the pairs of adjacent characters, and the last character, so that a search for one character finds it."""
    run = unicodedata.normalize("NFC", match[0])
    return f" {' '.join([run[start : start + 2] for start in range(len(run))])} "


def compile_match(text: str) -> str:
    """Return the FTS5 expression for "all of these terms" (see `parse_search_terms`).

    A prefix that another term already implies is left out, because FTS5 merges the lists of all words with a prefix.
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
        compiled.append(f'"{" ".join(tokens)}"{"*" if is_prefix else ""}')
    return " ".join(compiled)
