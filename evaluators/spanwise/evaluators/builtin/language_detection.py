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
)  # code, addresses, names
_MAX_CHARACTERS = 4000  # characters looked at: more do not change the verdict
# Letters of an alphabet needed to tell languages apart, and how sure py3langid must be. Of 12 to 20 letters of running
# text it is sure of 6 in 10 and wrong about 2 in 1000; names alone ("Barack Obama") it is seldom sure of.
_MIN_LETTERS, _FEW_LETTERS = 12, 20
_MIN_CERTAINTY, _MIN_CERTAINTY_OF_FEW = 0.6, 0.7
# Of a pair: how likely one language must be, and how unlikely, to be decided; and how likely one language of each side
# must be for two to be found different, since names alone are in any language.
_SAME_FROM, _DIFFERENT_BELOW, _MIN_CERTAINTY_EACH = 0.95, 0.3, 0.55
_LANGUAGE_COUNT = 97  # that py3langid tells
# Written standards of one language, between which a sentence or two does not decide.
_MERGED_CODES = {"nb": "no", "nn": "no", "bs": "hr"}
# Scripts that (nearly) one language writes: few letters are enough, and the script decides.
_EAST_ASIAN_SCRIPTS = ("CJK", "HIRAGANA", "KATAKANA")  # Japanese mixes them, and some texts of it have only one
_MIN_LETTERS_OF_SCRIPT = {"latin": 30, "han": 2, "hangul": 2}  # letters that show a script; of others 4
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
    """The ISO 639-1 code of a text's language; None when it cannot be told: too few letters, code, numbers, a
    mixture.
    """
    told = estimate_language(text)
    sure = 0.0 if told.by_script else _MIN_CERTAINTY if told.letters >= _FEW_LETTERS else _MIN_CERTAINTY_OF_FEW
    return told.best if told.likely and told.certainty >= sure else None


def _strip_code(text: str) -> str:
    return _NO_LANGUAGE.sub(" ", text[: 4 * _MAX_CHARACTERS])[:_MAX_CHARACTERS]


def _find_letters(prose: str) -> list[str]:
    """Its letters, with the vowel signs of scripts that have them: half of what Indic scripts write."""
    return [character for character in prose if character.isalpha() or _is_vowel_sign(character)]


def _is_vowel_sign(character: str) -> bool:
    if unicodedata.category(character) not in ("Mn", "Mc"):
        return False
    return not unicodedata.name(character, "COMBINING").startswith(("COMBINING", "VARIATION"))


@dataclass(frozen=True, slots=True)
class LanguageEstimate:
    """What is known of a text's language: how likely each is, None where it is too short, and its letters."""

    likely: Mapping[str, float] | None
    letters: int
    by_script: bool = False
    script: str = ""  # that of nearly all letters, "" where they are too few or mixed

    @property
    def best(self) -> str:
        return max(self.likely, key=self.likely.__getitem__) if self.likely else ""

    @property
    def certainty(self) -> float:
        return max(self.likely.values()) if self.likely else 0.0


def estimate_language(text: str) -> LanguageEstimate:
    """The languages that a text may be in."""
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
    """Whether two texts are in the same language; None where it cannot be told.

    A question and its answer are as likely in one language as in two (of all that there are, each as likely as the
    others), before their letters are looked at. Two scripts are two languages, but for those that are written in both.
    Else a text of which little is known is taken for the language of the
    other one where its letters allow that, and for another where they hardly do.
    """
    if first.script and second.script and first.script != second.script:
        return first.best != "" and first.best == second.best and first.best in _IN_TWO_SCRIPTS
    if first.likely is None or second.likely is None:
        return None
    together = sum(probability * second.likely.get(code, 0.0) for code, probability in first.likely.items())
    same = together / (together + 1 / _LANGUAGE_COUNT)
    if same >= _SAME_FROM:
        return True
    apart = same <= _DIFFERENT_BELOW and min(first.certainty, second.certainty) >= _MIN_CERTAINTY_EACH
    return False if apart else None


@dataclass(frozen=True, slots=True)
class LanguageComparison:
    """Compares the languages of question and answer, by their letters: what `language_mismatch` does without a judge.

    `detect` puts another detector in place: a function from a text to a language code, or None.
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
            return f"the languages of question and answer, {asked.best} and {answered.best}, cannot be told apart"
        what, told = min(("question", asked), ("answer", answered), key=lambda side: side[1].certainty)
        short = self.detect is None and told.likely is None
        why = f": it is too short, {told.letters} letters of at least {_MIN_LETTERS}" if short else ""
        return f"the language of the {what} cannot be told{why}"


def _detect_script(prose: str, letters: list[str]) -> str:
    """Return the script of nearly all letters in lower case, "" where they are mixed or too few to show it.

    Names and terms stand in Latin letters in texts of any language: it takes words in lower case, or many letters.
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
    """The language that both are most likely in, twice."""
    likely, other = first.likely or {}, second.likely or {}
    code = max(likely, key=lambda code: likely[code] * other.get(code, 0.0))
    return code, code


def _language_of_script(letters: list[str]) -> str | None:
    """The language of a text in a script of its own; Chinese characters are Chinese where no kana is among them."""
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
