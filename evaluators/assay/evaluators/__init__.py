"""Judge: evaluators, `evaluate()`, monitor."""

from assay.collector.extras import needing

with needing("server", __name__):
    from assay.evaluators.engine import Experiment, aevaluate, compare, evaluate
    from assay.evaluators.judges import Judge, judge
    from assay.evaluators.protocol import Evaluator, Metric, Skip, as_evaluator, evaluator, from_dict, get, names
    from assay.evaluators.scoring import ascore, case_of, score

__all__ = [
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
    "evaluate",
    "evaluator",
    "from_dict",
    "get",
    "judge",
    "names",
    "score",
]
