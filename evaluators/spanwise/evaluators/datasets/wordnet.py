"""WordNet: synonyms of English words, read from the database files of an installed WordNet.

The files are those of WordNet's own format (`index.noun`, `data.noun`, …; manual page wndb(5WN)). They come with
Debian's package `wordnet-base` and with NLTK's corpus `wordnet`, as a folder or as the archive that NLTK downloads.
"""

from __future__ import annotations

import os
import re
import sys
import zipfile
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from pathlib import Path

from spanwise.collector.errors import NotFound

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
