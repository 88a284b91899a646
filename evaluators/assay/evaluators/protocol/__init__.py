"""The one protocol: any callable becomes an evaluator, found by name, whose outcomes are values."""

from assay.evaluators.protocol._documents import documents_of
from assay.evaluators.protocol._retry import pause

__all__ = ["documents_of", "pause"]
