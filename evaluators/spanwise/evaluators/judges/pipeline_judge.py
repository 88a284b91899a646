"""Laminar's pipeline judge: one prompt over the named nodes of a pipeline's outputs."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from spanwise.collector.records import JSON, Case
from spanwise.evaluators.interface import Metric, Skip, Unjudged
from spanwise.evaluators.judges.judge_evaluator import JudgeEvaluator, Judgement, register_judge
from spanwise.evaluators.judges.llm_client.chat_completions import ParseFailure, make_object_schema
from spanwise.evaluators.judges.prompt_templates import PLACEHOLDERS, render_value, render_values
from spanwise.evaluators.judges.ratings import make_scale

FIELD_BY_NODE: Mapping[str, str] = {"question": "inputs", "search": "documents", "answer": "outputs"}
MAX_LEVELS = 100  # maximum levels of a scale
_NODE_PLACEHOLDER = re.compile(r"\{\{\s*([A-Za-z_][A-Za-z0-9_]*)\s*\}\}")


@register_judge(
    "pipeline_judge",
    metrics=(Metric("pipeline_judge", (1.0, 5.0), primary=True),),
    source="Laminar: pipeline-based evaluator, its example",
    example='get_evaluator("pipeline_judge", judge=scripted({"reasoning": "Half of it is about food.", "score": 3})), '
    'outputs={"question": "When was it built?", "search": ["Built in 1912."], "answer": "In 1912. Lunch is at noon."}',
)
class PipelineJudge(JudgeEvaluator):
    """Relevance of a pipeline's answer to the question, an integer from 1 to 5.

    The prompt's `{{question}}`, `{{search}}` and `{{answer}}` are filled with the outputs of these names.
    Outputs that the prompt does not name are left out. A named output that is missing is an error. A prompt of
    your own may name any other nodes, and fields of a case. If the outputs are not a dict, the question is
    `inputs`, the search `documents` and the answer `outputs`. With a prompt of your own, `minimum` and
    `maximum` may differ.

    The reply is an object with `score` and `reasoning`. A score outside the range is a parse failure. The evaluator
    `pipeline` runs a function instead.
    """

    PROMPT: ClassVar[str] = "pipeline_judge"

    prompt: str | Path | None = None
    minimum: int = 1
    maximum: int = 5

    def __post_init__(self) -> None:
        if not self.minimum < self.maximum <= self.minimum + MAX_LEVELS:
            raise ValueError(
                f"maximum must exceed minimum by 1 to {MAX_LEVELS}, got {self.minimum!r} to {self.maximum!r}"
            )
        if self.prompt is None and (self.minimum, self.maximum) != (1, 5):
            raise ValueError("the built-in prompt asks for 1 to 5; another range needs prompt=…")
        JudgeEvaluator.__post_init__(self)

    @property
    def NAMES(self) -> tuple[str, ...]:  # type: ignore[override]
        """Return all valid placeholders. Any name in double braces may be that of a node."""
        text = self.prompt.read_text("utf-8") if isinstance(self.prompt, Path) else self.prompt or ""
        return tuple(dict.fromkeys((*PLACEHOLDERS, *FIELD_BY_NODE, *_NODE_PLACEHOLDER.findall(text))))

    @property
    def metrics(self) -> tuple[Metric, ...]:
        """Return the metric with the declared range."""
        return (Metric("pipeline_judge", (float(self.minimum), float(self.maximum)), primary=True),)

    async def __call__(self, case: Case, outputs: Any) -> dict[str, Any]:
        values = {name: _render_node(case, outputs, name) for name in self._prompt.asked}
        async with Judgement("pipeline_judge", self._judge, case) as judgement:
            score_schema: JSON = {"type": "integer", "enum": list(range(self.minimum, self.maximum + 1))}
            # the reasoning precedes the score
            schema = make_object_schema({"reasoning": {"type": "string"}, "score": score_schema})
            answer = await judgement.ask(self._prompt, values, schema)
            reply = answer.value if isinstance(answer.value, Mapping) else {}
            score = reply.get("score")
            level = make_scale(range(self.minimum, self.maximum + 1)).label_of(score)
            if level is None:
                raise ParseFailure(
                    f"the score is {score!r:.100}, not from {self.minimum} to {self.maximum}", answer.text
                )
            reasoning = reply.get("reasoning")
            return judgement.row(float(level), comment=str(reasoning) if reasoning else None)

    def _settings_identity(self) -> list[Any]:
        return [self.minimum, self.maximum]


def _render_node(case: Case, outputs: Any, name: str) -> str:
    """Return the output of a node as text, else the field of the case with that name. Raises `Unjudged` if both are
    missing.
    """
    if isinstance(outputs, Mapping) and outputs.get(name) is not None:
        return render_value(outputs[name])
    field = FIELD_BY_NODE.get(name, name)
    of_case = field in PLACEHOLDERS and not (name == "answer" and isinstance(outputs, Mapping))
    try:
        return render_values(case, [field])[field] if of_case else _raise_missing_node(outputs, name)
    except Skip:
        return _raise_missing_node(outputs, name)


def _raise_missing_node(outputs: Any, name: str) -> str:
    names = ", ".join(map(repr, outputs)) if isinstance(outputs, Mapping) else "none by name"
    raise Unjudged(f"the prompt names {name!r}, which the case lacks; its outputs are {names}")
