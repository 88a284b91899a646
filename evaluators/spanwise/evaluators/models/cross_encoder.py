"""Cross-encoders and text classifiers: probabilities of labels, scores of pairs, inference, HHEM.

A cross-encoder returns either one score (relevance, similarity, consistency), or the probabilities of natural
language inference (NLI): the second text follows from the first, contradicts it, or does neither.

The weights of HHEM are a token classifier on FLAN-T5, and this module loads them as such. It does not run the code
that is published with them on the hub. As in the model's documentation, it uses the published prompt, and of the
first token's two classes the logit of the second. The tokenizer and the network's configuration come from
google/flan-t5-base, or from the model or folder that `foundation` in the model's config.json names.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeAlias, cast

from spanwise.evaluators.models.inference_batching import (
    BATCHES_PER_UPDATE,
    CoalescingEncoder,
    LoadedModel,
    LocalModel,
    choose_device,
    join_pair,
    make_model,
    make_span_finder,
    parameter_bytes,
    run_by_length,
    run_each,
    split_pair,
    split_windows,
    token_limit,
)
from spanwise.evaluators.models.model_resolution import (
    ModelUse,
    NoModel,
    check_complete,
    explain_loading_errors,
    explain_trust_errors,
    is_offline,
)

if TYPE_CHECKING:
    from spanwise.evaluators.models.disk_cache import Vectors


# Text classification models: probabilities by label, and normalization of label names.


def normalize_label(label: str, also: Mapping[str, str] | None = None) -> str:
    """Return a label in lower case with single spaces, so that "Severe_Toxic" becomes "severe toxic".

    If `also` has a synonym for that label, return the synonym.
    """
    name = " ".join(str(label).lower().replace("_", " ").replace("-", " ").split())
    return (also or {}).get(name, name)


Activation: TypeAlias = Literal["sigmoid", "softmax"]
EXPECTED_CLASSIFIER = "a function that maps a list of texts to probabilities by label for each text"


class TextClassifier(LocalModel):
    """Text classifier that returns probabilities by label. Each text is classified once per process and model, and the
    first text loads the model.

    The argument `model` is a folder, a model of the hub, a preset's name, or a function of a list of texts. A
    function returns one of three forms: one dict per text; one dict of lists, as Detoxify does; or a list of labels
    with scores per text, as a pipeline of transformers does with `top_k=None`.

    Logits become probabilities by a sigmoid per label if the model's configuration says `multi_label_classification`
    or has one label, otherwise by a softmax over all labels. `activation` replaces a configuration that is missing or
    wrong. `device` is "cuda", "mps" or "cpu" (None: the first one available), and `batch_size` is a number of texts.

    Weights that run code on loading (`remote_code`) or that are pickles (`pickle`) are loaded only if the argument is
    true. Raises `NoModel` if the model or a package that it needs is missing.
    """

    USE: ClassVar[ModelUse] = "classes"

    def __init__(
        self,
        model: str | os.PathLike[str] | Callable[[list[str]], Any] | None = None,
        *,
        name: str | None = None,
        device: str | None = None,
        batch_size: int = 32,
        token: str | None = None,
        remote_code: bool = False,
        pickle: bool = False,
        activation: Activation | None = None,
    ) -> None:
        if batch_size < 1:
            raise ValueError(f"batch_size is 1 or more, not {batch_size!r}")
        if activation not in (None, "sigmoid", "softmax"):
            raise ValueError(f"activation is 'sigmoid' or 'softmax', not {activation!r}")
        super().__init__(model, name, device, token, remote_code, pickle)
        self.batch_size = batch_size
        self._activation = activation

    def classify(self, texts: Sequence[str]) -> list[dict[str, float]]:
        """Return the probability of each label for each text, in order. Raises the model's exception if it fails for
        one text.

        A text longer than the model's input is truncated. Use `windows` to split it first.
        """
        if not texts:
            return []
        if self._function is not None:
            return _check_probabilities(self._function(list(texts)), len(texts), self.name)
        rows = self._shared(self._predict, self._activation)(texts)
        config = self._loaded().model[1].config
        labels = [str(config.id2label[place]) for place in range(config.num_labels)]
        return [dict(zip(labels, rows[text].tolist(), strict=True)) for text in texts]

    def each(self, texts: Sequence[str]) -> dict[str, dict[str, float] | Exception]:
        """Return the probabilities of each text, or the exception if the model fails for that text.

        Raises `NoModel` if the model cannot be loaded.
        """
        return run_each(self.classify, texts)

    def windows(self, text: str) -> list[str]:
        """Split a text into overlapping windows that fit the model's input. If the model is a function, return the text
        unsplit.
        """
        if self._function is not None:
            return [text]
        loaded = self._loaded()
        tokenizer, network = loaded.model
        with loaded.running:  # a tokenizer is not thread-safe
            room = token_limit(tokenizer, network.config) - tokenizer.num_special_tokens_to_add()
            return split_windows(text, make_span_finder(tokenizer), room)

    def _how(self) -> Mapping[str, Any]:
        return {"activation": self._activation}

    def _load(self) -> LoadedModel:
        place = self._place
        with (
            explain_loading_errors(place, f"classifying with {place.name}"),
            explain_trust_errors(place, "TextClassifier"),
        ):
            from transformers import AutoModelForSequenceClassification, AutoTokenizer

            device = choose_device(self.device)
            asked = {"token": self._token, "local_files_only": is_offline(), "trust_remote_code": self._remote_code}
            weights = {} if self._pickle else {"use_safetensors": True}
            network, loading_info = cast(Any, AutoModelForSequenceClassification.from_pretrained)(
                place.where, output_loading_info=True, **asked, **weights
            )
            check_complete(loading_info, place.name, "text classifier")
            network = network.to(device).eval()
            model = AutoTokenizer.from_pretrained(place.where, **asked), network
        return LoadedModel(model, place.name, place.where, device, parameter_bytes(network))

    def _predict(self, texts: list[str]) -> Vectors:
        import numpy

        loaded = self._loaded()
        with loaded.running:
            loaded.texts += len(texts)
            run = partial(self._probabilities, loaded.model)
            found = run_by_length(texts, self.batch_size, run, "texts classified")
        if not numpy.isfinite(found).all():
            raise ValueError(f"{self.name!r} returned a non-finite number for a text")
        return found

    def _probabilities(self, model: Any, texts: list[str]) -> Any:
        import torch

        tokenizer, network = model
        longest = token_limit(tokenizer, network.config)
        given = tokenizer(texts, return_tensors="pt", padding=True, truncation=True, max_length=longest)
        with torch.inference_mode():
            logits = network(**given.to(network.device)).logits.float()
        several = getattr(network.config, "problem_type", None) == "multi_label_classification"
        default = "sigmoid" if several or network.config.num_labels == 1 else "softmax"
        sigmoid = (self._activation or default) == "sigmoid"
        return (logits.sigmoid() if sigmoid else logits.softmax(-1)).cpu().numpy()


def text_classifier(given: Any = None, **options: Any) -> TextClassifier:
    """Return a classifier for a `TextClassifier`, a function, a folder, a name, a dict of arguments, or None (the
    default).

    Raises `NoModel` for anything else.
    """
    if isinstance(given, Mapping):  # arguments in the mapping take precedence over `options`
        given, options = {**options, **given}, {}
    if (made := make_model(TextClassifier, given, options)) is not None:
        return made
    predict = getattr(given, "predict", given)  # an object of Detoxify has `predict` and is not callable
    if callable(predict):
        return TextClassifier(predict, name=None if predict is given else type(given).__name__, **options)
    raise NoModel(f"a text classifier is a model's name, a folder, or {EXPECTED_CLASSIFIER}, not {given!r:.200}")


def _check_probabilities(given: Any, number: int, name: str) -> list[dict[str, float]]:
    """Convert a function's result to one dict of finite numbers per text. Raises `ValueError`."""
    if isinstance(given, Mapping):  # lists by label, as Detoxify returns them
        columns = {label: list(values) for label, values in given.items() if hasattr(values, "__len__")}
        if len(columns) != len(given) or any(len(values) != number for values in columns.values()):
            raise ValueError(
                f"a text classifier returned {given!r:.100} for {number} texts; expected {EXPECTED_CLASSIFIER}"
            )
        given = [{label: values[place] for label, values in columns.items()} for place in range(number)]
    if not isinstance(given, list | tuple) or len(given) != number:
        raise ValueError(
            f"a text classifier returned {given!r:.100} for {number} texts; expected {EXPECTED_CLASSIFIER}"
        )
    return [_label_probabilities(row, name) for row in given]


def _label_probabilities(row: Any, name: str) -> dict[str, float]:
    try:
        if isinstance(row, list | tuple):  # the format of transformers' pipelines
            row = {one["label"]: one["score"] for one in row}
        found = {str(label): float(value) for label, value in row.items()}
    except (AttributeError, KeyError, TypeError, ValueError):
        raise ValueError(
            f"a text classifier returned {row!r:.100} for a text; expected {EXPECTED_CLASSIFIER}"
        ) from None
    if not all(0 <= value <= 1 for value in found.values()):
        raise ValueError(f"{name!r} returned {row!r:.200} for a text; probabilities must be numbers from 0 to 1")
    return found


# Cross-encoders: scores of text pairs, natural language inference, Vectara's HHEM.

TextPair: TypeAlias = tuple[str, str]
"""Two texts; of NLI the premise and the hypothesis, of relevance the question and the passage."""

NLI_LABELS = ("entailment", "neutral", "contradiction")
EXPECTED_PAIR_SCORER = "a function that maps a list of pairs to one finite number, or probabilities by label, per pair"
_NLI_SYNONYMS = {  # label names that fact-checking models (FEVER, VitaminC) use for NLI labels
    "supports": "entailment",
    "supported": "entailment",
    "refutes": "contradiction",
    "refuted": "contradiction",
    "not enough info": "neutral",
    "nei": "neutral",
}
_PRESET_LABEL_ORDERS = {
    "vitaminc": ("entailment", "contradiction", "neutral")
}  # order of the model's outputs by preset, as in SummaC's code


@dataclass(frozen=True, slots=True)
class Inference:
    """NLI probabilities of a pair. The three add up to 1."""

    entailment: float
    neutral: float
    contradiction: float


class PairScorer(LocalModel):
    """Scores of text pairs. Each pair is scored once per process and model, and the first pair loads the model.

    The argument `model` is a folder, a model of the hub, a preset's name, or a function of a list of pairs. `device`
    is "cuda", "mps" or "cpu" (None: the first one available), and `batch_size` is a number of pairs. Weights that run
    code on loading (`remote_code`) or that are pickles (`pickle`) are loaded only if the argument is true; "hhem"
    needs neither. `labels` names the model's outputs in their order, if its configuration does not:
    `("contradiction", "entailment", "neutral")`.

    The method `score` returns one number per pair as the model gives it, after the activation that it was saved with
    (a sigmoid if it names none). A function may also return probabilities by label, as dicts, or as rows in the order
    of `labels`. Raises `NoModel` if the model or a package that it needs is missing, or the model is of another kind.
    """

    USE: ClassVar[ModelUse] = "pairs"

    def __init__(
        self,
        model: str | os.PathLike[str] | Callable[[list[TextPair]], Any] | None = None,
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
        self._own = CoalescingEncoder(self._call_function)  # used if the model is a function

    def score(self, pairs: Sequence[TextPair]) -> list[float]:
        """Return one number per pair, in order: the score, or an NLI model's probability of entailment.

        Raises the model's exception if it fails for one pair.
        """
        # the single score, or entailment, the first of `NLI_LABELS`
        return [rows[0] for rows in self._rows(pairs)]

    def infer(self, pairs: Sequence[TextPair]) -> list[Inference]:
        """Return the NLI probabilities of each pair, in order. Raises `NoModel` if the model is no NLI model."""
        return [make_inference(rows, self.name) for rows in self._rows(pairs)]

    def each(self, pairs: Sequence[TextPair]) -> dict[TextPair, tuple[float, ...] | Exception]:
        """Return for each pair one score or the three probabilities of `NLI_LABELS`. If the model fails for a pair,
        return the exception instead.

        Raises `NoModel` if the model cannot be loaded.
        """
        return run_each(self._rows, pairs)

    @property
    def gives_logits(self) -> bool:
        """Return whether the scores are unbounded, because the model was saved without an activation. False for
        functions.
        """
        if self._function is not None:
            return False
        return type(getattr(self._loaded().model, "activation_fn", None)).__name__ == "Identity"

    def parts(self, firsts: Sequence[str], seconds: Sequence[str]) -> tuple[list[str], list[list[str]]]:
        """Split texts into windows so that every pair of a first and a second window fits the model's input.

        Returns the windows of all first texts in one list, and for each second text the list of its windows. A second
        text is cut if it has more tokens than half of the model's input. The first texts get the tokens that the
        longest second window leaves free. If the model is a function, the texts are returned unsplit.
        """
        if self._function is not None:
            return list(firsts), [[second] for second in seconds]
        loaded = self._loaded()
        limit, taken = _token_budget(loaded.model)
        with loaded.running:  # a tokenizer is not thread-safe
            spans_of = make_span_finder(loaded.model.tokenizer)
            cut = [split_windows(second, spans_of, (limit - taken) // 2) for second in seconds]
            longest = max(len(spans_of(part)) for parts in cut for part in parts)
            room = limit - taken - longest
            return [part for first in firsts for part in split_windows(first, spans_of, room)], cut

    def _rows(self, pairs: Sequence[TextPair]) -> list[tuple[float, ...]]:
        if not pairs:
            return []
        texts = [join_pair(*pair) for pair in pairs]
        encode = self._own if self._function is not None else self._shared(self._predict, self._labels)
        rows = encode(texts)
        return [tuple(rows[text].tolist()) for text in texts]

    def _how(self) -> Mapping[str, Any]:
        return {"labels": self._labels}

    def _load(self) -> LoadedModel:
        place = self._place
        with (
            explain_loading_errors(place, f"scoring pairs with {place.name}"),
            explain_trust_errors(place, "PairScorer"),
        ):
            import sentence_transformers  # noqa: F401 (fail on a missing package before any file is read)
            from transformers import PretrainedConfig

            device = choose_device(self.device)
            asked = {"token": self._token, "local_files_only": is_offline()}
            described, _ = PretrainedConfig.get_config_dict(place.where, **asked)
            model = self._build_model(described, device, asked)
        return LoadedModel(model, place.name, place.where, device, parameter_bytes(model))

    def _build_model(self, described: dict[str, Any], device: str, asked: dict[str, Any]) -> Any:
        from sentence_transformers import CrossEncoder

        weights = {} if self._pickle else {"use_safetensors": True}
        if described.get("model_type") == HHEM_MODEL_TYPE:
            return ConsistencyModel.load(self._place.where, described, device, **asked, **weights)
        model = CrossEncoder(
            self._place.where, device=device, trust_remote_code=self._remote_code, model_kwargs=weights, **asked
        )
        saved_as = described.get("architectures")
        # a model without a layer that scores pairs, such as an embedding model, must be refused:
        # sentence-transformers would add such a layer with random weights
        made = len(model) == 1 and getattr(model[0], "transformer_task", None) == "sequence-classification"
        if made and saved_as and not any(one.endswith("ForSequenceClassification") for one in saved_as):
            raise NoModel(
                f"{self._place.name!r} does not score pairs: it was saved as {', '.join(saved_as)}, without a "
                "classification layer"
            )
        return model

    def _predict(self, texts: list[str]) -> Vectors:
        loaded = self._loaded()
        labels = self._order(loaded.model)

        def predict(part: list[str]) -> Vectors:
            return _predict_pairs(loaded.model, [split_pair(text) for text in part], self.batch_size, labels)

        with loaded.running:
            loaded.texts += len(texts)
            rows = run_by_length(texts, BATCHES_PER_UPDATE * self.batch_size, predict, "pairs scored")
        return _check_finite(rows, self.name)

    def _order(self, model: Any) -> list[int] | None:
        """Return the positions of the three NLI labels; None for a model with one score.

        Raises `NoModel` for a model that is neither.
        """
        if model.num_labels == 1:
            return None
        preset = self._place.preset
        labels = self._labels or (preset and _PRESET_LABEL_ORDERS.get(preset.name))
        return label_order(labels or [model.config.id2label[place] for place in range(model.num_labels)], self.name)

    def _call_function(self, texts: list[str]) -> Vectors:
        assert self._function is not None
        pairs = [split_pair(text) for text in texts]
        return _check_finite(self._checked(self._function(list(pairs)), len(pairs)), self.name)

    def _checked(self, given: Any, number: int) -> Vectors:
        """Convert a function's result to rows of one or three numbers. Raises `ValueError` and `NoModel`."""
        import numpy

        if isinstance(given, list | tuple) and given and isinstance(given[0], Mapping):
            given = [[row[label] for label in NLI_LABELS] for row in map(_scores_by_label, given)]
            labels: Sequence[str] = NLI_LABELS
        else:
            labels = self._labels or NLI_LABELS
        try:
            rows = numpy.asarray(given, dtype=numpy.float32)
        except (TypeError, ValueError) as error:
            raise ValueError(f"a pair scorer returned {given!r:.100}; expected {EXPECTED_PAIR_SCORER}") from error
        rows = rows.reshape(-1, 1) if rows.ndim == 1 else rows
        if rows.ndim != 2 or len(rows) != number or rows.shape[1] not in (1, len(labels)):
            raise ValueError(
                f"a pair scorer returned an array of shape {rows.shape} for {number} pairs; expected {EXPECTED_PAIR_SCORER}"
            )
        if rows.shape[1] == 1:
            return cast("Vectors", rows)
        if ((rows < 0) | (rows > 1)).any():
            raise ValueError(f"a pair scorer returned {given!r:.100}; probabilities must be numbers from 0 to 1")
        return cast("Vectors", rows[:, label_order(labels, self.name)])


def make_inference(row: Sequence[float], name: str) -> Inference:
    """Return the NLI probabilities of a pair from its row. Raises `NoModel` if the row has only one score."""
    if len(row) != len(NLI_LABELS):
        raise NoModel(
            f"{name!r} returns one score per pair; an NLI model with the labels {', '.join(NLI_LABELS)} is needed"
        )
    return Inference(*row)


def label_order(labels: Sequence[str], name: str) -> list[int]:
    """Return the positions of entailment, neutral and contradiction among a model's labels, ignoring case.

    Raises `NoModel` if a label is missing or occurs twice.
    """
    plain = [normalize_label(label, _NLI_SYNONYMS) for label in labels]
    if any(plain.count(label) != 1 for label in NLI_LABELS):
        raise NoModel(
            f"{name!r} has the outputs {', '.join(map(repr, labels))}, but an NLI model has the labels "
            f"{', '.join(NLI_LABELS)}; if the outputs mean these, name them in their order with labels=(…)"
        )
    return [plain.index(label) for label in NLI_LABELS]


def pair_scorer(given: Any = None, **options: Any) -> PairScorer:
    """Return a pair scorer for a `PairScorer`, a function, a folder, a name, a dict of arguments, or None (the
    default).

    Raises `NoModel` for anything else.
    """
    if (made := make_model(PairScorer, given, options)) is not None:
        return made
    if hasattr(given, "activation_fn") and hasattr(given, "predict"):
        return _wrap_cross_encoder(given, **options)
    predict = getattr(given, "predict", given)  # Vectara's model has `predict` and is not callable with pairs
    if callable(predict):
        named = {} if predict is given else {"name": type(given).__name__}
        return PairScorer(predict, **{**named, **options})
    raise NoModel(f"a pair scorer is a model's name, a folder, or {EXPECTED_PAIR_SCORER}, not {given!r:.200}")


def _wrap_cross_encoder(model: Any, *, batch_size: int = 32, **options: Any) -> PairScorer:
    """Wrap a `CrossEncoder` that is in memory.

    Its method `predict` cannot serve as a function of pairs: an NLI model returns logits, in its own order of labels.
    """
    name = type(model).__name__
    labels = options.pop("labels", None) or [model.config.id2label[place] for place in range(model.num_labels)]
    order = None if model.num_labels == 1 else label_order(labels, name)
    return PairScorer(lambda pairs: _predict_pairs(model, pairs, batch_size, order), **{"name": name, **options})


def _predict_pairs(model: Any, pairs: list[TextPair], batch_size: int, order: list[int] | None) -> Vectors:
    import torch

    if isinstance(model, ConsistencyModel):
        return model.predict(pairs, batch_size=batch_size).reshape(-1, 1)
    if order is None:
        given = model.predict(pairs, batch_size=batch_size, show_progress_bar=False)
        return cast("Vectors", given.reshape(-1, 1))
    given = model.predict(
        pairs, batch_size=batch_size, show_progress_bar=False, activation_fn=torch.nn.Identity(), apply_softmax=True
    )
    return cast("Vectors", given[:, order])


def _token_budget(model: Any) -> tuple[int, int]:
    """Return the number of tokens that a model reads at once, and how many of them are not available for the texts of a
    pair.
    """
    if isinstance(model, ConsistencyModel):
        return HHEM_WINDOW, len(model.tokenizer(model.prompt.format(text1="", text2=""))["input_ids"])
    return token_limit(model.tokenizer, model.config), model.tokenizer.num_special_tokens_to_add(pair=True)


def _check_finite(rows: Vectors, name: str) -> Vectors:
    import numpy

    if not numpy.isfinite(rows).all():
        raise ValueError(f"{name!r} returned a non-finite number for a pair")
    return rows


def _scores_by_label(row: Mapping[str, float]) -> dict[str, float]:
    """Return the scores by normalized label. Raises `ValueError` if one of the three labels is missing."""
    plain = {normalize_label(label, _NLI_SYNONYMS): value for label, value in row.items()}
    if missing := [label for label in NLI_LABELS if label not in plain]:
        raise ValueError(
            f"a pair scorer returned {row!r:.200}, without {', '.join(missing)}; expected {EXPECTED_PAIR_SCORER}"
        )
    return plain


if TYPE_CHECKING:
    import numpy

    Column = numpy.ndarray[tuple[int], numpy.dtype[numpy.float32]]

HHEM_MODEL_TYPE = "HHEMv2"  # `model_type` in the config.json of HHEM
HHEM_FOUNDATION = "google/flan-t5-base"
HHEM_PROMPT = "<pad> Determine if the hypothesis is true given the premise?\n\nPremise: {text1}\n\nHypothesis: {text2}"
HHEM_WINDOW = 2048  # tokens; the model itself has no limit, but its documentation mentions inputs of 2k tokens
_MAX_SQUARED_TOKENS = 1 << 22  # maximum of the squared tokens per batch; this bounds the memory of attention


class ConsistencyModel:
    """Vectara's HHEM with its tokenizer. Like a cross-encoder, it has a method `predict`."""

    num_labels = 1

    def __init__(self, network: Any, tokenizer: Any, prompt: str = HHEM_PROMPT) -> None:
        self.network, self.tokenizer, self.prompt = network, tokenizer, prompt
        self.config = network.config

    @classmethod
    def load(cls, where: str, described: dict[str, Any], device: str, **options: Any) -> ConsistencyModel:
        """Load the model with `options` of transformers' `from_pretrained`. Raises the errors of that function."""
        from transformers import T5ForTokenClassification

        shape, tokenizer = _load_foundation(str(described.get("foundation") or HHEM_FOUNDATION), options)
        network, loading_info = cast(Any, T5ForTokenClassification.from_pretrained)(
            where, config=shape, key_mapping={r"^t5\.": ""}, output_loading_info=True, **options
        )
        check_complete(loading_info, where, "Vectara model")
        return cls(network.to(device).eval(), tokenizer, described.get("prompt") or HHEM_PROMPT)

    def parameters(self) -> Any:
        """Return the parameters of the network."""
        return self.network.parameters()

    def predict(self, pairs: Sequence[tuple[str, str]], *, batch_size: int) -> Column:
        """Return for each pair the probability that the second text is consistent with the first."""
        import numpy

        texts = [self.prompt.format(text1=one, text2=other) for one, other in pairs]
        tokens = self.tokenizer(texts, verbose=False)["input_ids"]
        order = sorted(range(len(texts)), key=lambda place: -len(tokens[place]))
        scores = numpy.empty(len(texts), dtype=numpy.float32)
        while order:
            rows = max(1, min(batch_size, _MAX_SQUARED_TOKENS // len(tokens[order[0]]) ** 2))
            now, order = order[:rows], order[rows:]
            scores[now] = self._predict_batch([texts[place] for place in now])
        return scores

    def _predict_batch(self, texts: list[str]) -> Any:
        import torch

        given = self.tokenizer(texts, return_tensors="pt", padding=True, verbose=False).to(self.network.device)
        with torch.inference_mode():
            logits = self.network(**given).logits[:, 0, :]
        return logits.float().softmax(-1)[:, 1].cpu().numpy()


def _load_foundation(foundation: str, options: dict[str, Any]) -> tuple[Any, Any]:
    """Return the network's configuration and its tokenizer. Raises `NoModel` if they are not on this machine."""
    from transformers import AutoConfig, AutoTokenizer

    options = {name: value for name, value in options.items() if name != "use_safetensors"}
    try:
        return AutoConfig.from_pretrained(foundation, **options), AutoTokenizer.from_pretrained(foundation, **options)
    except (OSError, ValueError) as error:
        message = " ".join(str(error).split())
        raise NoModel(
            f"Vectara's model needs the configuration and tokenizer of {foundation!r}, which are not on this machine: with "
            f"network access run `hf download {foundation} --include '*.json' 'spiece.model'`, or set "
            f'"foundation" in the model\'s config.json to a folder that contains them; {message:.200}'
        ) from error
