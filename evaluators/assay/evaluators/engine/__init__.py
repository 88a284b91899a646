"""The engine: a dataset, a task and evaluators become an experiment."""

from assay.evaluators.engine._compare import Change, Comparison, compare
from assay.evaluators.engine._dry import dry_run
from assay.evaluators.engine._evaluate import aevaluate, evaluate
from assay.evaluators.engine._experiment import Experiment, Failure, Row
from assay.evaluators.engine._prepare import CannotResume
from assay.evaluators.engine._progress import go_on, run_again
from assay.evaluators.engine._recorder import OpenRun, Recorder, finish_stored
from assay.evaluators.engine._spent import Spent
from assay.evaluators.engine._spool import deliver_spool
from assay.evaluators.engine._summary import KeySummary, Summary
from assay.evaluators.engine._task import TaskError

__all__ = [
    "CannotResume",
    "Change",
    "Comparison",
    "Experiment",
    "Failure",
    "KeySummary",
    "OpenRun",
    "Recorder",
    "Row",
    "Spent",
    "Summary",
    "TaskError",
    "aevaluate",
    "compare",
    "deliver_spool",
    "dry_run",
    "evaluate",
    "finish_stored",
    "go_on",
    "run_again",
]
