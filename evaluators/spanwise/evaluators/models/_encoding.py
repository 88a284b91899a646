"""Texts to vectors, each text once: what several ask for at the same time goes through the model together.

Who comes while the model runs leaves texts behind; whoever is next takes all that waits. A text that the model cannot
take fails alone.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import numpy

    Vector = numpy.ndarray[tuple[int], numpy.dtype[numpy.float32]]
    Vectors = numpy.ndarray[tuple[int, int], numpy.dtype[numpy.float32]]

MEMORY = 64 << 20  # bytes of vectors that are remembered
_all: weakref.WeakSet[Encoding] = weakref.WeakSet()


class Kept(Protocol):
    """Vectors that outlive the process."""

    def get(self, texts: Sequence[str]) -> dict[str, Vector]:
        """Those that are there."""
        ...

    def put(self, vectors: dict[str, Vector]) -> None:
        """Keep some."""


class Encoding:
    """One model's vectors. `encode` is called by one thread at a time, with texts of which no two are the same: with
    `portion` of them at most (None: with all), and what came of one portion is not lost for what comes of another.
    Vectors are of one length, unless `ragged`.
    """

    def __init__(
        self,
        encode: Callable[[list[str]], Vectors],
        kept: Kept | None = None,
        memory: int = MEMORY,
        portion: int | None = None,
        ragged: bool = False,
    ) -> None:
        self._encode, self._kept, self._memory, self._portion = encode, kept, memory, portion
        self._ragged = ragged
        self._known: OrderedDict[str, Vector] = OrderedDict()
        self._bytes = 0
        self._nobody_at_work()
        _all.add(self)

    def _nobody_at_work(self) -> None:
        """As at the start, and in a forked child, where who held the locks is gone."""
        self._guard = threading.Lock()
        self._running = threading.RLock()  # a function may ask for other texts of its own
        self._waiting: dict[str, list[dict[str, Vector]]] = {}  # text: where its vector goes

    def __call__(self, texts: Iterable[str]) -> dict[str, Vector]:
        """The vector of each text. Raises what the model raises for one of these texts."""
        wanted = dict.fromkeys(texts)
        found = self._remembered(wanted)
        missing = [text for text in wanted if text not in found]
        if missing and self._kept is not None:
            found |= (old := self._kept.get(missing))
            self._remember(old)
            missing = [text for text in missing if text not in old]
        found |= self._made(missing) if missing else {}
        return found if self._ragged or len({len(vector) for vector in found.values()}) < 2 else self._anew(wanted)

    def _anew(self, texts: Iterable[str]) -> dict[str, Vector]:
        """What is remembered is another model's, of the same name: its vectors have another length."""
        with self._guard:
            self._known.clear()
            self._bytes = 0
        return self._made(list(texts))

    def _remembered(self, texts: Iterable[str]) -> dict[str, Vector]:
        found: dict[str, Vector] = {}
        with self._guard:
            for text in texts:
                if (vector := self._known.get(text)) is not None:
                    self._known.move_to_end(text)
                    found[text] = vector
        return found

    def _made(self, texts: list[str]) -> dict[str, Vector]:
        mine: dict[str, Vector] = {}
        with self._guard:
            for text in texts:
                self._waiting.setdefault(text, []).append(mine)
        try:
            with self._running:
                if any(text not in mine for text in texts):
                    self._run(mine)
                mine |= self._remembered(texts)  # the same texts of others, who were first
                if left := [text for text in texts if text not in mine]:  # others' texts were in the way
                    for vectors in self._vectors(left):
                        self._give(vectors, {text: [mine] for text in left})
        finally:
            self._take_back(texts, mine)
        return mine

    def _run(self, mine: dict[str, Vector]) -> None:
        """Everything that waits; where that fails each caller tries its own, unless there is no other."""
        with self._guard:
            taken, self._waiting = self._waiting, {}
        self._hand_out(known := self._remembered(taken), taken)  # encoded while they waited
        try:
            for vectors in self._vectors([text for text in taken if text not in known]):
                self._give(vectors, taken)
        except Exception:
            if all(place is mine for places in taken.values() for place in places):
                raise

    def _give(self, vectors: dict[str, Vector], wanted: dict[str, list[dict[str, Vector]]]) -> None:
        self._hand_out(vectors, wanted)
        self._remember(vectors)
        if self._kept is not None:
            self._kept.put(vectors)

    @staticmethod
    def _hand_out(vectors: dict[str, Vector], wanted: dict[str, list[dict[str, Vector]]]) -> None:
        for text, vector in vectors.items():
            for place in wanted[text]:
                place[text] = vector

    def _vectors(self, texts: list[str]) -> Iterator[dict[str, Vector]]:
        size = self._portion or max(1, len(texts))
        for some in (texts[start : start + size] for start in range(0, len(texts), size)):
            yield {text: _own(vector) for text, vector in zip(some, self._encode(some), strict=True)}

    def _take_back(self, texts: Iterable[str], mine: dict[str, Vector]) -> None:
        with self._guard:
            for text in texts:
                places = [place for place in self._waiting.get(text, ()) if place is not mine]
                if places:
                    self._waiting[text] = places
                else:
                    self._waiting.pop(text, None)

    def _remember(self, vectors: dict[str, Vector]) -> None:
        with self._guard:
            for text, vector in vectors.items():
                if text not in self._known:
                    self._known[text] = vector
                    self._bytes += _size(text, vector)
            while self._bytes > self._memory and self._known:
                text, vector = self._known.popitem(last=False)
                self._bytes -= _size(text, vector)


def _after_fork() -> None:
    for encoding in _all:
        encoding._nobody_at_work()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def _own(vector: Vector) -> Vector:
    """A view would hold the whole array of its portion, which may be a function's own; and nobody changes another's."""
    own = vector.copy()
    own.setflags(write=False)
    return own


def _size(text: str, vector: Vector) -> int:
    return int(vector.nbytes) + 2 * len(text) + 200
