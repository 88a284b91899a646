"""Evaluation of single cases, and comparison of judges with human feedback.

Modules, in the order in which data flows:

- `case_scoring`: Scoring of cases: the view of a trace, session or example, and the evaluators applied to it.
- `composite_evaluator`: Composite evaluator: the weighted mean of the scores that a run has under other keys.
- `cost_estimate`: Cost estimate: calls, tokens and price of judges over cases, without calling them.
- `judge_calibration`: Calibration of judges against human feedback: agreement, biases, prediction-powered
  mean.
- `threshold_fitting`: Threshold of an evaluator fitted to human feedback, with its confidence interval.
- `answer_guard`: Guard: evaluators that run inline, before an answer is returned, and may replace it.
- `pairwise_comparison`: Pairwise comparison of two answers or experiments by a judge, in both orders.
"""

from spanwise.evaluators.scoring.case_scoring import (
    MAX_TURNS,
    CaseBatcher,
    CaseScorer,
    ScoreResult,
    ascore,
    load_turns,
    make_case,
    retrieved_documents,
    score,
    skip_failed,
)
from spanwise.evaluators.scoring.composite_evaluator import (
    attach_feedback,
    check_composites,
    composite,
    describe_parts,
    get_parts,
)
from spanwise.evaluators.scoring.cost_estimate import Estimate, estimate
from spanwise.evaluators.scoring.judge_calibration import Bias, Calibration, calibrate, corrected_mean

__all__ = [
    "MAX_TURNS",
    "Bias",
    "Calibration",
    "CaseBatcher",
    "CaseScorer",
    "Estimate",
    "ScoreResult",
    "ascore",
    "attach_feedback",
    "calibrate",
    "check_composites",
    "composite",
    "corrected_mean",
    "describe_parts",
    "estimate",
    "get_parts",
    "load_turns",
    "make_case",
    "retrieved_documents",
    "score",
    "skip_failed",
]

# Modules that other packages may import; the others are internal
SHARED_MODULES = [
    "answer_guard",
    "judge_calibration",
    "pairwise_comparison",
    "threshold_fitting",
]
