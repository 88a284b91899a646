"""Judge: evaluators, `evaluate()`, monitor."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from spanwise.collector.extras import needing

if TYPE_CHECKING:
    from spanwise.evaluators.judges import Judge, judge, panel, scripted
    from spanwise.evaluators.monitors import monitor
    from spanwise.evaluators.scoring._fit import fit_threshold
    from spanwise.evaluators.scoring._pairwise import pairwise

with needing("server", __name__):
    from spanwise.evaluators.engine import Experiment, aevaluate, compare, evaluate
    from spanwise.evaluators.protocol import Evaluator, Metric, Skip, as_evaluator, evaluator, from_dict, get, names
    from spanwise.evaluators.scoring import Estimate, ascore, calibrate, case_of, corrected, estimate, score

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
    "calibrate",
    "case_of",
    "compare",
    "corrected",
    "estimate",
    "evaluate",
    "evaluator",
    "fit_threshold",
    "from_dict",
    "get",
    "judge",
    "monitor",
    "names",
    "pairwise",
    "panel",
    "score",
    "scripted",
]

# What only those need who judge or watch: imported when it is asked for.
_LATER = {
    "Judge": "spanwise.evaluators.judges",
    "fit_threshold": "spanwise.evaluators.scoring._fit",
    "judge": "spanwise.evaluators.judges",
    "monitor": "spanwise.evaluators.monitors",
    "pairwise": "spanwise.evaluators.scoring._pairwise",
    "panel": "spanwise.evaluators.judges",
    "scripted": "spanwise.evaluators.judges",
}


def __getattr__(name: str) -> Any:
    if name in _LATER:
        return getattr(import_module(_LATER[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
