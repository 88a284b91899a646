"""Classification evaluator: accuracy, precision, recall, F1 and confusion matrix over all cases."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from spanwise.evaluators.builtin.case_text import extract_text
from spanwise.evaluators.interface import CASE_SCORES, Metric, register_builtin
from spanwise.evaluators.interface.evaluator_spec import OUTCOMES, SOUNDNESS, VALID

Average = Literal["macro", "micro", "weighted", "binary"]
AVERAGES = ("macro", "micro", "weighted", "binary")
MAX_LABELS = 50  # labels in a confusion matrix; with free texts as labels it would be quadratic in the cases
MAX_LABEL_LENGTH = 200  # displayed characters of a label


@dataclass(frozen=True, slots=True)
class ClassificationReport:
    """Results of a classification.

    `confusion[i][j]` counts cases of `labels[i]` that were predicted as `labels[j]`.

    With more than `MAX_LABELS` labels, `labels` holds the most frequent ones in alphabetical order, and `left_out`
    counts the others. The other numbers include all labels.
    """

    labels: tuple[str, ...]
    confusion: tuple[tuple[int, ...], ...]
    accuracy: float
    precision: float
    recall: float
    f1: float
    left_out: int = 0


def classification_report(
    predicted: Sequence[str], expected: Sequence[str], *, average: Average = "macro", positive: str | None = None
) -> ClassificationReport:
    """Return confusion matrix, accuracy, precision, recall and F1.

    A ratio with denominator 0 is 0, as in scikit-learn.

    Every label that occurs on either side is a class. "macro" is the mean over classes, "weighted" weights them by
    their expected cases, "micro" counts all decisions alike, "binary" evaluates only the class `positive`.

    Raises `ValueError` for no cases, different lengths, "binary" without its positive label, or a positive label that
    is not among several labels.
    """
    if len(predicted) != len(expected) or not expected:
        raise ValueError(f"{len(predicted)} predictions for {len(expected)} expected labels")
    counts = Counter(zip(expected, predicted, strict=True))
    sides = _LabelCounts(
        Counter(expected), Counter(predicted), Counter(a for a, b in zip(expected, predicted, strict=True) if a == b)
    )
    precision, recall, f1 = _average_ratios(sides, average, positive)
    labels = sides.most_frequent()
    confusion = tuple(tuple(counts[(row, column)] for column in labels) for row in labels)
    accuracy = sides.right.total() / len(expected)
    return ClassificationReport(labels, confusion, accuracy, precision, recall, f1, len(sides.labels) - len(labels))


@register_builtin(
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
    example='get_evaluator("classification"), outputs=["spam", "ham", "ham"], reference_outputs=["spam", "spam", "ham"]',
)
@dataclass(frozen=True, slots=True)
class Classification:
    """Accuracy, precision, recall and F1 of the answers as labels, over all cases, with the confusion matrix.

    `average` combines the classes: "macro" (default), "micro", "weighted", or "binary" with the `positive`
    label. A label that only the model uses is a separate class. So is an answer without exactly one text, such
    as a dict of several. `normalize` strips white space and folds case first. The matrix, in the metadata of
    the accuracy, has the 50 most frequent labels; `labels_left_out` counts the others. There, `case_scores` tells
    which cases are right (1) or wrong (0), for at most 10,000 cases.
    """

    average: Average = "macro"
    positive: str | None = None
    normalize: bool = False

    def __post_init__(self) -> None:
        if self.average not in AVERAGES:
            raise ValueError(f"average is one of {', '.join(map(repr, AVERAGES))}, not {self.average!r}")
        if (self.average == "binary") != (self.positive is not None):
            raise ValueError("average='binary' needs the positive label, and the other averages do not take one")

    def __call__(self, outputs: Sequence[Any], reference_outputs: Sequence[Any]) -> list[dict[str, Any]]:
        predicted = [self._normal(_answer_label(value)) for value in outputs]
        expected = [self._normal(extract_text(value)) for value in reference_outputs]
        numbers = classification_report(
            predicted,
            expected,
            average=self.average,
            positive=None if self.positive is None else self._normal(self.positive),
        )
        right = [float(label == reference) for label, reference in zip(predicted, expected, strict=True)]
        of_accuracy = {**_confusion_metadata(numbers), CASE_SCORES: right}
        values = {name: getattr(numbers, name) for name in ("accuracy", "precision", "recall", "f1")}
        return [
            {"key": f"classification_{name}", "score": value, "metadata": of_accuracy if name == "accuracy" else {}}
            for name, value in values.items()
        ]

    def _normal(self, label: str) -> str:
        return label.strip().casefold() if self.normalize else label


def _answer_label(answer: Any) -> str:
    """Return the label of an answer; its `repr` if it has no single text, so that other answers still count."""
    try:
        return extract_text(answer)
    except ValueError:
        return repr(answer)[:200]


def _confusion_metadata(numbers: ClassificationReport) -> dict[str, Any]:
    shown = [label if len(label) <= MAX_LABEL_LENGTH else f"{label[:MAX_LABEL_LENGTH]}…" for label in numbers.labels]
    matrix: dict[str, Any] = {"labels": shown, "confusion": [list(row) for row in numbers.confusion]}
    return matrix | ({"labels_left_out": numbers.left_out} if numbers.left_out else {})


@dataclass(frozen=True, slots=True)
class _LabelCounts:
    """Counts per label: expected, predicted, and both in one case."""

    support: Counter[str]
    called: Counter[str]
    right: Counter[str]

    @property
    def labels(self) -> set[str]:
        return self.support.keys() | self.called.keys()

    def most_frequent(self) -> tuple[str, ...]:
        by_cases = sorted(self.labels, key=lambda label: (-self.support[label] - self.called[label], label))
        return tuple(sorted(by_cases[:MAX_LABELS]))

    def ratios(self, label: str) -> tuple[float, float, float]:
        return _ratios(self.right[label], self.called[label], self.support[label])


def _average_ratios(sides: _LabelCounts, average: Average, positive: str | None) -> tuple[float, float, float]:
    if average == "micro":
        return _ratios(sides.right.total(), sides.called.total(), sides.support.total())
    if average == "binary":
        if positive is None:
            raise ValueError("average='binary' needs the positive label")
        # as in scikit-learn: a misspelt label must not score 0
        if positive not in sides.labels and len(sides.labels) > 1:
            raise ValueError(
                f"no case has the positive label {positive!r}; labels are {', '.join(sides.most_frequent())[:200]}"
            )
        return sides.ratios(positive)
    labels = sorted(sides.labels)
    each = [sides.ratios(label) for label in labels]
    weights = [1.0 if average == "macro" else float(sides.support[label]) for label in labels]
    total = sum(weights)
    mean = [sum(w * ratios[i] for w, ratios in zip(weights, each, strict=True)) / total for i in range(3)]
    return mean[0], mean[1], mean[2]


def _ratios(right: int, called: int, support: int) -> tuple[float, float, float]:
    precision = right / called if called else 0.0
    recall = right / support if support else 0.0
    f1 = 2 * right / (called + support) if called + support else 0.0
    return precision, recall, f1
