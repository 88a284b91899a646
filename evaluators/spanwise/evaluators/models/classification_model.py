"""Text classification models: probabilities by label, and normalization of label names."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeAlias, cast

from spanwise.evaluators.models.inference_batching import make_span_finder, run_each, split_windows, token_limit
from spanwise.evaluators.models.local_models import (
    LoadedModel,
    LocalModel,
    choose_device,
    make_model,
    parameter_bytes,
    run_by_length,
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
