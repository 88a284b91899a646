"""Rules on live traffic: what `monitor` says, and who carries it out."""

from assay.evaluators.monitors._check import Check, Tried, check
from assay.evaluators.monitors._diff import SHADOW, Diff, Difference, diff
from assay.evaluators.monitors._file import BrokenRules, load
from assay.evaluators.monitors._rule import Monitored, monitor

__all__ = [
    "SHADOW",
    "BrokenRules",
    "Check",
    "Diff",
    "Difference",
    "Monitored",
    "Tried",
    "check",
    "diff",
    "load",
    "monitor",
]
