"""Whether the answer is in the language of the question, without a judge."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from spanwise.collector.records import Document
from spanwise.evaluators.builtin._texts import question_of, text_of
from spanwise.evaluators.builtin._verdicts import verdict
from spanwise.evaluators.protocol import Skip

Detector = Callable[[str], str | None]

_NO_LANGUAGE = re.compile(
    r"```.*?(?:```|\Z)|`[^`\n]*`|(?<!\S)\S*(?:[/\\_@]|\d\.)\S*", re.DOTALL
)  # code, addresses, names
_LONGEST = 4000  # characters looked at: more do not change the verdict
# Letters of an alphabet needed to tell languages apart, and how sure py3langid must be. Of 12 to 20 letters of running
# text it is sure of 6 in 10 and wrong about 2 in 1000; names alone ("Barack Obama") it is seldom sure of.
_FEWEST, _FEW = 12, 20
_SURE, _SURE_OF_FEW = 0.6, 0.7
# Of a pair: how likely one language must be, and how unlikely, to be decided; and how likely one language of each side
# must be for two to be found different, since names alone are in any language.
_SAME, _DIFFERENT, _EACH = 0.95, 0.3, 0.55
_LANGUAGES = 97  # that py3langid tells
# Written standards of one language, between which a sentence or two does not decide.
_ONE = {"nb": "no", "nn": "no", "bs": "hr"}
# Scripts that (nearly) one language writes: few letters are enough, and the script decides.
_OF_EAST_ASIA = ("CJK", "HIRAGANA", "KATAKANA")  # Japanese mixes them, and some texts of it have only one
_FEWEST_OF_SCRIPT = {"latin": 30, "han": 2, "hangul": 2}  # letters that show a script; of others 4
_OF_NAMES = frozenset("de del della der den di da do dos das du la le van von zu zum zur el al bin ibn ben y e".split())
_LOWER = re.compile(r"(?<![^\W\d_])[a-zß-ÿ]+(?![^\W\d_])")
_IN_TWO_SCRIPTS = ("sr", "az", "uz", "kk", "ku", "pa", "ms", "mn", "tg", "bs", "hr")
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
    told = tell(text)
    sure = 0.0 if told.by_script else _SURE if told.letters >= _FEW else _SURE_OF_FEW
    return told.best if told.likely and told.certainty >= sure else None


def _prose(text: str) -> str:
    return _NO_LANGUAGE.sub(" ", text[: 4 * _LONGEST])[:_LONGEST]


def _letters(prose: str) -> list[str]:
    """Its letters, with the vowel signs of scripts that have them: half of what Indic scripts write."""
    return [character for character in prose if character.isalpha() or _is_vowel_sign(character)]


def _is_vowel_sign(character: str) -> bool:
    if unicodedata.category(character) not in ("Mn", "Mc"):
        return False
    return not unicodedata.name(character, "COMBINING").startswith(("COMBINING", "VARIATION"))


@dataclass(frozen=True, slots=True)
class Told:
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


def tell(text: str) -> Told:
    """The languages that a text may be in."""
    prose = _prose(text)
    letters = _letters(prose)
    script = _script(prose, letters)
    if code := _by_script(letters):
        return Told({code: 1.0}, len(letters), by_script=True, script=script)
    if len(letters) < _FEWEST:
        return Told(None, len(letters), script=script)
    likely: dict[str, float] = {}
    for code, probability in _identifier().rank(prose):
        code = _ONE.get(code, code)
        likely[code] = likely.get(code, 0.0) + probability
    return Told(likely, len(letters), script=script)


def one_language(first: Told, second: Told) -> bool | None:
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
    same = together / (together + 1 / _LANGUAGES)
    if same >= _SAME:
        return True
    apart = same <= _DIFFERENT and min(first.certainty, second.certainty) >= _EACH
    return False if apart else None


@dataclass(frozen=True, slots=True)
class ByLetters:
    """Compares the languages of question and answer, by their letters: what `language_mismatch` does without a judge.

    `detect` puts another detector in place: a function from a text to a language code, or None.
    """

    evaluate_retrieved_context: bool = False
    detect: Detector | None = None

    def __call__(self, inputs: Any, outputs: Any, documents: Sequence[Document] | None = None) -> list[dict[str, Any]]:
        asked, answered = self._tell(question_of(inputs)), self._tell(text_of(outputs))
        same = one_language(asked, answered)
        if {asked.best, answered.best} == {"ja", "zh"} and answered.letters < _FEWEST:
            raise Skip("few Chinese characters may be Japanese, too")
        if same is None:
            raise Skip(self._why(asked, answered))
        context = None
        if documents and self.evaluate_retrieved_context:
            context = one_language(asked, self._tell("\n".join(document.content for document in documents)))
        codes = _common(asked, answered) if same else tuple(side.best or side.script for side in (asked, answered))
        return verdict("language_mismatch", same, context, comment=f"question {codes[0]}, answer {codes[1]}")

    def _tell(self, text: str) -> Told:
        if self.detect is None:
            return tell(text)
        code = self.detect(text)
        return Told(None if code is None else {code: 1.0}, len(_letters(_prose(text))))

    def _why(self, asked: Told, answered: Told) -> str:
        if min(asked.certainty, answered.certainty) >= _EACH:
            return f"the languages of question and answer, {asked.best} and {answered.best}, cannot be told apart"
        what, told = min(("question", asked), ("answer", answered), key=lambda side: side[1].certainty)
        short = self.detect is None and told.likely is None
        why = f": it is too short, {told.letters} letters of at least {_FEWEST}" if short else ""
        return f"the language of the {what} cannot be told{why}"


def _script(prose: str, letters: list[str]) -> str:
    """Return the script of nearly all letters in lower case, "" where they are mixed or too few to show it.

    Names and terms stand in Latin letters in texts of any language: it takes words in lower case, or many letters.
    """
    names = [unicodedata.name(letter, "").partition(" ")[0] for letter in letters]
    scripts = ["han" if name in _OF_EAST_ASIA else name.lower() for name in names]
    if not scripts:
        return ""
    script = max(set(scripts), key=scripts.count)
    fewest = _FEWEST_OF_SCRIPT.get(script, 4)
    if script == "latin" and len([word for word in _LOWER.findall(prose) if word not in _OF_NAMES]) >= 2:
        fewest = 6
    return script if len(scripts) >= fewest and scripts.count(script) > 0.9 * len(scripts) else ""


def _common(first: Told, second: Told) -> tuple[str, str]:
    """The language that both are most likely in, twice."""
    likely, other = first.likely or {}, second.likely or {}
    code = max(likely, key=lambda code: likely[code] * other.get(code, 0.0))
    return code, code


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
