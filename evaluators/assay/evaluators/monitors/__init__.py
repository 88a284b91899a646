"""Rules on live traffic: what `monitor` says, and who carries it out."""

from assay.evaluators.monitors._check import Check, Tried, check
from assay.evaluators.monitors._diff import SHADOW, Diff, Difference, diff
from assay.evaluators.monitors._file import BrokenRules, load
from assay.evaluators.monitors._guard import usual_memory
from assay.evaluators.monitors._process import Loaded, Plan
from assay.evaluators.monitors._rule import Monitored, monitor
from assay.evaluators.monitors._run import Stuck
from assay.evaluators.monitors._summary import summary
from assay.evaluators.monitors._supervise import Supervisor
from assay.evaluators.monitors._worker import Monitor

__all__ = [
    "SHADOW",
    "BrokenRules",
    "Check",
    "Diff",
    "Difference",
    "Loaded",
    "Monitor",
    "Monitored",
    "Plan",
    "Stuck",
    "Supervisor",
    "Tried",
    "check",
    "diff",
    "load",
    "monitor",
    "summary",
    "usual_memory",
]
