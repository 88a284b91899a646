"""Rules on live traffic: what `monitor` says, and who carries it out."""

from assay.evaluators.monitors._file import BrokenRules, load
from assay.evaluators.monitors._guard import usual_memory
from assay.evaluators.monitors._process import Loaded, Plan
from assay.evaluators.monitors._rule import Monitored, monitor
from assay.evaluators.monitors._supervise import Supervisor

__all__ = ["BrokenRules", "Loaded", "Monitored", "Plan", "Supervisor", "load", "monitor", "usual_memory"]
