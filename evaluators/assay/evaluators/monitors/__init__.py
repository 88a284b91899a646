"""Rules on live traffic: what `monitor` says, and who carries it out."""

from assay.evaluators.monitors._check import Check, Tried, check
from assay.evaluators.monitors._file import BrokenRules, load
from assay.evaluators.monitors._rule import Monitored, monitor

__all__ = ["BrokenRules", "Check", "Monitored", "Tried", "check", "load", "monitor"]
