"""Whether the answer is in the language of the question, without a judge."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from assay.collector.records import Document
from assay.evaluators.builtin._texts import question_of, text_of
from assay.evaluators.builtin._verdicts import family, verdict
from assay.evaluators.protocol import Skip, builtin
from assay.evaluators.protocol.standards import VALID

Detector = Callable[[str], str | None]

_NO_LANGUAGE = re.compile(
    r"```.*?(?:```|\Z)|`[^`\n]*`|(?<!\S)\S*(?:[/\\_@]|\d\.)\S*", re.DOTALL
)  # code, addresses, names
_LONGEST = 4000  # characters looked at: more do not change the verdict
# Letters of an alphabet needed to tell languages apart, and how sure py3langid must be. Of 12 to 20 letters of running
# text it is sure of 6 in 10 and wrong about 2 in 1000; names alone ("Barack Obama") it is seldom sure of.
_FEWEST, _FEW = 12, 20
_SURE, _SURE_OF_FEW = 0.6, 0.7
# Scripts that (nearly) one language writes: few letters are enough, and the script decides.
_OF_SCRIPT = {
    "HANGUL": "ko",
    "HIRAGANA": "ja",
    "KATAKANA": "ja",
    "THAI": "th",
    "GREEK": "el",
    "HEBREW": "he",
    "GEORGIAN": "ka",
    "ARMENIAN": "hy",
    "KHMER": "km",
    "LAO": "lo",
    "MYANMAR": "my",
    "TAMIL": "ta",
    "TELUGU": "te",
    "GUJARATI": "gu",
    "KANNADA": "kn",
    "MALAYALAM": "ml",
    "SINHALA": "si",
    "GURMUKHI": "pa",
}


def language(text: str) -> str | None:
    """The ISO 639-1 code of a text's language; None when it cannot be told: too few letters, code, numbers, a
    mixture.
    """
    prose = _prose(text)
    letters = _letters(prose)
    by_script = _by_script(letters)
    if by_script is not None:
        return by_script
    if len(letters) < _FEWEST:
        return None
    code, probability = _identifier().classify(prose)
    return str(code) if probability >= (_SURE if len(letters) >= _FEW else _SURE_OF_FEW) else None


def _prose(text: str) -> str:
    return _NO_LANGUAGE.sub(" ", text[: 4 * _LONGEST])[:_LONGEST]


def _letters(prose: str) -> list[str]:
    return [character for character in prose if character.isalpha()]


@builtin(
    "language_mismatch",
    metrics=family("language_mismatch"),
    standards=(VALID,),
    source="H2O Eval Studio: language mismatch",
    canonical="py3langid",
    example='get("language_mismatch"), inputs="Wie wird das Wetter morgen in Berlin?", '
    'outputs="It will be sunny, with a light wind."',
)
@dataclass(frozen=True, slots=True)
class LanguageMismatch:
    """Whether question and answer are in the same language, told by py3langid (97 languages, no model to download).

    Code, addresses and numbers are left out. Where either language cannot be told (fewer than 12 letters, a name alone,
    a mixture), the case is skipped; a script that one language writes tells it from fewer letters.
    `evaluate_retrieved_context=True` compares the context with the question, too. `detect` puts another detector in
    place: a function from a text to a language code, or None.
    """

    evaluate_retrieved_context: bool = False
    detect: Detector | None = None

    def __call__(self, inputs: Any, outputs: Any, documents: Sequence[Document] | None = None) -> list[dict[str, Any]]:
        asked = self._told("question", question_of(inputs))
        answered = self._told("answer", text_of(outputs))
        if {asked, answered} == {"ja", "zh"} and len(text_of(outputs)) < _FEWEST:
            raise Skip("few Chinese characters may be Japanese, too")
        context = None
        if documents and self.evaluate_retrieved_context:
            code = (self.detect or language)("\n".join(document.content for document in documents))
            context = None if code is None else code == asked
        return verdict("language_mismatch", answered == asked, context, comment=f"question {asked}, answer {answered}")

    def _told(self, what: str, text: str) -> str:
        code = (self.detect or language)(text)
        if code is None:
            raise Skip(f"the language of the {what} cannot be told{self._why(text)}")
        return code

    def _why(self, text: str) -> str:
        count = len(_letters(_prose(text)))
        short = self.detect is None and count < _FEWEST
        return f": it is too short, {count} letters of at least {_FEWEST}" if short else ""


def _by_script(letters: list[str]) -> str | None:
    """The language of a text in a script of its own; Chinese characters are Chinese where no kana is among them."""
    if not letters:
        return None
    names = [unicodedata.name(letter, "").partition(" ")[0] for letter in letters]
    kana = sum(name in ("HIRAGANA", "KATAKANA") for name in names)
    ideographs = names.count("CJK")
    if kana + ideographs > len(names) / 2:
        return "ja" if kana else "zh"
    likely = max(set(names), key=names.count)
    return _OF_SCRIPT.get(likely) if names.count(likely) > 0.7 * len(names) else None


@cache
def _identifier() -> Any:
    from py3langid.langid import MODEL_FILE, LanguageIdentifier

    return LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)
