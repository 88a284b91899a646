"""The text that the demo answers from: the Python language reference, as CPython carries it for `help()`.

`pydoc_data.topics` holds about 80 topics of plain text. They quote each other (`compound` repeats all of `if`, `try`
and `with`), so a paragraph belongs to the shortest topic that has it: then a question has one right place to look.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

_RULE = re.compile(r"^[*=\-~]{3,}$", re.MULTILINE)  # what underlines a heading
_GAP = re.compile(r"\S {4,}|::=")  # columns of a table, or grammar
_ALIASES = frozenset({"else"})  # word for word the topic "if"


@dataclass(frozen=True, slots=True)
class Passage:
    """A stretch of a topic: some paragraphs that follow each other, under the heading they stand below."""

    topic: str
    number: int  # position within the topic, from 0
    text: str

    @property
    def id(self) -> str:
        """For example `lambda#0`."""
        return f"{self.topic}#{self.number}"


def passages(size: int = 800) -> list[Passage]:
    """All topics in passages of about `size` characters, at least one paragraph each. The same in every process."""
    topics = _topics()
    owned = _owners(topics)
    return [
        Passage(name, number, text)
        for name in sorted(topics)
        for number, text in enumerate(_packed(_own_paragraphs(name, topics[name], owned), size))
    ]


def _topics() -> dict[str, str]:
    try:
        from pydoc_data.topics import topics
    except ModuleNotFoundError as error:
        raise ValueError("this Python comes without pydoc_data.topics, the text that the demo reads") from error
    return {name: text for name, text in topics.items() if name not in _ALIASES}


def _owners(topics: dict[str, str]) -> dict[str, str]:
    """Each paragraph's topic: the shortest that has it, by name where two are equally long."""
    owner: dict[str, str] = {}
    for name in sorted(topics, key=lambda name: (len(topics[name]), name)):
        for paragraph in topics[name].split("\n\n"):
            owner.setdefault(_same(paragraph), name)
    return owner


def _same(paragraph: str) -> str:
    """What stays of a paragraph when it is quoted elsewhere: its words, not its indentation or underline."""
    return " ".join(_RULE.sub("", paragraph).split())


def _own_paragraphs(name: str, text: str, owner: dict[str, str]) -> Iterator[str]:
    for paragraph in text.split("\n\n"):
        if _same(paragraph) and owner[_same(paragraph)] == name:
            yield _tidy(paragraph)


def _tidy(paragraph: str) -> str:
    """One line for prose; the lines as they are for code, grammar and tables."""
    lines = _RULE.sub("", paragraph).strip("\n").split("\n")
    return " ".join(" ".join(lines).split()) if _is_prose(lines) else "\n".join(lines)


def _is_prose(lines: list[str]) -> bool:
    """The reference wraps its prose near column 70; nothing else fills its lines, but tables, which show by gaps."""
    return len(lines) > 1 and all(len(line) >= 50 and not _GAP.search(line) for line in lines[:-1])


def _packed(paragraphs: Iterator[str], size: int) -> Iterator[str]:
    """Join paragraphs until the next one would pass `size` characters."""
    pack: list[str] = []
    for paragraph in paragraphs:
        if pack and sum(map(len, pack)) + len(paragraph) > size:
            yield "\n\n".join(pack)
            pack = []
        pack.append(paragraph)
    if pack:
        yield "\n\n".join(pack)
