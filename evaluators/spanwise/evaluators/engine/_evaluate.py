"""`evaluate()` and `aevaluate()`: one async core, and the bridge to it from plain code."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Unpack

from spanwise.evaluators.engine._core import run
from spanwise.evaluators.engine._experiment import Experiment, scored_further_by
from spanwise.evaluators.engine._settings import Options, settings_of, taking_options
from spanwise.evaluators.engine._timeout import alone_on_its_loop
from spanwise.evaluators.protocol import finish


@taking_options
def evaluate(dataset: Any, task: Any = None, evaluators: Iterable[Any] = (), **options: Unpack[Options]) -> Experiment:
    """Run a task over a dataset, let evaluators score every run, and keep both in a store as an experiment.

    `dataset` is a dataset's name in the store (`name@3` for a version), a path (JSONL, JSON, CSV, YAML), a DataFrame,
    a list or (async) generator of dicts or examples, stored traces or a `Filter` over them, or an experiment whose
    runs are to be scored further. `task` is called with the inputs by name, with the whole dict if it takes `inputs`,
    or with the one value if inputs are no dict; async tasks run on one loop, others on threads. Without a task what is
    there is scored: given outputs, traces, runs; with `attach` live traces where they are, and no experiment is kept.
    The span of a task under `@trace` is the root of its run, as it is in production.

    `repetitions` runs every example so many times. `limit` takes the first examples, or with `seed` a random sample,
    and a task with a parameter `seed` gets one per run; `split` takes those of one split or several, `only` those
    whose ids are given, or how they begin. `timeout` (seconds) holds per attempt, of which `retries` makes more where
    the failure may pass, or where `retry_on` (exception types, or a function of the exception) says so.

    `fail_fast`, `max_failures` (a number, or a share of the runs as 0.2) and `max_usd` (what the tasks' spans cost)
    stop the experiment: what runs is let finish, and it can be resumed. With `raise_errors` what a task raises is
    raised.

    `resume` (True: by `name`, or an experiment's id) goes on where an experiment was interrupted: what is stored is
    not run again, but for what failed; more repetitions, a larger limit and added examples are run. It compares the
    examples, repetitions, seed, split, limit, the metadata that are given, and the code, constants and plain state of
    objects that the task reaches in its project (not those of installed packages), and refuses if any has otherwise
    changed. An evaluator whose version, parameters or code have changed says its scores again.
    `span_wait` is how long (seconds) to wait for spans that are still open when the task is over. `store` None: see
    `spanwise.collector.connect`.

    A failing task or evaluator is an outcome, not an exception. Raises `ValueError` for what a caller can mend: a task
    that does not fit the inputs, a bad row, an experiment that cannot be resumed; `TypeError` for an unknown option.
    """
    return finish(alone_on_its_loop(run(dataset, task, evaluators, settings_of(options, "evaluate"))))


@taking_options
async def aevaluate(
    dataset: Any, task: Any = None, evaluators: Iterable[Any] = (), **options: Unpack[Options]
) -> Experiment:
    """As `evaluate`, from async code: async tasks and evaluators run on the loop that is running."""
    return await run(dataset, task, evaluators, settings_of(options, "aevaluate"))


@scored_further_by
def rescore(experiment: Experiment, evaluators: Iterable[Any], **options: Unpack[Options]) -> Experiment:
    """Let more evaluators look at the runs that an experiment has, in its own store unless another is named."""
    options.setdefault("store", experiment.store)
    return evaluate(experiment, None, evaluators, **options)
