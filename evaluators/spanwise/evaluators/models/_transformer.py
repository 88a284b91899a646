"""Vectors by sentence-transformers, on torch."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from spanwise.evaluators.models._find import Place, installed, is_offline, loading, snapshot
from spanwise.evaluators.models._kept import digest_of
from spanwise.evaluators.models._local import PART, by_length
from spanwise.evaluators.models._shared import Key, Loaded, bytes_of, device_of, shared
from spanwise.evaluators.models._trust import trusting

if TYPE_CHECKING:
    from spanwise.evaluators.models._encoding import Vectors

BATCH = 32  # texts, where nothing is said


class Transformer:
    """A SentenceTransformer, loaded once per process, place and device."""

    portion = None
    paid = False

    def __init__(
        self,
        place: Place,
        *,
        device: str | None,
        batch_size: int | None,
        token: str | None,
        remote_code: bool,
        pickle: bool,
    ) -> None:
        self.name, self._place, self._device = place.name, place, device
        self._batch_size = batch_size or BATCH
        self._token, self._remote_code, self._pickle = token, remote_code, pickle

    @property
    def key(self) -> Key:
        """Files, and how they are run."""
        return "embedding", self._place.key, self._device, self._remote_code

    @property
    def identity(self) -> Mapping[str, Any]:
        """Its name, and of weights in a folder what these are."""
        return {"model": self.name, "function": False, **self._place.identity}

    def digest(self) -> str | None:
        """Of its files, where they are here."""
        folder = snapshot(self._place)
        return digest_of(folder) if folder else None

    def check(self) -> None:
        """Whether sentence-transformers is installed, and offline whether the model is here. Raises `NoModel`."""
        with loading(self._place, f"embedding with {self.name}"):
            installed("sentence_transformers")
            if is_offline() and snapshot(self._place) is None:
                raise FileNotFoundError("nothing is asked of the hub")

    def load(self) -> None:
        """Load the model now. Raises `NoModel`."""
        shared(self.key, self._load)

    def encode(self, texts: list[str]) -> Vectors:
        """As the model gives them. Raises `NoModel`."""
        held = shared(self.key, self._load)
        with held.running:
            held.texts += len(texts)
            encode = partial(held.model.encode, batch_size=self._batch_size, show_progress_bar=False)
            return by_length(texts, PART * self._batch_size, encode, "texts embedded")

    def _load(self) -> Loaded:
        place = self._place
        with loading(place, f"embedding with {place.name}"), trusting(place, "Embedder"):
            from sentence_transformers import SentenceTransformer

            device = device_of(self._device)
            model = SentenceTransformer(
                place.where,
                device=device,
                token=self._token,
                trust_remote_code=self._remote_code,
                local_files_only=is_offline(),
                model_kwargs={} if self._pickle else {"use_safetensors": True},
            )
        return Loaded(model, place.name, "embedding", place.where, device, bytes_of(model), 0.0)
