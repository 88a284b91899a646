"""Judge: evaluators, `evaluate()`, monitor."""

from assay.collector.extras import needing

with needing("server", __name__):
    from assay.evaluators.engine import Experiment, aevaluate, compare, evaluate
    from assay.evaluators.judges import Judge, judge
    from assay.evaluators.protocol import Evaluator, Metric, Skip, as_evaluator, evaluator, from_dict, get, names
    from assay.evaluators.scoring import Estimate, ascore, case_of, estimate, score

__all__ = [
    "Estimate",
    "Evaluator",
    "Experiment",
    "Judge",
    "Metric",
    "Skip",
    "aevaluate",
    "as_evaluator",
    "ascore",
    "case_of",
    "compare",
    "estimate",
    "evaluate",
    "evaluator",
    "from_dict",
    "get",
    "judge",
    "names",
    "score",
]
