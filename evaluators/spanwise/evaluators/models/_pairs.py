"""Pairs of texts to scores: a cross-encoder, Vectara's hallucination model (`_hhem`), or a function.

What such a model gives is either one score (relevance, similarity, consistency), or the probabilities of natural
language inference (NLI): does the second text follow from the first, contradict it, or neither?
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias, cast

from spanwise.evaluators.models._each import each, joined, parted
from spanwise.evaluators.models._encoding import Encoding
from spanwise.evaluators.models._find import NoModel, is_offline, loading
from spanwise.evaluators.models._hhem import KIND, WINDOW, Consistency
from spanwise.evaluators.models._labels import plain_label
from spanwise.evaluators.models._local import PART, Local, by_length, told
from spanwise.evaluators.models._presets import Use
from spanwise.evaluators.models._shared import Loaded, bytes_of, device_of
from spanwise.evaluators.models._trust import trusting
from spanwise.evaluators.models._windows import limit_of, spans_with, windows

if TYPE_CHECKING:
    from spanwise.evaluators.models._encoding import Vectors

Pair: TypeAlias = tuple[str, str]
"""Two texts; of NLI the premise and the hypothesis, of relevance the question and the passage."""

LABELS = ("entailment", "neutral", "contradiction")
WANTED = "a function of a list of pairs that gives one finite number, or probabilities by label, for each"
_ALSO = {  # how models of fact checking (FEVER, VitaminC) name the three
    "supports": "entailment",
    "supported": "entailment",
    "refutes": "contradiction",
    "refuted": "contradiction",
    "not enough info": "neutral",
    "nei": "neutral",
}
_ORDERS = {"vitaminc": ("entailment", "contradiction", "neutral")}  # of presets, as SummaC's own code has it


@dataclass(frozen=True, slots=True)
class Inference:
    """What an NLI model holds of a pair; the three are probabilities and make 1 together."""

    entailment: float
    neutral: float
    contradiction: float


class PairScorer(Local):
    """Scores of pairs of texts, each pair once per process and model; nothing is loaded before the first pair.

    `model` is a folder, a model of the hub, a preset's name, or a function of a list of pairs. `device` is "cuda",
    "mps" or "cpu" (None: the first that there is), `batch_size` in pairs. Weights that run code when they are loaded
    (`remote_code`), or that are pickles (`pickle`), are loaded only where that is said; "hhem" needs neither. `labels`
    names what a model gives, in its order, where its own configuration does not: `("contradiction", "entailment",
    "neutral")`.

    `score` gives one number for each pair, as the model gives it: after the activation that it was saved with (a
    sigmoid where it names none). A function may also give probabilities by label, as dicts, or as rows in the order of
    `labels`. Raises `NoModel` where the model, or what runs it, is not here or is of another kind.
    """

    USE: ClassVar[Use] = "pairs"

    def __init__(
        self,
        model: str | os.PathLike[str] | Callable[[list[Pair]], Any] | None = None,
        *,
        name: str | None = None,
        device: str | None = None,
        batch_size: int = 32,
        token: str | None = None,
        remote_code: bool = False,
        pickle: bool = False,
        labels: Sequence[str] | None = None,
    ) -> None:
        if batch_size < 1:
            raise ValueError(f"batch_size is 1 or more, not {batch_size!r}")
        super().__init__(model, name, device, token, remote_code, pickle)
        self.batch_size = batch_size
        self._labels = None if labels is None else tuple(labels)
        self._own = Encoding(self._asked)  # of a function

    def score(self, pairs: Sequence[Pair]) -> list[float]:
        """One number for each pair, in their order; of an NLI model the probability of entailment.

        Raises what the model raises for one of them.
        """
        return [_one(rows) for rows in self._rows(pairs)]

    def infer(self, pairs: Sequence[Pair]) -> list[Inference]:
        """The probabilities of an NLI model, in the order of the pairs. Raises `NoModel` where it is none."""
        return [inference(rows, self.name) for rows in self._rows(pairs)]

    def each(self, pairs: Sequence[Pair]) -> dict[Pair, tuple[float, ...] | Exception]:
        """What the model gives for each pair, one number or the three of `LABELS`, or why it fails for this one.

        Raises `NoModel`, which is no pair's fault.
        """
        return each(self._rows, pairs)

    @property
    def gives_logits(self) -> bool:
        """Whether its scores have no bounds: the model was saved to give them as they come. Functions are not asked."""
        if self._function is not None:
            return False
        return type(getattr(self._loaded().model, "activation_fn", None)).__name__ == "Identity"

    def parts(self, firsts: Sequence[str], seconds: Sequence[str]) -> tuple[list[str], list[list[str]]]:
        """Windows of all first texts, and of each second one its own: the model reads any beside any whole.

        A second text is cut where it has more tokens than half of what the model reads at once; the first ones have
        what the longest second one leaves of that. A function is given texts as they are.
        """
        if self._function is not None:
            return list(firsts), [[second] for second in seconds]
        held = self._loaded()
        limit, taken = _room(held.model)
        with held.running:  # a tokenizer serves one at a time
            spans_of = spans_with(held.model.tokenizer)
            cut = [windows(second, spans_of, (limit - taken) // 2) for second in seconds]
            longest = max(len(spans_of(part)) for parts in cut for part in parts)
            room = limit - taken - longest
            return [part for first in firsts for part in windows(first, spans_of, room)], cut

    def _rows(self, pairs: Sequence[Pair]) -> list[tuple[float, ...]]:
        if not pairs:
            return []
        texts = [joined(*pair) for pair in pairs]
        rows = self._encoding()(texts)
        return [tuple(rows[text].tolist()) for text in texts]

    def _encoding(self) -> Encoding:
        if self._function is not None:
            return self._own
        return self._shared(self._predict, self._labels)

    def _how(self) -> Mapping[str, Any]:
        return {"labels": self._labels}

    def _load(self) -> Loaded:
        place = self._place
        with loading(place, f"scoring pairs with {place.name}"), trusting(place, "PairScorer"):
            import sentence_transformers  # noqa: F401 (which of the extra is missing is said before anything is read)
            from transformers import PretrainedConfig

            device = device_of(self.device)
            asked = {"token": self._token, "local_files_only": is_offline()}
            described, _ = PretrainedConfig.get_config_dict(place.where, **asked)
            model = self._model(described, device, asked)
        return Loaded(model, place.name, "pairs", place.where, device, bytes_of(model), 0.0)

    def _model(self, described: dict[str, Any], device: str, asked: dict[str, Any]) -> Any:
        from sentence_transformers import CrossEncoder

        weights = {} if self._pickle else {"use_safetensors": True}
        if described.get("model_type") == KIND:
            return Consistency.load(self._place.where, described, device, **asked, **weights)
        model = CrossEncoder(
            self._place.where, device=device, trust_remote_code=self._remote_code, model_kwargs=weights, **asked
        )
        _check_trained(model, described.get("architectures"), self._place.name)
        return model

    def _predict(self, texts: list[str]) -> Vectors:
        held = self._loaded()
        labels = self._order(held.model)

        def predict(part: list[str]) -> Vectors:
            return _predicted(held.model, [parted(text) for text in part], self.batch_size, labels)

        with held.running:
            held.texts += len(texts)
            rows = by_length(texts, PART * self.batch_size, predict, "pairs scored")
        return _finite(rows, self.name)

    def _order(self, model: Any) -> list[int] | None:
        """Where the three labels stand; None for a model of one score. Raises `NoModel` for any other."""
        if model.num_labels == 1:
            return None
        preset = self._place.preset
        labels = self._labels or (preset and _ORDERS.get(preset.name))
        return order_of(labels or [model.config.id2label[place] for place in range(model.num_labels)], self.name)

    def _asked(self, texts: list[str]) -> Vectors:
        assert self._function is not None
        pairs = [parted(text) for text in texts]
        return _finite(self._checked(self._function(list(pairs)), len(pairs)), self.name)

    def _checked(self, given: Any, number: int) -> Vectors:
        """What a function gives, as rows of one or three. Raises `ValueError`, `NoModel`."""
        import numpy

        if isinstance(given, list | tuple) and given and isinstance(given[0], Mapping):
            given = [[row[label] for label in LABELS] for row in map(_by_label, given)]
            labels: Sequence[str] = LABELS
        else:
            labels = self._labels or LABELS
        try:
            rows = numpy.asarray(given, dtype=numpy.float32)
        except (TypeError, ValueError) as error:
            raise ValueError(f"a pair scorer gave {given!r:.100}: it is {WANTED}") from error
        rows = rows.reshape(-1, 1) if rows.ndim == 1 else rows
        if rows.ndim != 2 or len(rows) != number or rows.shape[1] not in (1, len(labels)):
            raise ValueError(f"a pair scorer gave an array of {rows.shape} for {number} pairs: it is {WANTED}")
        if rows.shape[1] == 1:
            return cast("Vectors", rows)
        if ((rows < 0) | (rows > 1)).any():
            raise ValueError(f"a pair scorer gave {given!r:.100}: a probability is a number from 0 to 1")
        return cast("Vectors", rows[:, order_of(labels, self.name)])


def inference(row: Sequence[float], name: str) -> Inference:
    """The three of a pair. Raises `NoModel` where the model gives one score instead."""
    if len(row) != len(LABELS):
        raise NoModel(
            f"{name!r} gives one score for a pair: what is asked for are {', '.join(LABELS)}, of an NLI model"
        )
    return Inference(*row)


def order_of(labels: Sequence[str], name: str) -> list[int]:
    """Where entailment, neutral and contradiction stand among a model's labels, whatever their capitals.

    Raises `NoModel` where one is missing, or is there twice.
    """
    plain = [plain_label(label, _ALSO) for label in labels]
    if any(plain.count(label) != 1 for label in LABELS):
        raise NoModel(
            f"{name!r} gives {', '.join(map(repr, labels))} for a pair: an NLI model has the labels "
            f"{', '.join(LABELS)}; if these are what it gives, in some order, say so with labels=(…)"
        )
    return [plain.index(label) for label in LABELS]


def pair_scorer(given: Any = None, **options: Any) -> PairScorer:
    """A scorer of whatever names one: itself, a function, a folder, a name, a dict of arguments, None (the default).

    Raises `NoModel` for anything else.
    """
    if (made := told(PairScorer, given, options)) is not None:
        return made
    if hasattr(given, "activation_fn") and hasattr(given, "predict"):
        return _of_cross_encoder(given, **options)
    predict = getattr(given, "predict", given)  # Vectara's model is no function of pairs
    if callable(predict):
        named = {} if predict is given else {"name": type(given).__name__}
        return PairScorer(predict, **{**named, **options})
    raise NoModel(f"a pair scorer is a model's name, a folder, or {WANTED}, not {given!r:.200}")


def _of_cross_encoder(model: Any, *, batch_size: int = 32, **options: Any) -> PairScorer:
    """Around one that is in memory, which is no function of pairs; of NLI it gives logits, in an order of its own."""
    name = type(model).__name__
    labels = options.pop("labels", None) or [model.config.id2label[place] for place in range(model.num_labels)]
    order = None if model.num_labels == 1 else order_of(labels, name)
    return PairScorer(lambda pairs: _predicted(model, pairs, batch_size, order), **{"name": name, **options})


def _predicted(model: Any, pairs: list[Pair], batch_size: int, order: list[int] | None) -> Vectors:
    import torch

    if isinstance(model, Consistency):
        return model.predict(pairs, batch_size=batch_size).reshape(-1, 1)
    if order is None:
        given = model.predict(pairs, batch_size=batch_size, show_progress_bar=False)
        return cast("Vectors", given.reshape(-1, 1))
    given = model.predict(
        pairs, batch_size=batch_size, show_progress_bar=False, activation_fn=torch.nn.Identity(), apply_softmax=True
    )
    return cast("Vectors", given[:, order])


def _check_trained(model: Any, saved_as: Sequence[str] | None, name: str) -> None:
    """Raises `NoModel` for what was saved without a layer that scores pairs, as embedding models are.

    sentence-transformers would give it one of random weights, and scores of it.
    """
    made = len(model) == 1 and getattr(model[0], "transformer_task", None) == "sequence-classification"
    if made and saved_as and not any(one.endswith("ForSequenceClassification") for one in saved_as):
        raise NoModel(f"{name!r} is no model of pairs: it was saved as {', '.join(saved_as)}, without what scores them")


def _room(model: Any) -> tuple[int, int]:
    """How many tokens a model reads at once, and how many of these no text of a pair has."""
    if isinstance(model, Consistency):
        return WINDOW, len(model.tokenizer(model.prompt.format(text1="", text2=""))["input_ids"])
    return limit_of(model.tokenizer, model.config), model.tokenizer.num_special_tokens_to_add(pair=True)


def _finite(rows: Vectors, name: str) -> Vectors:
    import numpy

    if not numpy.isfinite(rows).all():
        raise ValueError(f"{name!r} gave a number that is not finite for a pair")
    return rows


def _one(row: Sequence[float]) -> float:
    return row[0]  # the only one, or that of entailment, which is the first of LABELS


def _by_label(row: Mapping[str, float]) -> dict[str, float]:
    """Raises `ValueError` where a label of the three is missing."""
    plain = {plain_label(label, _ALSO): value for label, value in row.items()}
    if missing := [label for label in LABELS if label not in plain]:
        raise ValueError(f"a pair scorer gave {row!r:.200}, without {', '.join(missing)}: it is {WANTED}")
    return plain
