"""Labels against expected labels, over all cases of an experiment."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from assay.evaluators.builtin._texts import text_of
from assay.evaluators.protocol import Metric, builtin
from assay.evaluators.protocol.standards import OUTCOMES, SOUNDNESS, VALID

Average = Literal["macro", "micro", "weighted", "binary"]
AVERAGES = ("macro", "micro", "weighted", "binary")


@dataclass(frozen=True, slots=True)
class Report:
    """Numbers of one classification. `confusion[i][j]` counts cases of `labels[i]` that were called `labels[j]`."""

    labels: tuple[str, ...]
    confusion: tuple[tuple[int, ...], ...]
    accuracy: float
    precision: float
    recall: float
    f1: float


def report(
    predicted: Sequence[str], expected: Sequence[str], *, average: Average = "macro", positive: str | None = None
) -> Report:
    """Confusion matrix, accuracy, precision, recall, F1; a ratio with nothing below the line is 0, as in scikit-learn.

    Every label that occurs on either side is a class. "macro" is the mean over classes, "weighted" weights them by
    their expected cases, "micro" counts all decisions alike, "binary" speaks of the class `positive` alone. Raises
    `ValueError` for no cases, different lengths, or "binary" without its positive label.
    """
    if len(predicted) != len(expected) or not expected:
        raise ValueError(f"{len(predicted)} predictions for {len(expected)} expected labels")
    labels = tuple(sorted({*predicted, *expected}))
    counts = Counter(zip(expected, predicted, strict=True))
    confusion = tuple(tuple(counts[(row, column)] for column in labels) for row in labels)
    hits = sum(counts[(label, label)] for label in labels)
    precision, recall, f1 = _averaged(labels, counts, average, positive)
    return Report(labels, confusion, hits / len(expected), precision, recall, f1)


@builtin(
    "classification",
    metrics=(
        Metric("classification_accuracy", threshold=0.75, primary=True),
        Metric("classification_precision", threshold=0.75),
        Metric("classification_recall", threshold=0.75),
        Metric("classification_f1", threshold=0.75),
    ),
    standards=(VALID, SOUNDNESS, OUTCOMES),
    summary=True,
    source="H2O Eval Studio: classification",
    canonical="scikit-learn",
    example='get("classification"), outputs=["spam", "ham", "ham"], reference_outputs=["spam", "spam", "ham"]',
)
@dataclass(frozen=True, slots=True)
class Classification:
    """Accuracy, precision, recall and F1 of the answers as labels, over all cases, with the confusion matrix.

    `average` says how classes come together: "macro" (default), "micro", "weighted", or "binary" with the `positive`
    label. A label that only the model uses is a class of its own, and so is an answer that is no one text, such as a
    dict of several. `normalize` strips white space and folds case first.
    """

    average: Average = "macro"
    positive: str | None = None
    normalize: bool = False

    def __post_init__(self) -> None:
        if self.average not in AVERAGES:
            raise ValueError(f"average is one of {', '.join(map(repr, AVERAGES))}, not {self.average!r}")
        if (self.average == "binary") != (self.positive is not None):
            raise ValueError("average='binary' and a positive label belong together")

    def __call__(self, outputs: Sequence[Any], reference_outputs: Sequence[Any]) -> list[dict[str, Any]]:
        predicted = [self._normal(_said(value)) for value in outputs]
        expected = [self._normal(text_of(value)) for value in reference_outputs]
        numbers = report(predicted, expected, average=self.average, positive=self._positive())
        matrix = {"labels": list(numbers.labels), "confusion": [list(row) for row in numbers.confusion]}
        values = {name: getattr(numbers, name) for name in ("accuracy", "precision", "recall", "f1")}
        return [
            {"key": f"classification_{name}", "score": value, "metadata": matrix if name == "accuracy" else {}}
            for name, value in values.items()
        ]

    def _normal(self, label: str) -> str:
        return label.strip().casefold() if self.normalize else label

    def _positive(self) -> str | None:
        return None if self.positive is None else self._normal(self.positive)


def _said(answer: Any) -> str:
    """One answer that is no text must not keep all others from being counted."""
    try:
        return text_of(answer)
    except ValueError:
        return repr(answer)[:200]


def _averaged(
    labels: Sequence[str], counts: Counter[tuple[str, str]], average: Average, positive: str | None
) -> tuple[float, float, float]:
    right = {label: counts[(label, label)] for label in labels}
    called = {label: sum(counts[(row, label)] for row in labels) for label in labels}
    support = {label: sum(counts[(label, column)] for column in labels) for label in labels}
    if average == "micro":
        return _ratios(sum(right.values()), sum(called.values()), sum(support.values()))
    if average == "binary":
        if positive is None:
            raise ValueError("average='binary' needs the positive label")
        return _ratios(right.get(positive, 0), called.get(positive, 0), support.get(positive, 0))
    each = [_ratios(right[label], called[label], support[label]) for label in labels]
    weights = [1.0 if average == "macro" else float(support[label]) for label in labels]
    total = sum(weights)
    mean = [sum(w * ratios[i] for w, ratios in zip(weights, each, strict=True)) / total for i in range(3)]
    return mean[0], mean[1], mean[2]


def _ratios(right: int, called: int, support: int) -> tuple[float, float, float]:
    precision = right / called if called else 0.0
    recall = right / support if support else 0.0
    f1 = 2 * right / (called + support) if called + support else 0.0
    return precision, recall, f1
