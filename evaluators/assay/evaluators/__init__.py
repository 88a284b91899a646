"""Judge: evaluators, `evaluate()`, monitor."""

from assay.collector._extras import needing

with needing("server", __name__):
    from assay.evaluators._cases import case_of
    from assay.evaluators._evaluator import Evaluator, as_evaluator, evaluator
    from assay.evaluators._metric import Metric
    from assay.evaluators._outcomes import Skip
    from assay.evaluators._registry import from_dict, get, names
    from assay.evaluators._score import ascore, score
    from assay.evaluators.engine import Experiment, aevaluate, compare, evaluate

__all__ = [
    "Evaluator",
    "Experiment",
    "Metric",
    "Skip",
    "aevaluate",
    "as_evaluator",
    "ascore",
    "case_of",
    "compare",
    "evaluate",
    "evaluator",
    "from_dict",
    "get",
    "names",
    "score",
]
