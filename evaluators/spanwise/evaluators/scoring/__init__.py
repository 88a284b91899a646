"""Cases out of traces and values, evaluators on them, and how far judges among these agree with people."""

from spanwise.evaluators.scoring._calibrate import Bias, Calibration, calibrate
from spanwise.evaluators.scoring._cases import case_of, retrieved
from spanwise.evaluators.scoring._corrected import corrected
from spanwise.evaluators.scoring._estimate import Estimate, estimate
from spanwise.evaluators.scoring._score import ascore, score
from spanwise.evaluators.scoring._scoring import Scoring, of_failed
from spanwise.evaluators.scoring._sessions import turns_of

__all__ = [
    "Bias",
    "Calibration",
    "Estimate",
    "Scoring",
    "ascore",
    "calibrate",
    "case_of",
    "corrected",
    "estimate",
    "of_failed",
    "retrieved",
    "score",
    "turns_of",
]
