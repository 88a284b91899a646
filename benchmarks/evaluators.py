"""What evaluators cost: the way through injection and wrapping, each evaluator on short texts, looping on long ones.

    python benchmarks/evaluators.py

Times are the best of several rounds on one thread. "body" calls the evaluator with its arguments, "whole" goes from a
case to feedback. Budgets: injection and wrapping 15 µs; text and retrieval together 20,000 cases/s, BLEU and ROUGE
2,000 each; looping 0.2 s for 100 KB.
"""

import random
import time
from collections.abc import Callable

from rich.console import Console
from rich.table import Table

from assay.collector.records import Case, Document, Target
from assay.evaluators import as_evaluator, get
from assay.evaluators._repeats import longest_repeat

ANSWER = "The quick brown fox jumps over the lazy dog near the river bank."
CASE = Case(
    inputs={"question": "What does the fox do?"}, outputs=ANSWER,
    reference_outputs="A quick brown fox jumped over a lazy dog by the river.",
    documents=tuple(Document(f"chunk {n} of the text", str(n)) for n in range(5)),
    expected_documents=(Document("", "1"), Document("", "3")), conditions='"fox" AND NOT regexp("[Cc]at")',
)  # fmt: skip
TARGET = Target(trace_id="1" * 32)
TOGETHER = {
    "exact": {}, "contains": {"text": "fox"}, "regex": {"pattern": r"\bfox\b"}, "length": {}, "not_empty": {},
    "levenshtein": {}, "fuzzy": {},
    "document_recall": {}, "ir_map": {}, "ir_mrr": {}, "ir_ndcg": {}, "precision_at_k": {}, "hit_at_k": {},
}  # fmt: skip
OTHERS = {
    "bleu": {}, "rouge": {}, "text_matching": {}, "json_schema": {"json_schema": {"type": "object"}}, "pii": {},
    "sensitive_data": {}, "looping": {}, "language_mismatch": {},
}  # fmt: skip


def best(call: Callable[[], object], seconds: float = 0.15, rounds: int = 5) -> float:
    """Seconds per call, the best of several rounds."""
    call()
    began = time.perf_counter()
    call()
    times = max(1, int(seconds / rounds / max(time.perf_counter() - began, 1e-7)))
    found = []
    for _ in range(rounds):
        began = time.perf_counter()
        for _ in range(times):
            call()
        found.append((time.perf_counter() - began) / times)
    return min(found)


def measured(id: str, parameters: dict[str, object]) -> tuple[float, float]:
    """Seconds per case of an evaluator: its body, and the whole way."""
    judge = get(id, **parameters)
    arguments, missing = judge.binding.arguments(CASE)
    assert not missing, missing
    return best(lambda: judge.function(**arguments)), best(lambda: judge.evaluate_here(CASE, TARGET))


def plain() -> Table:
    table = Table("what", "µs", "budget", title="Injection and wrapping", title_justify="left")
    judges = {
        "1 argument, bool": lambda outputs: True,
        "3 arguments, number": lambda inputs, outputs, reference_outputs: 0.5,
        "dict with key, score, comment": lambda outputs, documents: {"key": "k", "score": 1, "comment": "c"},
        "**kwargs, label": lambda **given: "good",
        "a need is missing": lambda example: True,
    }
    for name, judge in judges.items():
        wrapped = as_evaluator(judge)
        table.add_row(name, f"{best(lambda: wrapped.evaluate_here(CASE, TARGET)) * 1e6:.1f}", "15")  # noqa: B023
    return table


def each() -> Table:
    table = Table(
        "evaluator",
        "body µs",
        "whole µs",
        "bodies/s",
        "budget",
        title="Short texts, five documents",
        title_justify="left",
    )
    total_body = total_whole = 0.0
    for id, parameters in TOGETHER.items():
        body, whole = measured(id, parameters)
        total_body, total_whole = total_body + body, total_whole + whole
        table.add_row(id, f"{body * 1e6:.1f}", f"{whole * 1e6:.1f}", f"{1 / body:,.0f}", "")
    table.add_row(
        "together",
        f"{total_body * 1e6:.1f}",
        f"{total_whole * 1e6:.1f}",
        f"{1 / total_body:,.0f}",
        "20,000",
        end_section=True,
    )
    for id, parameters in OTHERS.items():
        body, whole = measured(id, parameters)
        table.add_row(
            id,
            f"{body * 1e6:.1f}",
            f"{whole * 1e6:.1f}",
            f"{1 / body:,.0f}",
            "2,000" if id in ("bleu", "rouge") else "",
        )
    return table


def texts(size: int) -> dict[str, str]:
    pick = random.Random(1)
    words = ["".join(pick.choices("abcdefghijklmnopqrstuvwxyz", k=pick.randint(2, 9))) for _ in range(5000)]
    natural = " ".join(pick.choices(words, k=size // 5))[:size]
    return {
        "words": natural, "one sentence": ("I am sorry, I cannot do that. " * size)[:size], "one letter": "a" * size,
        "two halves": natural[: size // 2] * 2, "two letters by chance": "".join(pick.choices("ab", k=size)),
    }  # fmt: skip


def loops() -> Table:
    table = Table(
        "text",
        "100 KB: longest repeat s",
        "all of looping s",
        "1 MB: longest repeat s",
        title="Looping (budget: 0.2 s for 100 KB)",
        title_justify="left",
    )
    large = texts(1_000_000)
    for name, text in texts(100_000).items():
        judge = get("looping")
        repeat, whole = best(lambda: longest_repeat(text)), best(lambda: judge(text))  # noqa: B023
        long = best(lambda: longest_repeat(large[name]), rounds=1)  # noqa: B023
        table.add_row(name, f"{repeat:.3f}", f"{whole:.3f}", f"{long:.2f}")
    return table


if __name__ == "__main__":
    console = Console()
    for part in (plain, each, loops):
        console.print(part())
