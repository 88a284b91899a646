"""Similarity by the layer of models, or by any function that makes vectors of texts."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from spanwise.evaluators.models import Embedder, embedder
from spanwise.evaluators.protocol import Skip, in_thread

Embed: TypeAlias = Callable[[list[str]], Any]
WANTED = (
    "embed is a function of a list of texts that gives one vector for each, also an async one, or what names a model: "
    "embed='all-MiniLM-L6-v2'"
)


def embed_of(given: Any) -> Embed:
    """The function that is meant: itself, or that of an `Embedder` or of whatever names one (None: the default model).

    Raises `ValueError` for what names none.
    """
    if callable(given) and not hasattr(given, "encode"):  # a SentenceTransformer can be called, too
        return given  # type: ignore[no-any-return]
    return embedder(given).embed


def check(embed: Embed) -> None:
    """Raises `NoModel` for a model of ours of which something is missing."""
    if isinstance(owner := getattr(embed, "__self__", None), Embedder):
        owner.check()


def identity_of(embed: Embed) -> list[Any]:
    """What scores depend on; nothing of a function, of which nobody knows what it does."""
    owner = getattr(embed, "__self__", None)
    return [dict(owner.identity)] if isinstance(owner, Embedder) else []


async def similarities(embed: Embed, text: str, others: Sequence[str]) -> list[float]:
    """The cosines, in [-1, 1], of a text with each of the others.

    Raises `Skip` for a vector of zeros, whose direction is undefined, and `ValueError` for what are no vectors.
    """
    texts = [text, *others]
    first, *rest = await vectors(embed, texts)
    if not any(first):
        raise Skip(f"the similarity is undefined: embed gave a vector of zeros for {text!r:.200}")
    for other, vector in zip(others, rest, strict=True):
        if not any(vector):
            raise Skip(f"the similarity is undefined: embed gave a vector of zeros for {other!r:.200}")
    return [_cosine(first, vector) for vector in rest]


async def vectors(embed: Embed, texts: Sequence[str]) -> list[list[float]]:
    """One vector of finite numbers per text, all of one length. Raises `ValueError` for anything else."""
    given = await in_thread(lambda: embed(list(texts)))
    if inspect.isawaitable(given):
        given = await given
    rows = _plain(given)
    if not isinstance(rows, list) or len(rows) != len(texts):
        told = f"{len(rows)} vectors" if isinstance(rows, list) else f"{given!r:.100}"
        raise ValueError(f"embed gave {told} for {len(texts)} texts; {WANTED}")
    read = [_vector(_plain(row)) for row in rows]
    if len({len(row) for row in read}) > 1:
        raise ValueError(f"embed gave vectors of {sorted({len(row) for row in read})} numbers: all have one length")
    return read


def _vector(row: Any) -> list[float]:
    try:
        read = [float(number) for number in row]
    except (TypeError, ValueError) as error:
        raise ValueError(f"embed gave {row!r:.100} as a vector; {WANTED}") from error
    if not read or not all(map(math.isfinite, read)):
        raise ValueError(f"embed gave a vector of {len(read)} numbers, {read!r:.100}, not all of them finite")
    return read


def _plain(value: Any) -> Any:
    """Lists in the place of arrays, tensors and tuples."""
    as_list = getattr(value, "tolist", None)
    plain = as_list() if callable(as_list) else value
    return list(plain) if isinstance(plain, tuple) else plain


def _cosine(one: list[float], other: list[float]) -> float:
    """Scaled by the greatest number first, so that neither tiny nor huge ones are lost in the squares."""
    one, other = _scaled(one), _scaled(other)
    product = math.fsum(a * b for a, b in zip(one, other, strict=True))
    return max(-1.0, min(1.0, product / (math.hypot(*one) * math.hypot(*other))))


def _scaled(vector: list[float]) -> list[float]:
    greatest = max(map(abs, vector))
    return [number / greatest for number in vector]
