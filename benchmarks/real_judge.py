"""How far a real model agrees with people: python benchmarks/real_judge.py http://127.0.0.1:8080/v1 MODEL

Runs the labelled cases of benchmarks/judges/cases (30 per judge: correctness, groundedness_judge, relevance_to_query)
through `evaluate()` with a judge at that endpoint, any OpenAI-compatible one. Per judge: the share of cases on which judge
and label agree with its 95 % interval (Wilson), Cohen's kappa with its own, what failed, seconds and tokens per case.
`--twice` asks everything anew, nothing cached, and counts the replies that came out otherwise. `--rows` names the cases
on which they differ. With `--cache FILE` a run that was cut off asks only what is left. docs/judges.md says what a model
of 1.5 billion parameters got.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from spanwise.collector.statistics import Agreement, measure_agreement
from spanwise.evaluators import Experiment, evaluate, get_evaluator
from spanwise.evaluators.judges import Judge

CASES = Path(__file__).parent / "judges" / "cases"
JUDGES = ("correctness", "groundedness_judge", "relevance_to_query")
Z = 1.959963984540054


def cases(judge: str) -> list[dict[str, Any]]:
    """The labelled cases of a judge: rows of a dataset with outputs, and in their metadata `label` and `kind`."""
    return [json.loads(line) for line in (CASES / f"{judge}.jsonl").read_text("utf-8").splitlines()]


def wilson(alike: int, n: int) -> tuple[float, float]:
    """The 95 % interval of a share (Wilson 1927)."""
    if n == 0:
        return 0.0, 1.0
    share, square = alike / n, Z * Z / n
    middle = (share + square / 2) / (1 + square)
    half = Z / (1 + square) * math.sqrt(share * (1 - share) / n + square / (4 * n))
    return middle - half, middle + half


def judged(id: str, judge: Judge, rows: Sequence[dict[str, Any]], store: str) -> tuple[Experiment, float]:
    """The experiment of one judge over its cases, and the seconds that it took per case that had to be asked."""
    began = time.perf_counter()
    experiment = evaluate(
        rows, None, [get_evaluator(id, judge=judge)], name=id, store=store, concurrency=judge.concurrency
    )
    asked = sum(not _judge(row.feedback[id]).get("cached") for row in experiment.rows())
    return experiment, (time.perf_counter() - began) / max(1, asked)


def said(experiment: Experiment, id: str) -> dict[str, tuple[Any, str | None]]:
    """Score, and comment or error, by case."""
    found = ((row.example_id, row.feedback[id]) for row in experiment.rows())
    return {example: (row.score, row.comment if row.outcome == "score" else row.error) for example, row in found}


def pairs(experiment: Experiment, id: str) -> Iterable[tuple[float, float]]:
    """Judge and label, of the cases that came to a verdict."""
    for row in experiment.rows():
        if row.feedback[id].outcome == "score":
            yield float(row.feedback[id].score or 0), float(_label(row) == "yes")


def line(id: str, agreed: Agreement, rows: Sequence[Any], seconds: float) -> str:
    """One row of the table, in Markdown."""
    feedback = [row.feedback[id] for row in rows]
    alike = round((agreed.agreed or 0) * agreed.n)
    low, high = wilson(alike, agreed.n)
    kappa = "–" if agreed.kappa is None else f"{agreed.kappa:.2f} ({agreed.low:.2f} to {agreed.high:.2f})"
    failures = Counter("parse failures" if "parse failure" in (one.error or "") else one.outcome for one in feedback)
    missed = ", ".join(f"{count} {what}" for what, count in failures.items() if what != "score") or "none"
    asked = [_judge(one) for one in feedback if _judge(one).get("calls")]
    tokens = [
        sum(one.get(side) or 0 for one in asked) / max(1, len(asked)) for side in ("input_tokens", "output_tokens")
    ]
    share = f"{alike} of {agreed.n}, {alike / max(1, agreed.n):.0%} ({low:.0%} to {high:.0%})"
    return f"| {id} | {share} | {kappa} | {missed} | {seconds:.1f} | {tokens[0]:.0f} + {tokens[1]:.0f} |"


def differing(id: str, rows: Iterable[Any]) -> Iterable[str]:
    """The cases on which judge and label differ, or that failed, with what the judge said."""
    for row in rows:
        one = row.feedback[id]
        if one.outcome != "score" or bool(one.score) != (_label(row) == "yes"):
            kind = row.known_example.metadata.get("kind")
            yield f"  {_label(row):3} {kind}: {row.outputs!r:.90} → {one.comment or one.error!r:.300}"


def _label(row: Any) -> str:
    return str(row.known_example.metadata["label"])


def _judge(feedback: Any) -> Any:
    return feedback.metadata.get("judge", {})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url")
    parser.add_argument("model")
    parser.add_argument("--only", nargs="+", choices=JUDGES, default=JUDGES)
    parser.add_argument("--limit", type=int, default=30, help="so many cases of each, from the first")
    parser.add_argument("--concurrency", type=int, default=1)
    parser.add_argument("--twice", action="store_true")
    parser.add_argument("--cache", default=False)
    parser.add_argument("--rows", action="store_true")
    parser.add_argument("--store", help="where the experiments stay; else they go with the run")
    given = parser.parse_args()
    where = {"model": given.model, "base_url": given.url}
    judge = Judge(**where, concurrency=given.concurrency, deadline=1200, cache=given.cache, max_tokens=512)
    print(
        "| judge | agrees with the label (95 %) | κ (95 %) | failed | s per case | tokens in + out |\n|---|---|---|---|---|---|"
    )
    with TemporaryDirectory() as folder:
        store = given.store or str(Path(folder) / "real.db")
        for id in given.only:
            rows = cases(id)[: given.limit]
            experiment, seconds = judged(id, judge, rows, store)
            print(
                line(id, measure_agreement(list(pairs(experiment, id))), list(experiment.rows()), seconds), flush=True
            )
            if given.rows:
                print(*differing(id, experiment.rows()), sep="\n", flush=True)
            if given.twice:
                first, again = said(experiment, id), said(judged(id, replace(judge, cache=False), rows, store)[0], id)
                other = sum(first[example] != again[example] for example in first)
                print(f"  asked again: {other} of {len(first)} replies came out otherwise", flush=True)


if __name__ == "__main__":
    main()
