"""Factual consistency evaluators: hallucination, NLI faithfulness, SummaC summarization.

SummaC: Laban et al., "SummaC: Re-Visiting NLI-based Models for Inconsistency Detection in Summarization" (TACL 2022).
ZS takes maxima and a mean. Conv builds, for each sentence of the summary, a histogram of the entailment
probabilities, and applies learned weights to it. The authors' file holds these weights: 23 numbers and a bias, then
two classes of three features.

Long contexts are cut into overlapping windows that fit the model's input. The support of a text is the maximum over
the windows. An answer that is itself too long is cut too, and its least supported window counts.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeAlias, cast

from spanwise.collector.records import Case, Document
from spanwise.evaluators.builtin.case_text import Splitter, extract_question, extract_text, split_text
from spanwise.evaluators.interface import Metric, Skip, register_builtin
from spanwise.evaluators.interface.evaluator_spec import SAFE, TRANSPARENT, VALID
from spanwise.evaluators.models.batched_evaluator import (
    BatchedEvaluator,
    ModelSteps,
    PairEvaluator,
    PairScores,
    retrieved_chunks,
)
from spanwise.evaluators.models.cross_encoder import PairScorer, TextPair, make_inference, pair_scorer
from spanwise.evaluators.models.embedding_model import Embedder, embedder
from spanwise.evaluators.models.model_resolution import MODELS_EXTRA, NoModel
from spanwise.evaluators.models.similarity import cosine

if TYPE_CHECKING:
    import numpy

    Numbers = numpy.ndarray[Any, numpy.dtype[numpy.float64]]

# Edges of the histogram bins that the authors call "percentile". Their alternative is 50 bins of equal width.
_LOW_PERCENTILES = (0.0, 0.01, 0.02, 0.03, 0.04, 0.07, 0.13, 0.37)
_HIGH_PERCENTILES = (0.90, 0.91, 0.92, 0.93, 0.94, 0.95, 0.955, 0.96, 0.965, 0.97, 0.975, 0.98, 0.985, 0.99, 0.995, 1.0)
PERCENTILES = (*_LOW_PERCENTILES, *_HIGH_PERCENTILES)
CONV_SENTENCES = 10  # sentences of the summary that Conv reads
MAX_WEIGHT_BYTES = 1 << 20  # maximum bytes of a file with weights; the authors' file has 2 kB
_WEIGHT_SHAPES = {"mlp.weight": (1, None), "mlp.bias": (1,), "layer_final.weight": (2, 3), "layer_final.bias": (2,)}


def zero_shot_score(entailment: Numbers, contradiction: Numbers) -> float:
    """Return SummaC-ZS, in [-1, 1]. Both arrays have the shape (sentences of the text, sentences of the summary).

    It is the mean, over the sentences of the summary, of the maximum entailment minus the maximum contradiction.
    """
    return float(support_difference(entailment, contradiction).mean())


def support_difference(entailment: Numbers, contradiction: Numbers) -> Numbers:
    """Return for each sentence of the summary the maximum entailment by a sentence of the text minus the maximum
    contradiction.
    """
    return cast("Numbers", entailment.max(axis=0) - contradiction.max(axis=0))


@dataclass(frozen=True, slots=True)
class ConvWeights:
    """Learned weights of SummaC-Conv.

    They are read from a safetensors file or, with `pickle=True`, from the authors' `.bin` file, which is a pickle.
    Raises `NoModel` if the file is missing or does not hold these weights.
    """

    file: str
    pickle: bool = False
    digest: str = field(init=False)

    def __post_init__(self) -> None:
        path = Path(self.file).expanduser()
        if not path.is_file():
            raise NoModel(f"there is no file {self.file!r} with the weights of SummaC-Conv")
        if path.stat().st_size > MAX_WEIGHT_BYTES:
            raise NoModel(f"{self.file!r} has {path.stat().st_size:,} bytes: the weights of SummaC-Conv are 2 kB")
        if path.suffix != ".safetensors" and not self.pickle:
            raise NoModel(
                f"{self.file!r} is not a .safetensors file and may be a pickle, which can run code when it is loaded; "
                "if you trust it, set pickle=True"
            )
        object.__setattr__(self, "digest", hashlib.sha256(path.read_bytes()).hexdigest()[:12])

    def score(self, entailment: Numbers) -> float:
        """Return a score in [0, 1] for an array of shape (sentences of the text, sentences of the summary).

        Only the first ten sentences of the summary count.
        """
        import numpy

        weights = _load_weights(self.file, self.digest)
        bins = weights["mlp.weight"].shape[1]
        edges = list(PERCENTILES) if bins == len(PERCENTILES) - 1 else [place / bins for place in range(bins + 1)]
        counts = [numpy.histogram(column, bins=edges)[0] for column in entailment.T[:CONV_SENTENCES]]
        learned = numpy.asarray(counts) @ weights["mlp.weight"][0] + weights["mlp.bias"]
        classes = weights["layer_final.weight"] @ numpy.full(3, learned.mean()) + weights["layer_final.bias"]
        return float(1 / (1 + numpy.exp(classes[0] - classes[1])))


@lru_cache(maxsize=8)
def _load_weights(file: str, digest: str) -> dict[str, Numbers]:
    """Load the weights. The argument `digest` only makes the cached result depend on the file's content.

    Raises `NoModel` if the weights are missing.
    """
    path = Path(file).expanduser()
    try:
        read: Any
        if path.suffix == ".safetensors":
            from safetensors.numpy import load_file

            read = load_file(path)
        else:
            import torch

            tensors = torch.load(path, map_location="cpu", weights_only=True)
            read = {name: value.float().numpy() for name, value in tensors.items()}
        found = {name: read[name].astype("float64") for name in _WEIGHT_SHAPES}
    except ModuleNotFoundError as error:
        raise NoModel(
            f"the weights of SummaC-Conv need {error.name!r}, which is not installed: {MODELS_EXTRA}"
        ) from None
    except Exception as error:
        message = " ".join(f"{type(error).__name__}: {error}".split())
        raise NoModel(f"{file!r} has no weights of SummaC-Conv ({', '.join(_WEIGHT_SHAPES)}): {message:.200}") from None
    for name, shape in _WEIGHT_SHAPES.items():
        actual = found[name].shape
        fits = len(actual) == len(shape) and all(
            size == want or (want is None and size in (len(PERCENTILES) - 1, 50))
            for size, want in zip(actual, shape, strict=True)
        )
        if not fits:
            raise NoModel(f"{file!r} has {name} of shape {actual}; expected {str(shape).replace('None', '23 or 50')}")
    return found


# model in the examples of the documentation
_EXAMPLE_MODEL = "model=lambda pairs: [float(answer in context) for context, answer in pairs]"


@dataclass(frozen=True, slots=True, kw_only=True)
class _ConsistencyEvaluator(PairEvaluator):
    """Base class of evaluators that compare the answer with the retrieved context."""

    splitter: Splitter | None = None

    def __call__(self, outputs: Any, documents: Sequence[Document]) -> Any:
        return self._one(outputs=outputs, documents=tuple(documents))

    def _sentences(self, text: str) -> list[str]:
        """Split the answer into sentences. Raises `Skip` if there are none."""
        if not (sentences := split_text(text, self.splitter)):
            raise Skip("the answer has no sentence")
        return sentences


@register_builtin(
    "hallucination",
    metrics=(Metric("hallucination", threshold=0.75, primary=True),),
    standards=(SAFE, VALID),
    source="H2O Eval Studio: hallucination",
    canonical="transformers",
    llm=False,
    model=True,
    gpu=True,
    kind="model",
    example=f'get_evaluator("hallucination", {_EXAMPLE_MODEL}), outputs="It is 4,806 m high.", '
    'documents=["It is 4,806 m high. It is in the Alps."]',
)
@dataclass(frozen=True, slots=True, kw_only=True)
class Hallucination(_ConsistencyEvaluator):
    """The probability that the answer is consistent with the retrieved context: 1 is good, 0 is hallucinated.

    The model is Vectara's HHEM; for any NLI model, the score is its probability of entailment. The retrieved chunks,
    joined in order, are one text, and the answer is the other. If the context is too long for the model, it is cut
    into windows, and the one that supports the answer most counts. An answer that is itself too long is cut too, and
    its least supported window counts.

    If an answer draws on several windows, `by="sentence"` is better. It takes each sentence's best window, and the
    minimum over the sentences, which the comment names. An empty answer is skipped. If nothing was retrieved, the
    score is 0.
    """

    DOCUMENT: ClassVar[str] = "hhem"
    PRESET: ClassVar[str] = "hhem"
    DEFAULT_MODEL: ClassVar[str] = (
        "hhem, for English, in windows of 2,048 tokens for context and answer together; the threshold is its own, and "
        "holds for no other"
    )

    by: Literal["answer", "sentence"] = "answer"

    def _steps(self, case: Case) -> ModelSteps[TextPair, PairScores]:
        answer = extract_text(case.outputs)
        if not answer.strip():
            raise Skip("the answer is empty")
        if not (chunks := retrieved_chunks(case)):
            return {"score": 0.0, "comment": "nothing was retrieved"}
        sentences = [answer] if self.by == "answer" else self._sentences(answer)
        support = yield from self._supports(["\n\n".join(chunks)], sentences)
        least = min(range(len(sentences)), key=support.__getitem__)
        comment = f"least supported: {sentences[least]!r:.300}" if self.by == "sentence" else None
        return {"score": support[least], "comment": comment}


@register_builtin(
    "faithfulness_nli",
    metrics=(Metric("faithfulness_nli", primary=True),),
    standards=(TRANSPARENT, VALID),
    source="H2O Eval Studio: faithfulness, with an NLI model in the judge's place",
    canonical="transformers",
    llm=False,
    model=True,
    gpu=True,
    kind="model",
    example=f'get_evaluator("faithfulness_nli", {_EXAMPLE_MODEL}), outputs="It is high. It is in Spain.", '
    'documents=["It is high. It is in France."]',
)
@dataclass(frozen=True, slots=True, kw_only=True)
class FaithfulnessNLI(_ConsistencyEvaluator):
    """Share of the answer's sentences that follow from the retrieved context.

    A sentence follows if a chunk, or a window of a long chunk, entails it with a probability of at least
    `supported_from`. The comment names the least supported sentence. Unlike `faithfulness`, which uses a judge, it
    takes sentences unchanged: a sentence with two claims counts once, and a sentence with "it" may be unclear without
    those before it. An answer without a sentence is skipped. If nothing was retrieved, the score is 0. The document's
    threshold was chosen for a judge, so there is none until one is given or fitted.
    """

    PRESET: ClassVar[str] = "nli"
    DEFAULT_MODEL: ClassVar[str] = "nli, DeBERTa-v3-base for English, in windows of 512 tokens for chunk and sentence"

    supported_from: float = 0.5

    def __post_init__(self) -> None:
        PairEvaluator.__post_init__(self)
        if not 0 <= self.supported_from <= 1:
            raise ValueError(f"a probability is from 0 to 1, not {self.supported_from!r}")

    def _steps(self, case: Case) -> ModelSteps[TextPair, PairScores]:
        sentences = self._sentences(extract_text(case.outputs))
        if not (chunks := retrieved_chunks(case)):
            return {"score": 0.0, "comment": "nothing was retrieved"}
        support = yield from self._supports(chunks, sentences)
        follow = sum(one >= self.supported_from for one in support)
        least = min(range(len(sentences)), key=support.__getitem__)
        return {
            "score": follow / len(sentences),
            "comment": f"{follow} of {len(sentences)} sentences follow; "
            f"least: {support[least]:.3f} {sentences[least]!r:.300}",
        }


if TYPE_CHECKING:
    import numpy

    from spanwise.evaluators.models.disk_cache import Vector

    Image: TypeAlias = "numpy.ndarray[tuple[int, int, int], numpy.dtype[numpy.float64]]"

    Asks: TypeAlias = Generator[Sequence[TextPair], Mapping[TextPair, PairScores], Image]
_COMPLETENESS_KEY = "summarization_cf_completeness"
_CONV_KEY = "summarization_cf_faithfulness_conv"
_ZERO_SHOT_KEY = "summarization_cf_faithfulness_zs"
_CONV_HINT = (
    "its weights are in a file of SummaC's authors: get it at github.com/tingofurro/summac "
    "(summac_conv_vitc_sent_perc_e.bin) and name it: conv=FILE, pickle=True"
)


@register_builtin(
    "summarization_cf",
    metrics=(
        Metric(_COMPLETENESS_KEY, primary=True),
        Metric(_CONV_KEY, threshold=0.75),
        Metric(_ZERO_SHOT_KEY, (-1.0, 1.0), threshold=0.75),
    ),
    standards=(VALID,),
    source="H2O Eval Studio: summarization (completeness and faithfulness); SummaC",
    canonical="numpy; summac 0.0.4 (by its definitions)",
    version="2",
    model=True,
    gpu=True,
    kind="model",
    example='get_evaluator("summarization_cf", '
    "model=lambda pairs: [[float(said in text), 0.0, 0.0] for text, said in pairs], "
    "embedding=lambda texts: [[len(text), 1] for text in texts]), "
    'inputs="Mont Blanc is high. It is in the Alps.", outputs="Mont Blanc is high. It is in Spain."',
)
@dataclass(frozen=True, slots=True, kw_only=True)
class Summarization(BatchedEvaluator[TextPair, PairScores]):
    """Faithfulness of a summary to its text (SummaC-ZS, SummaC-Conv), and its completeness.

    The text is the retrieved context, or the question if nothing was retrieved. ZS is the mean, over the sentences of
    the summary, of the maximum entailment by a sentence of the text minus the maximum contradiction. It ranges from
    -1 to 1 (the document says from 0). Conv needs the learned weights from a file that `conv` names: a
    `.safetensors`, or with `pickle=True` the authors' `.bin`. Without the file, that key is skipped. Conv was trained
    with VitaminC's model, "vitaminc", and reads the first 10 sentences of the summary. As published, sentences of 10
    characters or less are left out (unless there are no others), and the first `max_sentences` of the text count. A
    sentence that is too long for the model counts as several.

    The document does not define completeness further. Here it is S of the text and the faithful part of the summary:
    the cosine, at least 0, of two mean vectors. One is the mean over all sentences of the text, the other over those
    sentences of the summary that are entailed more than contradicted. If there are none, it is 0. The document names
    no model for completeness, so it has no threshold until one is given or fitted. An empty summary or text is
    skipped.
    """

    DOCUMENT: ClassVar[str] = "vitaminc"
    PRESET: ClassVar[str] = "vitaminc"
    DEFAULT_MODEL: ClassVar[str] = (
        "vitaminc, ALBERT-xlarge for English, 512 tokens for a pair of sentences; the thresholds apply only to this "
        "model. For completeness all-MiniLM-L6-v2, 256 tokens for a sentence"
    )

    model: Any = None
    embedding: Any = None
    conv: str | os.PathLike[str] | None = None
    pickle: bool = False
    splitter: Splitter | None = None
    min_characters: int = 10
    max_sentences: int = 100
    _scorer: PairScorer = field(init=False, repr=False, compare=False)
    _embedder: Embedder = field(init=False, repr=False, compare=False)
    _conv: ConvWeights | None = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.max_sentences < 1:
            raise ValueError(f"max_sentences is 1 or more, not {self.max_sentences!r}")
        object.__setattr__(self, "_scorer", pair_scorer(self.PRESET if self.model is None else self.model))
        object.__setattr__(self, "_embedder", embedder(self.embedding))
        conv = None if self.conv is None else ConvWeights(os.fspath(self.conv), self.pickle)
        object.__setattr__(self, "_conv", conv)

    def __call__(self, outputs: Any, inputs: Any = None, documents: Sequence[Document] = ()) -> Any:
        return self._one(outputs=outputs, inputs=inputs, documents=tuple(documents or ()))

    @property
    def _model(self) -> Mapping[str, Any]:
        conv = None if self._conv is None else self._conv.digest
        return {**self._scorer.identity, "embedding": dict(self._embedder.identity), "conv": conv}

    def _load(self) -> None:
        self._scorer.load()

    def _replies(self, asked: Sequence[TextPair]) -> Mapping[TextPair, PairScores | Exception]:
        return self._scorer.each(asked)

    def _steps(self, case: Case) -> Any:
        summary = self._sentences(extract_text(case.outputs), "summary")
        source = self._sentences(_source_text(case), "text")
        firsts, seconds = self._scorer.parts(
            _long_sentences(source, self.min_characters)[: self.max_sentences], summary
        )
        image = yield from self._image(firsts, [part for parts in seconds for part in parts])
        entailment, _, contradiction = image
        faithful = support_difference(entailment, contradiction) > 0
        windows = iter(faithful.tolist())
        # a sentence is faithful if all of its windows are faithful
        is_faithful = [all(list(islice(windows, len(parts)))) for parts in seconds]
        faithful_sentences = [sentence for sentence, holds in zip(summary, is_faithful, strict=True) if holds]
        return [
            self._completeness(source, faithful_sentences, len(summary)),
            self._learned(entailment),
            {"key": _ZERO_SHOT_KEY, "score": zero_shot_score(entailment, contradiction)},
        ]

    def _sentences(self, text: str, what: str) -> list[str]:
        """Split the summary or the text into sentences. Raises `Skip` if there are none."""
        if not (sentences := split_text(text, self.splitter)):
            raise Skip(f"the {what} has no sentence")
        return _long_sentences(sentences, self.min_characters) if what == "summary" else sentences

    def _image(self, firsts: list[str], seconds: list[str]) -> Asks:
        """Return the NLI probabilities of all pairs as an array of shape (labels, sentences of the text, sentences of
        the summary).

        There are three labels. The model is queried for one sentence of the summary at a time, which bounds the
        number of pairs in memory.
        """
        import numpy

        image = numpy.zeros((3, len(firsts), len(seconds)))
        for column, second in enumerate(seconds):
            rows = yield [(first, second) for first in firsts]
            for row, first in enumerate(firsts):
                inference = make_inference(rows[first, second], self._scorer.name)
                image[:, row, column] = inference.entailment, inference.neutral, inference.contradiction
        return image

    def _completeness(self, source: list[str], kept: list[str], count: int) -> dict[str, Any]:
        comment = f"{len(kept)} of {count} sentences are faithful"
        if not kept:
            return {"key": _COMPLETENESS_KEY, "score": 0.0, "comment": comment}
        vectors = self._embedder.by_text([*source, *kept])
        score = max(cosine(_mean_direction(vectors, source), _mean_direction(vectors, kept)), 0.0)
        return {"key": _COMPLETENESS_KEY, "score": score, "comment": comment}

    def _learned(self, entailment: Any) -> dict[str, Any]:
        if self._conv is None:
            return {"key": _CONV_KEY, "score": None, "comment": f"needs SummaC-Conv: {_CONV_HINT}"}
        return {"key": _CONV_KEY, "score": self._conv.score(entailment)}


def _source_text(case: Case) -> str:
    chunks = retrieved_chunks(case)
    return "\n\n".join(chunks) if chunks else extract_question(case.inputs)


def _long_sentences(found: list[str], characters: int) -> list[str]:
    return [one for one in found if len(one) > characters] or found


def _mean_direction(vectors: Mapping[str, Vector], texts: Sequence[str]) -> Vector:
    """Return the mean of the normalized vectors. A vector of zeros stays zero."""
    import numpy

    matrix = numpy.asarray([vectors[text] for text in texts], dtype=numpy.float64)
    lengths = numpy.linalg.norm(matrix, axis=1, keepdims=True)
    mean: Vector = numpy.divide(matrix, lengths, out=numpy.zeros_like(matrix), where=lengths > 0).mean(axis=0)
    return mean
