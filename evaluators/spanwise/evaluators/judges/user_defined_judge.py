"""User-defined judges: `judge(name, prompt, scale)`, with few-shot examples."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field, replace
from keyword import iskeyword
from pathlib import Path
from typing import Any

import orjson

from spanwise.collector.records import Case
from spanwise.evaluators.interface import Evaluator, Metric, get_evaluator
from spanwise.evaluators.judges.judge_evaluator import JudgeEvaluator, register_judge
from spanwise.evaluators.judges.llm_client.judge_call import make_judge
from spanwise.evaluators.judges.prompt_templates import PLACEHOLDERS, Shot
from spanwise.evaluators.judges.prompt_templates import prompt as load
from spanwise.evaluators.judges.prompt_values import render_value
from spanwise.evaluators.judges.ratings import Scale, ask_rating, make_scale, restore_boolean_label
from spanwise.evaluators.judges.untrusted_data import neutralize
from spanwise.tracer.suggestions import did_you_mean

_INVALID_SCHEMA_CHARACTERS = re.compile(r"[^A-Za-z0-9_-]")
# parameters that receive complete records, and `self`; they cannot be placeholders
_RESERVED_NAMES = frozenset({"self", "case", "trace", "run", "root_run", "example"})
_CASE_PARAMETER = inspect.Parameter("case", inspect.Parameter.KEYWORD_ONLY, default=None)


@register_judge(
    "judge",
    metrics=(Metric("judge", None, primary=True),),
    source="a judge of one's own",
    canonical="",
    example='judge("polite", "Is it polite?\\n{outputs}", '
    'judge=scripted({"rationale": "It says please.", "rating": "yes"})), outputs="Wait a moment, please."',
)
class UserDefinedJudge(JudgeEvaluator):
    """User-defined judge: a question and its permitted ratings. Create one with `spanwise.evaluators.judge`.

    `prompt` names the fields that the judge gets: `{inputs}`, `{outputs}`, `{reference_outputs}`,
    `{documents}`, `{expected_documents}`, `{conditions}`, `{guidelines}`, `{history}`, `{metadata}`,
    `{trajectory}`, and further names from `map` (`map={"question": "inputs.question"}`). A case that lacks one
    of them is skipped. The meaning of the ratings and the form of the reply are appended.

    `scale` is two labels, of which the first is True, `("yes", "no")`; several labels; levels, `range(1, 6)`; a
    rubric, `{1: "rude", …, 5: "warm"}`; or labels with their scores, `{"good": 1, "bad": 0}`. `examples` are
    shown to the judge: dicts with the names in the prompt, a `rationale` and a `rating`. `logprobs` weights a
    graded score by the probability of each rating, as G-Eval does.
    """

    key: str
    prompt: str | Path
    scale: Any = ("yes", "no")
    examples: Sequence[Mapping[str, Any]] = ()
    map: Mapping[str, Any] | None = None
    higher_is_better: bool = True
    logprobs: bool = False
    _scale: Scale = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.max_characters < 1:
            raise ValueError(f"max_characters must be an integer >= 1, got {self.max_characters!r}")
        for name in self.map or {}:
            if not name.isidentifier() or iskeyword(name) or name in _RESERVED_NAMES:
                raise ValueError(
                    f"map: {name!r} cannot be the name of a placeholder; use another name, such as 'question'"
                )
        scale = make_scale(self.scale)
        schema_name = _INVALID_SCHEMA_CHARACTERS.sub("_", self.key)[:64]
        prompt = load(schema_name, self.prompt, (*PLACEHOLDERS, *(self.map or {})), bound=self.max_characters)
        shots = make_shots(self.examples, prompt.asked, scale)
        text = f"{prompt.text.rstrip()}\n\n{scale.instructions()}"
        if isinstance(self.scale, Mapping):
            scale_values: Any = {str(restore_boolean_label(label)): value for label, value in self.scale.items()}
        else:
            scale_values = [restore_boolean_label(label) for label in self.scale]
        object.__setattr__(self, "scale", scale_values)
        object.__setattr__(self, "_scale", scale)
        object.__setattr__(self, "prompt", prompt.text)
        object.__setattr__(self, "_judge", make_judge(self.judge))
        object.__setattr__(self, "_prompt", replace(prompt, text=text, shots=shots))
        object.__setattr__(self, "_more", {})

    @property
    def named(self) -> str:
        """Return the feedback key."""
        return self.key

    @property
    def metrics(self) -> tuple[Metric, ...]:
        """Return the metric of its scores."""
        return (self._scale.metric(self.key, self.higher_is_better),)

    @property
    def __signature__(self) -> inspect.Signature:
        """Return the fields that the prompt names."""
        return make_signature(self._prompt.asked, self.map or {})

    async def __call__(self, case: Case, **values: Any) -> dict[str, Any]:
        others = {name: render_value(value) for name, value in values.items() if name not in Case.__dataclass_fields__}
        texts = self._values(case, others)
        return await ask_rating(self.key, self._judge, self._prompt, case, self._scale, texts, logprobs=self.logprobs)

    def exported(self, parameters: Mapping[str, Any]) -> dict[str, Any]:
        exported = {**JudgeEvaluator.exported(self, {**parameters, "prompt": None}), "prompt": self.prompt}
        return {**exported, "scale": self.scale} if "scale" in exported else exported

    def _settings_identity(self) -> list[Any]:
        worth = [[label, score] for label, score in self._scale.scores.items()]
        mapped = {name: path if isinstance(path, str) else repr(path) for name, path in (self.map or {}).items()}
        return [worth, mapped, self.logprobs, self.higher_is_better]


def judge(
    name: str,
    prompt: str | Path,
    scale: Any = ("yes", "no"),
    *,
    judge: Any = None,
    examples: Sequence[Mapping[str, Any]] = (),
    map: Mapping[str, Any] | None = None,
    threshold: float | None = None,
    higher_is_better: bool = True,
    logprobs: bool = False,
    max_characters: int | None = None,
    **options: Any,
) -> Evaluator:
    r"""Return a user-defined judge: `judge("polite", "Is this answer polite?\n{outputs}", ("yes", "no"))`.

    `UserDefinedJudge` documents the parameters. `judge` is a model's name, a `Judge`, a function, or None for
    the judge of the environment. `options` are those of `get_evaluator`. `to_dict` and `from_dict` write and
    read the definition. Raises `ValueError`.
    """
    if threshold is not None and make_scale(scale).range is None:
        raise ValueError(f"judge {name!r}: a threshold needs scores; pass a scale {{label: score, …}}")
    given = {
        "key": name,
        "prompt": prompt,
        "scale": scale,
        "judge": judge,
        "examples": examples,
        "map": map,
        "threshold": threshold,
        "higher_is_better": higher_is_better,
        "logprobs": logprobs,
        "max_characters": max_characters,
    }
    defaults = {"examples": (), "higher_is_better": True, "logprobs": False}
    parameters = {name: value for name, value in given.items() if value is not None and value != defaults.get(name)}
    return get_evaluator("judge", **parameters, **options)


def make_signature(names: Sequence[str], mapped: Mapping[str, Any]) -> inspect.Signature:
    """Return the signature of a judge whose prompt has these placeholders: a parameter per required field, and the case.
    A case that lacks a required field is skipped.
    """
    fields = dict.fromkeys("trace" if name == "trajectory" and name not in mapped else name for name in names)
    # optional, because the inputs may contain the history
    optional = inspect.Parameter("history", _CASE_PARAMETER.kind, default=None)
    parameters = [
        optional if name == "history" and name not in mapped else inspect.Parameter(name, _CASE_PARAMETER.kind)
        for name in fields
    ]
    return inspect.Signature([*parameters, _CASE_PARAMETER])


REPLY_COLUMNS = ("rationale", "rating")  # columns of an example that form the reply of a good judge


def make_shots(examples: Iterable[Any], names: Sequence[str], scale: Scale) -> tuple[Shot, ...]:
    """Return the examples as few-shot turns. Raises `ValueError`, which names the unknown or missing column."""
    columns = (*names, *REPLY_COLUMNS)
    expected = ", ".join(columns)
    shots = []
    for number, row in enumerate(examples, 1):
        if not isinstance(row, Mapping):
            raise ValueError(f"example {number} must be a dict with {expected}, got {row!r:.200}")
        for name in row:
            if name not in columns:
                hint = did_you_mean(str(name), columns)
                raise ValueError(f"example {number} has the unknown column {name!r}; expected one of: {expected}{hint}")
        if missing := [name for name in columns if row.get(name) is None]:
            raise ValueError(f"example {number} lacks {', '.join(missing)}; it needs {expected}")
        label = scale.label_of(restore_boolean_label(row["rating"]))
        if label is None:
            labels = ", ".join(map(repr, scale.labels))
            raise ValueError(f"example {number} has the rating {row['rating']!r:.100}, which is none of {labels}")
        if not isinstance(row["rationale"], str) or not row["rationale"].strip():
            raise ValueError(f"example {number} has no rationale: a judge would learn to give none")
        reply = orjson.dumps({"rationale": neutralize(row["rationale"]), "rating": label}).decode()
        shots.append(Shot(tuple((name, render_value(row[name])) for name in names), reply))
    return tuple(shots)
