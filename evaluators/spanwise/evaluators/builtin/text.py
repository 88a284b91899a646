"""Text evaluators: exact, contains, regex, length, not_empty, BLEU, ROUGE and edit distances.

BLEU and ROUGE are implemented here because they run per case on live traffic. The tests compare them with NLTK,
sacrebleu, rouge-score and rapidfuzz.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from math import exp, log
from typing import Any, Literal, cast

import orjson

from spanwise.evaluators.builtin.case_text import extract_text
from spanwise.evaluators.builtin.case_text import get_tokenizer as tokenizer_of
from spanwise.evaluators.builtin.looping import compression_ratio, repeated_share, unique_sentences
from spanwise.evaluators.builtin.text_matching import check_time_limit, compile_pattern, search_pattern
from spanwise.evaluators.interface import Metric, Skip, register_builtin
from spanwise.evaluators.interface.evaluator_spec import OUTCOMES, VALID

__all__ = [
    "Contains",
    "Exact",
    "Length",
    "NotEmpty",
    "Regex",
    "bleu",
    "bleus",
    "compression_ratio",
    "contains",
    "exact",
    "fuzzy",
    "levenshtein",
    "repeated_share",
    "rouge",
    "rouge_parts",
    "search_pattern",
    "unique_sentences",
]

LengthUnit = Literal["characters", "words"]


def exact(outputs: Any, reference_outputs: Any) -> float:
    """Return 1.0 if outputs and reference are identical: no stripping, no change of case, no Unicode normalisation.

    A difference of types alone does not count: a text is compared with the JSON of a dict, list or number.
    """
    if isinstance(outputs, str) and isinstance(reference_outputs, str):
        return float(outputs == reference_outputs)
    if isinstance(outputs, list | tuple) and isinstance(reference_outputs, list | tuple):
        return float(list(outputs) == list(reference_outputs))  # JSON has no tuples
    numbers = isinstance(outputs, int | float) and isinstance(reference_outputs, int | float)
    if numbers or type(outputs) is type(reference_outputs):
        return float(bool(outputs == reference_outputs))
    if outputs is None:
        return 0.0  # None is not equal to an empty text
    if _is_json_of(outputs, reference_outputs) or _is_json_of(reference_outputs, outputs):
        return 1.0
    return float(extract_text(outputs) == extract_text(reference_outputs))


def _is_json_of(text: Any, value: Any) -> bool:
    """Return whether a text is the JSON of a dict, a list or a number.

    A number 4.0 equals the text "4", because a column of integers with gaps is read as floats.
    """
    if not isinstance(text, str) or isinstance(value, str | bool) or value is None:
        return False
    if isinstance(value, int | float):
        return text == str(value) or (isinstance(value, float) and value.is_integer() and text == str(int(value)))
    try:
        return bool(orjson.loads(text) == value)
    except orjson.JSONDecodeError:
        return False


def contains(text: str, part: str, *, ignore_case: bool = False) -> bool:
    """Return whether `part` occurs in `text`."""
    return part.casefold() in text.casefold() if ignore_case else part in text


@register_builtin(
    "exact",
    metrics=(Metric("exact", primary=True),),
    version="2",
    standards=(VALID, OUTCOMES),
    source="Laminar: exact matcher",
    canonical="equality of strings",
    example='get_evaluator("exact"), outputs="Hello!", reference_outputs="hello!"',
)
@dataclass(frozen=True, slots=True)
class Exact:
    """1 if the answer is the reference, character by character, else 0.

    Nothing is stripped, folded or normalised. If both are dicts or lists, they are compared as values.
    """

    def __call__(self, outputs: Any, reference_outputs: Any) -> float:
        return exact(outputs, reference_outputs)


@register_builtin(
    "contains",
    metrics=(Metric("contains", primary=True),),
    standards=(VALID, OUTCOMES),
    source="LangSmith: heuristic evaluators",
    canonical="`in` of Python",
    example='get_evaluator("contains", ignore_case=True), outputs="It is in PARIS.", reference_outputs=["Paris", "France"]',
)
@dataclass(frozen=True, slots=True)
class Contains:
    """True if the answer contains `text`, or by default the reference.

    For a list, each of its members must occur (`all`, the default), or one of them (`match="any"`).
    """

    text: str | tuple[str, ...] | None = None
    ignore_case: bool = False
    match: Literal["all", "any"] = "all"

    def __post_init__(self) -> None:
        if self.text is not None and not all([self.text] if isinstance(self.text, str) else [*self.text, self.text]):
            raise ValueError(
                f"text must not be or contain an empty string, which is in every answer, got {self.text!r}"
            )

    def __call__(self, outputs: Any, reference_outputs: Any = None) -> dict[str, Any]:
        parts = self._parts(reference_outputs)
        answer = extract_text(outputs)
        missing = [part for part in parts if not contains(answer, part, ignore_case=self.ignore_case)]
        passed = not missing if self.match == "all" else len(missing) < len(parts)
        return {"score": passed, "comment": None if passed else f"not found: {', '.join(map(repr, missing))}"}

    def _parts(self, reference: Any) -> list[str]:
        wanted = reference if self.text is None else self.text
        if wanted is None:
            raise Skip("needs reference_outputs (or the parameter text); the case has none")
        parts = list(wanted) if isinstance(wanted, list | tuple) else [wanted]
        parts = [extract_text(part) for part in parts]
        if not parts:
            raise Skip("the reference is an empty list: there is nothing to look for")
        return parts


@register_builtin(
    "regex",
    metrics=(Metric("regex", primary=True),),
    standards=(VALID,),
    source="Laminar: regex matcher",
    canonical="re.search",
    example='get_evaluator("regex", pattern=r"Hel+o, \\w+!"), outputs="Hello, world!"',
)
@dataclass(frozen=True, slots=True)
class Regex:
    r"""1 if the pattern is found anywhere in the answer, else 0; `^` and `$` anchor it.

    `flags` are letters as in `(?i)`. A search that takes longer than `seconds` (a pattern that backtracks
    endlessly) is an error of that case. The limit is CPU time of the process, so that a busy machine does not
    make a search fail. An invalid pattern is rejected when the evaluator is made.
    """

    pattern: str
    flags: str = ""
    seconds: float = 1.0

    def __post_init__(self) -> None:
        compile_pattern(self.pattern, self.flags)
        check_time_limit(self.seconds)

    def __call__(self, outputs: Any) -> float:
        return float(
            search_pattern(self.pattern, extract_text(outputs), flags=self.flags, seconds=self.seconds) is not None
        )


@register_builtin(
    "length",
    metrics=(Metric("length", range=(0.0, float("inf")), primary=True),),
    standards=(VALID,),
    source="LangSmith: heuristic evaluators",
    canonical="len of Python",
    example='get_evaluator("length", max=4, unit="words"), outputs="one two three four five"',
)
@dataclass(frozen=True, slots=True)
class Length:
    """Length of the answer in characters (code points) or words; with `min` or `max`, true if it is within them."""

    min: int | None = None
    max: int | None = None
    unit: LengthUnit = "characters"

    def __post_init__(self) -> None:
        if self.unit not in ("characters", "words"):
            raise ValueError(f"unit is 'characters' or 'words', not {self.unit!r}")
        for name in ("min", "max"):
            if (getattr(self, name) or 0) < 0:
                raise ValueError(f"{name} is 0 or more, as every length, not {getattr(self, name)!r}")
        if self.min is not None and self.max is not None and self.min > self.max:
            raise ValueError(f"min {self.min!r} is above max {self.max!r}")

    @property
    def metrics(self) -> tuple[Metric, ...]:
        """Return the metric: a boolean for a bounded length, a number for an unbounded one."""
        bounded = self.min is not None or self.max is not None
        return (Metric("length", (0.0, 1.0) if bounded else (0.0, float("inf")), primary=True),)

    def __call__(self, outputs: Any) -> dict[str, Any]:
        text = extract_text(outputs)
        length = len(text) if self.unit == "characters" else len(text.split())
        if self.min is None and self.max is None:
            return {"score": length}
        passed = (self.min is None or length >= self.min) and (self.max is None or length <= self.max)
        return {"score": passed, "comment": f"{length} {self.unit}"}


@register_builtin(
    "not_empty",
    metrics=(Metric("not_empty", primary=True),),
    version="2",
    standards=(VALID,),
    source="LangSmith: heuristic evaluators",
    canonical="str.strip",
    example='get_evaluator("not_empty"), outputs=" \\n"',
)
@dataclass(frozen=True, slots=True)
class NotEmpty:
    """True if the answer contains anything except white space.

    None is empty, and so is a list or dict of only empty values. If an answer has one text, as `length`, `exact` and
    `contains` find it, that text counts: `{"answer": ""}` is empty. A failed run has no answer: it is skipped.
    """

    def __call__(self, outputs: Any = None, run: Any = None) -> bool:
        if outputs is None and (run is None or run.status == "error"):
            raise Skip("needs outputs; " + ("the case has none" if run is None else f"the run failed: {run.error}"))
        if isinstance(outputs, bool | int | float):
            return True
        try:
            return bool(extract_text(outputs).strip())
        except ValueError:  # the outputs have no single text
            return not _is_empty(outputs)


def _is_empty(value: Any) -> bool:
    """Return whether a value contains only white space, empty lists and empty fields."""
    if isinstance(value, str):
        return not value.strip()
    if isinstance(value, Mapping):
        return all(map(_is_empty, value.values()))
    return value is None or (isinstance(value, list | tuple) and all(map(_is_empty, value)))


RougeScores = tuple[float, float, float]  # precision, recall, F1
# Maximum product of the lengths of two compared sequences: about 2 s, in C code that no timeout can interrupt.
MAX_CELLS = 4e10


def bleu(text: str, reference: str | Sequence[str], *, n: int = 4, tokenizer: str = "nltk") -> float:
    """Return the cumulative BLEU-n of one text, in [0, 1]: uniform weights, brevity penalty, no smoothing.

    The results equal those of NLTK's `sentence_bleu`, with one exception: if some order of n-grams has no match, NLTK
    gives about 1e-80 and this function 0.
    """
    return bleus(text, reference, n=n, tokenizer=tokenizer)[-1]


def bleus(text: str, reference: str | Sequence[str], *, n: int = 4, tokenizer: str = "nltk") -> list[float]:
    """Return BLEU-1 to BLEU-n. Raises `Skip` without a reference, `ValueError` for n below 1."""
    if n < 1:
        raise ValueError(f"n is 1 or more, not {n!r}")
    tokens_of = tokenizer_of(tokenizer)
    candidate = tokens_of(text)
    references = [tokens_of(text) for text in ([reference] if isinstance(reference, str) else reference)]
    if not references:
        raise Skip("the list of references is empty")
    if not candidate:
        return [0.0] * n
    length = len(candidate)
    closest = min(map(len, references), key=lambda reference: (abs(reference - length), reference))
    brevity_penalty = 1.0 if length > closest else exp(1 - closest / length)
    scores, logs = [], 0.0
    for order in range(1, n + 1):
        matched, total = _clipped_precision(candidate, references, order)
        logs += log(matched / total) if matched else float("-inf")
        scores.append(brevity_penalty * exp(logs / order))
    return scores


def rouge(text: str, reference: str, *, kind: str = "L", tokenizer: str = "rouge", stemmer: bool = False) -> float:
    """Return the F1 of ROUGE-1, ROUGE-2 or ROUGE-L (`kind` "1", "2", …, "L"), as rouge-score does, in [0, 1]."""
    return rouge_parts(text, reference, kind=kind, tokenizer=tokenizer, stemmer=stemmer)[2]


def rouge_parts(
    text: str, reference: str, *, kind: str = "L", tokenizer: str = "rouge", stemmer: bool = False
) -> RougeScores:
    """Return precision, recall and F1 of one kind of ROUGE."""
    return _rouge_scores(_stem_tokens(text, tokenizer, stemmer), _stem_tokens(reference, tokenizer, stemmer), kind)


def levenshtein(text: str, reference: str) -> float:
    """Return 1 − edits / length of the longer text, in [0, 1]; two empty texts are the same.

    Raises `ValueError` for texts whose comparison would take minutes.
    """
    _check_size(text, reference)
    return float(_load_similarity("Levenshtein")(text, reference))


def fuzzy(text: str, reference: str) -> float:
    """Return 2 × matches / sum of the lengths (insertions and deletions only), in [0, 1]: rapidfuzz's `ratio` over 100.

    Raises `ValueError` for texts whose comparison would take minutes.
    """
    _check_size(text, reference)
    return float(_load_similarity("Indel")(text, reference))


@register_builtin(
    "bleu",
    metrics=tuple(Metric(f"bleu_{n}", threshold=0.75, primary=n == 1) for n in range(1, 5)),
    standards=(VALID, OUTCOMES),
    source="H2O Eval Studio: BLEU",
    canonical="nltk sentence_bleu; sacrebleu",
    example='get_evaluator("bleu"), outputs="the cat sat on the mat", reference_outputs="the cat is on the mat"',
)
@dataclass(frozen=True, slots=True)
class Bleu:
    """BLEU-1 to BLEU-4 of the answer against the reference, or against a list of them.

    BLEU-n is the geometric mean of the precisions of 1- to n-grams, each clipped by the references, times the brevity
    penalty. It is cumulative, as in NLTK; not the precision of n-grams alone. There is no smoothing: an order without
    a match makes the score 0. `tokenizer`: "nltk" (default), "13a" (sacrebleu's), "unicode" or "characters".
    """

    tokenizer: str = "nltk"

    def __post_init__(self) -> None:
        tokenizer_of(self.tokenizer)

    def __call__(self, outputs: Any, reference_outputs: Any) -> list[dict[str, Any]]:
        scores = bleus(extract_text(outputs), extract_references(reference_outputs), tokenizer=self.tokenizer)
        return [{"key": f"bleu_{n}", "score": score} for n, score in enumerate(scores, 1)]


@register_builtin(
    "rouge",
    metrics=(
        Metric("rouge_1", threshold=0.75),
        Metric("rouge_2", threshold=0.75),
        Metric("rouge_l", threshold=0.75, primary=True),
    ),
    standards=(VALID, OUTCOMES),
    source="H2O Eval Studio: ROUGE",
    canonical="rouge-score",
    example='get_evaluator("rouge"), outputs="the cat sat on the mat", reference_outputs="the cat is on the mat"',
)
@dataclass(frozen=True, slots=True)
class RougeF1:
    """F1 of the words (ROUGE-1), pairs of words (ROUGE-2) and longest subsequence (ROUGE-L) shared with the reference.

    `tokenizer="rouge"` keeps a–z and 0–9 only, as rouge-score does: texts in other scripts then score 0.
    "unicode" keeps words of every script. `stemmer=True` reduces English words to their stems (Porter). Of
    several references the one with the best F1 counts.
    """

    tokenizer: str = "rouge"
    stemmer: bool = False

    def __post_init__(self) -> None:
        tokenizer_of(self.tokenizer)

    def __call__(self, outputs: Any, reference_outputs: Any) -> list[dict[str, Any]]:
        candidate = _stem_tokens(extract_text(outputs), self.tokenizer, self.stemmer)
        references = [
            _stem_tokens(text, self.tokenizer, self.stemmer) for text in extract_references(reference_outputs)
        ]
        return [
            {
                "key": f"rouge_{kind.lower()}",
                "score": max(_rouge_scores(candidate, tokens, kind)[2] for tokens in references),
            }
            for kind in ("1", "2", "L")
        ]


@register_builtin(
    "levenshtein",
    metrics=(Metric("levenshtein", primary=True),),
    standards=(VALID, OUTCOMES),
    source="rapidfuzz",
    canonical="rapidfuzz Levenshtein.normalized_similarity",
    example='get_evaluator("levenshtein"), outputs="kitten", reference_outputs="sitting"',
)
@dataclass(frozen=True, slots=True)
class LevenshteinSimilarity:
    """1 − (insertions + deletions + replacements) / length of the longer text, by code points.

    `ignore_case` folds case first. Of several references the closest counts.
    """

    ignore_case: bool = False

    def __call__(self, outputs: Any, reference_outputs: Any) -> float:
        return _best_similarity(levenshtein, outputs, reference_outputs, self.ignore_case)


@register_builtin(
    "fuzzy",
    metrics=(Metric("fuzzy", primary=True),),
    standards=(VALID, OUTCOMES),
    source="rapidfuzz",
    canonical="rapidfuzz fuzz.ratio / 100",
    example='get_evaluator("fuzzy"), outputs="kitten", reference_outputs="sitting"',
)
@dataclass(frozen=True, slots=True)
class FuzzyRatio:
    """Twice the common characters of the two texts over the sum of their lengths (insertions and deletions only).

    `ignore_case` folds case first. Of several references the closest counts.
    """

    ignore_case: bool = False

    def __call__(self, outputs: Any, reference_outputs: Any) -> float:
        return _best_similarity(fuzzy, outputs, reference_outputs, self.ignore_case)


def extract_references(value: Any) -> list[str]:
    """Return the texts of a reference: one, or a list of them. Raises `Skip` for an empty list."""
    if isinstance(value, list | tuple) and not (value and isinstance(value[0], dict)):
        if not value:
            raise Skip("the list of references is empty")
        return [extract_text(text) for text in value]
    return [extract_text(value)]


def _ngrams(tokens: list[str], order: int) -> Counter[tuple[str, ...]]:
    return Counter(zip(*[tokens[start:] for start in range(order)], strict=False))


def _clipped_precision(candidate: list[str], references: list[list[str]], order: int) -> tuple[int, int]:
    """Return the clipped matches of n-grams and the number of n-grams (at least 1, as in NLTK)."""
    counts = _ngrams(candidate, order)
    limits: Counter[tuple[str, ...]] = Counter()
    for reference in references:
        limits |= _ngrams(reference, order)
    matched = sum(min(count, limits[ngram]) for ngram, count in counts.items() if ngram in limits)
    return matched, max(1, len(candidate) - order + 1)


def _rouge_scores(candidate: list[str], reference: list[str], kind: str) -> RougeScores:
    if kind.upper() == "L":
        from rapidfuzz.distance import LCSseq

        _check_size(candidate, reference)
        return _f1_scores(int(LCSseq.similarity(candidate, reference)), len(candidate), len(reference))
    if not kind.isdecimal() or int(kind) < 1:
        raise ValueError(f"kind is 'L' or a number from '1', not {kind!r}")
    order = int(kind)
    left, right = _ngrams(candidate, order), _ngrams(reference, order)
    common = sum(min(count, right[ngram]) for ngram, count in left.items() if ngram in right)
    return _f1_scores(common, max(1, len(candidate) - order + 1), max(1, len(reference) - order + 1))


@cache
def _load_similarity(distance: str) -> Callable[[str, str], float]:
    """Return a similarity function of rapidfuzz. It is cached, because the import statement takes as long as a short
    comparison.
    """
    from rapidfuzz import distance as distances

    return cast(Callable[[str, str], float], getattr(distances, distance).normalized_similarity)


def _check_size(left: Sequence[str], right: Sequence[str]) -> None:
    if len(left) * len(right) > MAX_CELLS and left != right:
        raise ValueError(
            f"{len(left):,} by {len(right):,} characters or words would take minutes to compare: shorten them with map="
        )


def _f1_scores(common: int, given: int, expected: int) -> RougeScores:
    precision = common / given if given else 0.0
    recall = common / expected if expected else 0.0
    return precision, recall, 2 * precision * recall / (precision + recall) if common else 0.0


def _stem_tokens(text: str, tokenizer: str, stemmer: bool) -> list[str]:
    tokens = tokenizer_of(tokenizer)(text)
    if not stemmer:
        return tokens
    from nltk.stem.porter import PorterStemmer

    stem = PorterStemmer().stem
    return [stem(token) if len(token) > 3 else token for token in tokens]  # as rouge-score, keep short words unchanged


def _best_similarity(similarity: Callable[[str, str], float], outputs: Any, reference: Any, ignore_case: bool) -> float:
    """Return the similarity of the answer to the closest reference."""
    fold = str.casefold if ignore_case else str
    answer = fold(extract_text(outputs))
    return max(similarity(answer, fold(text)) for text in extract_references(reference))
