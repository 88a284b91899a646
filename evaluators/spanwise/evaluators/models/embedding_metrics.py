"""Embedding evaluators: semantic similarity, groundedness, context relevancy.

S(a, b) is the cosine of the embeddings of two texts, in [-1, 1]. The source documents write it as "1 − cosine
distance". Texts are split into sentences by rules, or by `splitter`, a function from a text to a list of sentences.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from math import fsum
from typing import TYPE_CHECKING, Any, ClassVar

from spanwise.collector.records import Case, Document
from spanwise.evaluators.builtin.case_text import Splitter, extract_question, extract_text, split_text
from spanwise.evaluators.interface import Metric, Skip, register_builtin
from spanwise.evaluators.interface.evaluator_spec import OUTCOMES, SOUNDNESS, TRANSPARENT, VALID
from spanwise.evaluators.models.batched_evaluator import EmbeddingEvaluator, EmbeddingSteps
from spanwise.evaluators.models.similarity import ComparisonEvaluator, cosine, cosines

if TYPE_CHECKING:
    from spanwise.evaluators.models.disk_cache import Vector


COSINE_RANGE = (-1.0, 1.0)
_EXAMPLE_MODEL = "model=lambda texts: [[len(text), 1] for text in texts]"  # model in the examples of the documentation


@register_builtin(
    "semantic_similarity",
    metrics=(Metric("semantic_similarity", primary=True),),
    standards=(VALID, OUTCOMES),
    source="Laminar: semantic similarity",
    canonical="numpy",
    model=True,
    gpu=True,
    kind="model",
    example=f'get_evaluator("semantic_similarity", {_EXAMPLE_MODEL}), outputs="It is Paris.", reference_outputs="Paris"',
)
@dataclass(frozen=True, slots=True, kw_only=True)
class SemanticSimilarity(EmbeddingEvaluator):
    """(S + 1) / 2 of answer and reference, in [0, 1]. S is the cosine of their embeddings."""

    def __call__(self, outputs: Any, reference_outputs: Any) -> Any:
        return self._one(outputs=outputs, reference_outputs=reference_outputs)

    def _steps(self, case: Case) -> EmbeddingSteps:
        texts = [extract_text(case.outputs), extract_text(case.reference_outputs)]
        vectors = yield texts
        return (cosine(*(vectors[text] for text in texts)) + 1) / 2


@register_builtin(
    "answer_semantic_similarity",
    metrics=(Metric("answer_semantic_similarity", COSINE_RANGE, threshold=0.75, primary=True),),
    standards=(VALID, OUTCOMES),
    source="H2O Eval Studio: answer semantic similarity",
    canonical="numpy; ragas 0.4.3",
    model=True,
    gpu=True,
    kind="model",
    example=f'get_evaluator("answer_semantic_similarity", {_EXAMPLE_MODEL}), outputs="It is Paris.", reference_outputs="Paris"',
)
@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerSemanticSimilarity(ComparisonEvaluator):
    """The cosine S of the embeddings of answer and reference, each embedded as a whole; with a cross-encoder, its score
    of the pair, in [0, 1].

    For a named model, its configuration decides whether it is an embedder or a cross-encoder. A function maps texts
    to vectors, and `PairScorer(function)` maps pairs to similarities. Unbounded scores of a cross-encoder go through
    a sigmoid.
    """

    DOCUMENT: ClassVar[str] = "bge-small-en-v1.5"


@register_builtin(
    "sas",
    metrics=(Metric("sas", COSINE_RANGE, primary=True),),
    standards=(VALID, OUTCOMES),
    source="Haystack: SASEvaluator",
    canonical="haystack-ai 3",
    model=True,
    gpu=True,
    kind="model",
    example=f'get_evaluator("sas", {_EXAMPLE_MODEL}), outputs="It is Paris.", reference_outputs="Paris"',
)
@dataclass(frozen=True, slots=True, kw_only=True)
class SemanticAnswerSimilarity(ComparisonEvaluator):
    """Haystack's semantic answer similarity: the cosine S of the embeddings of answer and reference, or a
    cross-encoder's score of the pair (0 to 1).

    The model's configuration decides which of the two it is. Haystack applies a sigmoid to the scores of a
    cross-encoder if any score in its list is above 1. Here the sigmoid depends on the model and not on other cases:
    it is applied if the model gives logits. Haystack's own model is paraphrase-multilingual-mpnet-base-v2:
    `get_evaluator("SAS")`. Haystack names no threshold: give one, or fit one.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class _SentenceEvaluator(EmbeddingEvaluator):
    """Base class of evaluators that compare sentences."""

    splitter: Splitter | None = None

    def _sentences(self, text: str, what: str) -> list[str]:
        """Split a text into sentences. Raises `Skip` if there are none."""
        if not (sentences := split_text(text, self.splitter)):
            raise Skip(f"{what} has no sentence")
        return sentences


@dataclass(frozen=True, slots=True, kw_only=True)
class _ChunkEvaluator(_SentenceEvaluator):
    """Base class of evaluators that compare the sentences of each retrieved chunk with the question."""

    def __call__(self, inputs: Any, documents: Sequence[Document]) -> Any:
        return self._one(inputs=inputs, documents=tuple(documents))

    def _relevances(self, case: Case) -> Generator[Sequence[str], Mapping[str, Vector], list[float | None]]:
        """Return the relevance of each chunk: the maximum S of its sentences with the question, or None if it has no
        sentence.
        """
        question, chunks = (
            extract_question(case.inputs),
            [split_text(chunk, self.splitter) for chunk in _chunk_texts(case)],
        )
        vectors = yield [question, *(one for chunk in chunks for one in chunk)]
        return [max(_best_similarities(vectors, chunk, [question]), default=None) for chunk in chunks]


@register_builtin(
    "answer_sem_sent_similarity",
    metrics=(
        Metric("answer_sem_sent_similarity_mean", COSINE_RANGE, threshold=0.75, primary=True),
        Metric("answer_sem_sent_similarity_min", COSINE_RANGE, threshold=0.75),
    ),
    standards=(VALID, OUTCOMES),
    source="H2O Eval Studio: answer semantic sentence similarity",
    canonical="numpy",
    model=True,
    gpu=True,
    kind="model",
    example=f'get_evaluator("answer_sem_sent_similarity", {_EXAMPLE_MODEL}), outputs="It is Paris. In France.", '
    'reference_outputs="Paris."',
)
@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerSentenceSimilarity(_SentenceEvaluator):
    """Each sentence of the answer is compared with the reference: its score is the maximum S with any sentence there.
    The metrics are the mean and the minimum of these scores. S is the cosine of the embeddings of two sentences.
    """

    DOCUMENT: ClassVar[str] = "bge-small-en-v1.5"

    def __call__(self, outputs: Any, reference_outputs: Any) -> Any:
        return self._one(outputs=outputs, reference_outputs=reference_outputs)

    def _steps(self, case: Case) -> EmbeddingSteps:
        sentences = self._sentences(extract_text(case.outputs), "the answer")
        expected = self._sentences(extract_text(case.reference_outputs), "the reference")
        vectors = yield [*sentences, *expected]
        best = _best_similarities(vectors, sentences, expected)
        least = min(range(len(sentences)), key=best.__getitem__)
        return [
            {"key": "answer_sem_sent_similarity_mean", "score": fsum(best) / len(best)},
            {
                "key": "answer_sem_sent_similarity_min",
                "score": best[least],
                "comment": f"least alike: {sentences[least]!r:.300}",
            },
        ]


@register_builtin(
    "answer_relevancy_sent",
    metrics=(Metric("answer_relevancy_sent", COSINE_RANGE, threshold=0.75, primary=True),),
    standards=(VALID,),
    source="H2O Eval Studio: answer relevancy (sentence similarity)",
    canonical="numpy",
    model=True,
    gpu=True,
    kind="model",
    example=f'get_evaluator("answer_relevancy_sent", {_EXAMPLE_MODEL}), inputs="Where is it?", outputs="It is in Paris. In France."',
)
@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerRelevancySentences(_SentenceEvaluator):
    """The maximum S of the question with a sentence of the answer. S is the cosine of their embeddings. An answer
    without a sentence is skipped.
    """

    DOCUMENT: ClassVar[str] = "bge-small-en"

    def __call__(self, inputs: Any, outputs: Any) -> Any:
        return self._one(inputs=inputs, outputs=outputs)

    def _steps(self, case: Case) -> EmbeddingSteps:
        question = extract_question(case.inputs)
        sentences = self._sentences(extract_text(case.outputs), "the answer")
        vectors = yield [question, *sentences]
        alike = _best_similarities(vectors, sentences, [question])
        best = max(range(len(sentences)), key=alike.__getitem__)
        return {"score": alike[best], "comment": f"most alike: {sentences[best]!r:.300}"}


@register_builtin(
    "groundedness",
    metrics=(Metric("groundedness", COSINE_RANGE, threshold=0.75, primary=True),),
    standards=(TRANSPARENT, VALID),
    source="H2O Eval Studio: groundedness (semantic similarity)",
    canonical="numpy",
    llm=False,
    model=True,
    gpu=True,
    kind="model",
    example=f'get_evaluator("groundedness", {_EXAMPLE_MODEL}), outputs="It is 4,806 m high.", '
    'documents=["Mont Blanc is 4,806 m high."]',
)
@dataclass(frozen=True, slots=True, kw_only=True)
class Groundedness(_SentenceEvaluator):
    """The minimum, over the sentences of the answer, of the maximum S with a sentence of the retrieved context.

    S is the cosine of the embeddings of two sentences. A single unsupported sentence, even "Hope this helps!",
    determines the score, and the comment names it. An answer without a sentence is an error (the source document calls
    it a problem). A sentence of the answer whose vector is zero is an error, too. If nothing was retrieved, the score
    is 0. Databricks' `groundedness` uses a judge; here that evaluator is `groundedness_judge`.
    """

    DOCUMENT: ClassVar[str] = "bge-small-en"

    def __call__(self, outputs: Any, documents: Sequence[Document]) -> Any:
        return self._one(outputs=outputs, documents=tuple(documents))

    def _steps(self, case: Case) -> EmbeddingSteps:
        if not (sentences := split_text(extract_text(case.outputs), self.splitter)):
            raise ValueError("the answer has no sentence")
        context = [one for chunk in _chunk_texts(case) for one in split_text(chunk, self.splitter)]
        if not context:
            return {"score": 0.0, "comment": "nothing was retrieved"}
        vectors = yield [*sentences, *context]
        if nameless := [one for one in sentences if not vectors[one].any()]:
            raise ValueError(f"the model gave a vector of zeros for {nameless[0]!r:.300} of the answer")
        best = _best_similarities(vectors, sentences, context)
        least = min(range(len(sentences)), key=best.__getitem__)
        return {"score": best[least], "comment": f"least grounded: {sentences[least]!r:.300}"}


@register_builtin(
    "context_mrr",
    metrics=(Metric("context_mrr", threshold=0.75, primary=True),),
    standards=(TRANSPARENT, SOUNDNESS, VALID),
    source="H2O Eval Studio: context mean reciprocal rank",
    canonical="numpy",
    llm=False,
    model=True,
    gpu=True,
    kind="model",
    example=f'get_evaluator("context_mrr", {_EXAMPLE_MODEL}), inputs="How high is it?", '
    'documents=["In the Alps.", "It is 4,806 m high."]',
)
@dataclass(frozen=True, slots=True, kw_only=True)
class ContextMRR(_ChunkEvaluator):
    """1 / rank of the first chunk with a sentence whose S with the question reaches the threshold.

    S is the cosine of the embeddings of the sentence and the question. The score is 0 if no chunk reaches the
    threshold, if the first such chunk is at a rank above `mrr_relevant_chunk_oor_idx` (10 still counts), or if
    nothing was retrieved. The document's threshold of 0.7 was chosen for its model, bge-small-en; for another model,
    give one or fit one.
    """

    DOCUMENT: ClassVar[str] = "bge-small-en"

    mrr_relevant_chunk_threshold: float = 0.7
    mrr_relevant_chunk_oor_idx: int = 10

    def __post_init__(self) -> None:
        EmbeddingEvaluator.__post_init__(self)
        if not -1 <= self.mrr_relevant_chunk_threshold <= 1:
            raise ValueError(f"a cosine is from -1 to 1, not {self.mrr_relevant_chunk_threshold!r}")
        if self.mrr_relevant_chunk_oor_idx < 1:
            raise ValueError(f"ranks begin at 1, not at {self.mrr_relevant_chunk_oor_idx!r}")

    def _steps(self, case: Case) -> EmbeddingSteps:
        relevances = yield from self._relevances(case)
        for rank, relevance in enumerate(relevances[: self.mrr_relevant_chunk_oor_idx], 1):
            if relevance is not None and relevance >= self.mrr_relevant_chunk_threshold:
                return {"score": 1 / rank, "comment": f"chunk {rank} has {relevance:.3f}"}
        return {"score": 0.0, "comment": f"no chunk has {self.mrr_relevant_chunk_threshold}"}


@register_builtin(
    "context_relevancy_soft",
    metrics=(
        Metric("context_relevancy_soft_recall", COSINE_RANGE, threshold=0.75, primary=True),
        Metric("context_relevancy_soft_precision", COSINE_RANGE, threshold=0.75),
    ),
    standards=(TRANSPARENT, SOUNDNESS, VALID),
    source="H2O Eval Studio: context relevancy (soft recall and precision)",
    canonical="numpy",
    llm=False,
    model=True,
    gpu=True,
    kind="model",
    example=f'get_evaluator("context_relevancy_soft", {_EXAMPLE_MODEL}), inputs="How high is it?", '
    'documents=["In the Alps.", "It is 4,806 m high."]',
)
@dataclass(frozen=True, slots=True, kw_only=True)
class ContextRelevancySoft(_ChunkEvaluator):
    """The relevance of a chunk is the maximum S of any of its sentences with the question. The metrics are the highest
    relevance (recall) and the mean relevance (precision).

    S is the cosine of the embeddings of the sentence and the question. Chunks without a sentence are left out. If no
    chunk has a sentence, the case is skipped.
    """

    DOCUMENT: ClassVar[str] = "bge-small-en"

    def _steps(self, case: Case) -> EmbeddingSteps:
        every = yield from self._relevances(case)
        relevances = [relevance for relevance in every if relevance is not None]
        if not relevances:
            raise Skip("no chunk of the retrieved context has a sentence")
        return [
            {"key": "context_relevancy_soft_recall", "score": max(relevances)},
            {"key": "context_relevancy_soft_precision", "score": fsum(relevances) / len(relevances)},
        ]


def _chunk_texts(case: Case) -> list[str]:
    return [document.content or "" for document in case.documents or ()]


def _best_similarities(vectors: Mapping[str, Vector], texts: Sequence[str], others: Sequence[str]) -> list[float]:
    """Return for each text the maximum S with one of the others."""
    if not texts:
        return []
    best: list[float] = (
        cosines([vectors[text] for text in texts], [vectors[other] for other in others]).max(axis=1).tolist()
    )
    return best
