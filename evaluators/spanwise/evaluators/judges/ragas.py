"""RAGAS evaluators: faithfulness, answer correctness and relevancy, context precision and recall."""

from __future__ import annotations

import math
import statistics
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from spanwise.collector.records import Case, Document
from spanwise.evaluators.interface import Metric
from spanwise.evaluators.interface.evaluator_spec import OUTCOMES, SOUNDNESS, TRANSPARENT, VALID
from spanwise.evaluators.judges import rag_metrics
from spanwise.evaluators.judges.judge_evaluator import Judgement, gather_or_cancel, register_judge
from spanwise.evaluators.judges.rag_metrics import (
    ComponentResult,
    EmbedFunction,
    MultiPromptJudge,
    RagCase,
    StatementVerdict,
    check_embedder,
    compute_similarities,
    get_embedder_identity,
    make_embed_function,
    set_question_count,
)
from spanwise.evaluators.judges.ratings import catch_outcome


@register_judge(
    "faithfulness",
    metrics=(Metric("faithfulness", threshold=0.75, primary=True),),
    standards=(TRANSPARENT, VALID),
    source="H2O Eval Studio: faithfulness; RAGAS",
    canonical="ragas 0.4.3",
    llm=False,
    example='get_evaluator("faithfulness", judge=scripted({"statements": ["Mont Blanc is 4,806 m high.", "It is in Spain."]}, '
    '{"1": {"reason": "It says so.", "verdict": "yes"}, "2": {"reason": "It says France.", "verdict": "no"}})), '
    'outputs="Mont Blanc, 4,806 m high, is in Spain.", documents=["Mont Blanc (4,806 m) is in France and Italy."]',
)
class Faithfulness(MultiPromptJudge):
    """Share of the answer's statements that follow from the retrieved context.

    The judge splits the answer into statements, then gives a verdict on each. This takes two calls, or more for
    answers of more than 20 sentences or 15 statements. An answer without statements ("Sure, what is it about?") is
    skipped, as the share is undefined (RAGAS gives NaN, Haystack 0). If nothing was retrieved, nothing follows from
    it: 0.
    """

    PROMPT: ClassVar[str] = "statements"
    FURTHER: ClassVar[tuple[str, ...]] = ("faithfulness",)

    async def __call__(self, case: Case, outputs: Any, documents: Sequence[Document], inputs: Any = None) -> Any:
        return await self._judged("faithfulness", case, rag_metrics.score_faithfulness)


@dataclass(frozen=True, slots=True, kw_only=True)
class _EmbeddingJudge(MultiPromptJudge):
    """Base class of judges that also compare embeddings. `embed` is a function from texts to vectors, or names an
    embedder.
    """

    embed: Any = None
    _embed: EmbedFunction = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        MultiPromptJudge.__post_init__(self)
        object.__setattr__(self, "_embed", make_embed_function(self.embed))

    def ready(self) -> None:
        """Raise `NoJudge` and `NoModel`."""
        MultiPromptJudge.ready(self)
        check_embedder(self._embed)

    def _settings_identity(self) -> list[Any]:
        return [self.max_statements, *get_embedder_identity(self._embed)]


@register_judge(
    "answer_correctness",
    metrics=(Metric("answer_correctness", (-0.25, 1.0), threshold=0.75, primary=True),),
    standards=(VALID, OUTCOMES),
    source="H2O Eval Studio: answer correctness; RAGAS",
    canonical="ragas 0.4.3",
    model=True,
    gpu=True,
    example='get_evaluator("answer_correctness", judge=scripted({"statements": ["Paris is the capital."]}, {"statements": '
    '["Paris is the capital."]}, {"1": {"reason": "Same.", "verdict": "yes"}}, {"1": {"reason": "Same.", "verdict": '
    '"yes"}}), embed=lambda texts: [[len(text), 1] for text in texts]), inputs="What is the capital of France?", '
    'outputs="It is Paris.", reference_outputs="Paris"',
)
class AnswerCorrectness(_EmbeddingJudge):
    """Weighted mean of factual and semantic similarity: 0.75 · F1 of the statements + 0.25 · similarity of the texts.

    Statements of the answer that the reference also makes are true positives; its other statements are false
    positives. Statements of the reference that the answer does not make are false negatives. F1 = TP / (TP + ½ (FP +
    FN)). F1 is 1 if neither text makes a statement, and 0 if only one does.

    The similarity is the cosine of the embeddings of both texts. It may be negative, and so may the score.
    `embed` names an embedder (None: all-MiniLM-L6-v2), or is a function, also async, from a list of texts to
    one vector each. `weights` are those of F1 and similarity. If the similarity has weight 0, nothing is
    embedded.
    """

    PROMPT: ClassVar[str] = "statements"
    FURTHER: ClassVar[tuple[str, ...]] = ("answer_correctness",)

    weights: Sequence[float] = (0.75, 0.25)

    def __post_init__(self) -> None:
        _EmbeddingJudge.__post_init__(self)
        if (
            len(self.weights) != 2
            or not all(0 <= weight < math.inf for weight in self.weights)
            or not any(self.weights)
        ):
            raise ValueError(f"weights must be two numbers >= 0, not both 0, got {self.weights!r}")

    def ready(self) -> None:
        """Raise `NoJudge` and, if the similarity has a weight, `NoModel`."""
        MultiPromptJudge.ready(self)
        if self.weights[1]:
            check_embedder(self._embed)

    def _settings_identity(self) -> list[Any]:
        similar = get_embedder_identity(self._embed) if self.weights[1] else []
        return [self.max_statements, list(self.weights), *similar]

    @property
    def metrics(self) -> tuple[Metric, ...]:
        """Return the metric. Its lowest score is that of F1 = 0 and opposite vectors."""
        lowest = -self.weights[1] / sum(self.weights)
        return (Metric("answer_correctness", (lowest or 0.0, 1.0), threshold=0.75, primary=True),)

    async def __call__(self, case: Case, inputs: Any, outputs: Any, reference_outputs: Any) -> Any:
        return await self._judged("answer_correctness", case, self._score)

    async def _score(self, asking: RagCase) -> ComponentResult:
        similarity = 0.0
        if self.weights[1]:
            texts = [text if text.strip() else " " for text in (asking.expected, asking.answer)]
            similarity = (await compute_similarities(self._embed, texts[0], texts[1:]))[0]
        given, expected = await gather_or_cancel(map(asking.statements, (asking.answer, asking.expected)))
        present, covered = await gather_or_cancel(
            (
                _judge_against(asking, given.texts, asking.expected, bool(expected.texts)),
                _judge_against(asking, expected.texts, asking.answer, bool(given.texts)),
            )
        )
        wrong = [verdict.statement for verdict in present if not verdict.holds]
        missing = [verdict.statement for verdict in covered if not verdict.holds]
        factual = (
            rag_metrics.compute_f1(len(present) - len(wrong), len(wrong), len(missing)) if present or covered else 1.0
        )
        score = (self.weights[0] * factual + self.weights[1] * similarity) / sum(self.weights)
        metadata = {
            "f1": factual,
            "similarity": similarity if self.weights[1] else None,
            "statements": [verdict.metadata for verdict in present[: rag_metrics.MAX_STATEMENTS]],
            "expected_statements": [verdict.metadata for verdict in covered[: rag_metrics.MAX_STATEMENTS]],
        }
        return ComponentResult(
            score, _make_correctness_comment(factual, wrong, missing, given.left_out or expected.left_out), metadata
        )


@register_judge(
    "answer_relevancy",
    metrics=(Metric("answer_relevancy", (-1.0, 1.0), threshold=0.75, primary=True),),
    source="H2O Eval Studio: answer relevancy; RAGAS",
    canonical="ragas 0.4.3",
    model=True,
    gpu=True,
    example='get_evaluator("answer_relevancy", judge=scripted({"1": {"question": "How high is Mont Blanc?", "noncommittal": '
    '"no"}}), questions=1, embed=lambda texts: [[len(text), 1] for text in texts]), inputs="How high is Mont Blanc?", '
    'outputs="Mont Blanc is 4,806 m high."',
)
class AnswerRelevancy(_EmbeddingJudge):
    """Mean cosine of the question with questions that the judge generates from the answer alone.

    One call generates `questions` questions, each worded differently. For each question, the judge also says if the
    answer is noncommittal ("I do not know"). If it says so for all questions, the score is 0, as in RAGAS. In RAGAS
    before 0.2, one such question was enough.

    `embed` names an embedder (None: all-MiniLM-L6-v2), or is a function, also async, from a list of texts to
    one vector each. Cosines may be negative. A vector of zeros has no cosine, and the case is skipped.
    """

    PROMPT: ClassVar[str] = "answer_relevancy"

    questions: int = 3

    def __post_init__(self) -> None:
        _EmbeddingJudge.__post_init__(self)
        object.__setattr__(self, "_prompt", set_question_count(self._prompt, self.questions))

    async def __call__(self, case: Case, inputs: Any, outputs: Any) -> Any:
        return await self._judged("answer_relevancy", case, self._score)

    async def _score(self, asking: RagCase) -> ComponentResult:
        return await rag_metrics.score_answer_relevancy(asking, self._embed, self.questions)


@register_judge(
    "context_precision",
    metrics=(Metric("context_precision", threshold=0.75, primary=True),),
    standards=(TRANSPARENT, SOUNDNESS, VALID, OUTCOMES),
    source="H2O Eval Studio: context precision; RAGAS",
    canonical="ragas 0.4.3",
    llm=False,
    example='get_evaluator("context_precision", judge=scripted({"reason": "Nothing of its height.", "verdict": "no"}, {"reason": '
    '"It has the height.", "verdict": "yes"})), inputs="How high is it?", reference_outputs="4,806 m", '
    'documents=["Mont Blanc is a mountain.", "Mont Blanc is 4,806 m high."]',
)
class ContextPrecision(MultiPromptJudge):
    """Average precision of the retrieved chunks: it is high if chunks that are useful for the expected answer rank
    first.

    Σ precision@k · relₖ / Σ rel over the retrieved chunks, whose relevance is the judge's yes or no (one call per
    chunk). The score is 0 if no chunk is useful. If nothing was retrieved, the case is skipped.
    """

    PROMPT: ClassVar[str] = "context_precision"

    async def __call__(self, case: Case, inputs: Any, reference_outputs: Any, documents: Sequence[Document]) -> Any:
        return await self._judged("context_precision", case, rag_metrics.score_context_precision)


@register_judge(
    "context_recall",
    metrics=(Metric("context_recall", threshold=0.75, primary=True),),
    standards=(TRANSPARENT, SOUNDNESS, VALID, OUTCOMES),
    source="H2O Eval Studio: context recall; RAGAS",
    canonical="ragas 0.4.3",
    llm=False,
    example='get_evaluator("context_recall", judge=scripted({"1": {"reason": "It says so.", "verdict": "yes"}, "2": {"reason": '
    '"It does not say where.", "verdict": "no"}})), reference_outputs="It is 4,806 m high. It is in the Alps.", '
    'documents=["Mont Blanc is 4,806 m high."]',
)
class ContextRecall(MultiPromptJudge):
    """Share of the expected answer's sentences that can be attributed to the retrieved context.

    Rules split the sentences, and one call judges 15 of them at a time. An empty reference is skipped. If nothing was
    retrieved, nothing can be attributed: 0.
    """

    PROMPT: ClassVar[str] = "context_recall"

    async def __call__(
        self, case: Case, reference_outputs: Any, documents: Sequence[Document], inputs: Any = None
    ) -> Any:
        return await self._judged("context_recall", case, rag_metrics.score_context_recall)


@register_judge(
    "context_relevancy",
    metrics=(Metric("context_relevancy", threshold=0.75, primary=True),),
    standards=(TRANSPARENT, SOUNDNESS, VALID),
    source="H2O Eval Studio: context relevancy; RAGAS before 0.2",
    llm=False,
    example='get_evaluator("context_relevancy", judge=scripted({"reason": "The height.", "sentences": ["It is 4,806 m high."]}'
    ')), inputs="How high is it?", documents=["Mont Blanc is in the Alps. It is 4,806 m high."]',
)
class ContextRelevancy(MultiPromptJudge):
    """Share of the retrieved context's sentences that help to answer the question.

    The judge copies these sentences. Repeated copies count once. Copies that are not in the context are not counted,
    but kept in the metadata. Rules split the sentences. If nothing was retrieved, the case is skipped.
    """

    PROMPT: ClassVar[str] = "context_relevancy"

    async def __call__(self, case: Case, inputs: Any, documents: Sequence[Document]) -> Any:
        return await self._judged("context_relevancy", case, rag_metrics.score_context_relevancy)


_COMPONENTS = ("faithfulness", "answer_relevancy", "context_precision", "context_recall")


@register_judge(
    "ragas",
    metrics=(
        Metric("ragas", threshold=0.75, primary=True),
        Metric("ragas_faithfulness", threshold=0.75),
        Metric("ragas_answer_relevancy", (-1.0, 1.0), threshold=0.75),
        Metric("ragas_context_precision", threshold=0.75),
        Metric("ragas_context_recall", threshold=0.75),
    ),
    standards=(TRANSPARENT, VALID, OUTCOMES),
    source="H2O Eval Studio: RAGAS",
    canonical="statistics.harmonic_mean",
    llm=False,
    model=True,
    gpu=True,
    example='get_evaluator("ragas", questions=1, embed=lambda texts: [[len(text), 1] for text in texts], judge=scripted(lambda '
    'ask: {"statements": {"statements": ["It is 4,806 m high."]}, "context_precision": {"reason": "The height.", '
    '"verdict": "yes"}, "answer_relevancy": {"1": {"question": "How high is it?", "noncommittal": "no"}}}.get('
    'ask.name, {"1": {"reason": "It says so.", "verdict": "yes"}}))), inputs="How high is it?", outputs="4,806 m", '
    'reference_outputs="It is 4,806 m high.", documents=["Mont Blanc is 4,806 m high."]',
)
class Ragas(_EmbeddingJudge):
    """Harmonic mean of faithfulness, answer relevancy, context precision and context recall, and these four scores.

    Any component of 0 makes the mean 0, and a negative relevancy counts as 0. If a component is undefined or could
    not be judged, the mean is too, while the other components are reported. All questions are asked concurrently,
    with the same texts as by the evaluators of these names. With cached answers, running those evaluators as well
    costs nothing. `embed` and `questions` are those of `answer_relevancy`.
    """

    PROMPT: ClassVar[str] = "statements"
    FURTHER: ClassVar[tuple[str, ...]] = _COMPONENTS

    questions: int = 3

    def __post_init__(self) -> None:
        _EmbeddingJudge.__post_init__(self)
        prompt = set_question_count(self._more["answer_relevancy"], self.questions)
        object.__setattr__(self, "_more", {**self._more, prompt.id: prompt})

    async def __call__(
        self, case: Case, inputs: Any, outputs: Any, reference_outputs: Any, documents: Sequence[Document]
    ) -> list[dict[str, Any]]:
        async def score_component(key: str, component: Coroutine[Any, Any, ComponentResult]) -> dict[str, Any]:
            result = await component
            return {"key": key, "score": result.score, "comment": result.comment, "metadata": result.metadata}

        async with Judgement("ragas", self._judge, case) as judgement:
            asking = RagCase(judgement=judgement, evaluator=self, case=case)
            components = (
                rag_metrics.score_faithfulness(asking),
                rag_metrics.score_answer_relevancy(asking, self._embed, self.questions),
                rag_metrics.score_context_precision(asking),
                rag_metrics.score_context_recall(asking),
            )
            keys = [f"ragas_{name}" for name in _COMPONENTS]
            rows = await gather_or_cancel(
                catch_outcome(key, score_component(key, component))
                for key, component in zip(keys, components, strict=True)
            )
            mean = judgement.row(key="ragas", **_combine_components(rows))
        return [mean, *({**row, "judge_trace_id": judgement.trace_id} for row in rows)]


def _combine_components(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the harmonic mean of the four, an error if one of them is an error, or a skip if one was skipped."""
    if failed := [f"{row['key']} ({row['error']})" for row in rows if "error" in row]:
        parse = "parse failure: " if all("(parse failure" in error for error in failed) else ""
        return {"error": f"{parse}could not be judged: {', '.join(failed)}"}
    if lacking := [f"{row['key']} ({row['comment']})" for row in rows if "score" not in row]:
        return {"comment": f"undefined without {', '.join(lacking)}"}
    scores = {row["key"]: row["score"] for row in rows}
    least = min(scores, key=scores.__getitem__)
    mean = statistics.harmonic_mean([max(0.0, score) for score in scores.values()])
    return {"score": mean, "comment": f"lowest is {least}, {scores[least]:.2f}"}


async def _judge_against(asking: RagCase, statements: Sequence[str], text: str, states: bool) -> list[StatementVerdict]:
    """Return verdicts on whether a text also makes each of the statements. If the text makes no statements, all verdicts
    are negative.
    """
    if not states:
        return [StatementVerdict(statement, False, "the other text states nothing") for statement in statements]
    return await asking.verdicts("answer_correctness", statements, text=text)


def _make_correctness_comment(
    factual: float, wrong: Sequence[str], missing: Sequence[str], left_out: str | None
) -> str:
    """Return a comment with F1 and the answer's extra and missing statements."""
    sections = [
        f"{len(statements)} {problem}: "
        + "; ".join(f"{statement!r:.300}" for statement in statements[: rag_metrics.MAX_SHOWN])
        for problem, statements in (("not in the reference", wrong), ("missing", missing))
        if statements
    ]
    return "; ".join([f"F1 {factual:.2f}", *sections, *([left_out] if left_out else [])])
