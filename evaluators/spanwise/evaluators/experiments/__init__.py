"""Experiments: running a task over a dataset, scoring every run, storing and comparing the results.

Modules, in the order in which data flows:

- `experiment_runner`: Entry points `evaluate()`, `aevaluate()` and `dry_run()`, and the pipeline that runs tasks and
  scores results.
- `experiment_plan`: Plan of an experiment: options of `evaluate()`, planned runs, evaluators per example, early stop.
- `experiment_preparation`: Preparation of an experiment: new, resumed, rescored, or attached to live traces; its
  recorded setup.
- `dataset_source`: Dataset source: stored datasets, files, lists and traces as examples, and lookup of stored
  examples.
- `experiment_resume`: Resuming an experiment: its stored runs and scores, and the changes to its setup that
  invalidate them.
- `task_call`: Task under test: signature, arguments with copied inputs, timeouts, set-up and tear-down of a run.
- `task_run`: Task run: attempts under a root span, retries, the resulting trace, and runs that exist already.
- `result_writer`: Result writer: stores finished runs in batches, and spools to a file the runs that the store refuses.
- `experiment_progress`: Progress of an experiment: running totals, judge cost, heartbeat, watchdog of stalls.
- `experiment_results`: Results of an experiment: rows, errors, summary, rescoring, set-level evaluators, HTML page,
  files.
- `experiment_summary`: Summary of an experiment for terminal, notebook and pandas, and its robustness against
  perturbations.
- `experiment_recorder`: Recorder: an experiment whose runs a caller such as the pytest plugin opens around its own
  code.
"""

from spanwise.collector.stores import Flip, KindRobustness
from spanwise.evaluators.experiments.dataset_source import read_attached_example
from spanwise.evaluators.experiments.experiment_plan import EvaluateOptions
from spanwise.evaluators.experiments.experiment_preparation import CannotResume
from spanwise.evaluators.experiments.experiment_progress import (
    ExperimentTally,
    Heartbeat,
    JudgeCost,
    describe_pending_work,
)
from spanwise.evaluators.experiments.experiment_recorder import OpenRun, Recorder, finish_stored_experiment
from spanwise.evaluators.experiments.experiment_results import Experiment, Failure, Row
from spanwise.evaluators.experiments.experiment_runner import aevaluate, dry_run, evaluate
from spanwise.evaluators.experiments.experiment_summary import (
    KeySummary,
    Robustness,
    Summary,
    format_labels,
    format_number,
    make_html_table,
    make_summary,
    make_text_table,
    render_text,
    rerun_command,
    resume_command,
)
from spanwise.evaluators.experiments.result_writer import deliver_spool
from spanwise.evaluators.experiments.task_call import TaskError

__all__ = [
    "CannotResume",
    "EvaluateOptions",
    "Experiment",
    "ExperimentTally",
    "Failure",
    "Flip",
    "Heartbeat",
    "JudgeCost",
    "KeySummary",
    "KindRobustness",
    "OpenRun",
    "Recorder",
    "Robustness",
    "Row",
    "Summary",
    "TaskError",
    "aevaluate",
    "deliver_spool",
    "describe_pending_work",
    "dry_run",
    "evaluate",
    "finish_stored_experiment",
    "format_labels",
    "format_number",
    "make_html_table",
    "make_summary",
    "make_text_table",
    "read_attached_example",
    "render_text",
    "rerun_command",
    "resume_command",
]
