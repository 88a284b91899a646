"""Human feedback evaluator: mean of the labels that people gave a trace."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import fmean
from typing import Any

from spanwise.collector.records import Feedback, Trace
from spanwise.evaluators.interface import Metric, Skip, register_builtin
from spanwise.evaluators.interface.evaluator_spec import MONITORING, OUTCOMES


@register_builtin(
    "human_feedback",
    metrics=(Metric("human_feedback", None, primary=True),),
    standards=(OUTCOMES, MONITORING),
    source="LangSmith: human feedback on a run",
    canonical="mean of people's newest votes",
    kind="human",
    example='get_evaluator("human_feedback", of="thumbs_up"), trace',
)
@dataclass(frozen=True, slots=True)
class HumanFeedback:
    """Mean of the human feedback under one key: each author's newest label counts, and every label without an author.

    `of` is the key ("thumbs_up", …). Feedback with an author and no evaluator is human feedback, whatever its
    source. For text labels the result is the most frequent label. Without any feedback the case is skipped. The
    metadata holds each author's label.
    """

    of: str

    def __post_init__(self) -> None:
        if not self.of.strip():
            raise ValueError(f"of must be the key of human feedback, such as 'thumbs_up', not {self.of!r}")

    def __call__(self, trace: Trace) -> dict[str, Any]:
        votes = _newest_labels([feedback for feedback in trace.feedback if _is_counted(feedback, self.of)])
        if not votes:
            raise Skip(f"there is no human feedback with the key {self.of!r}")
        metadata = {
            "votes": [
                {"author": vote.author, "score": vote.score, "label": vote.label, "comment": vote.comment}
                for vote in votes
            ]
        }
        scores = [float(vote.score) for vote in votes if vote.score is not None]
        if scores:
            return {"score": fmean(scores), "comment": f"{len(scores)} votes", "metadata": metadata}
        labels = [vote.label for vote in votes if vote.label is not None]
        return {"label": max(sorted(set(labels)), key=labels.count), "metadata": metadata}


def _is_counted(feedback: Feedback, key: str) -> bool:
    of_a_person = feedback.source == "human" or (feedback.author is not None and feedback.evaluator is None)
    return feedback.key == key and of_a_person and feedback.outcome == "score"


def _newest_labels(votes: list[Feedback]) -> list[Feedback]:
    by_author: dict[Any, Feedback] = {}
    for vote in sorted(votes, key=lambda vote: vote.created_ns):
        by_author[(vote.target, vote.author) if vote.author is not None else vote.id] = vote
    return list(by_author.values())
