"""Words of a question or a text, as both BM25 and the choice of sentences count them."""

import re

_ENDING = re.compile(r"(ing|ed|es|s|e)$")
_ASKING = ("am", "can", "do", "does", "from", "give", "how", "i", "me", "my", "should", "what", "when", "which", "why")


def words(text: str) -> list[str]:
    """Lower-case words without the commonest ones and without their commonest endings: "raises" → "rais"."""
    from bm25s.stopwords import STOPWORDS_EN

    common = {*_ASKING, *STOPWORDS_EN}
    return [_stem(word) for word in re.findall(r"\w+", text.lower()) if word not in common]


def _stem(word: str) -> str:
    return _ENDING.sub("", word) if len(word) > 3 else word
