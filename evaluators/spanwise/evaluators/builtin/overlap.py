"""How much two texts have in common: n-grams (BLEU, ROUGE) and edits (Levenshtein, fuzzy).

The arithmetic is our own because BLEU and ROUGE run per case on live traffic; the tests hold it to the numbers of NLTK,
sacrebleu, rouge-score and rapidfuzz.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from math import exp, log
from typing import Any, cast

from spanwise.evaluators.builtin._texts import text_of
from spanwise.evaluators.builtin._tokens import tokenizer as tokenizer_of
from spanwise.evaluators.protocol import Metric, Skip, builtin
from spanwise.evaluators.protocol.standards import OUTCOMES, VALID

Rouge = tuple[float, float, float]  # precision, recall, F1
# Length × length of two sequences whose edits are counted: some 2 s, in C, where no timeout ends it.
MOST_CELLS = 4e10


def bleu(text: str, reference: str | Sequence[str], *, n: int = 4, tokenizer: str = "nltk") -> float:
    """Cumulative BLEU-n of one text, in [0, 1]: uniform weights, brevity penalty, no smoothing.

    The numbers are those of NLTK's `sentence_bleu`, except that a score that it gives as about 1e-80 because some
    order of n-grams has no match is 0 here.
    """
    return bleus(text, reference, n=n, tokenizer=tokenizer)[-1]


def bleus(text: str, reference: str | Sequence[str], *, n: int = 4, tokenizer: str = "nltk") -> list[float]:
    """BLEU-1 to BLEU-n at once. Raises `Skip` when there is no reference, `ValueError` for n below 1."""
    if n < 1:
        raise ValueError(f"n is 1 or more, not {n!r}")
    tokens_of = tokenizer_of(tokenizer)
    candidate = tokens_of(text)
    references = [tokens_of(text) for text in ([reference] if isinstance(reference, str) else reference)]
    if not references:
        raise Skip("the list of references is empty")
    if not candidate:
        return [0.0] * n
    penalty = _brevity(len(candidate), [len(tokens) for tokens in references])
    return _cumulative([_precision(candidate, references, order) for order in range(1, n + 1)], penalty)


def rouge(text: str, reference: str, *, kind: str = "L", tokenizer: str = "rouge", stemmer: bool = False) -> float:
    """F1 of ROUGE-1, ROUGE-2 or ROUGE-L (`kind` "1", "2", …, "L"), as rouge-score gives it, in [0, 1]."""
    return rouge_parts(text, reference, kind=kind, tokenizer=tokenizer, stemmer=stemmer)[2]


def rouge_parts(
    text: str, reference: str, *, kind: str = "L", tokenizer: str = "rouge", stemmer: bool = False
) -> Rouge:
    """Precision, recall and F1 of one kind of ROUGE."""
    return _rouge(_stemmed(text, tokenizer, stemmer), _stemmed(reference, tokenizer, stemmer), kind)


def levenshtein(text: str, reference: str) -> float:
    """1 − edits / length of the longer text, in [0, 1]; two empty texts are the same.

    Raises `ValueError` for texts that it would take minutes to compare.
    """
    _check_size(text, reference)
    return float(_similarity("Levenshtein")(text, reference))


def fuzzy(text: str, reference: str) -> float:
    """2 × matches / sum of the lengths (insertions and deletions only), in [0, 1]: rapidfuzz's `ratio` over 100.

    Raises `ValueError` for texts that it would take minutes to compare.
    """
    _check_size(text, reference)
    return float(_similarity("Indel")(text, reference))


@builtin(
    "bleu",
    metrics=tuple(Metric(f"bleu_{n}", threshold=0.75, primary=n == 1) for n in range(1, 5)),
    standards=(VALID, OUTCOMES),
    source="H2O Eval Studio: BLEU",
    canonical="nltk sentence_bleu; sacrebleu",
    example='get("bleu"), outputs="the cat sat on the mat", reference_outputs="the cat is on the mat"',
)
@dataclass(frozen=True, slots=True)
class Bleu:
    """BLEU-1 to BLEU-4 of the answer against the reference, or against a list of them.

    BLEU-n is the geometric mean of the precisions of 1- to n-grams, each clipped by the references, times the brevity
    penalty (cumulative, as NLTK gives it; not the precision of n-grams alone). Without smoothing: an order without a
    match makes the score 0. `tokenizer`: "nltk" (default), "13a" (sacrebleu's), "unicode" or "characters".
    """

    tokenizer: str = "nltk"

    def __post_init__(self) -> None:
        tokenizer_of(self.tokenizer)

    def __call__(self, outputs: Any, reference_outputs: Any) -> list[dict[str, Any]]:
        scores = bleus(text_of(outputs), references_of(reference_outputs), tokenizer=self.tokenizer)
        return [{"key": f"bleu_{n}", "score": score} for n, score in enumerate(scores, 1)]


@builtin(
    "rouge",
    metrics=(
        Metric("rouge_1", threshold=0.75),
        Metric("rouge_2", threshold=0.75),
        Metric("rouge_l", threshold=0.75, primary=True),
    ),
    standards=(VALID, OUTCOMES),
    source="H2O Eval Studio: ROUGE",
    canonical="rouge-score",
    example='get("rouge"), outputs="the cat sat on the mat", reference_outputs="the cat is on the mat"',
)
@dataclass(frozen=True, slots=True)
class RougeF1:
    """F1 of the words (ROUGE-1), pairs of words (ROUGE-2) and longest subsequence (ROUGE-L) shared with the reference.

    `tokenizer="rouge"` keeps a–z and 0–9 only, as rouge-score does: texts in other scripts then score 0. "unicode"
    keeps words of every script. `stemmer=True` cuts English words to their stems (Porter). Of several references the
    one with the best F1 counts.
    """

    tokenizer: str = "rouge"
    stemmer: bool = False

    def __post_init__(self) -> None:
        tokenizer_of(self.tokenizer)

    def __call__(self, outputs: Any, reference_outputs: Any) -> list[dict[str, Any]]:
        candidate = _stemmed(text_of(outputs), self.tokenizer, self.stemmer)
        references = [_stemmed(text, self.tokenizer, self.stemmer) for text in references_of(reference_outputs)]
        return [
            {"key": f"rouge_{kind.lower()}", "score": max(_rouge(candidate, tokens, kind)[2] for tokens in references)}
            for kind in ("1", "2", "L")
        ]


@builtin(
    "levenshtein",
    metrics=(Metric("levenshtein", primary=True),),
    standards=(VALID, OUTCOMES),
    source="rapidfuzz",
    canonical="rapidfuzz Levenshtein.normalized_similarity",
    example='get("levenshtein"), outputs="kitten", reference_outputs="sitting"',
)
@dataclass(frozen=True, slots=True)
class LevenshteinSimilarity:
    """1 − (insertions + deletions + replacements) / length of the longer text, by code points.

    `ignore_case` folds case first. Of several references the closest counts.
    """

    ignore_case: bool = False

    def __call__(self, outputs: Any, reference_outputs: Any) -> float:
        return _closest(levenshtein, outputs, reference_outputs, self.ignore_case)


@builtin(
    "fuzzy",
    metrics=(Metric("fuzzy", primary=True),),
    standards=(VALID, OUTCOMES),
    source="rapidfuzz",
    canonical="rapidfuzz fuzz.ratio / 100",
    example='get("fuzzy"), outputs="kitten", reference_outputs="sitting"',
)
@dataclass(frozen=True, slots=True)
class FuzzyRatio:
    """Twice what the two texts have in common over their lengths together (insertions and deletions only).

    `ignore_case` folds case first. Of several references the closest counts.
    """

    ignore_case: bool = False

    def __call__(self, outputs: Any, reference_outputs: Any) -> float:
        return _closest(fuzzy, outputs, reference_outputs, self.ignore_case)


def references_of(value: Any) -> list[str]:
    """The texts of a reference: one, or a list of them. Raises `Skip` for an empty list."""
    if isinstance(value, list | tuple) and not (value and isinstance(value[0], dict)):
        if not value:
            raise Skip("the list of references is empty")
        return [text_of(text) for text in value]
    return [text_of(value)]


def _ngrams(tokens: list[str], order: int) -> Counter[tuple[str, ...]]:
    return Counter(zip(*[tokens[start:] for start in range(order)], strict=False))


def _precision(candidate: list[str], references: list[list[str]], order: int) -> tuple[int, int]:
    """Clipped matches of n-grams and their number (at least 1, as NLTK has it)."""
    counts = _ngrams(candidate, order)
    limits: Counter[tuple[str, ...]] = Counter()
    for reference in references:
        limits |= _ngrams(reference, order)
    matched = sum(min(count, limits[ngram]) for ngram, count in counts.items() if ngram in limits)
    return matched, max(1, len(candidate) - order + 1)


def _brevity(length: int, references: list[int]) -> float:
    closest = min(references, key=lambda reference: (abs(reference - length), reference))
    return 1.0 if length > closest else exp(1 - closest / length)


def _cumulative(precisions: list[tuple[int, int]], penalty: float) -> list[float]:
    scores, logs = [], 0.0
    for order, (matched, total) in enumerate(precisions, 1):
        logs += log(matched / total) if matched else float("-inf")
        scores.append(penalty * exp(logs / order))
    return scores


def _rouge(candidate: list[str], reference: list[str], kind: str) -> Rouge:
    if kind.upper() == "L":
        return _f1(_common_subsequence(candidate, reference), len(candidate), len(reference))
    if not kind.isdecimal() or int(kind) < 1:
        raise ValueError(f"kind is 'L' or a number from '1', not {kind!r}")
    order = int(kind)
    left, right = _ngrams(candidate, order), _ngrams(reference, order)
    common = sum(min(count, right[ngram]) for ngram, count in left.items() if ngram in right)
    return _f1(common, max(1, len(candidate) - order + 1), max(1, len(reference) - order + 1))


@cache
def _similarity(distance: str) -> Callable[[str, str], float]:
    """Of rapidfuzz; once, since an import within a call takes as long as a short comparison."""
    from rapidfuzz import distance as distances

    return cast(Callable[[str, str], float], getattr(distances, distance).normalized_similarity)


def _common_subsequence(left: list[str], right: list[str]) -> int:
    from rapidfuzz.distance import LCSseq

    _check_size(left, right)
    return int(LCSseq.similarity(left, right))


def _check_size(left: Sequence[str], right: Sequence[str]) -> None:
    if len(left) * len(right) > MOST_CELLS and left != right:
        raise ValueError(
            f"{len(left):,} by {len(right):,} characters or words would take minutes to compare: shorten them with map="
        )


def _f1(common: int, given: int, expected: int) -> Rouge:
    precision = common / given if given else 0.0
    recall = common / expected if expected else 0.0
    return precision, recall, 2 * precision * recall / (precision + recall) if common else 0.0


def _stemmed(text: str, tokenizer: str, stemmer: bool) -> list[str]:
    tokens = tokenizer_of(tokenizer)(text)
    if not stemmer:
        return tokens
    from nltk.stem.porter import PorterStemmer

    stem = PorterStemmer().stem
    return [stem(token) if len(token) > 3 else token for token in tokens]  # short words as they are: rouge-score's way


def _closest(similarity: Callable[[str, str], float], outputs: Any, reference: Any, ignore_case: bool) -> float:
    """How similar the answer is to the nearest of the references."""
    fold = str.casefold if ignore_case else str
    answer = fold(text_of(outputs))
    return max(similarity(answer, fold(text)) for text in references_of(reference))
