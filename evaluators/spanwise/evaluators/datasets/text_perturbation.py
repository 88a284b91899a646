"""Kinds of text perturbations, the parts of a text that they keep, and synonyms of WordNet.

A perturbation is a function of the text, the protected spans and a random generator. It returns the text unchanged if
there is nothing that the kind can change. The only randomness is `Random.random()`, whose sequence for an integer seed
is the same on every machine and Python version.
"""

from __future__ import annotations

import base64
import os
import re
import sys
import zipfile
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache, partial
from pathlib import Path
from random import Random
from typing import TypeAlias

import orjson

from spanwise.collector.errors import NotFound
from spanwise.collector.records import PERTURBATION_KINDS

# Protected parts of a text: code, URLs, e-mail addresses, numbers, JSON and placeholders.
#
# Perturbations leave these parts unchanged. Every pattern takes time proportional to the length of the text.

Span: TypeAlias = tuple[int, int]

_JOINTS = ".,:/'’+*^×÷=−-"  # characters inside of dates, times, amounts and calculations
_PATTERNS = {
    "code": (
        r"^[ \t]*(?P<fence>`{3,}|~{3,})[^\n`]*(?:\n(?s:.*?)(?:^[ \t]*(?P=fence)[`~]*[ \t]*$|\Z)|\Z)"  # to the end if open
        r"|(?<!`)(?P<ticks>`+)(?!`)[^\n]{1,2000}?(?<!`)(?P=ticks)(?!`)"
        r"|</?[a-z][^<>\n]{0,200}>"
    ),
    "emails": r"(?<![\w.+-])[\w.+-]{1,64}@[\w-]{1,63}(?:\.[\w-]{1,63})+",
    "urls": (
        r"(?<![a-z0-9+.-])(?:[a-z][a-z0-9+.-]{0,20}://|www\.|mailto:|data:)[^\s<>\"]+"
        r"|(?<![\w.-])(?:[^\W_][\w-]{0,62}\.)+[a-z]{2,24}(?![\w@])(?:[/?\#:][^\s<>\"]*)?"  # also names of files
    ),
    "placeholders": r"\{\{[^{}\n]{1,100}\}\}|\$?\{[^{}\n]{0,100}\}|%\([^()\n]{1,100}\)[a-z]|%[sdifr]\b",
    # also 3rd, B2B and 2+2, but not the words around a number in Chinese
    "numbers": rf"(?<![a-z_\d])(?=[a-z_]*\d)[a-z_\d]+(?:[{_JOINTS}](?=[a-z_]*\d)[a-z_\d]+)*",
}
PROTECTED = ("code", "emails", "urls", "placeholders", "numbers", "json")
_MAX_DEPTH = 4  # a JSON value inside more unmatched or other brackets is not found

_BRACKET = re.compile(r"[\[{]")
_TOKEN = re.compile(r'[\[\]{}]|"(?:[^"\\\n]|\\.)*"')
_CLOSING = {"[": "]", "{": "}"}


def find_protected(text: str, kinds: Collection[str]) -> list[Span]:
    """Return the protected spans of a text in order, without overlaps. `kinds` are names of `PROTECTED`."""
    pattern = "|".join(pattern for kind, pattern in _PATTERNS.items() if kind in kinds)
    # `re` keeps compiled patterns
    spans = [match.span() for match in re.finditer(pattern, text, re.IGNORECASE | re.MULTILINE)] if pattern else []
    if "json" in kinds and ("{" in text or "[" in text):
        spans = sorted([*spans, *_find_json(text)])
    merged: list[Span] = []
    for start, end in spans:
        if merged and start < merged[-1][1]:
            merged[-1] = merged[-1][0], max(end, merged[-1][1])
        else:
            merged.append((start, end))
    return merged


def _find_json(text: str) -> Iterator[Span]:
    """Yield the outermost JSON objects and arrays in a text."""
    by_depth: dict[int, list[Span]] = {}
    for start, end, depth in _match_brackets(text):
        if depth < _MAX_DEPTH:
            by_depth.setdefault(depth, []).append((start, end))
    found: list[Span] = []
    for depth in sorted(by_depth):
        outer = iter(sorted(found))
        span = next(outer, None)
        for start, end in sorted(by_depth[depth]):
            while span is not None and span[1] <= start:
                span = next(outer, None)
            if span is None or start < span[0]:
                with suppress(ValueError):
                    orjson.loads(text[start:end])
                    found.append((start, end))
    yield from found


def _match_brackets(text: str) -> Iterator[tuple[int, int, int]]:
    """Yield start, end and depth of each pair of square or curly brackets. Quoted texts inside of brackets are skipped."""
    opened: list[int] = []
    position = 0
    while match := (_TOKEN if opened else _BRACKET).search(text, position):
        token, position = match.group(), match.end()
        if token in _CLOSING:
            opened.append(match.start())
        elif opened and token == _CLOSING[text[opened[-1]]]:
            yield opened.pop(), position, len(opened)


# WordNet: synonyms of English words, read from the database files of an installed WordNet.
#
# The files are those of WordNet's own format (`index.noun`, `data.noun`, …; manual page wndb(5WN)). They come with
# Debian's package `wordnet-base` and with NLTK's corpus `wordnet`, as a folder or as the archive that NLTK downloads.

CATEGORIES = ("noun", "verb", "adj", "adv")
_LEMMA = re.compile(r"[a-z]{3,}")
# English words of closed classes. WordNet lists some of them as nouns or adverbs, of which they are rarely a form
_FUNCTION_WORDS = frozenset(
    """
    about above across after again all also and any are around away back because been before being below beside between
    both but can could did does doing done down during each either else enough even ever every few for from further had
    has have having here how however into its itself just least less like many may might mine more most much must near
    need neither never next nor not now off often once one only onto other ought our out outside over own past per
    please quite rather same several shall should since some somewhat soon still such than that the their them then
    there these they this those though through thus too toward two under until upon very via was well were what when
    where whether which while who whole whom whose why will with within without would yes yet you your
    """.split()
)


class WordNet:
    """Synonyms from the database files of one WordNet. `read` returns the content of a file by its name."""

    def __init__(self, read: Callable[[str], bytes]) -> None:
        self._index: Mapping[str, bytes] = {category: read(f"index.{category}") for category in CATEGORIES}
        self._data: Mapping[str, bytes] = {category: read(f"data.{category}") for category in CATEGORIES}
        exceptions = b"\n".join(read(f"{category}.exc") for category in CATEGORIES)
        self._irregular = frozenset(line.split()[0].decode() for line in exceptions.splitlines() if line.strip())
        self.synonyms: Callable[[str], tuple[str, ...]] = lru_cache(maxsize=65_536)(self._find_synonyms)

    def _find_synonyms(self, word: str) -> tuple[str, ...]:
        """Return the synonyms of a lower-case word that can replace it in most sentences, most frequent first.

        They share the most frequent sense of the word, in each part of speech in which the word is common. Inflected
        and function words have no synonyms. Rare words are no synonyms: those without an occurrence in the texts in
        which WordNet's authors counted senses.
        """
        if not _LEMMA.fullmatch(word) or word in _FUNCTION_WORDS or word in self._irregular:
            return ()
        senses = self._read_first_senses(word)
        if not senses:
            return ()
        return tuple(
            lemma
            for lemma in dict.fromkeys(senses[0])
            if lemma != word
            and _LEMMA.fullmatch(lemma)
            and all(lemma in lemmas for lemmas in senses)
            and any(self._read_counts(lemma))
        )

    def _read_first_senses(self, word: str) -> list[list[str]]:
        """Return the words of the most frequent sense of a word, for each part of speech in which it is common.

        A part of speech is common if it has occurrences; if none has, all are.
        """
        counts = self._read_counts(word)
        senses = []
        for category, count in zip(CATEGORIES, counts, strict=True):
            line = _find_line(self._index[category], word.encode()) if count or not any(counts) else None
            if line is not None:
                entry = line.split()
                offset = int(entry[6 + int(entry[3])])  # after lemma, category, counts and symbols of pointers
                data = self._data[category]
                synset = data[offset : data.index(b"\n", offset)].decode().split()
                senses.append(synset[4 : 4 + 2 * int(synset[3], 16) : 2])
        return senses

    def _read_counts(self, word: str) -> list[int]:
        """Return the number of senses of a word that occur in tagged texts, for each part of speech."""
        lines = [_find_line(self._index[category], word.encode()) for category in CATEGORIES]
        return [int((entry := line.split())[5 + int(entry[3])]) if line else 0 for line in lines]


def _find_line(index: bytes, word: bytes) -> bytes | None:
    """Return the line of a sorted file whose first word is this one, by bisection; None if there is none."""
    low, high = 0, len(index)
    while low < high:
        middle = (low + high) // 2
        start = index.rfind(b"\n", low, middle) + 1 or low
        end = index.find(b"\n", middle)
        end = len(index) if end < 0 else end
        first = index[start:end].split(b" ", 1)[0]
        if first == word:
            return index[start:end]
        if first < word:  # also the lines of the licence at the top, which begin with a space
            low = end + 1
        else:
            high = start
    return None


def list_folders() -> Iterator[Path]:
    """Yield the places where a WordNet may be installed, in the order in which they are searched.

    `WNSEARCHDIR` and `WNHOME` are WordNet's own environment variables, `NLTK_DATA` is that of NLTK.
    """
    if "WNSEARCHDIR" in os.environ:
        yield Path(os.environ["WNSEARCHDIR"])
    if "WNHOME" in os.environ:
        yield Path(os.environ["WNHOME"], "dict")
    named = [Path(folder) for folder in os.environ.get("NLTK_DATA", "").split(os.pathsep) if folder]
    prefix = Path(sys.prefix)
    usual = [Path.home(), prefix, prefix / "share", prefix / "lib", *map(Path, ("/usr/share", "/usr/local/share"))]
    for data in [*named, *(parent / "nltk_data" for parent in usual)]:
        yield data / "corpora" / "wordnet"
        yield data / "corpora" / "wordnet.zip"
    yield Path("/usr/share/wordnet")


def open_wordnet() -> WordNet:
    """Return the first installed WordNet. Raises `NotFound` with instructions if there is none."""
    for path in list_folders():
        if path.is_file() or (path / "index.noun").is_file():
            return _load(path)
    raise NotFound(
        "synonyms need WordNet, which is not installed: run `apt-get install wordnet-base` (Debian, Ubuntu) or "
        "`python -m nltk.downloader wordnet`, or set WNSEARCHDIR to the folder that contains its file index.noun"
    )


@lru_cache(maxsize=2)
def _load(path: Path) -> WordNet:
    """Return the WordNet in a folder or in an archive. It is read once; its files take about 30 MB of memory."""
    if path.is_dir():
        return WordNet(lambda name: (path / name).read_bytes())
    with zipfile.ZipFile(path) as archive:
        return WordNet(lambda name: archive.read(f"{path.stem}/{name}"))


# Kinds of text perturbations: typos, casing, punctuation, contractions, word order, noise, synonyms, encodings.

Match: TypeAlias = re.Match[str]
Replace: TypeAlias = Callable[[Match, Random], str]
Perturbation: TypeAlias = Callable[[str, Sequence[Span], Random], str]

_LETTER = r"[^\W\d_]"
_WORD = re.compile(rf"{_LETTER}{{2,24}}")  # longer runs, as in Chinese, are several words
_PLAIN_WORD = re.compile(rf"(?<![\w'’-]){_LETTER}{{1,64}}(?![\w'’-])")
# letters with combining marks of Latin, Hebrew, Arabic, Indic and Thai writing
_SPELLED = rf"(?:{_LETTER}|[\u0300-\u036f\u0591-\u05bd\u0610-\u061a\u064b-\u065f\u0670\u0900-\u0963\u0970-\u0e7f])"
_PAIR = re.compile(rf"(?<!\S)({_SPELLED}{{1,64}})([ \t]{{1,8}})({_SPELLED}{{1,64}})(?=[\s.,;:!?…،؛؟।]|\Z)")
_MARK = re.compile(r"""[.,;:!?…،؛؟।](?=["'”’»)\]]*(?:\s|\Z))|[。，、；：！？]""")
_ANY_WORD = re.compile(rf"{_LETTER}{{1,24}}")
_FIRST_IDEOGRAPH = "\u2e80"
_NOISE = "~^|;=+"
_NEIGHBOURS: Mapping[str, str] = dict(
    zip(
        "abcdefghijklmnopqrstuvwxyz",
        "sqwz vghn xdfv serfcx wsdr drtgvc ftyhbv gyujnb ujko huikmn jiolm kop njk bhjm iklp ol wa edft awedxz rfgy"
        " yhji cfgb qase zsdc tghu asx".split(),
        strict=True,
    )
)


def _edit(
    text: str, protected: Sequence[Span], random: Random, *, pattern: re.Pattern[str], rate: float, replace: Replace
) -> str:
    """Return the text with some matches of a pattern replaced, and at least one if any can be.

    Each match is replaced with the probability `rate`.
    """
    matches = _find_matches(pattern, text, protected)
    edits = [(match, replace(match, random)) for match in matches if random.random() < rate]
    edits = [(match, new) for match, new in edits if new != match.group()]
    if not edits and matches:
        first = int(random.random() * len(matches))
        for match in [*matches[first:], *matches[:first]]:
            if (new := replace(match, random)) != match.group():
                edits = [(match, new)]
                break
    parts, position = [], 0
    for match, new in edits:
        parts += [text[position : match.start()], new]
        position = match.end()
    return "".join([*parts, text[position:]])


def _find_matches(pattern: re.Pattern[str], text: str, protected: Sequence[Span]) -> list[Match]:
    """Return the matches between protected spans.

    A word that touches such a span is a part of it, unless its writing has no spaces. A mark may follow one.
    """
    if not protected:
        return list(pattern.finditer(text))
    found: list[Match] = []
    position = 0
    for first, last in [*protected, (len(text), len(text))]:
        matches = list(pattern.finditer(text, position, first))
        if matches and first < len(text) and matches[-1].end() == first and text[first - 1] < _FIRST_IDEOGRAPH:
            matches.pop()
        if (
            matches
            and matches[0].start() == position > 0
            and text[position] < _FIRST_IDEOGRAPH
            and pattern is not _MARK
        ):
            del matches[0]
        found += matches
        position = last
    return found


def _choose(options: Sequence[str], random: Random) -> str:
    return options[int(random.random() * len(options))]


def _misspell(match: Match, random: Random) -> str:
    """Swap two letters, omit one, double one, or replace one by a neighbour on the keyboard."""
    word = match.group()
    place = int(random.random() * (len(word) - 1)) if len(word) < 4 else 1 + int(random.random() * (len(word) - 2))
    before, letter, after = word[:place], word[place], word[place + 1 :]
    action = int(random.random() * 4)
    if action == 0 and after and after[0] != letter:
        return before + after[0] + letter + after[1:]
    if action == 1 and len(word) >= 4:
        return before + after
    if action == 2 and letter.lower() in _NEIGHBOURS:
        neighbour = _choose(_NEIGHBOURS[letter.lower()], random)
        return before + (neighbour if letter.islower() else neighbour.upper()) + after
    return before + letter + letter + after


def _change_case(text: str, protected: Sequence[Span], random: Random) -> str:
    """Write the text in capitals, in small letters, or in letters of random case: the first that changes it."""
    first = int(random.random() * 3)
    styles: list[Callable[[str], str]] = [
        str.upper,
        str.lower,
        lambda part: "".join(each.upper() if random.random() < 0.5 else each.lower() for each in part),
    ]
    for style in [*styles[first:], *styles[:first]]:
        changed = _map_unprotected(text, protected, style)
        if changed != text:
            return changed
    return text


def _insert_noise(match: Match, random: Random) -> str:
    """Insert a stray character into a word, or append it to a single letter."""
    word = match.group()
    place = 1 + int(random.random() * max(1, len(word) - 1))
    return word[:place] + _choose(_NOISE, random) + word[place:]


_NEGATIVES = r"\b(is|are|was|were|do|does|did|has|have|had|could|should|would|must|need|might|can|will)"
_CONTRACTION = re.compile(
    _NEGATIVES + r"(?: (not)|(not))\b"
    r"|\b(?:(I) (am)|(you|we|they) (are)|(he|she|it|that|there|what|who|where|how) (is)"
    r"|(I|you|he|she|it|we|they|that|there) (will)(?! not\b))(?= \w)"
    r"|\b(isn|aren|wasn|weren|don|doesn|didn|hasn|haven|hadn|couldn|shouldn|wouldn|mustn|needn|mightn|can|won)(['’]t)\b"
    r"(?! (?:I|you|he|she|it|we|they)\b)"
    r"|\b(I|you|he|she|it|we|they|that|there|what|who|where|how|let)(['’](?:m|re|ll|ve|s))\b(?! (?:been|got|had)\b)",
    re.IGNORECASE,
)
_ENDINGS = {"am": "'m", "are": "'re", "is": "'s", "will": "'ll"}
_EXPANSIONS = {"m": " am", "re": " are", "ll": " will", "ve": " have", "s": " is"}


def _contract(match: Match, random: Random) -> str:
    """Contract "do not" to "don't" and the like, or expand a contraction."""
    word, ending = (group for group in match.groups() if group is not None)
    small, last = word.lower(), ending.lower()
    upper = ending.isupper() and (word.isupper() or word == "I")  # of DO NOT and DON'T
    if last == "not":
        if small != "can" and " " not in match.group():
            return match.group()
        stem = word[0] + ("O" if upper else "o") if small == "will" else word
        return stem + ("'T" if upper and small == "can" else "N'T" if upper else "'t" if small == "can" else "n't")
    if last in _ENDINGS:
        return word + (_ENDINGS[last].upper() if upper else _ENDINGS[last])
    if last[1:] == "t":
        expanded = {"can": word + "not", "won": word[0] + "ill not"}.get(small, word[:-1] + " not")
    elif small == "let":
        expanded = word + " us" if last[1:] == "s" else match.group()
    else:
        expanded = word + _EXPANSIONS[last[1:]]
    return expanded.upper() if upper and len(word) > 1 else expanded


def _replace_by_synonym(match: Match, random: Random, *, wordnet: WordNet) -> str:
    word = match.group()
    synonyms = wordnet.synonyms(word)
    before = match.string[max(0, match.start() - 4) : match.start()].lower().split(" ")
    if len(before) > 1 and before[-2] in ("a", "an"):  # the article must still fit
        synonyms = tuple(each for each in synonyms if (each[0] in "aeiou") == (word[0] in "aeiou"))
    return _choose(synonyms, random) if synonyms else word


def _encode(text: str, protected: Sequence[Span], random: Random, *, encode: Callable[[bytes], bytes]) -> str:
    """Encode the text between protected spans, each stretch that contains a letter."""

    def encode_stretch(part: str) -> str:
        stripped = part.strip()
        if not any(map(str.isalpha, stripped)):
            return part
        start = part.index(stripped)
        encoded = encode(stripped.encode("utf-8", "surrogatepass")).decode()
        return part[:start] + encoded + part[start + len(stripped) :]

    return _map_unprotected(text, protected, encode_stretch)


def _map_unprotected(text: str, protected: Sequence[Span], change: Callable[[str], str]) -> str:
    parts, position = [], 0
    for start, end in protected:
        parts += [change(text[position:start]), text[start:end]]
        position = end
    return "".join([*parts, change(text[position:])])


def make_perturbation(kind: str) -> Perturbation:
    """Return the perturbation of a kind. Raises `NotFound` for synonyms if no WordNet is installed."""
    match kind:
        case "typos":
            return partial(_edit, pattern=_WORD, rate=0.12, replace=_misspell)
        case "casing":
            return _change_case
        case "punctuation":  # omit or double marks
            return partial(
                _edit,
                pattern=_MARK,
                rate=0.5,
                replace=lambda match, random: "" if random.random() < 0.6 else match.group() * 2,
            )
        case "contractions":
            return partial(_edit, pattern=_CONTRACTION, rate=0.7, replace=_contract)
        case "word_order":  # swap neighbours
            return partial(_edit, pattern=_PAIR, rate=0.2, replace=lambda match, random: match.expand(r"\3\2\1"))
        case "noise":
            return partial(_edit, pattern=_ANY_WORD, rate=0.12, replace=_insert_noise)
        case "synonyms":
            replace = partial(_replace_by_synonym, wordnet=open_wordnet())
            return partial(_edit, pattern=_PLAIN_WORD, rate=0.3, replace=replace)
        case "base64":
            return partial(_encode, encode=base64.b64encode)
        case "base16":
            return partial(_encode, encode=base64.b16encode)
    raise ValueError(f"unknown kind of perturbation {kind!r:.100}; expected one of: {', '.join(PERTURBATION_KINDS)}")
