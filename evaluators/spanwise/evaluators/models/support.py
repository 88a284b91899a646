"""How far the retrieved context supports an answer, by a model of pairs: consistency, or natural language inference.

Long contexts are cut into windows that the model reads whole, with an overlap; a text is as well supported as the
window that supports it most says. An answer that is too long itself is cut, too: its least supported window counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from spanwise.collector.records import Case, Document
from spanwise.evaluators.builtin._sentences import Splitter, split
from spanwise.evaluators.builtin._texts import text_of
from spanwise.evaluators.models._pairs import Pair
from spanwise.evaluators.models._stepwise import Steps
from spanwise.evaluators.models._supported import OfPairs, Row, chunks_of
from spanwise.evaluators.protocol import Metric, Skip, builtin
from spanwise.evaluators.protocol.standards import SAFE, TRANSPARENT, VALID

_WORDS = "model=lambda pairs: [float(answer in context) for context, answer in pairs]"  # of the examples


@dataclass(frozen=True, slots=True, kw_only=True)
class _OfAnswers(OfPairs):
    """Those that look at the answer beside what was retrieved."""

    splitter: Splitter | None = None

    def __call__(self, outputs: Any, documents: Sequence[Document]) -> Any:
        return self._one(outputs=outputs, documents=tuple(documents))

    def _sentences(self, text: str) -> list[str]:
        """Raises `Skip` where there are none."""
        if not (told := split(text, self.splitter)):
            raise Skip("the answer has no sentence")
        return told


@builtin(
    "hallucination",
    metrics=(Metric("hallucination", threshold=0.75, primary=True),),
    standards=(SAFE, VALID),
    source="H2O Eval Studio: hallucination",
    canonical="transformers",
    llm=False,
    model=True,
    gpu=True,
    kind="model",
    example=f'get("hallucination", {_WORDS}), outputs="It is 4,806 m high.", '
    'documents=["It is 4,806 m high. It is in the Alps."]',
)
@dataclass(frozen=True, slots=True, kw_only=True)
class Hallucination(_OfAnswers):
    """The probability that the answer is consistent with the retrieved context: 1 is good, 0 is hallucinated.

    By Vectara's HHEM, or the probability of entailment of any NLI model. The chunks, in their order, are one text, and
    the answer is the other. Where the text is too long for the model it is cut into windows, and the one that supports
    the answer most counts; an answer that is too long itself is cut, too, and its least supported window counts. An
    answer that takes its sentences from several windows is better looked at by sentence: `by="sentence"` takes each
    sentence's best window, and the least of these, which is named in the comment. An empty answer is skipped; where
    nothing was retrieved nothing is supported: 0.
    """

    DOCUMENT: ClassVar[str] = "hhem"
    PRESET: ClassVar[str] = "hhem"
    DEFAULT_MODEL: ClassVar[str] = (
        "hhem, for English, in windows of 2,048 tokens for context and answer together; the threshold is its own, and "
        "holds for no other"
    )

    by: Literal["answer", "sentence"] = "answer"

    def _steps(self, case: Case) -> Steps[Pair, Row]:
        answer = text_of(case.outputs)
        if not answer.strip():
            raise Skip("the answer is empty")
        if not (chunks := chunks_of(case)):
            return {"score": 0.0, "comment": "nothing was retrieved"}
        said = [answer] if self.by == "answer" else self._sentences(answer)
        support = yield from self._supports(["\n\n".join(chunks)], said)
        least = min(range(len(said)), key=support.__getitem__)
        comment = f"least supported: {said[least]!r:.300}" if self.by == "sentence" else None
        return {"score": support[least], "comment": comment}


@builtin(
    "faithfulness_nli",
    metrics=(Metric("faithfulness_nli", primary=True),),
    standards=(TRANSPARENT, VALID),
    source="H2O Eval Studio: faithfulness, with an NLI model in the judge's place",
    canonical="transformers",
    llm=False,
    model=True,
    gpu=True,
    kind="model",
    example=f'get("faithfulness_nli", {_WORDS}), outputs="It is high. It is in Spain.", '
    'documents=["It is high. It is in France."]',
)
@dataclass(frozen=True, slots=True, kw_only=True)
class FaithfulnessNLI(_OfAnswers):
    """Sentences of the answer that follow from the retrieved context, over all that it has.

    A sentence follows where some chunk, or some window of a long one, entails it with a probability of `supported_from`
    or more; the least supported one is named in the comment. Unlike `faithfulness`, which asks a judge, it takes
    sentences as they stand: one that makes two claims is one, and one with "it" may be lost without those before it. An
    answer without a sentence is skipped; where nothing was retrieved nothing follows: 0. The document's threshold is a
    judge's, so there is none until one is given or fitted.
    """

    PRESET: ClassVar[str] = "nli"
    DEFAULT_MODEL: ClassVar[str] = "nli, DeBERTa-v3-base for English, in windows of 512 tokens for chunk and sentence"

    supported_from: float = 0.5

    def __post_init__(self) -> None:
        OfPairs.__post_init__(self)
        if not 0 <= self.supported_from <= 1:
            raise ValueError(f"a probability is from 0 to 1, not {self.supported_from!r}")

    def _steps(self, case: Case) -> Steps[Pair, Row]:
        said = self._sentences(text_of(case.outputs))
        if not (chunks := chunks_of(case)):
            return {"score": 0.0, "comment": "nothing was retrieved"}
        support = yield from self._supports(chunks, said)
        follow = sum(one >= self.supported_from for one in support)
        least = min(range(len(said)), key=support.__getitem__)
        return {
            "score": follow / len(said),
            "comment": f"{follow} of {len(said)} sentences follow; least: {support[least]:.3f} {said[least]!r:.300}",
        }
