"""Similarity of texts: cosine of vectors, bi- and cross-encoder comparison, alignment of steps.

A model's configuration decides between bi- and cross-encoder, as in Haystack: a classification model is a
cross-encoder.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import exp
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, cast

from spanwise.collector.records import Case
from spanwise.evaluators.builtin.case_text import extract_text
from spanwise.evaluators.interface import Skip
from spanwise.evaluators.models.batched_evaluator import BatchedEvaluator, ModelSteps
from spanwise.evaluators.models.cross_encoder import PairScorer, TextPair, pair_scorer
from spanwise.evaluators.models.embedding_model import Embedder, embedder
from spanwise.evaluators.models.model_resolution import ModelLocation, explain_loading_errors, is_offline, locate_model

if TYPE_CHECKING:
    import numpy

    from spanwise.evaluators.models.disk_cache import Vector

    Matrix = numpy.ndarray[tuple[int, int], numpy.dtype[numpy.float64]]


def cosine(one: Vector, other: Vector) -> float:
    """Return the cosine of two vectors, in [-1, 1], computed in double precision.

    Raises `Skip` for a vector of zeros, whose direction is undefined.
    """
    return float(cosines([one], [other])[0, 0])


def cosines(ones: Sequence[Vector], others: Sequence[Vector]) -> Matrix:
    """Return the cosines of all pairs as an array of shape (ones, others). Raises `Skip` for a vector of zeros.

    Values are rounded to 12 digits, so that equal directions have a cosine of exactly 1 and reach a threshold of 1.
    """
    import numpy

    return cast("Matrix", numpy.clip(numpy.round(_unit_vectors(ones) @ _unit_vectors(others).T, 12), -1.0, 1.0))


def _unit_vectors(vectors: Sequence[Vector]) -> Matrix:
    import numpy

    matrix = numpy.asarray(vectors, dtype=numpy.float64)
    lengths = numpy.linalg.norm(matrix, axis=1, keepdims=True)
    if not lengths.all():
        raise Skip("the similarity is undefined: the model gave a vector of zeros")
    return cast("Matrix", matrix / lengths)


CLASSIFIER_SUFFIX = "ForSequenceClassification"
# parameters of a pair scorer; a dict with any other argument describes an embedder
_PAIR_SCORER_PARAMETERS = frozenset(inspect.signature(PairScorer).parameters)


class TextComparer:
    """Similarity of text pairs by an embedder or a pair scorer. The first pair loads the model."""

    def __init__(self, model: Any = None, **options: Any) -> None:
        self._given, self._options = model, options

    @property
    def identity(self) -> Mapping[str, Any]:
        """Return the properties that the similarities depend on."""
        return self.model.identity if isinstance(self._given, PairScorer) else self._as_embedder().identity

    @cached_property
    def model(self) -> Embedder | PairScorer:
        """Return the bi-encoder or cross-encoder. For a name, the model's configuration decides. Raises `NoModel`."""
        cross = _is_cross_encoder(self._given, self._options.get("token"))
        return pair_scorer(self._given, **self._options) if cross else self._as_embedder()

    def each(self, pairs: Sequence[TextPair]) -> dict[TextPair, float | Exception]:
        """Return the similarity of each pair, or its exception: `Skip` if the vector of one of its texts is zero.

        A cosine is in [-1, 1], a cross-encoder's similarity in [0, 1]. Logits go through a sigmoid.
        """
        if isinstance(self.model, PairScorer):
            rows = self.model.each(pairs)
            logits = self.model.gives_logits
            return {
                pair: row if isinstance(row, Exception) else _bounded_similarity(row[0], logits)
                for pair, row in rows.items()
            }
        vectors = self.model.by_text([text for pair in pairs for text in pair])
        return {pair: _cosine_or_error(vectors[pair[0]], vectors[pair[1]]) for pair in pairs}

    def _as_embedder(self) -> Embedder:
        return embedder(self._given, **self._options)


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparisonEvaluator(BatchedEvaluator[TextPair, float]):
    """Base class of frozen dataclasses that compare the whole answer with the whole reference.

    `model` is any argument that `embedder` or `pair_scorer` accepts (None: all-MiniLM-L6-v2).
    """

    model: Any = None
    _comparer: TextComparer = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_comparer", TextComparer(self.model))
        self._comparer.identity  # noqa: B018 (reject an invalid model now)

    def __call__(self, outputs: Any, reference_outputs: Any) -> Any:
        return self._one(outputs=outputs, reference_outputs=reference_outputs)

    def _steps(self, case: Case) -> ModelSteps[TextPair, float]:
        pair = extract_text(case.outputs), extract_text(case.reference_outputs)
        replies = yield [pair]
        return replies[pair]

    def _replies(self, asked: Sequence[TextPair]) -> Mapping[TextPair, float | Exception]:
        return self._comparer.each(asked)

    def _load(self) -> None:
        self._comparer.model.load()

    @property
    def _model(self) -> Mapping[str, Any]:
        return self._comparer.identity


def sigmoid(score: float) -> float:
    """Return the sigmoid of a score, in [0, 1]. Returns 0 if the exponential would overflow."""
    return 1 / (1 + exp(-score)) if score > -700 else 0.0


def _is_cross_encoder(given: Any, token: str | None = None) -> bool:
    if isinstance(given, PairScorer | Embedder):
        return isinstance(given, PairScorer)
    if isinstance(given, Mapping):
        return given.keys() <= _PAIR_SCORER_PARAMETERS and _is_cross_encoder(given.get("model"), token)
    if isinstance(given, str | os.PathLike):
        return _is_classifier(locate_model(given), token)
    # an object with `predict` is a cross-encoder; a plain function maps texts to vectors
    return hasattr(given, "predict") and not hasattr(given, "encode")


def _is_classifier(place: ModelLocation, token: str | None) -> bool:
    if place.preset is not None:
        return place.preset.use == "pairs"
    if place.local and not (Path(place.where) / "config.json").is_file():
        return False  # no config.json: a folder of sentence-transformers whose modules are in subfolders
    with explain_loading_errors(place, f"comparing texts with {place.name}"):
        from transformers import PretrainedConfig

        described, _ = PretrainedConfig.get_config_dict(place.where, token=token, local_files_only=is_offline())
    return any(str(name).endswith(CLASSIFIER_SUFFIX) for name in described.get("architectures") or ())


def _cosine_or_error(one: Any, other: Any) -> float | Exception:
    try:
        return cosine(one, other)
    except Exception as error:  # the exception, also a `Skip`, concerns this pair only
        return error


def _bounded_similarity(score: float, is_logit: bool) -> float | Exception:
    if is_logit:
        return sigmoid(score)
    if not -1 <= score <= 1:
        return ValueError(f"a cross-encoder's similarity is from 0 to 1, not {score!r}")
    return score


Edit: TypeAlias = Literal["same", "mismatch", "insertion", "deletion"]
# number of edits, number of steps that are not the same, sum of 1 − S over aligned steps
_Cost: TypeAlias = tuple[int, int, float]

MAX_STEPS = 500  # maximum steps per side, because time and memory grow with the square
DETAIL_LIMITS = 100, 300  # maximum entries of an alignment in metadata, maximum characters of a step


@dataclass(frozen=True, slots=True)
class AlignedStep:
    """Step of the context and the step of the answer that it is aligned with.

    One of the two may be missing. `similarity` is the cosine of their embeddings.
    """

    edit: Edit
    context: str | None
    answer: str | None
    similarity: float | None = None

    @property
    def as_metadata(self) -> dict[str, Any]:
        """Return the step as a dict for the metadata of feedback."""
        known = {"edit": self.edit, "context": _shorten_step(self.context), "answer": _shorten_step(self.answer)}
        return known if self.similarity is None else {**known, "similarity": round(self.similarity, 4)}


def align_steps(
    context: Sequence[str], answer: Sequence[str], vectors: Mapping[str, Vector], same: float
) -> list[AlignedStep]:
    """Align the steps of the context and of the answer with the fewest edits (Levenshtein distance).

    Two steps with a cosine of at least `same` count as the same step. Of several alignments with the fewest edits,
    the function prefers the most identical steps, and then the highest similarity of aligned steps. The counts are
    therefore unique. Raises `ValueError` for more than `MAX_STEPS` steps, and `Skip` for vectors of zeros.
    """
    if max(len(context), len(answer)) > MAX_STEPS:
        raise ValueError(
            f"cannot align {len(context)} steps of the context with {len(answer)} of the answer: the limit is {MAX_STEPS} each"
        )
    if not context or not answer:
        return [AlignedStep("insertion", step, None) for step in context] + [
            AlignedStep("deletion", None, s) for s in answer
        ]
    alike = cosines([vectors[step] for step in context], [vectors[step] for step in answer]).tolist()
    return _trace_back(_cost_table(alike, same), alike, context, answer, same)


def alignment_rows(
    id: str, context: Sequence[str], answer: Sequence[str], found: Sequence[AlignedStep], details: bool
) -> list[Any]:
    """Return the six metrics of an alignment as results of an evaluator. Raises `Skip` if neither side has a step."""
    if not context and not answer:
        raise Skip("neither the retrieved context nor the answer has steps")
    edits = [one.edit for one in found]
    counts = {
        "edits": len(edits) - edits.count("same"),
        "insertions": edits.count("insertion"),
        "deletions": edits.count("deletion"),
        "mismatches": edits.count("mismatch"),
        "context_steps": len(context),
        "answer_steps": len(answer),
    }
    made: list[dict[str, Any]] = [{"key": f"{id}_{name}", "score": float(count)} for name, count in counts.items()]
    made[0]["comment"] = _first_difference(found)
    if details:
        made[0]["metadata"] = {"steps": [one.as_metadata for one in found[: DETAIL_LIMITS[0]]]}
    return made


def _cost_table(alike: Sequence[Sequence[float]], same: float) -> list[list[_Cost]]:
    """Return the minimum costs of aligning each prefix of the context with each prefix of the answer."""
    table: list[list[_Cost]] = [[(place, place, 0.0) for place in range(len(alike[0]) + 1)]]
    for number, row in enumerate(alike, 1):
        before, costs = table[-1], [(number, number, 0.0)]
        for place, similarity in enumerate(row):
            ways = (
                _substitution_cost(before[place], similarity, same),
                _gap_cost(before[place + 1]),
                _gap_cost(costs[place]),
            )
            costs.append(min(ways))
        table.append(costs)
    return table


def _substitution_cost(cost: _Cost, similarity: float, same: float) -> _Cost:
    other = similarity < same
    return cost[0] + other, cost[1] + 2 * other, cost[2] + 1 - similarity


def _gap_cost(cost: _Cost) -> _Cost:
    return cost[0] + 1, cost[1] + 1, cost[2]


def _trace_back(
    table: Sequence[Sequence[_Cost]],
    alike: Sequence[Sequence[float]],
    context: Sequence[str],
    answer: Sequence[str],
    same: float,
) -> list[AlignedStep]:
    """Return the alignment by following the cost table backwards from its end."""
    found: list[AlignedStep] = []
    left, right = len(context), len(answer)
    while left or right:
        cost = table[left][right]
        if left and right and cost == _substitution_cost(table[left - 1][right - 1], alike[left - 1][right - 1], same):
            left, right = left - 1, right - 1
            similarity = alike[left][right]
            edit: Edit = "same" if similarity >= same else "mismatch"
            found.append(AlignedStep(edit, context[left], answer[right], similarity))
        elif left and cost == _gap_cost(table[left - 1][right]):
            left -= 1
            found.append(AlignedStep("insertion", context[left], None))
        else:
            right -= 1
            found.append(AlignedStep("deletion", None, answer[right]))
    return found[::-1]


def _first_difference(found: Sequence[AlignedStep]) -> str | None:
    first = next((one for one in found if one.edit != "same"), None)
    if first is None:
        return None
    if first.edit == "insertion":
        return f"missing: {_shorten_step(first.context)!r}"
    if first.edit == "deletion":
        return f"not in the context: {_shorten_step(first.answer)!r}"
    return f"{_shorten_step(first.answer)!r} in the place of {_shorten_step(first.context)!r}"


def _shorten_step(step: str | None) -> str | None:
    return None if step is None else step[: DETAIL_LIMITS[1]]
