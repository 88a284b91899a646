"""Summaries beside the text that they are of: by sentences, with an NLI model and an embedding model."""

from __future__ import annotations

import os
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

from spanwise.collector.records import Case, Document
from spanwise.evaluators.builtin._sentences import Splitter, split
from spanwise.evaluators.builtin._texts import question_of, text_of
from spanwise.evaluators.models._cosine import cosine
from spanwise.evaluators.models._embedder import Embedder, embedder
from spanwise.evaluators.models._pairs import Pair, PairScorer, inference, pair_scorer
from spanwise.evaluators.models._stepwise import Stepwise
from spanwise.evaluators.models._summac import Conv, supported, zero_shot
from spanwise.evaluators.models._supported import Row, chunks_of
from spanwise.evaluators.protocol import Metric, Skip, builtin
from spanwise.evaluators.protocol.standards import VALID

if TYPE_CHECKING:
    import numpy

    from spanwise.evaluators.models._encoding import Vector

    Image: TypeAlias = "numpy.ndarray[tuple[int, int, int], numpy.dtype[numpy.float64]]"

    Asks: TypeAlias = Generator[Sequence[Pair], Mapping[Pair, Row], Image]
_COMPLETENESS = "summarization_cf_completeness"
_CONV = "summarization_cf_faithfulness_conv"
_ZS = "summarization_cf_faithfulness_zs"
_NO_CONV = (
    "its weights are in a file of SummaC's authors: get it at github.com/tingofurro/summac "
    "(summac_conv_vitc_sent_perc_e.bin) and name it: conv=FILE, pickle=True"
)


@builtin(
    "summarization_cf",
    metrics=(
        Metric(_COMPLETENESS, threshold=0.75, primary=True),
        Metric(_CONV, threshold=0.75),
        Metric(_ZS, (-1.0, 1.0), threshold=0.75),
    ),
    standards=(VALID,),
    source="H2O Eval Studio: summarization (completeness and faithfulness); SummaC",
    canonical="numpy; summac 0.0.4 (by its definitions)",
    version="2",
    model=True,
    gpu=True,
    kind="model",
    example='get("summarization_cf", '
    "model=lambda pairs: [[float(said in text), 0.0, 0.0] for text, said in pairs], "
    "embedding=lambda texts: [[len(text), 1] for text in texts]), "
    'inputs="Mont Blanc is high. It is in the Alps.", outputs="Mont Blanc is high. It is in Spain."',
)
@dataclass(frozen=True, slots=True, kw_only=True)
class Summarization(Stepwise[Pair, Row]):
    """How faithful a summary is to the text (SummaC-ZS, SummaC-Conv), and how complete.

    The text is what was retrieved, else the question. ZS is the mean, over the sentences of the summary, of the
    greatest entailment by a sentence of the text less the greatest contradiction: from -1 to 1 (the document says from
    0). Conv needs the learned weights, from a file that `conv` names: a `.safetensors`, or with `pickle=True` the
    authors' `.bin`; without it that key is skipped. It was learned with VitaminC's model, "vitaminc", and looks at the
    first 10 sentences of the summary. As published, sentences of 10 characters or less are left out (unless there are
    no others), and the first `max_sentences` of the text count; one that is too long for the model counts as several.

    Completeness, which the document does not define further, is here S of text and faithful part: the cosine, 0 where
    it is less, of the mean vectors of the sentences of the text (all of them) and of those sentences of the summary
    that are entailed more than contradicted; where none is, 0. No model is named for it, so that it has no threshold
    until one is given or fitted. An empty summary or text is skipped.
    """

    DOCUMENT: ClassVar[str] = "vitaminc"
    PRESET: ClassVar[str] = "vitaminc"
    DEFAULT_MODEL: ClassVar[str] = (
        "vitaminc, ALBERT-xlarge for English, 512 tokens for a pair of sentences; the thresholds are its own, and hold "
        "for no other. For completeness all-MiniLM-L6-v2, 256 tokens for a sentence"
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
    _conv: Conv | None = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.max_sentences < 1:
            raise ValueError(f"max_sentences is 1 or more, not {self.max_sentences!r}")
        object.__setattr__(self, "_scorer", pair_scorer(self.PRESET if self.model is None else self.model))
        object.__setattr__(self, "_embedder", embedder(self.embedding))
        conv = None if self.conv is None else Conv(os.fspath(self.conv), self.pickle)
        object.__setattr__(self, "_conv", conv)

    def __call__(self, outputs: Any, inputs: Any = None, documents: Sequence[Document] = ()) -> Any:
        return self._one(outputs=outputs, inputs=inputs, documents=tuple(documents or ()))

    @property
    def metrics(self) -> tuple[Metric, ...]:
        completeness, *faithfulness = super(Summarization, self).metrics
        return Metric(completeness.key, primary=True), *faithfulness

    @property
    def _model(self) -> Mapping[str, Any]:
        conv = None if self._conv is None else self._conv.digest
        return {**self._scorer.identity, "embedding": dict(self._embedder.identity), "conv": conv}

    def _load(self) -> None:
        self._scorer.load()

    def _replies(self, asked: Sequence[Pair]) -> Mapping[Pair, Row | Exception]:
        return self._scorer.each(asked)

    def _steps(self, case: Case) -> Any:
        said, told = self._sentences(text_of(case.outputs), "summary"), self._sentences(_text_of(case), "text")
        firsts, seconds = self._scorer.parts(_long(told, self.min_characters)[: self.max_sentences], said)
        image = yield from self._image(firsts, [part for parts in seconds for part in parts])
        entailment, _, contradiction = image
        faithful = supported(entailment, contradiction) > 0
        kept = [one for one, holds in zip(said, _whole(faithful.tolist(), seconds), strict=True) if holds]
        return [
            self._completeness(told, kept, len(said)),
            self._learned(entailment),
            {"key": _ZS, "score": zero_shot(entailment, contradiction)},
        ]

    def _sentences(self, text: str, what: str) -> list[str]:
        """Raises `Skip` where there are none."""
        if not (told := split(text, self.splitter)):
            raise Skip(f"the {what} has no sentence")
        return _long(told, self.min_characters) if what == "summary" else told

    def _image(self, firsts: list[str], seconds: list[str]) -> Asks:
        """What the model holds of each pair: an array of (3 labels, sentences of the text, of the summary).

        A sentence of the summary after the other, so that few pairs of many are in memory.
        """
        import numpy

        image = numpy.zeros((3, len(firsts), len(seconds)))
        for column, second in enumerate(seconds):
            rows = yield [(first, second) for first in firsts]
            for row, first in enumerate(firsts):
                held = inference(rows[first, second], self._scorer.name)
                image[:, row, column] = held.entailment, held.neutral, held.contradiction
        return image

    def _completeness(self, told: list[str], kept: list[str], said: int) -> dict[str, Any]:
        comment = f"{len(kept)} of {said} sentences are faithful"
        if not kept:
            return {"key": _COMPLETENESS, "score": 0.0, "comment": comment}
        vectors = self._embedder.by_text([*told, *kept])
        score = max(cosine(_mean(vectors, told), _mean(vectors, kept)), 0.0)
        return {"key": _COMPLETENESS, "score": score, "comment": comment}

    def _learned(self, entailment: Any) -> dict[str, Any]:
        if self._conv is None:
            return {"key": _CONV, "score": None, "comment": f"needs SummaC-Conv: {_NO_CONV}"}
        return {"key": _CONV, "score": self._conv.score(entailment)}


def _text_of(case: Case) -> str:
    chunks = chunks_of(case)
    return "\n\n".join(chunks) if chunks else question_of(case.inputs)


def _long(found: list[str], characters: int) -> list[str]:
    return [one for one in found if len(one) > characters] or found


def _whole(holds: Sequence[bool], seconds: Sequence[Sequence[str]]) -> list[bool]:
    """Of each sentence whether it holds for all of its windows."""
    of_parts = iter(holds)
    return [all(list(islice(of_parts, len(parts)))) for parts in seconds]


def _mean(vectors: Mapping[str, Vector], texts: Sequence[str]) -> Vector:
    """The mean of the directions of their vectors; one of zeros has none."""
    import numpy

    matrix = numpy.asarray([vectors[text] for text in texts], dtype=numpy.float64)
    lengths = numpy.linalg.norm(matrix, axis=1, keepdims=True)
    mean: Vector = numpy.divide(matrix, lengths, out=numpy.zeros_like(matrix), where=lengths > 0).mean(axis=0)
    return mean
