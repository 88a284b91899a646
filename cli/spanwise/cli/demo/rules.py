"""The demo's rules: what its live traffic is scored with while it comes in."""

from __future__ import annotations

from spanwise.cli.demo.reading import NOTHING
from spanwise.cli.demo.words import words
from spanwise.evaluators import evaluator, get, monitor
from spanwise.evaluators.monitors import Monitored

PROJECT = "demo"
LONGEST = 450  # characters of an answer that passes for short
OWNER = "spanwise demo"


@evaluator(key="on_topic", threshold=0.5)
def on_topic(inputs: dict[str, str], outputs: str) -> float:
    """The share of the question's words that the answer takes up."""
    asked = set(words(inputs["question"]))
    return len(asked & set(words(outputs))) / len(asked)


@evaluator(key="answered")
def answered(outputs: str) -> bool:
    """Whether it is more than the sentence for finding nothing."""
    return outputs != NOTHING


def rules() -> list[Monitored]:
    """One on everything; one on all hard questions, and on half of the others."""
    everything = monitor("answers", evaluators=[answered, get("length", max=LONGEST)], project=PROJECT)
    sampled = monitor(
        "on topic", evaluators=[on_topic], strata=[({"tags": "hard"}, 1.0)], sample_rate=0.5, project=PROJECT
    )
    return [everything, sampled]
