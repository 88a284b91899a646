"""Cases out of traces and values, and evaluators on them."""

from assay.evaluators.scoring._cases import case_of, retrieved
from assay.evaluators.scoring._score import ascore, score
from assay.evaluators.scoring._scoring import Scoring, of_failed

__all__ = ["Scoring", "ascore", "case_of", "of_failed", "retrieved", "score"]
