"""What evaluators cost: the way through injection and wrapping, each evaluator on short texts, looping on long ones.

    python benchmarks/evaluators.py

Times are the best of several rounds on one thread. "body" calls the evaluator with its arguments; "feedback" goes from a
case to feedback: arguments by name, the body, wrapping; "with id" also derives the ids, which is done when feedback is
stored or sent and not before. "together" is the sum over 13 text and retrieval evaluators, that is 13 evaluations a case.
Budgets: injection and wrapping 15 µs; text and retrieval together 20,000 cases/s, BLEU and ROUGE 2,000 each; looping
0.2 s for 100 KB.
"""

import random
import time
from collections.abc import Callable
from dataclasses import replace

from rich.console import Console
from rich.table import Table

from spanwise.collector.records import Case, Document, Target
from spanwise.evaluators import as_evaluator, get_evaluator
from spanwise.evaluators.builtin.looping import compression_ratio, find_longest_repeat

ANSWER = "The quick brown fox jumps over the lazy dog near the river bank."
CASE = Case(
    inputs={"question": "What does the fox do?"},
    outputs=ANSWER,
    reference_outputs="A quick brown fox jumped over a lazy dog by the river.",
    documents=tuple(Document(f"chunk {n} of the text", str(n)) for n in range(5)),
    expected_documents=(Document("", "1"), Document("", "3")),
    conditions='"fox" AND NOT regexp("[Cc]at")',
)
HARD_CASE = replace(  # NLTK's own patterns have to look at it
    CASE,
    outputs="The \"quick\" brown fox (a male) jumps; the dog's asleep, and I can't see it.",
    reference_outputs='A "quick" fox (male) jumped: the dog was asleep; I could not see it.',
)
TARGET = Target(trace_id="1" * 32)
TOGETHER = {
    "exact": {},
    "contains": {"text": "fox"},
    "regex": {"pattern": r"\bfox\b"},
    "length": {},
    "not_empty": {},
    "levenshtein": {},
    "fuzzy": {},
    "document_recall": {},
    "ir_map": {},
    "ir_mrr": {},
    "ir_ndcg": {},
    "precision_at_k": {},
    "hit_at_k": {},
}
OTHERS = {
    "bleu": {},
    "rouge": {},
    "text_matching": {},
    "json_schema": {"json_schema": {"type": "object"}},
    "pii": {},
    "sensitive_data": {},
    "looping": {},
    "language_mismatch": {},
}


def best(call: Callable[[], object], seconds: float = 0.15, rounds: int = 15) -> float:
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


def measured(id: str, parameters: dict[str, object], case: Case) -> tuple[float, float, float]:
    """Seconds per case of an evaluator: its body, the way to feedback, and with ids."""
    judge = get_evaluator(id, **parameters)
    arguments, missing = judge.binding.arguments(case)
    assert not missing, missing
    return (
        best(lambda: judge.function(**arguments)),
        best(lambda: judge.evaluate_here(case, TARGET)),
        best(lambda: [one.id for one in judge.evaluate_here(case, TARGET)]),
    )


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
        "feedback µs",
        "with id µs",
        "bodies/s",
        "cases/s to feedback",
        "budget",
        title="Short texts, five documents",
        title_justify="left",
    )
    found = {id: measured(id, parameters, CASE) for id, parameters in TOGETHER.items()}
    for id, times in found.items():
        table.add_row(id, *shown(times), "")
    table.add_row("together", *shown(tuple(map(sum, zip(*found.values(), strict=True)))), "20,000", end_section=True)
    for id, parameters in OTHERS.items():
        budget = "2,000" if id in ("bleu", "rouge") else ""
        table.add_row(id, *shown(measured(id, parameters, CASE)), budget)
    table.add_row("bleu, punctuation", *shown(measured("bleu", {}, HARD_CASE)), "2,000")
    return table


def shown(times: tuple[float, ...]) -> list[str]:
    rates = [f"{1 / times[0]:,.0f}", f"{1 / times[1]:,.0f}"]
    return [f"{seconds * 1e6:.1f}" for seconds in times] + rates


def texts(size: int) -> dict[str, str]:
    pick = random.Random(1)
    words = ["".join(pick.choices("abcdefghijklmnopqrstuvwxyz", k=pick.randint(2, 9))) for _ in range(5000)]
    natural = " ".join(pick.choices(words, k=size // 5))[:size]
    return {
        "words": natural,
        "one sentence": ("I am sorry, I cannot do that. " * size)[:size],
        "one letter": "a" * size,
        "two halves": natural[: size // 2] * 2,
        "Fibonacci word": fibonacci(size),
        "period of 7": ("abcdefg" * size)[:size],
        "unicode by chance": "".join(chr(pick.randint(0x20, 0xD7FF)) for _ in range(size)),
        "two letters by chance": "".join(pick.choices("ab", k=size)),
    }


def fibonacci(size: int) -> str:
    shorter, longer = "a", "ab"
    while len(longer) < size:
        shorter, longer = longer, longer + shorter
    return longer[:size]


def loops() -> Table:
    table = Table(
        "text",
        "100 KB: longest repeat s",
        "zlib alone s",
        "all of looping s",
        "1 MB: all s",
        title="Looping (budget: 0.2 s for 100 KB; sizes in characters)",
        title_justify="left",
    )
    large, judge = texts(1_000_000), get_evaluator("looping")
    for name, text in texts(100_000).items():
        calls = [lambda: find_longest_repeat(text), lambda: compression_ratio(text), lambda: judge(text)]  # noqa: B023
        times = [best(call, rounds=3) for call in calls]
        times.append(best(lambda: judge(large[name]), rounds=1))  # noqa: B023
        table.add_row(name, *(f"{seconds:.3f}" for seconds in times))
    return table


if __name__ == "__main__":
    console = Console(width=120)
    for part in (plain, each, loops):
        console.print(part())
