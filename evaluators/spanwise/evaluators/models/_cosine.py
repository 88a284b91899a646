"""Cosines of vectors, and where they are undefined."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

from spanwise.evaluators.protocol import Skip

if TYPE_CHECKING:
    import numpy

    from spanwise.evaluators.models._encoding import Vector

    Matrix = numpy.ndarray[tuple[int, int], numpy.dtype[numpy.float64]]


def cosine(one: Vector, other: Vector) -> float:
    """In [-1, 1], in double precision. Raises `Skip` for a vector of zeros, whose direction is undefined."""
    return float(cosines([one], [other])[0, 0])


def cosines(ones: Sequence[Vector], others: Sequence[Vector]) -> Matrix:
    """Of each with each of the others, an array of (ones, others). Raises `Skip` for a vector of zeros.

    To 12 digits: equal directions have a cosine of 1, and reach a threshold of 1.
    """
    import numpy

    return cast("Matrix", numpy.clip(numpy.round(_directions(ones) @ _directions(others).T, 12), -1.0, 1.0))


def _directions(vectors: Sequence[Vector]) -> Matrix:
    import numpy

    matrix = numpy.asarray(vectors, dtype=numpy.float64)
    lengths = numpy.linalg.norm(matrix, axis=1, keepdims=True)
    if not lengths.all():
        raise Skip("the similarity is undefined: the model gave a vector of zeros")
    return cast("Matrix", matrix / lengths)
