"""Rules on live traffic: what `monitor` says, and who carries it out."""

from assay.evaluators.monitors._file import BrokenRules, load
from assay.evaluators.monitors._rule import Monitored, monitor

__all__ = ["BrokenRules", "Monitored", "load", "monitor"]
