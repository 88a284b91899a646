"""What a refusal of transformers means here: weights that run code are loaded only where somebody has said so."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from spanwise.evaluators.models._find import NoModel, Place


@contextmanager
def trusting(place: Place, maker: str) -> Iterator[None]:
    """Say how to allow the code of a model, in the words of the one who `maker` makes. Raises `NoModel`."""
    try:
        yield
    except ValueError as error:
        if "trust_remote_code" not in str(error):
            raise
        raise NoModel(
            f"{place.name!r} runs code of its own when it is loaded; if you trust it, say so: "
            f"{maker}({place.where!r}, remote_code=True)"
        ) from None
