"""Cosines of vectors, and where they are undefined."""

from __future__ import annotations

from typing import TYPE_CHECKING

from assay.evaluators.protocol import Skip

if TYPE_CHECKING:
    from assay.evaluators.models._encoding import Vector


def cosine(one: Vector, other: Vector) -> float:
    """In [-1, 1], in double precision. Raises `Skip` for a vector of zeros, whose direction is undefined."""
    import numpy

    a, b = numpy.asarray(one, dtype=numpy.float64), numpy.asarray(other, dtype=numpy.float64)
    length = float(numpy.linalg.norm(a)) * float(numpy.linalg.norm(b))
    if not length:
        raise Skip("the similarity is undefined: the model gave a vector of zeros")
    return max(-1.0, min(1.0, float(a @ b) / length))
