"""Likelihood evaluators: perplexity and GPTScore.

GPTScore is the average negative log-likelihood of a text after an instruction, in nats per token. Lower is better.
The paper (Fu et al., 2023) uses the mean log-likelihood instead, of which higher is better. The instructions are
verbatim those of the source document. A chat endpoint returns no log-probabilities of a given text, so `model` runs
locally.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import exp, fsum, inf
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

from spanwise.collector.records import Case
from spanwise.evaluators.builtin.case_text import extract_question, extract_text
from spanwise.evaluators.interface import Metric, Skip, register_builtin
from spanwise.evaluators.interface.evaluator_spec import OUTCOMES, SOUNDNESS, VALID
from spanwise.evaluators.models.batched_evaluator import BatchedEvaluator, ModelSteps
from spanwise.evaluators.models.causal_model import LikelihoodModel, PrefixedText, likelihood_model

if TYPE_CHECKING:
    from spanwise.evaluators.models.disk_cache import Vector


PairsByKey: TypeAlias = dict[str, list[PrefixedText]]
"""By key the pairs of prefix and text whose averages are averaged."""

# model in the examples of the documentation
_EXAMPLE_MODEL = "model=lambda pairs: [[-1.5] * len(text.split()) for _, text in pairs]"


@dataclass(frozen=True, slots=True, kw_only=True)
class _LikelihoodEvaluator(BatchedEvaluator[PrefixedText, Any]):
    """Base class of frozen dataclasses that score by likelihood.

    `model` is any argument that `likelihood_model` accepts (None: distilgpt2).
    """

    DOCUMENT: ClassVar[str | None] = "distilgpt2"
    PRESET: ClassVar[str] = "distilgpt2"
    DEFAULT_MODEL: ClassVar[str] = (
        "distilgpt2, which was made for English and reads 1,024 tokens at once: longer texts are read in windows"
    )

    model: Any = None
    _likelihood: LikelihoodModel = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_likelihood", likelihood_model(self.PRESET if self.model is None else self.model))

    @abstractmethod
    def _pairs(self, case: Case) -> PairsByKey:
        """Return, by metric key, the pairs of a prefix and a text whose likelihood is measured."""

    def _score(self, loss: float) -> float:
        """Convert a loss in nats per token to the score."""
        return loss

    def _steps(self, case: Case) -> ModelSteps[PrefixedText, Any]:
        asked = self._pairs(case)
        found = yield [pair for pairs in asked.values() for pair in pairs]
        losses = {key: [_mean_loss(found[pair]) for pair in pairs] for key, pairs in asked.items()}
        return [{"key": key, "score": self._score(fsum(both) / len(both))} for key, both in losses.items()]

    def _replies(self, asked: Sequence[PrefixedText]) -> Mapping[PrefixedText, Vector | Exception]:
        return self._likelihood.each(asked)

    def _load(self) -> None:
        self._likelihood.load()

    @property
    def _model(self) -> Mapping[str, Any]:
        return self._likelihood.identity


@register_builtin(
    "perplexity",
    metrics=(Metric("perplexity", (1.0, inf), higher_is_better=False, primary=True),),
    standards=(SOUNDNESS, VALID),
    source="H2O Eval Studio: perplexity",
    canonical="transformers",
    model=True,
    gpu=True,
    kind="model",
    example=f'get_evaluator("perplexity", {_EXAMPLE_MODEL}), outputs="It is Paris."',
)
@dataclass(frozen=True, slots=True, kw_only=True)
class Perplexity(_LikelihoodEvaluator):
    """exp(mean cross-entropy of the answer's tokens). It is 1 if the model predicts every token with certainty, and
    higher otherwise.

    If the model's tokenizer puts no token before the answer, the answer's first token is read but not counted.
    distilgpt2's tokenizer puts none, so an answer of one token is skipped like an empty one. `LikelihoodModel(…,
    bos=True)` counts the first token. A long answer is read in windows that overlap by half; the package that the
    document names, lmppl, truncates it. No answer can meet the document's threshold of 0.5, so there is none: give
    `threshold=`, or fit one to your model.
    """

    def __call__(self, outputs: Any) -> Any:
        return self._one(outputs=outputs)

    def _pairs(self, case: Case) -> PairsByKey:
        return {"perplexity": [("", extract_text(case.outputs))]}

    def _score(self, loss: float) -> float:
        return exp(loss)


def _gptscore_metrics(id: str, aspects: Sequence[str]) -> tuple[Metric, ...]:
    """Return one metric for each aspect; the first is the primary one.

    The threshold is infinite, as in the source document, so every score passes.
    """
    return tuple(
        Metric(f"{id}_{aspect}", (0.0, inf), higher_is_better=False, threshold=inf, primary=aspect == aspects[0])
        for aspect in aspects
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _RewritingEvaluator(_LikelihoodEvaluator):
    """GPTScore of the answer after the reference, and of the reference after the answer, averaged."""

    ID: ClassVar[str]
    INSTRUCTIONS: ClassVar[Mapping[str, str]]  # the prompt before "In other words,"

    def __call__(self, outputs: Any, reference_outputs: Any) -> Any:
        return self._one(outputs=outputs, reference_outputs=reference_outputs)

    def _pairs(self, case: Case) -> PairsByKey:
        answer, reference = extract_text(case.outputs), extract_text(case.reference_outputs)
        both = ((reference, answer), (answer, reference))
        return {
            f"{self.ID}_{aspect}": [(f"{before} {one} In other words,", f" {other}") for one, other in both]
            for aspect, before in self.INSTRUCTIONS.items()
        }


_TRANSLATION_ASPECTS = {
    "accuracy": "Rewrite the following text with its core information and consistent facts:",
    "fluency": "Rewrite the following text to make it more grammatical and well-written:",
    "mqm": "Rewrite the following text into high-quality text with its core information:",
}


@register_builtin(
    "gptscore_mt",
    metrics=_gptscore_metrics("gptscore_mt", list(_TRANSLATION_ASPECTS)),
    standards=(SOUNDNESS, VALID, OUTCOMES),
    source="H2O Eval Studio: machine translation (GPTScore)",
    canonical="transformers",
    model=True,
    gpu=True,
    kind="model",
    example=f'get_evaluator("gptscore_mt", {_EXAMPLE_MODEL}), outputs="It is Paris.", reference_outputs="Paris"',
)
@dataclass(frozen=True, slots=True, kw_only=True)
class GPTScoreTranslation(_RewritingEvaluator):
    """Nats per token of the text after "In other words,": answer after reference and reference after answer, averaged.

    Accuracy: "Rewrite the following text with its core information and consistent facts: {reference} In other words,
    {answer}". Fluency: "… to make it more grammatical and well-written: …". Multidimensional quality (`mqm`): "… into
    high-quality text with its core information: …". An empty answer or reference has no token and is skipped. The
    document's threshold is infinite: everything passes.
    """

    ID: ClassVar[str] = "gptscore_mt"
    INSTRUCTIONS: ClassVar[Mapping[str, str]] = _TRANSLATION_ASPECTS


_REFERENCE_SUMMARY_ASPECTS = {
    "semantic_coverage": "Rewrite the following text with the same semantics.",
    "factuality": "Rewrite the following text with consistent facts.",
    "informativeness": "Rewrite the following text with its core information.",
    "coherence": "Rewrite the following text into a coherent text.",
    "relevance": "Rewrite the following text with consistent details.",
    "fluency": "Rewrite the following text into a fluent and grammatical text.",
}


@register_builtin(
    "gptscore_sum_ref",
    metrics=_gptscore_metrics("gptscore_sum_ref", list(_REFERENCE_SUMMARY_ASPECTS)),
    standards=(SOUNDNESS, VALID, OUTCOMES),
    source="H2O Eval Studio: summarization with reference (GPTScore)",
    canonical="transformers",
    model=True,
    gpu=True,
    kind="model",
    example=f'get_evaluator("gptscore_sum_ref", {_EXAMPLE_MODEL}), outputs="It is Paris.", reference_outputs="Paris"',
)
@dataclass(frozen=True, slots=True, kw_only=True)
class GPTScoreWithReference(_RewritingEvaluator):
    """Nats per token of the text after "In other words,": answer after reference and reference after answer, averaged.

    The prompt is "Rewrite the following text {aspect} {reference} In other words, {answer}", where the aspect is
    "with the same semantics." (semantic coverage), "with consistent facts." (factuality), "with its core
    information." (informativeness), "into a coherent text." (coherence), "with consistent details." (relevance) or
    "into a fluent and grammatical text." (fluency). An empty answer or reference has no token and is skipped. The
    document's threshold is infinite: everything passes.
    """

    ID: ClassVar[str] = "gptscore_sum_ref"
    INSTRUCTIONS: ClassVar[Mapping[str, str]] = _REFERENCE_SUMMARY_ASPECTS


_SUMMARY_ASPECTS = {
    "semantic_coverage": "Generate a summary with as much semantic coverage as possible for the following text:",
    "factuality": "Generate a summary with consistent facts for the following text:",
    "consistency": "Generate a factually consistent summary for the following text:",
    "informativeness": "Generate an informative summary that captures the key points of the following text:",
    "coherence": "Generate a coherent summary for the following text:",
    "relevance": "Generate a relevant summary with consistent details for the following text:",
    "fluency": "Generate a fluent and grammatical summary for the following text:",
}


@register_builtin(
    "gptscore_sum_noref",
    metrics=_gptscore_metrics("gptscore_sum_noref", list(_SUMMARY_ASPECTS)),
    standards=(SOUNDNESS, VALID),
    source="H2O Eval Studio: summarization without reference (GPTScore)",
    canonical="transformers",
    model=True,
    gpu=True,
    kind="model",
    example=f'get_evaluator("gptscore_sum_noref", {_EXAMPLE_MODEL}), inputs="Paris is the capital.", outputs="It is Paris."',
)
@dataclass(frozen=True, slots=True, kw_only=True)
class GPTScoreWithoutReference(_LikelihoodEvaluator):
    """Nats per token of the answer after "{instruction} {question}⏎Tl;dr⏎", in one direction only.

    The instructions are "Generate a summary with as much semantic coverage as possible for the following text:"
    (semantic coverage), "… a summary with consistent facts for …" (factuality), "… a factually consistent summary for
    …" (consistency), "… an informative summary that captures the key points of …" (informativeness), "… a coherent
    summary for …" (coherence), "… a relevant summary with consistent details for …" (relevance) and "… a fluent and
    grammatical summary for …" (fluency). The text to be summarized is the question. An empty answer has no token and
    is skipped. The document's threshold is infinite: everything passes.
    """

    def __call__(self, inputs: Any, outputs: Any) -> Any:
        return self._one(inputs=inputs, outputs=outputs)

    def _pairs(self, case: Case) -> PairsByKey:
        question, answer = extract_question(case.inputs), extract_text(case.outputs)
        return {
            f"gptscore_sum_noref_{aspect}": [(f"{before} {question}\nTl;dr\n", answer)]
            for aspect, before in _SUMMARY_ASPECTS.items()
        }


_ANSWER_ASPECTS = {
    "interest": "interesting",
    "engagement": "engaging",
    "understandability": "understandable",
    "relevance": "relevant to the conversation",
    "specific": "generic or specific to the conversation",
    "correctness": "correct to conversations",
    "semantically_appropriate": "semantically appropriate",
    "fluency": "fluently written",
}


@register_builtin(
    "gptscore_qa",
    metrics=_gptscore_metrics("gptscore_qa", list(_ANSWER_ASPECTS)),
    standards=(SOUNDNESS, VALID),
    source="H2O Eval Studio: question answering (GPTScore)",
    canonical="transformers",
    model=True,
    gpu=True,
    kind="model",
    example=f'get_evaluator("gptscore_qa", {_EXAMPLE_MODEL}), inputs="Where is it?", outputs="It is in Paris."',
)
@dataclass(frozen=True, slots=True, kw_only=True)
class GPTScoreAnswering(_LikelihoodEvaluator):
    """Negative log-likelihood of " Yes", in nats, after a question about the conversation, in one direction only.

    The prompt is "Answer the question based on the conversation between a human and AI.⏎Question: Are the responses
    of AI {aspect}? (a) Yes. (b) No.⏎Conversation: {history}⏎Answer:". The aspect is "interesting", "engaging",
    "understandable", "relevant to the conversation", "generic or specific to the conversation" (the document's
    question, although "Yes" does not answer it), "correct to conversations", "semantically appropriate" or "fluently
    written". The document averages over "the tokens Answer: Yes". "Answer:" is the same in every prompt, so only "
    Yes" counts here. The document does not define the history either; here it is "Human: {question}⏎AI: {answer}". An
    empty answer is scored like any other. The document's threshold is infinite: everything passes.
    """

    def __call__(self, inputs: Any, outputs: Any) -> Any:
        return self._one(inputs=inputs, outputs=outputs)

    def _pairs(self, case: Case) -> PairsByKey:
        history = f"Human: {extract_question(case.inputs)}\nAI: {extract_text(case.outputs)}"
        return {
            f"gptscore_qa_{key}": [(_question_prompt(aspect, history), " Yes")]
            for key, aspect in _ANSWER_ASPECTS.items()
        }


def _question_prompt(aspect: str, history: str) -> str:
    return (
        "Answer the question based on the conversation between a human and AI.\n"
        f"Question: Are the responses of AI {aspect}? (a) Yes. (b) No.\n"
        f"Conversation: {history}\n"
        "Answer:"
    )


def _mean_loss(found: Vector) -> float:
    """Return the mean loss in nats per token. Raises `Skip` for a text without a counted token."""
    if not len(found):
        raise Skip("undefined: the text has no token that follows another one")
    return 0.0 - fsum(map(float, found)) / len(found)
