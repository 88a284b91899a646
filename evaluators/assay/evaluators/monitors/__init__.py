"""Rules on live traffic: what `monitor` says, and who carries it out."""

from assay.evaluators.monitors._file import BrokenRules, load
from assay.evaluators.monitors._rule import Monitored, monitor
from assay.evaluators.monitors._run import Stuck
from assay.evaluators.monitors._worker import Monitor

__all__ = ["BrokenRules", "Monitor", "Monitored", "Stuck", "load", "monitor"]
