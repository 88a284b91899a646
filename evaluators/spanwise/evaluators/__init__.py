"""Evaluation: evaluators, judges, experiments and monitors.

Modules, in the order in which data flows:

- `testing`: Test kit for applications: judges with scripted replies.
- `databricks`: Databricks' agent evaluation under its own names: choice of judges, the experiment, metrics and
  tables.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from spanwise.collector.errors import require_extra

if TYPE_CHECKING:
    from spanwise.evaluators.analysis import analyze, compare, history, sweep
    from spanwise.evaluators.judges import Judge, judge, panel, scripted
    from spanwise.evaluators.monitors import alert, monitor
    from spanwise.evaluators.scoring.answer_guard import GuardDecision, guard
    from spanwise.evaluators.scoring.pairwise_comparison import pairwise
    from spanwise.evaluators.scoring.threshold_fitting import fit_threshold

with require_extra("server", __name__):
    from spanwise.evaluators.experiments import Experiment, aevaluate, evaluate
    from spanwise.evaluators.interface import (
        Evaluator,
        Metric,
        Skip,
        as_evaluator,
        evaluator,
        from_dict,
        get_evaluator,
        list_evaluators,
    )
    from spanwise.evaluators.scoring import (
        Estimate,
        ascore,
        calibrate,
        composite,
        corrected_mean,
        estimate,
        make_case,
        score,
    )

__all__ = [
    "Estimate",
    "Evaluator",
    "Experiment",
    "GuardDecision",
    "Judge",
    "Metric",
    "Skip",
    "aevaluate",
    "alert",
    "analyze",
    "as_evaluator",
    "ascore",
    "calibrate",
    "compare",
    "composite",
    "corrected_mean",
    "estimate",
    "evaluate",
    "evaluator",
    "fit_threshold",
    "from_dict",
    "get_evaluator",
    "guard",
    "history",
    "judge",
    "list_evaluators",
    "make_case",
    "monitor",
    "pairwise",
    "panel",
    "score",
    "scripted",
    "sweep",
]

# Names that are imported on first access, because only users of judges and monitors need these modules.
_LATER = {
    "GuardDecision": "spanwise.evaluators.scoring.answer_guard",
    "Judge": "spanwise.evaluators.judges",
    "analyze": "spanwise.evaluators.analysis",
    "compare": "spanwise.evaluators.analysis",
    "fit_threshold": "spanwise.evaluators.scoring.threshold_fitting",
    "guard": "spanwise.evaluators.scoring.answer_guard",
    "history": "spanwise.evaluators.analysis",
    "judge": "spanwise.evaluators.judges",
    "alert": "spanwise.evaluators.monitors",
    "monitor": "spanwise.evaluators.monitors",
    "pairwise": "spanwise.evaluators.scoring.pairwise_comparison",
    "panel": "spanwise.evaluators.judges",
    "scripted": "spanwise.evaluators.judges",
    "sweep": "spanwise.evaluators.analysis",
}


def __getattr__(name: str) -> Any:
    if name in _LATER:
        return getattr(import_module(_LATER[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


# Modules that other packages may import; the others are internal
SHARED_MODULES = [
    "databricks",
    "testing",
]
