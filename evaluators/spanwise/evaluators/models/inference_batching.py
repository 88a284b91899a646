"""Inference batching: request coalescing, isolation of failing inputs, windows over long texts.

Who comes while the model runs leaves texts behind; whoever is next takes all that waits. A text that the model cannot
take fails alone.

A window is a part of the text as it stands, so that what is scored can be shown. Cuts are made between words where one
is near, else between tokens.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypeVar

from spanwise.evaluators.models.model_resolution import NoModel

if TYPE_CHECKING:
    import numpy

    Vector = numpy.ndarray[tuple[int], numpy.dtype[numpy.float32]]
    Vectors = numpy.ndarray[tuple[int, int], numpy.dtype[numpy.float32]]

MEMORY_BYTES = 64 << 20  # bytes of vectors that are remembered
_all_encoders: weakref.WeakSet[CoalescingEncoder] = weakref.WeakSet()


class PersistentVectors(Protocol):
    """Vectors that outlive the process."""

    def get(self, texts: Sequence[str]) -> dict[str, Vector]:
        """Those that are there."""
        ...

    def put(self, vectors: dict[str, Vector]) -> None:
        """Keep some."""


class CoalescingEncoder:
    """One model's vectors. `encode` is called by one thread at a time, with texts of which no two are the same: with
    `portion` of them at most (None: with all), and what came of one portion is not lost for what comes of another.
    Vectors are of one length, unless `ragged`.
    """

    def __init__(
        self,
        encode: Callable[[list[str]], Vectors],
        kept: PersistentVectors | None = None,
        memory: int = MEMORY_BYTES,
        portion: int | None = None,
        ragged: bool = False,
    ) -> None:
        self._encode, self._kept, self._memory, self._portion = encode, kept, memory, portion
        self._ragged = ragged
        self._known: OrderedDict[str, Vector] = OrderedDict()
        self._bytes = 0
        self._nobody_at_work()
        _all_encoders.add(self)

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
            yield {text: _read_only_copy(vector) for text, vector in zip(some, self._encode(some), strict=True)}

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
                    self._bytes += _entry_bytes(text, vector)
            while self._bytes > self._memory and self._known:
                text, vector = self._known.popitem(last=False)
                self._bytes -= _entry_bytes(text, vector)


def _reset_encoders_after_fork() -> None:
    for encoding in _all_encoders:
        encoding._nobody_at_work()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_reset_encoders_after_fork)


def _read_only_copy(vector: Vector) -> Vector:
    """A view would hold the whole array of its portion, which may be a function's own; and nobody changes another's."""
    own = vector.copy()
    own.setflags(write=False)
    return own


def _entry_bytes(text: str, vector: Vector) -> int:
    return int(vector.nbytes) + 2 * len(text) + 200


Asked = TypeVar("Asked", bound=Hashable)
Given = TypeVar("Given")


def run_each(ask: Callable[[list[Asked]], Sequence[Given]], given: Sequence[Asked]) -> dict[Asked, Given | Exception]:
    """What `ask` gives for each, or why it fails for this one: what fails together is tried in halves.

    Raises `NoModel`, which is nobody's fault among them.
    """
    found: dict[Asked, Given | Exception] = {}
    waiting = [list(dict.fromkeys(given))]
    while waiting:
        part = waiting.pop()
        try:
            found |= dict(zip(part, ask(part), strict=True))
        except NoModel:
            raise
        except Exception as error:
            if len(part) == 1:
                found[part[0]] = error
            else:
                waiting += [part[len(part) // 2 :], part[: len(part) // 2]]
    return found


def join_pair(one: str, other: str) -> str:
    """A pair as one text, from which it can be told again."""
    return f"{len(one)} {one}{other}"


def split_pair(text: str) -> tuple[str, str]:
    """The pair of which this was made."""
    length, _, both = text.partition(" ")
    return both[: int(length)], both[int(length) :]


TokenSpans: TypeAlias = Sequence[tuple[int, int]]
"""Of each token of a text the first character and the one behind its last."""

WINDOW_OVERLAP = 0.2  # of a window that stands in the one before, too
SPARE_TOKENS = 2  # tokens left free: a part of a text may have one or two more than it had inside the whole
PIECE_CHARACTERS = 200_000  # characters that are looked at together
_MIN_WINDOW = 8  # tokens of a window


def split_windows(
    text: str, spans_of: Callable[[str], TokenSpans], size: int, *, characters: int = PIECE_CHARACTERS
) -> list[str]:
    """The text itself where it has no more than `size` tokens, else windows of at most that many, in order.

    Together they are all of the text but for blanks between them. `size` below 8 counts as 8. No more than so many
    `characters` are looked at together.
    """
    size = max(size, _MIN_WINDOW)
    if _surely_fits(text, size):
        return [text]
    found: list[str] = []
    start = 0
    while start < len(text):
        piece = text[start : start + characters]
        spans = spans_of(piece)
        ends = start + len(piece) == len(text)
        if not found and ends and len(spans) <= size:
            return [text]
        parts, next_token = _cut_piece(piece, spans, max(size - SPARE_TOKENS, _MIN_WINDOW), ends)
        found += parts
        start += len(piece) if ends or next_token == 0 else spans[next_token][0]
    return found or [text]


def make_span_finder(tokenizer: Any) -> Callable[[str], TokenSpans]:
    """Where a tokenizer of transformers has its tokens. Raises `ValueError`, when it is called, where it cannot say."""

    def spans_of(text: str) -> TokenSpans:
        try:
            told = tokenizer(
                text, add_special_tokens=False, truncation=False, return_offsets_mapping=True, verbose=False
            )
        except NotImplementedError as error:
            kind = type(tokenizer).__name__
            raise ValueError(
                f"a text of {len(text)} characters is too long, and {kind} cannot cut it: {error}"
            ) from None
        return [(first, end) for first, end in told["offset_mapping"] if end > first]

    return spans_of


def token_limit(tokenizer: Any, config: Any) -> int:
    """How many tokens a model reads at once: what its tokenizer says, else its positions, else 512."""
    positions = getattr(config, "max_position_embeddings", None) or 512
    if getattr(config, "model_type", "") in ("roberta", "xlm-roberta", "camembert"):
        positions -= 2  # their positions begin behind the padding's
    said = getattr(tokenizer, "model_max_length", None) or positions
    return int(min(said, positions))


def _surely_fits(text: str, size: int) -> bool:
    """Without a look at its tokens, of which there is at least a byte for each, and one that stands for the start."""
    return len(text) < size and len(text.encode(errors="replace")) < size


def _cut_piece(piece: str, spans: TokenSpans, size: int, ends: bool) -> tuple[list[str], int]:
    """The windows of a piece of a text, and the token with which the next piece begins; 0 where there is no progress.

    Where the text goes on behind the piece, the last window is left to the next one.
    """
    found: list[str] = []
    at = 0
    while at < len(spans):
        end = at + size
        if end >= len(spans):
            if ends:
                found.append(piece[spans[at][0] : spans[-1][1]])
            break
        end = _word_start(spans, end, at + size // 2)
        found.append(piece[spans[at][0] : spans[end - 1][1]])
        back = max(end - int(size * WINDOW_OVERLAP), at + 1)
        at = _word_start(spans, back, max(at + 1, back - size // 8))
    if not found and not ends:
        return [piece], 0
    return found, at


def _word_start(spans: TokenSpans, token: int, least: int) -> int:
    """The nearest token at or before this one with which a word begins; itself where none is at `least` or behind."""
    for before in range(token, least - 1, -1):
        if spans[before][0] > spans[before - 1][1]:
            return before
    return token
