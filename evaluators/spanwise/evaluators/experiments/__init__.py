"""Experiments: running a task over a dataset, scoring every run, storing and comparing the results.

Modules, in the order in which data flows:

- `experiment_runner`: Entry points `evaluate()`, `aevaluate()` and `dry_run()`; execution of a prepared experiment.
- `experiment_settings`: Options of `evaluate()`: defaults, validation, and hints for option names of other products.
- `experiment_preparation`: Preparation of an experiment: new, resumed, rescored, or attached to live traces; its
  recorded setup.
- `dataset_source`: Dataset source: stored datasets, files, lists and traces as examples, and lookup of stored
  examples.
- `example_evaluators`: Evaluators per example: which evaluators score an example, and how many examples each of them
  scores.
- `experiment_resume`: Resuming an experiment: its stored runs and scores, and the changes to its setup that
  invalidate them.
- `experiment_plan`: Plan of an experiment: its planned and finished runs, and the conditions that stop it early.
- `evaluation_pipeline`: Evaluation pipeline: worker threads or event-loop workers take planned runs, run and score
  them.
- `task_call`: Task under test: signature, arguments with copied inputs, and timeouts.
- `run_fixture`: Fixture of a run: set-up and tear-down around each attempt of the task, by a context manager.
- `task_run`: Task run: attempts under a root span, retries, the resulting trace, and runs that exist already.
- `result_writer`: Result writer: stores finished runs in batches, and spools to a file the runs that the store refuses.
- `experiment_totals`: Running totals of an experiment: runs, scores per key, repetitions, and judge cost.
- `experiment_results`: Results of an experiment: summary, rows, errors, rescoring, and set-level evaluators.
- `experiment_summary`: Summary of an experiment: its table for terminal, notebook and pandas, and the commands to
  resume or rerun it.
- `experiment_rows`: Rows of an experiment: runs with their feedback, errors, and the HTML page that shows them.
- `result_files`: Result files: the dataset of an experiment with all metrics of one evaluator, as JSON Lines.
- `experiment_robustness`: Robustness of an experiment against perturbations, for terminal, notebook and pandas.
- `experiment_recorder`: Recorder: an experiment whose runs a caller such as the pytest plugin opens around its own
  code.
- `experiment_liveness`: Liveness of an experiment: heartbeat in its record, and a watchdog that reports a stall and
  its cause.
"""

from spanwise.collector.stores import Flip, KindRobustness
from spanwise.evaluators.experiments.dataset_source import read_attached_example
from spanwise.evaluators.experiments.experiment_preparation import CannotResume
from spanwise.evaluators.experiments.experiment_recorder import OpenRun, Recorder, finish_stored_experiment
from spanwise.evaluators.experiments.experiment_results import Experiment
from spanwise.evaluators.experiments.experiment_robustness import Robustness
from spanwise.evaluators.experiments.experiment_rows import Failure, Row
from spanwise.evaluators.experiments.experiment_runner import aevaluate, dry_run, evaluate
from spanwise.evaluators.experiments.experiment_settings import EvaluateOptions
from spanwise.evaluators.experiments.experiment_summary import (
    KeySummary,
    Summary,
    format_labels,
    format_number,
    make_html_table,
    make_text_table,
    render_text,
    rerun_command,
    resume_command,
)
from spanwise.evaluators.experiments.experiment_totals import JudgeCost
from spanwise.evaluators.experiments.result_writer import deliver_spool
from spanwise.evaluators.experiments.task_call import TaskError

__all__ = [
    "CannotResume",
    "EvaluateOptions",
    "Experiment",
    "Failure",
    "Flip",
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
    "dry_run",
    "evaluate",
    "finish_stored_experiment",
    "format_labels",
    "format_number",
    "make_html_table",
    "make_text_table",
    "read_attached_example",
    "render_text",
    "rerun_command",
    "resume_command",
]
