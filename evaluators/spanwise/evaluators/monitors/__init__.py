"""Rules on live traffic: what `monitor` says, and who carries it out."""

from spanwise.evaluators.monitors._check import Check, Tried, check
from spanwise.evaluators.monitors._diff import Diff, Difference, diff
from spanwise.evaluators.monitors._file import BrokenRules, load
from spanwise.evaluators.monitors._guard import usual_memory
from spanwise.evaluators.monitors._process import Loaded, Plan
from spanwise.evaluators.monitors._rule import Monitored, monitor
from spanwise.evaluators.monitors._run import Stuck
from spanwise.evaluators.monitors._summary import summary
from spanwise.evaluators.monitors._supervise import Supervisor
from spanwise.evaluators.monitors._worker import Monitor

__all__ = [
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
