"""Texts to vectors: a sentence-transformers model, a function, or whatever else gives one vector for each text."""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from assay.evaluators.models._encoding import Encoding
from assay.evaluators.models._find import NoModel, Place, find, is_offline, loading
from assay.evaluators.models._presets import DEFAULT
from assay.evaluators.models._shared import Loaded, bytes_of, device_of, shared
from assay.evaluators.protocol._telling import tracked

if TYPE_CHECKING:
    from assay.evaluators.models._encoding import Vector, Vectors

WANTED = "a function of a list of texts that gives one vector of finite numbers for each"
_PART = 16  # batches between two looks at how far it is
_encodings: dict[Hashable, Encoding] = {}


class Embedder:
    """Vectors of texts, each text encoded once per process and model.

    `model` is a folder, a model of the hub, a preset's name, or a function of a list of texts. `device` is "cuda",
    "mps" or "cpu" (None: the first that there is), `batch_size` in texts. Weights that run code when they are loaded
    (`remote_code`), or that are pickles (`pickle`), are loaded only where that is said. Nothing is loaded before the
    first text. Raises `NoModel` then, where the model or what runs it is not here.
    """

    def __init__(
        self,
        model: str | os.PathLike[str] | Callable[[list[str]], Any] | None = None,
        *,
        name: str | None = None,
        device: str | None = None,
        batch_size: int = 32,
        token: str | None = None,
        remote_code: bool = False,
        pickle: bool = False,
    ) -> None:
        if batch_size < 1:
            raise ValueError(f"batch_size is 1 or more, not {batch_size!r}")
        self._function = model if callable(model) else None
        self._given = DEFAULT["embedding"] if model is None or callable(model) else model
        self._name = name
        self.device, self.batch_size = device, batch_size
        self._token, self._remote_code, self._pickle = token, remote_code, pickle
        self._own = Encoding(self._checked)  # of a function

    @property
    def name(self) -> str:
        """What people call it: for thresholds, versions, and pages."""
        if self._name is not None:
            return self._name
        if self._function is not None:
            return getattr(self._function, "__qualname__", type(self._function).__qualname__)
        return self._place.name

    @property
    def identity(self) -> Mapping[str, Any]:
        """What its vectors depend on."""
        return {"model": self.name, "function": self._function is not None}

    def embed(self, texts: Sequence[str]) -> Vectors:
        """An array of (number of texts, dimensions), in their order, as the model gives them."""
        import numpy

        if not texts:
            return numpy.zeros((0, 0), dtype=numpy.float32)
        vectors = self.by_text(texts)
        return numpy.stack([vectors[text] for text in texts])

    def by_text(self, texts: Sequence[str]) -> dict[str, Vector]:
        """The vector of each text, by text."""
        return self._encoding()(texts)

    def load(self) -> None:
        """Load the model now. Raises `NoModel`."""
        if self._function is None:
            self._loaded()

    @cached_property
    def _place(self) -> Place:
        return find(self._given)

    def _encoding(self) -> Encoding:
        if self._function is not None:
            return self._own
        key = self._key()
        return _encodings.get(key) or _encodings.setdefault(key, Encoding(self._encode))

    def _key(self) -> Hashable:
        return "embedding", self._place.where, self.device, self._remote_code

    def _loaded(self) -> Loaded:
        return shared(self._key(), self._load)

    def _load(self) -> Loaded:
        place = self._place
        with loading(place, f"embedding with {place.name}"):
            from sentence_transformers import SentenceTransformer

            device = device_of(self.device)
            model = SentenceTransformer(
                place.where,
                device=device,
                token=self._token,
                trust_remote_code=self._remote_code,
                local_files_only=is_offline(),
                model_kwargs={} if self._pickle else {"use_safetensors": True},
            )
        return Loaded(model, place.name, "embedding", place.where, device, bytes_of(model), 0.0)

    def _encode(self, texts: list[str]) -> Vectors:
        held = self._loaded()
        with held.running:
            held.texts += len(texts)
            return self._run(held.model, texts)

    def _run(self, model: Any, texts: list[str]) -> Vectors:
        """Texts of like length go together, as within the model itself, so that parts cost no more than the whole."""
        import numpy

        order = sorted(range(len(texts)), key=lambda place: -len(texts[place]))
        size = _PART * self.batch_size
        parts = [[texts[place] for place in order[start : start + size]] for start in range(0, len(texts), size)]
        encoded = [
            model.encode(part, batch_size=self.batch_size, show_progress_bar=False)
            for part in tracked(parts, "texts embedded")
        ]
        vectors: Vectors = numpy.concatenate(encoded)[numpy.argsort(order)]
        return vectors

    def _checked(self, texts: list[str]) -> Vectors:
        """What a function gives, if these are vectors. Raises `ValueError`."""
        import numpy

        assert self._function is not None
        given = self._function(list(texts))
        try:
            vectors = numpy.asarray(given, dtype=numpy.float32)
        except (TypeError, ValueError) as error:
            raise ValueError(f"an embedder gave {given!r:.100}: it is {WANTED}") from error
        if vectors.ndim != 2 or len(vectors) != len(texts):
            raise ValueError(f"an embedder gave an array of {vectors.shape} for {len(texts)} texts: it is {WANTED}")
        if not numpy.isfinite(vectors).all():
            raise ValueError(f"an embedder gave numbers that are not finite: it is {WANTED}")
        return vectors


def embedder(given: Any = None, **options: Any) -> Embedder:
    """An embedder of whatever names one: itself, a function, a folder, a name, a dict of arguments, None (the default).

    Raises `ValueError` for anything else.
    """
    if isinstance(given, Embedder):
        return given
    if isinstance(given, Mapping):
        return Embedder(**{**given, **options})
    if given is None or isinstance(given, str | os.PathLike):
        return Embedder(given, **options)
    encode = getattr(given, "encode", given)  # a SentenceTransformer is no function
    if callable(encode):
        return Embedder(encode, name=None if encode is given else type(given).__name__, **options)
    raise NoModel(f"an embedder is a model's name, a folder, or {WANTED}, not {given!r:.200}")
