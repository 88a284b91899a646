"""Full-text search: searchable words of a span, and the SQL condition of a search.

Each span stores the folded words of its inputs and outputs, in order, and a text index has a posting list for each
word. A search takes the spans of each term from the index and intersects their traces. A span is found as soon as it
is inserted, and no longer once it is replaced or deleted.

- A word is stored in lower case, without the accents of Latin letters, and with the mark `WORD_START`. With the mark,
  a search for `pay*` is `LIKE '%Wpay%'`, which the engine answers from the dictionary of the index. A separate table
  of distinct words is therefore not needed.
- Adjacent words are a phrase. The index finds spans with all of its words, and `position` tests their order. The
  texts of a span are separated by lines, so that no phrase matches the end of one text and the beginning of the next.
- Chinese, Japanese and Korean text is stored as pairs of characters (see `search_terms`), so that parts of a sentence
  are found.

The tokenizer `splitByNonAlpha` splits at everything but letters, digits and all characters beyond ASCII. `ngrams(3)`
would find parts of any word, which no other store does. Measured on 500,000 spans of 30 words: the index takes 53
bytes per span with `splitByNonAlpha` and 96 with `ngrams(3)`, and inserting and merging half the CPU. A search for the
beginning of a rare word takes 10 to 30 ms, and 500 ms with `ngrams(3)`.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable

from spanwise.collector.stores.clickhouse.connection import QueryParameters
from spanwise.collector.stores.search_terms import IndexTerm, check_terms, compile_terms, split_cjk

WORD_START = "W"  # a capital letter, which no folded word contains
_NEXT_WORD = f" {WORD_START}"
# Words as `filters.parse_search_terms` splits them
_WORD = re.compile(r"[^\W_\u19b0-\u19c9\u1cf2]+")
# Lower case of letters and digits, and spaces for other bytes, of text in ASCII. Bytes take half the time of text
_ASCII_WORDS = bytes(ord(chr(code).lower()) if chr(code).isalnum() and code < 128 else 32 for code in range(256))


def _fold_table() -> dict[int, str | None]:
    """Return the replacements of letters: Latin letters lose their accents, and variants become the usual letter."""
    table: dict[int, str | None] = dict.fromkeys(range(0x300, 0x370))
    for code in (*range(0xC0, 0x250), *range(0x1E00, 0x1F00)):
        base, *marks = list(unicodedata.normalize("NFD", chr(code)))
        if marks and all("\u0300" <= mark <= "\u036f" for mark in marks):
            table[code] = base.lower()
    return {**table, ord("ſ"): "s", ord("ς"): "σ", ord("µ"): "μ", ord("İ"): "i"}


_FOLDED = _fold_table()


def fold(text: str) -> str:
    """Return a text in lower case, without the accents of Latin letters."""
    if text.isascii():
        return text.lower()
    return unicodedata.normalize("NFC", text).translate(_FOLDED).lower()


def fold_words(texts: Iterable[str]) -> str:
    """Return the searchable words of several texts, each text once, for the column `spans.words`."""
    lines = []
    for text in dict.fromkeys(texts):
        if text.isascii():
            words = _NEXT_WORD.encode().join(text.encode().translate(_ASCII_WORDS).split()).decode()
        else:
            words = _NEXT_WORD.join(_WORD.findall(split_cjk(fold(text))))
        if words:
            lines.append(f" {WORD_START}{words} ")
    return "\n".join(lines)


def compile_text(text: str, parameters: QueryParameters) -> list[str]:
    """Return SQL conditions on a row `t` of `traces`, all of which hold for traces that contain all terms of a text.

    Raise `Refused` for too many or too short prefixes, and for too many words.
    """
    terms = compile_terms(text)
    check_terms(terms)
    found = []
    for term in terms:
        search = " AND ".join(_compile_term(term, parameters))
        of_spans = f"SELECT trace_id FROM {parameters.rows_of('spans')} AND {search}"
        if parameters.is_loose:
            # The index counts spans without reading them. If as many spans as half of the traces have the term, most of
            # the newest traces have it
            is_frequent = f"(SELECT 2 * count() > (SELECT count() FROM traces) FROM spans WHERE {search})"
            found.append(f"({is_frequent} OR t.trace_id IN ({of_spans} AND NOT {is_frequent}))")
        else:
            found.append(f"t.trace_id IN ({of_spans})")
    return found


def _compile_term(term: IndexTerm, parameters: QueryParameters) -> list[str]:
    tokens = [WORD_START + fold(token) for token in term.tokens]
    whole = tokens[:-1] if term.is_prefix else tokens
    conditions = []
    if whole:
        conditions.append(f"hasAllTokens(words, {parameters.bind(whole, 'Array(String)')})")
    if term.is_prefix:  # a token consists of letters and digits, so it has no wildcard
        conditions.append(f"words LIKE {parameters.bind(f'%{tokens[-1]}%', 'String')}")
    if len(tokens) > 1 and not parameters.is_loose:  # the index does not know the order of words
        phrase = f" {' '.join(tokens)}" + ("" if term.is_prefix else " ")
        conditions.append(f"position(words, {parameters.bind(phrase, 'String')}) > 0")
    return conditions
