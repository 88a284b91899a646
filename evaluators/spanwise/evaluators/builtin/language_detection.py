"""Language detection of texts, and comparison of the languages of question and answer."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from spanwise.collector.records import Document
from spanwise.evaluators.builtin.boolean_families import family_rows
from spanwise.evaluators.builtin.case_text import extract_question, extract_text
from spanwise.evaluators.interface import Skip

Detector = Callable[[str], str | None]

_NO_LANGUAGE = re.compile(
    r"```.*?(?:```|\Z)|`[^`\n]*`|(?<!\S)\S*(?:[/\\_@]|\d\.)\S*", re.DOTALL
)  # code, addresses, file names
_MAX_CHARACTERS = 4000  # characters that are read; more do not change the result
# Minimum letters of an alphabet, and the minimum certainty of py3langid. For running text of 12 to 20 letters,
# py3langid reaches it in 6 of 10 cases and is wrong in about 2 of 1000. For names alone ("Barack Obama") it seldom
# does.
_MIN_LETTERS, _FEW_LETTERS = 12, 20
_MIN_CERTAINTY, _MIN_CERTAINTY_OF_FEW = 0.6, 0.7
# Probabilities that a pair of texts shares a language: from the first on the languages are the same, up to the second
# they differ. To differ, each text must also have a language of the third probability, because names alone fit any
# language.
_SAME_FROM, _DIFFERENT_BELOW, _MIN_CERTAINTY_EACH = 0.95, 0.3, 0.55
_LANGUAGE_COUNT = 97  # languages that py3langid knows
# Written standards of one language, which one or two sentences cannot distinguish.
_MERGED_CODES = {"nb": "no", "nn": "no", "bs": "hr"}
# Scripts of (nearly) one language: few letters are enough, and the script decides.
_EAST_ASIAN_SCRIPTS = ("CJK", "HIRAGANA", "KATAKANA")  # Japanese mixes these, and some Japanese texts use only one
_MIN_LETTERS_OF_SCRIPT = {"latin": 30, "han": 2, "hangul": 2}  # minimum letters of a script; 4 for all others
_NAME_PARTICLES = frozenset(
    "de del della der den di da do dos das du la le van von zu zum zur el al bin ibn ben y e".split()
)
_LOWER = re.compile(r"(?<![^\W\d_])[a-zß-ÿ]+(?![^\W\d_])")
_IN_TWO_SCRIPTS = ("sr", "az", "uz", "kk", "ku", "pa", "ms", "mn", "tg", "bs", "hr")
_LANGUAGE_BY_SCRIPT = {
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


def detect_language(text: str) -> str | None:
    """Return the ISO 639-1 code of a text's language, or None if it is uncertain.

    It is uncertain for too few letters, code, numbers, or a mixture.
    """
    estimate = estimate_language(text)
    sure = 0.0 if estimate.by_script else _MIN_CERTAINTY if estimate.letters >= _FEW_LETTERS else _MIN_CERTAINTY_OF_FEW
    return estimate.best if estimate.likely and estimate.certainty >= sure else None


def _strip_code(text: str) -> str:
    return _NO_LANGUAGE.sub(" ", text[: 4 * _MAX_CHARACTERS])[:_MAX_CHARACTERS]


def _find_letters(prose: str) -> list[str]:
    """Return the letters and vowel signs of a text. Vowel signs are half of the characters in Indic scripts."""
    return [character for character in prose if character.isalpha() or _is_vowel_sign(character)]


def _is_vowel_sign(character: str) -> bool:
    if unicodedata.category(character) not in ("Mn", "Mc"):
        return False
    return not unicodedata.name(character, "COMBINING").startswith(("COMBINING", "VARIATION"))


@dataclass(frozen=True, slots=True)
class LanguageEstimate:
    """Estimate of a text's language.

    It holds the probability of each language (None for too short texts) and the number of letters.
    """

    likely: Mapping[str, float] | None
    letters: int
    by_script: bool = False
    script: str = ""  # script of nearly all letters, "" if they are too few or mixed

    @property
    def best(self) -> str:
        return max(self.likely, key=self.likely.__getitem__) if self.likely else ""

    @property
    def certainty(self) -> float:
        return max(self.likely.values()) if self.likely else 0.0


def estimate_language(text: str) -> LanguageEstimate:
    """Estimate the language of a text from its script, else with py3langid."""
    prose = _strip_code(text)
    letters = _find_letters(prose)
    script = _detect_script(prose, letters)
    if code := _language_of_script(letters):
        return LanguageEstimate({code: 1.0}, len(letters), by_script=True, script=script)
    if len(letters) < _MIN_LETTERS:
        return LanguageEstimate(None, len(letters), script=script)
    likely: dict[str, float] = {}
    for code, probability in _load_identifier().rank(prose):
        code = _MERGED_CODES.get(code, code)
        likely[code] = likely.get(code, 0.0) + probability
    return LanguageEstimate(likely, len(letters), script=script)


def is_same_language(first: LanguageEstimate, second: LanguageEstimate) -> bool | None:
    """Return whether two texts are in the same language, or None if it is uncertain.

    The prior probability that question and answer share a language is 1/2, with all languages equally likely.
    Different scripts mean different languages, except for languages that are written in both scripts. Otherwise, a
    short text counts as the same language as the other text if its letters make that probable, and as a different one
    if they make it improbable.
    """
    if first.script and second.script and first.script != second.script:
        return first.best != "" and first.best == second.best and first.best in _IN_TWO_SCRIPTS
    if first.likely is None or second.likely is None:
        return None
    together = sum(probability * second.likely.get(code, 0.0) for code, probability in first.likely.items())
    same = together / (together + 1 / _LANGUAGE_COUNT)
    if same >= _SAME_FROM:
        return True
    is_different = same <= _DIFFERENT_BELOW and min(first.certainty, second.certainty) >= _MIN_CERTAINTY_EACH
    return False if is_different else None


@dataclass(frozen=True, slots=True)
class LanguageComparison:
    """Comparison of the languages of question and answer by their letters: `language_mismatch` without a judge.

    The parameter `detect` replaces the detector by a function from a text to a language code or None.
    """

    evaluate_retrieved_context: bool = False
    detect: Detector | None = None

    def __call__(self, inputs: Any, outputs: Any, documents: Sequence[Document] | None = None) -> list[dict[str, Any]]:
        asked, answered = self._tell(extract_question(inputs)), self._tell(extract_text(outputs))
        same = is_same_language(asked, answered)
        if {asked.best, answered.best} == {"ja", "zh"} and answered.letters < _MIN_LETTERS:
            raise Skip("few Chinese characters may be Japanese, too")
        if same is None:
            raise Skip(self._why(asked, answered))
        context = None
        if documents and self.evaluate_retrieved_context:
            context = is_same_language(asked, self._tell("\n".join(document.content for document in documents)))
        codes = (
            _common_language(asked, answered) if same else tuple(side.best or side.script for side in (asked, answered))
        )
        return family_rows("language_mismatch", same, context, comment=f"question {codes[0]}, answer {codes[1]}")

    def _tell(self, text: str) -> LanguageEstimate:
        if self.detect is None:
            return estimate_language(text)
        code = self.detect(text)
        return LanguageEstimate(None if code is None else {code: 1.0}, len(_find_letters(_strip_code(text))))

    def _why(self, asked: LanguageEstimate, answered: LanguageEstimate) -> str:
        if min(asked.certainty, answered.certainty) >= _MIN_CERTAINTY_EACH:
            return f"the languages of question and answer, {asked.best} and {answered.best}, cannot be distinguished"
        what, estimate = min(("question", asked), ("answer", answered), key=lambda side: side[1].certainty)
        short = self.detect is None and estimate.likely is None
        why = f": it is too short, {estimate.letters} letters of at least {_MIN_LETTERS}" if short else ""
        return f"the language of the {what} cannot be determined{why}"


def _detect_script(prose: str, letters: list[str]) -> str:
    """Return the lower-case name of the script of nearly all letters, "" if scripts are mixed or letters too few.

    Names and terms in Latin letters occur in texts of any language. Latin therefore needs words in lower case, or
    many letters.
    """
    names = [unicodedata.name(letter, "").partition(" ")[0] for letter in letters]
    scripts = ["han" if name in _EAST_ASIAN_SCRIPTS else name.lower() for name in names]
    if not scripts:
        return ""
    script = max(set(scripts), key=scripts.count)
    fewest = _MIN_LETTERS_OF_SCRIPT.get(script, 4)
    if script == "latin" and len([word for word in _LOWER.findall(prose) if word not in _NAME_PARTICLES]) >= 2:
        fewest = 6
    return script if len(scripts) >= fewest and scripts.count(script) > 0.9 * len(scripts) else ""


def _common_language(first: LanguageEstimate, second: LanguageEstimate) -> tuple[str, str]:
    """Return a pair of equal codes: the language that both texts most probably share."""
    likely, other = first.likely or {}, second.likely or {}
    code = max(likely, key=lambda code: likely[code] * other.get(code, 0.0))
    return code, code


def _language_of_script(letters: list[str]) -> str | None:
    """Return the language of a text whose script belongs to one language.

    Chinese characters together with kana are Japanese, without kana Chinese.
    """
    if not letters:
        return None
    names = [unicodedata.name(letter, "").partition(" ")[0] for letter in letters]
    kana = sum(name in ("HIRAGANA", "KATAKANA") for name in names)
    ideographs = names.count("CJK")
    if kana + ideographs > len(names) / 2:
        return "ja" if kana else "zh"
    likely = max(set(names), key=names.count)
    return _LANGUAGE_BY_SCRIPT.get(likely) if names.count(likely) > 0.7 * len(names) else None


@cache
def _load_identifier() -> Any:
    from py3langid.langid import MODEL_FILE, LanguageIdentifier

    return LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)
