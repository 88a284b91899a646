"""The engine: a dataset, a task and evaluators become an experiment."""

from spanwise.evaluators.engine._compare import Change, Comparison, compare
from spanwise.evaluators.engine._dry import dry_run
from spanwise.evaluators.engine._evaluate import aevaluate, evaluate
from spanwise.evaluators.engine._experiment import Experiment, Failure, Row
from spanwise.evaluators.engine._prepare import CannotResume
from spanwise.evaluators.engine._progress import go_on, run_again
from spanwise.evaluators.engine._recorder import OpenRun, Recorder, finish_stored
from spanwise.evaluators.engine._spent import Spent
from spanwise.evaluators.engine._spool import deliver_spool
from spanwise.evaluators.engine._summary import KeySummary, Summary
from spanwise.evaluators.engine._task import TaskError

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
