"""Processor time of the analysis by model, its report, and perturbations, against their budgets.

    python benchmarks/analysis.py

10 models with 1,000 cases and 20 metrics each, of 20 evaluators. A figure above its budget is marked with `!`, and the
exit status is then 1.
"""

from __future__ import annotations

import random
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from spanwise.collector import connect
from spanwise.collector.records import Experiment, Feedback, Run, Target
from spanwise.collector.stores import Store
from spanwise.evaluators import datasets
from spanwise.evaluators.analysis import Analysis, analyze

MODELS, CASES, METRICS = 10, 1_000, 20
KINDS = ["typos", "casing", "punctuation", "contractions", "word_order", "noise", "base64", "base16"]
missed = 0


def measure(name: str, budget: float, call: Callable[[], object]) -> None:
    """Print the least processor time of three calls in seconds."""
    times = []
    for _ in range(3):
        start = time.process_time()
        call()
        times.append(time.process_time() - start)
    report(name, min(times), budget, "s")


def report(name: str, value: float, budget: float, unit: str) -> None:
    """Print a figure beside its budget."""
    global missed
    missed += value > budget
    print(f"| {name} | {value:.2f} {unit}{'!' if value > budget else ''} | {budget:g} {unit} |", flush=True)


def fill(store: Store) -> list[str]:
    """Store the runs and scores of all models, and return the names of their experiments."""
    draw = random.Random(1)
    rows = [{"inputs": {"question": f"What is the capital of country number {n}?"}} for n in range(CASES)]
    examples = datasets.read(rows)
    version = datasets.save(store, "questions", rows).version
    keys = [f"metric_{n}" for n in range(METRICS)]
    metrics = [{"key": key, "range": [0.0, 1.0], "threshold": 0.5, "primary": True} for key in keys]
    evaluators = [{"key": metric["key"], "metrics": [metric]} for metric in metrics]
    names = []
    for model in range(MODELS):
        experiment = Experiment(
            id=f"{model:032x}",
            name=f"model {model}",
            dataset="questions",
            dataset_version=version,
            evaluators=evaluators,
            status="finished",
            started_ns=time.time_ns(),
        )
        store.save_experiment(experiment)
        names.append(experiment.name)
        runs, feedback = [], []
        for n, example in enumerate(examples):
            trace_id = f"{model * CASES + n + 1:032x}"
            runs.append(
                Run(
                    trace_id=trace_id,
                    span_id=f"{n + 1:016x}",
                    name="task",
                    start_ns=n + 1,
                    end_ns=n + 1 + draw.randrange(10**9),
                    inputs=example.inputs,
                    outputs="Paris",
                    experiment_id=experiment.id,
                    example_id=example.id,
                )
            )
            for place, key in enumerate(keys):
                score = float(draw.random() < 0.5) if place % 2 else draw.random()
                feedback.append(Feedback(key=key, score=score, target=Target(trace_id=trace_id), source="code"))
        store.append(runs, feedback)
    return names


def read_all(analysis: Analysis) -> object:
    """Compute everything that an analysis has."""
    return (
        *(analysis.leaderboard, analysis.boolean_leaderboards, analysis.problems, analysis.insights),
        *(analysis.compliance, analysis.trade_offs, analysis.robustness, analysis.headline),
    )


def main() -> None:
    print("| what | processor time or size | budget |\n|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        store = connect(str(Path(folder) / "spanwise.db"))
        names = fill(store)
        title = f"{MODELS} models × {CASES:,} cases × {METRICS} metrics"
        measure(f"analyze {title}", 3.0, lambda: read_all(analyze(*names, store=store)))
        path = Path(folder) / "report.html"
        measure(f"report {title}", 3.0, lambda: analyze(*names, store=store).report(path))
        report(f"size of the report {title}", path.stat().st_size / 2**20, 2.0, "MB")
        store.close()
    question = "What is the capital of country number {}, and why isn't it the largest city? I do not know the answer."
    rows = [{"id": f"e{n}", "inputs": {"question": question.format(n)}} for n in range(10_000)]
    measure("perturb 10,000 examples with eight kinds", 10.0, lambda: datasets.perturb(rows, KINDS, seed=1))
    sys.exit(bool(missed))


if __name__ == "__main__":
    main()
