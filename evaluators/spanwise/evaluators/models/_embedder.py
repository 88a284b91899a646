"""Texts to vectors, whoever makes them: a model on this machine, an endpoint, a function."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from spanwise.evaluators.models._encoding import Encoding
from spanwise.evaluators.models._endpoint import DEADLINE, Endpoint
from spanwise.evaluators.models._find import NoModel, Place, find
from spanwise.evaluators.models._kept import KeptVectors, path_for
from spanwise.evaluators.models._local import told
from spanwise.evaluators.models._onnx import Onnx
from spanwise.evaluators.models._presets import DEFAULT
from spanwise.evaluators.models._shared import Key, put
from spanwise.evaluators.models._source import WANTED, Function, Source
from spanwise.evaluators.models._transformer import Transformer

if TYPE_CHECKING:
    from spanwise.evaluators.models._encoding import Vector, Vectors

_encodings: dict[Key, Encoding] = {}  # of models, which stay in memory as well
_of_users: weakref.WeakValueDictionary[Key, Encoding] = weakref.WeakValueDictionary()


class Embedder:
    """Vectors of texts, each text encoded once per process and model.

    `model` is a folder, a model of the hub, a preset's name, or a function of a list of texts. A folder with model.onnx
    and no other weights, and a file that ends in .onnx, run on onnxruntime. With `base_url` it is the name of a model
    at an OpenAI-compatible endpoint; `api_key` goes there and nowhere else (None: SPANWISE_EMBEDDINGS_KEY where the
    address is SPANWISE_EMBEDDINGS_URL, OPENAI_API_KEY where it is OPENAI_BASE_URL or OpenAI's), and `deadline` is in
    seconds, for one request with all its attempts. `device` is "cuda", "mps" or "cpu" (None: the first that there is),
    `batch_size` in texts (None: what suits the model). `cache` keeps vectors in a file, True in the user's cache
    directory, a path there; None keeps those of endpoints, and those of models where SPANWISE_VECTORS names a file.
    Those of a function are kept where that is said and it has a `name`.
    Weights that run code when they are loaded (`remote_code`), or that are pickles (`pickle`), are loaded only where
    that is said. Nothing is loaded before the first text. Raises `NoModel` then, where the model or what runs it is not
    here, and `ValueError` at once for arguments that do not go together.
    """

    def __init__(
        self,
        model: str | os.PathLike[str] | Callable[[list[str]], Any] | None = None,
        *,
        name: str | None = None,
        device: str | None = None,
        batch_size: int | None = None,
        token: str | None = None,
        remote_code: bool = False,
        pickle: bool = False,
        base_url: str | None = None,
        api_key: str | None = None,
        deadline: float = DEADLINE,
        cache: bool | str | os.PathLike[str] | None = None,
    ) -> None:
        if batch_size is not None and batch_size < 1:
            raise ValueError(f"batch_size is 1 or more, not {batch_size!r}")
        self._given, self._name, self._cache = model, name, cache
        self._function = Function(model, name) if callable(model) else None
        self._endpoint: Endpoint | None = None
        if base_url is not None:
            self._endpoint = Endpoint(model, base_url, api_key, deadline=deadline, batch_size=batch_size)
        elif api_key is not None:
            raise ValueError("api_key goes to base_url, which is not given")
        if cache and self._function is not None and name is None:
            raise ValueError("nobody knows what a function gives the next time: with cache= it needs a name=")
        self.device, self.batch_size = device, batch_size
        self._used: tuple[Key, Encoding] | None = None
        self._options: dict[str, Any] = {"token": token, "remote_code": remote_code, "pickle": pickle}

    def __repr__(self) -> str:
        return f"Embedder({self.name!r})"

    def __deepcopy__(self, memo: object) -> Embedder:
        """Itself: what it holds is the process's."""
        return self

    @property
    def name(self) -> str:
        """What people call it: for thresholds, versions, and pages."""
        return self._name if self._name is not None else self._source.name

    @property
    def identity(self) -> Mapping[str, Any]:
        """What its vectors depend on."""
        return {**self._source.identity, "model": self.name}

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

    def check(self) -> None:
        """Raises `NoModel` for what can be seen to be missing without loading anything."""
        self._source.check()

    def load(self) -> None:
        """Load the model now. Raises `NoModel`."""
        self._source.load()

    @cached_property
    def _place(self) -> Place:
        assert not callable(self._given)
        return find(DEFAULT["embedding"] if self._given is None else self._given)

    @cached_property
    def _source(self) -> Source:
        if self._function is not None:
            return self._function
        if self._endpoint is not None:
            return self._endpoint
        running: dict[str, Any] = {"device": self.device, "batch_size": self.batch_size}
        if self._place.runs_on_onnx:
            return Onnx(self._place, **running)
        return Transformer(self._place, **running, **self._options)

    def _encoding(self) -> Encoding:
        """Shared by all that encode with the same; for functions and endpoints as long as anybody has an embedder."""
        key = self._source.key
        if self._used is None or self._used[0] != key:
            self._used = key, self._shared_as(key)
        return self._used[1]

    def _shared_as(self, key: Key) -> Encoding:
        source, anonymous = self._source, self._function is not None and self._cache is None
        path = None if anonymous else path_for(self._cache, source.paid)
        key = *key, path
        of_user = self._function is not None or self._endpoint is not None
        if (encoding := (_of_users if of_user else _encodings).get(key)) is not None:
            return encoding
        digest = source.digest() if path is not None else None
        kept = KeptVectors(path, self.name, digest) if path is not None and digest is not None else None
        made = Encoding(source.encode, kept, portion=source.portion)
        return _of_users.setdefault(key, made) if of_user else put(_encodings, key, made)


def embedder(given: Any = None, **options: Any) -> Embedder:
    """An embedder of whatever names one: itself, a function, a folder, a name, a dict of arguments, None (the default).

    Raises `ValueError` for anything else.
    """
    if (made := told(Embedder, given, options)) is not None:
        return made
    encode = getattr(given, "encode", given)  # a SentenceTransformer is no function
    if callable(encode):
        made = Embedder(encode, **options)
        if encode is not given and made._name is None:
            made._name = type(given).__name__
        return made
    raise NoModel(f"an embedder is a model's name, a folder, or {WANTED}, not {given!r:.200}")
