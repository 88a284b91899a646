"""Ratings: the form of a verdict, the question that asks for it, and what it is worth as a score."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from spanwise.collector.records import JSON, Case
from spanwise.evaluators.judges._ask import Answer, ParseFailure
from spanwise.evaluators.judges._geval import TOP, expected, noted, probabilities
from spanwise.evaluators.judges._judge import Judge
from spanwise.evaluators.judges._judgement import Judgement
from spanwise.evaluators.judges._prompts import Prompt
from spanwise.evaluators.judges._together import together
from spanwise.evaluators.judges._values import texts_of
from spanwise.evaluators.protocol import Metric

Label: TypeAlias = str | int
Given: TypeAlias = Sequence[Label] | Mapping[Any, Any] | range


def rating_schema(labels: Sequence[Label]) -> dict[str, JSON]:
    """An object with a rationale, and then a rating that is one of the labels: the reason is written first."""
    kind = "integer" if all(isinstance(label, int) for label in labels) else "string"
    return {
        "type": "object",
        "properties": {"rationale": {"type": "string"}, "rating": {"type": kind, "enum": list(labels)}},
        "required": ["rationale", "rating"],
        "additionalProperties": False,
    }


@dataclass(frozen=True, slots=True)
class Scale:
    """What a judge may say. `scores` are what each label is worth, in their order: True or False, a number, or None
    where the label itself is the result; `meanings` describe some of them.
    """

    scores: Mapping[Label, float | bool | None]
    meanings: Mapping[Label, str]

    @property
    def labels(self) -> tuple[Label, ...]:
        """What a judge may say, as it was given."""
        return tuple(self.scores)

    @property
    def schema(self) -> dict[str, JSON]:
        """The form of a reply."""
        return rating_schema(self.labels)

    @property
    def is_boolean(self) -> bool:
        """Whether the first label passes and the second does not."""
        return all(isinstance(score, bool) for score in self.scores.values())

    @property
    def range(self) -> tuple[float, float] | None:
        """Of the scores; None where there are none."""
        numbers = [float(score) for score in self.scores.values() if score is not None]
        return (min(numbers), max(numbers)) if numbers else None

    def metric(self, key: str, higher_is_better: bool = True) -> Metric:
        """What is known about its scores."""
        return Metric(key, self.range, higher_is_better, 0.5 if self.is_boolean else None, primary=True)

    def words(self) -> str:
        """What a judge is told of it: what the labels mean, and how to reply."""
        lines = [f"{label}: {meaning}" for label, meaning in self.meanings.items()]
        said = ["The ratings mean:\n" + "\n".join(lines)] if lines else []
        choice = " or ".join(json.dumps(label, ensure_ascii=False) for label in self.labels)
        form = f'{{"rationale": "…", "rating": {choice}}}'
        return "\n\n".join([*said, f"Give your reasons first, then the rating, as JSON: {form}"])

    def read(self, answer: Answer) -> tuple[float | bool | None, Label]:
        """The score and the label of an answer. Raises `ParseFailure` for a label that there is not."""
        rating = answer.value["rating"] if isinstance(answer.value, Mapping) and "rating" in answer.value else None
        label = self.label_of(rating)
        if label is None:
            raise ParseFailure(
                f"the rating is {rating!r:.100}, none of {', '.join(map(str, self.labels))}", answer.text
            )
        return self.scores[label], label

    def label_of(self, rating: Any) -> Label | None:
        """The label that a rating is, but for its case, or for its being a text; None for anything else."""
        if not isinstance(rating, str | int) or isinstance(rating, bool):
            return None
        return {str(label).casefold(): label for label in self.labels}.get(str(rating).strip().casefold())


def scale_of(given: Given | Scale) -> Scale:
    """A scale from how people write it. Raises `ValueError`.

    - two labels, `("yes", "no")`: the first passes (True), the second does not (False);
    - more labels, `("formal", "neutral", "casual")`: the label is the result, there is no score;
    - numbers, `range(1, 6)` or `(1, 2, 3)`: levels, each its own score;
    - a dict of levels or labels with what they mean, `{1: "rude", …, 5: "warm"}`: a rubric;
    - a dict of labels with what they are worth, `{"good": 1, "fair": 0.5, "bad": 0}`.

    True and False are the labels "yes" and "no": YAML reads these words so.
    """
    if isinstance(given, Scale):
        return given
    if isinstance(given, str | bytes) or not isinstance(given, Sequence | Mapping):
        raise ValueError(f"a scale is a list of labels, a dict, or a range of levels, not {given!r:.200}")
    labels = [_label(label) for label in given]
    if len(labels) < 2 or len({str(label).casefold() for label in labels}) < len(labels):
        raise ValueError(f"a scale has at least two labels, all different, not {given!r:.200}")
    if len({type(label) for label in labels}) > 1:
        raise ValueError(f"the labels of a scale are all texts or all whole numbers, not {given!r:.200}")
    values = list(given.values()) if isinstance(given, Mapping) else []
    if values and all(_is_number(value) for value in values):
        return Scale(dict(zip(labels, map(_score, values), strict=True)), {})
    if not all(isinstance(value, str) for value in values):
        raise ValueError(f"a scale's dict says what each label is worth, or what each means, not {given!r:.200}")
    return Scale(_worth(labels), dict(zip(labels, values, strict=True)) if values else {})


def _worth(labels: Sequence[Label]) -> dict[Label, float | bool | None]:
    if all(isinstance(label, int) for label in labels):
        return {label: float(label) for label in labels}
    if len(labels) == 2:
        return dict(zip(labels, (True, False), strict=True))
    return dict.fromkeys(labels)


def worded(label: Any) -> Any:
    """A label as it was written: YAML makes True and False of yes and no."""
    return ("yes" if label else "no") if isinstance(label, bool) else label


def _label(label: Any) -> Label:
    """A level that JSON has made a text is a number again."""
    label = worded(label)
    if isinstance(label, str) and label.strip().lstrip("-").isdecimal():
        return int(label)
    if not isinstance(label, str | int) or str(label).strip() == "":
        raise ValueError(f"a label is a text or a whole number, not {label!r:.200}")
    return label.strip() if isinstance(label, str) else label


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and abs(value) != float("inf") and value == value


def _score(value: Any) -> float | bool:
    return value if isinstance(value, bool) else float(value)


YES_NO = rating_schema(("yes", "no"))


async def yes_or_no(
    evaluator: str,
    judge: Judge,
    prompt: Prompt,
    case: Case,
    values: Mapping[str, str] | None = None,
    *,
    logprobs: bool = False,
) -> dict[str, Any]:
    """The feedback of a judge that says yes or no: True for yes, with its rationale as the comment.

    With `logprobs` its metadata say how likely either was, and how likely what it said (`confidence`).
    """
    return await rated(evaluator, judge, prompt, case, scale_of(("yes", "no")), values, logprobs=logprobs)


async def yes_in_parts(
    evaluator: str, judge: Judge, prompt: Prompt, case: Case, values: Mapping[str, str], name: str = "outputs"
) -> dict[str, Any]:
    """Return the feedback of a judge that says yes or no about all of one value.

    It is asked about each part of a long value, and the first no decides. Raises `Skip` for one that is too long.
    """
    scale = scale_of(("yes", "no"))
    async with Judgement(evaluator, judge, case) as judgement:
        parts = prompt.in_parts(values, name)
        answers = await together(judgement.ask(prompt, part, scale.schema) for part in parts)
        worst = next((place for place, answer in enumerate(answers) if not scale.read(answer)[0]), 0)
        score, label = scale.read(answers[worst])
        comment = rationale_of(answers[worst])
        if len(parts) > 1:
            comment = f"{len(parts)} parts were judged; part {worst + 1}: {comment}"
        metadata = {"parts": len(parts)} if len(parts) > 1 else {}
        return judgement.row(score, comment=comment, label=str(label), metadata=metadata)


async def rated(
    evaluator: str,
    judge: Judge,
    prompt: Prompt,
    case: Case,
    scale: Scale,
    values: Mapping[str, str] | None = None,
    *,
    logprobs: bool = False,
) -> dict[str, Any]:
    """The feedback of a judge that rates: score and label, with its rationale as the comment.

    With `logprobs` its metadata say how likely each label was, and a graded score is the mean of what the labels are
    worth, each as likely as it was; without log-probabilities it is that of the label, and a note says so.
    """
    async with Judgement(evaluator, judge, case) as judgement:
        given = texts_of(case, prompt.asked) if values is None else values
        answer = await judgement.ask(prompt, given, scale.schema, logprobs=TOP * logprobs)
        score, label = scale.read(answer)
        likely = probabilities(answer, scale.labels) if logprobs else None
        metadata = noted({}, likely, label) if logprobs else {}
        if likely and scale.range is not None and not scale.is_boolean:
            score = expected(likely, {label: float(worth or 0) for label, worth in scale.scores.items()})
        told = label if score is None else score
        return judgement.row(told, comment=rationale_of(answer), label=str(label), metadata=metadata)


def rationale_of(answer: Answer) -> str | None:
    """Why, in the judge's words; None where it gave none."""
    said = answer.value.get("rationale") if isinstance(answer.value, Mapping) else None
    return str(said) if said else None
