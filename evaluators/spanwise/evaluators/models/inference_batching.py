"""Inference batching, and models in memory: coalescing, windows over long texts, one instance per process.

Callers that arrive while the model runs enqueue their texts, and the next caller encodes all waiting texts. If a text
makes the model fail, only the caller of that text gets the exception.

A window is an unchanged part of the text, so that it can be shown with its score. Windows are cut between words if a
word boundary is near, else between tokens.
"""

from __future__ import annotations

import os
import threading
import weakref
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeAlias, TypeVar

from spanwise.evaluators.interface.progress_display import track_progress
from spanwise.evaluators.models.disk_cache import forget_files_after_fork
from spanwise.evaluators.models.model_resolution import (
    DEFAULT,
    ModelLocation,
    ModelUse,
    NoModel,
    check_no_secrets,
    locate_model,
)

if TYPE_CHECKING:
    from spanwise.evaluators.models.disk_cache import Vector, Vectors


# Inference batching: request coalescing, isolation of failing inputs, windows over long texts.

MEMORY_BYTES = 64 << 20  # maximum bytes of the vectors in memory
_all_encoders: weakref.WeakSet[CoalescingEncoder] = weakref.WeakSet()


class PersistentVectors(Protocol):
    """Protocol of a vector cache that outlives the process."""

    def get(self, texts: Sequence[str]) -> dict[str, Vector]:
        """Return the cached vectors by text."""
        ...

    def put(self, vectors: dict[str, Vector]) -> None:
        """Store vectors by text."""


class CoalescingEncoder:
    """Encoder of one model that caches vectors and coalesces concurrent requests.

    One thread at a time calls `encode`, with distinct texts and with at most `portion` of them (None: all). If one
    portion fails, the vectors of the others are kept. All vectors must have the same length, unless `ragged` is true.
    """

    def __init__(
        self,
        encode: Callable[[list[str]], Vectors],
        store: PersistentVectors | None = None,
        memory: int = MEMORY_BYTES,
        portion: int | None = None,
        ragged: bool = False,
    ) -> None:
        self._encode, self._store, self._memory, self._portion = encode, store, memory, portion
        self._ragged = ragged
        self._known: OrderedDict[str, Vector] = OrderedDict()
        self._bytes = 0
        self._reset_callers()
        _all_encoders.add(self)

    def _reset_callers(self) -> None:
        """Reset locks and waiting texts, at the start and in a forked child. The threads that held the locks do not
        exist in the child.
        """
        self._guard = threading.Lock()
        # reentrant, because a function may encode other texts through the same encoder
        self._running = threading.RLock()
        # waiting texts, each with the dicts that its vector is written to
        self._waiting: dict[str, list[dict[str, Vector]]] = {}

    def __call__(self, texts: Iterable[str]) -> dict[str, Vector]:
        """Return the vectors by text. Raises the model's exception for one of these texts."""
        wanted = dict.fromkeys(texts)
        found = self._remembered(wanted)
        missing = [text for text in wanted if text not in found]
        if missing and self._store is not None:
            found |= (old := self._store.get(missing))
            self._remember(old)
            missing = [text for text in missing if text not in old]
        found |= self._encode_missing(missing) if missing else {}
        if self._ragged or len({len(vector) for vector in found.values()}) < 2:
            return found
        # cached vectors of another length are from another model of the same name: discard them, and encode the texts
        # again
        with self._guard:
            self._known.clear()
            self._bytes = 0
        return self._encode_missing(list(wanted))

    def _remembered(self, texts: Iterable[str]) -> dict[str, Vector]:
        found: dict[str, Vector] = {}
        with self._guard:
            for text in texts:
                if (vector := self._known.get(text)) is not None:
                    self._known.move_to_end(text)
                    found[text] = vector
        return found

    def _encode_missing(self, texts: list[str]) -> dict[str, Vector]:
        own: dict[str, Vector] = {}
        with self._guard:
            for text in texts:
                self._waiting.setdefault(text, []).append(own)
        try:
            with self._running:
                if any(text not in own for text in texts):
                    self._run(own)
                own |= self._remembered(texts)  # vectors that another caller has encoded meanwhile
                # the texts of another caller made the batch fail
                if left := [text for text in texts if text not in own]:
                    for vectors in self._vectors(left):
                        self._deliver(vectors, {text: [own] for text in left})
        finally:
            with self._guard:
                for text in texts:
                    places = [place for place in self._waiting.get(text, ()) if place is not own]
                    if places:
                        self._waiting[text] = places
                    else:
                        self._waiting.pop(text, None)
        return own

    def _run(self, own: dict[str, Vector]) -> None:
        """Encode all waiting texts.

        If that fails and all texts are from one caller, raise the exception. With several callers, ignore it: each of
        them then encodes its own texts.
        """
        with self._guard:
            claimed, self._waiting = self._waiting, {}
        # texts that another caller has encoded since they were queued
        self._hand_out(known := self._remembered(claimed), claimed)
        try:
            for vectors in self._vectors([text for text in claimed if text not in known]):
                self._deliver(vectors, claimed)
        except Exception:
            if all(place is own for places in claimed.values() for place in places):
                raise

    def _deliver(self, vectors: dict[str, Vector], wanted: dict[str, list[dict[str, Vector]]]) -> None:
        self._hand_out(vectors, wanted)
        self._remember(vectors)
        if self._store is not None:
            self._store.put(vectors)

    @staticmethod
    def _hand_out(vectors: dict[str, Vector], wanted: dict[str, list[dict[str, Vector]]]) -> None:
        for text, vector in vectors.items():
            for place in wanted[text]:
                place[text] = vector

    def _vectors(self, texts: list[str]) -> Iterator[dict[str, Vector]]:
        size = self._portion or max(1, len(texts))
        for some in (texts[start : start + size] for start in range(0, len(texts), size)):
            yield {text: _read_only_copy(vector) for text, vector in zip(some, self._encode(some), strict=True)}

    def _remember(self, vectors: dict[str, Vector]) -> None:
        with self._guard:
            for text, vector in vectors.items():
                if text not in self._known:
                    self._known[text] = vector
                    self._bytes += _entry_bytes(text, vector)
            while self._bytes > self._memory and self._known:
                text, vector = self._known.popitem(last=False)
                self._bytes -= _entry_bytes(text, vector)


def reset_encoders_after_fork() -> None:
    """Reset the locks and waiting texts of all encoders in a forked child."""
    for encoder in _all_encoders:
        encoder._reset_callers()


def _read_only_copy(vector: Vector) -> Vector:
    """Return a read-only copy, because callers share the vectors. A view would keep the array of its whole portion in
    memory.
    """
    own = vector.copy()
    own.setflags(write=False)
    return own


def _entry_bytes(text: str, vector: Vector) -> int:
    return int(vector.nbytes) + 2 * len(text) + 200


Asked = TypeVar("Asked", bound=Hashable)
Given = TypeVar("Given")


def run_each(ask: Callable[[list[Asked]], Sequence[Given]], given: Sequence[Asked]) -> dict[Asked, Given | Exception]:
    """Return the result of `ask` for each input, or the exception if `ask` fails for that input.

    A failing batch is split in halves. Raises `NoModel`, because no single input causes it.
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
    """Encode a pair as one text that `split_pair` can decode."""
    return f"{len(one)} {one}{other}"


def split_pair(text: str) -> tuple[str, str]:
    """Decode a pair from the text that `join_pair` made."""
    length, _, both = text.partition(" ")
    return both[: int(length)], both[int(length) :]


TokenSpans: TypeAlias = Sequence[tuple[int, int]]
"""Of each token of a text the first character and the one behind its last."""

WINDOW_OVERLAP = 0.2  # share of a window that overlaps the previous window
# tokens left free in a window: tokenized alone, a part of a text may have one or two tokens more than within it
SPARE_TOKENS = 2
PIECE_CHARACTERS = 200_000  # maximum characters that are tokenized together
_MIN_WINDOW = 8  # minimum number of tokens per window


def split_windows(
    text: str, spans_of: Callable[[str], TokenSpans], size: int, *, characters: int = PIECE_CHARACTERS
) -> list[str]:
    """Split a text into windows of at most `size` tokens, in order. A text that has no more tokens is returned unsplit.

    The windows cover the whole text except for whitespace between them. A `size` below 8 counts as 8. The text is
    tokenized in pieces of at most `characters` characters.
    """
    size = max(size, _MIN_WINDOW)
    # a text with fewer bytes than `size` fits: each token has at least one byte, and one special token marks the
    # start
    if len(text) < size and len(text.encode(errors="replace")) < size:
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
    """Return a function that finds the token spans of a text with a tokenizer of transformers.

    That function raises `ValueError` if the tokenizer does not support offsets.
    """

    def spans_of(text: str) -> TokenSpans:
        try:
            encoded = tokenizer(
                text, add_special_tokens=False, truncation=False, return_offsets_mapping=True, verbose=False
            )
        except NotImplementedError as error:
            kind = type(tokenizer).__name__
            raise ValueError(
                f"a text of {len(text)} characters is too long, and {kind} cannot cut it: {error}"
            ) from None
        return [(first, end) for first, end in encoded["offset_mapping"] if end > first]

    return spans_of


def token_limit(tokenizer: Any, config: Any) -> int:
    """Return the number of tokens that a model reads at once: the lower one of its tokenizer's limit and its number of
    positions, by default 512.
    """
    positions = getattr(config, "max_position_embeddings", None) or 512
    if getattr(config, "model_type", "") in ("roberta", "xlm-roberta", "camembert"):
        positions -= 2  # positions of these models start after the padding index
    limit = getattr(tokenizer, "model_max_length", None) or positions
    return int(min(limit, positions))


def _cut_piece(piece: str, spans: TokenSpans, size: int, ends: bool) -> tuple[list[str], int]:
    """Return the windows of a piece of a text, and the index of the token with which the next piece starts; 0 if there
    is no progress.

    If the text continues after the piece, the last window is left to the next piece.
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
    """Return the index of the last token at or before `token` that starts a word.

    If there is none from `least` on, return `token` itself.
    """
    for before in range(token, least - 1, -1):
        if spans[before][0] > spans[before - 1][1]:
            return before
    return token


# Models in memory: one instance per process, encoders shared by objects with the same model, base class of local
# models.


@dataclass(slots=True)
class LoadedModel:
    """Model in memory. Callers run it one at a time, because it uses all threads of the machine."""

    model: Any
    name: str
    where: str
    device: str
    parameters_bytes: int
    running: threading.RLock = field(default_factory=threading.RLock)
    texts: int = 0  # number of texts that it has processed


ModelKey: TypeAlias = tuple[Any, ...]  # (use, `ModelLocation.key`, settings …)
Known = TypeVar("Known")

_loaded: dict[ModelKey, LoadedModel] = {}
_locks: dict[ModelKey, threading.Lock] = {}
_guard = threading.Lock()


def load_shared(key: ModelKey, load: Callable[[], LoadedModel]) -> LoadedModel:
    """Return the model under a key. If it is not loaded yet, call `load`. Concurrent callers share one call."""
    with _guard:
        lock = _locks.setdefault(key, threading.Lock())
    with lock:
        if key not in _loaded:
            made = load()
            with _guard:
                put_current(_loaded, key, made)
            return made
        return _loaded[key]


def put_current(known: dict[ModelKey, Known], key: ModelKey, one: Known) -> Known:
    """Store a value under a key unless one is stored already, and return the stored value.

    Entries whose key names an earlier version of the same files are dropped.
    """
    use, place, *_ = key
    for other in list(known):
        if other[0] == use and other[1] != place and other[1][0] == place[0]:
            known.pop(other, None)
    return known.setdefault(key, one)


def loaded_models() -> list[LoadedModel]:
    """Return the models in memory, in the order in which they were loaded."""
    return list(_loaded.values())


def unload_models() -> None:
    """Drop all models. A caller that holds a reference to a model can continue to use it."""
    with _guard:
        _loaded.clear()
        _locks.clear()


def choose_device(given: str | None) -> str:
    """Return the given device, else SPANWISE_DEVICE, else the first one available of cuda, mps and cpu."""
    named = given or os.environ.get("SPANWISE_DEVICE")
    if named:
        return named
    import torch

    if torch.cuda.is_available():
        return "cuda"
    return "mps" if torch.backends.mps.is_available() else "cpu"


def parameter_bytes(module: Any) -> int:
    """Return the size of a torch module's parameters in bytes."""
    return sum(parameter.numel() * parameter.element_size() for parameter in module.parameters())


def _reset_after_fork() -> None:
    """Reset the package's locks, and drop models and open files, in a forked child.

    The parent's threads do not exist in the child, including those of the models.
    """
    global _guard
    forget_files_after_fork()
    reset_encoders_after_fork()
    _guard = threading.Lock()
    _loaded.clear()
    _locks.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_reset_after_fork)


BATCHES_PER_UPDATE = 16  # batches between two updates of the progress display
Kind = TypeVar("Kind")
# encoders of local models; they stay in memory as long as the models
_encoders: dict[ModelKey, CoalescingEncoder] = {}


def shared_encoder(key: ModelKey, make: Callable[[], CoalescingEncoder]) -> CoalescingEncoder:
    """Return the encoder under a model's key and settings. If there is none, call `make`."""
    return _encoders.get(key) or put_current(_encoders, key, make())


class LocalModel(ABC):
    """Base class of models from a folder, the hub or a preset, loaded on first use. A function can replace the
    model.
    """

    USE: ClassVar[ModelUse]

    def __init__(
        self,
        model: str | os.PathLike[str] | Callable[..., Any] | None,
        name: str | None,
        device: str | None,
        token: str | None,
        remote_code: bool,
        pickle: bool,
    ) -> None:
        self._function = model if callable(model) else None
        self._given = DEFAULT[self.USE] if model is None or callable(model) else model
        self._name, self.device = name, device
        self._token, self._remote_code, self._pickle = token, remote_code, pickle

    @property
    def name(self) -> str:
        """Return the name that thresholds, versions and the user interface use."""
        if self._name is not None:
            return self._name
        if self._function is not None:
            return getattr(self._function, "__qualname__", type(self._function).__qualname__)
        return self._place.name

    @property
    def identity(self) -> Mapping[str, Any]:
        """Return the properties that the results depend on."""
        files = {} if self._function is not None else self._place.identity
        return {"model": self.name, "function": self._function is not None, **self._how(), **files}

    def load(self) -> None:
        """Load the model now. Raises `NoModel`."""
        if self._function is None:
            self._loaded()

    @abstractmethod
    def _how(self) -> Mapping[str, Any]:
        """Return further properties that the results depend on, by the names of the arguments."""

    @abstractmethod
    def _load(self) -> LoadedModel:
        """Load the model into memory. Raises `NoModel`."""

    @cached_property
    def _place(self) -> ModelLocation:
        return locate_model(self._given)

    def _key(self) -> ModelKey:
        return self.USE, self._place.key, self.device, self._remote_code, self._pickle

    def _loaded(self) -> LoadedModel:
        return load_shared(self._key(), self._load)

    def _shared(self, encode: Callable[[list[str]], Vectors], *how: Any, ragged: bool = False) -> CoalescingEncoder:
        """Return the encoder shared by all objects that run this model with the same settings."""
        key = *self._key(), *how
        return shared_encoder(key, lambda: CoalescingEncoder(encode, ragged=ragged))


def make_model(kind: type[Kind], given: Any, options: Mapping[str, Any]) -> Kind | None:
    """Return a model for an object of the class, a dict of arguments, a folder, a name, or None (the default).

    Returns None for anything else. Raises `ValueError` for a secret in a dict.
    """
    make: Callable[..., Kind] = kind
    if isinstance(given, kind):
        return given
    if isinstance(given, Mapping):
        check_no_secrets(given, kind.__name__)
        return make(**{**given, **options})
    if given is None or isinstance(given, str | os.PathLike):
        return make(given, **options)
    return None


def run_by_length(texts: Sequence[str], size: int, run: Callable[[list[str]], Vectors], what: str) -> Vectors:
    """Call `run` on batches of `size` texts, and return the rows in the order of all texts.

    Texts of similar length share a batch, which minimizes padding.
    """
    import numpy

    order = sorted(range(len(texts)), key=lambda place: -len(texts[place]))
    parts = [[texts[place] for place in order[start : start + size]] for start in range(0, len(order), size)]
    rows: Vectors = numpy.concatenate([run(part) for part in track_progress(parts, what)])[numpy.argsort(order)]
    return rows
