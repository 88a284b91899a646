"""Rules on live traffic: what `monitor` says, and who carries it out."""

from assay.evaluators.monitors._file import BrokenRules, load
from assay.evaluators.monitors._guard import usual_memory
from assay.evaluators.monitors._process import Loaded, Plan
from assay.evaluators.monitors._rule import Monitored, monitor
from assay.evaluators.monitors._run import Stuck
from assay.evaluators.monitors._summary import summary
from assay.evaluators.monitors._supervise import Supervisor
from assay.evaluators.monitors._worker import Monitor

__all__ = [
    "BrokenRules",
    "Loaded",
    "Monitor",
    "Monitored",
    "Plan",
    "Stuck",
    "Supervisor",
    "load",
    "monitor",
    "summary",
    "usual_memory",
]
