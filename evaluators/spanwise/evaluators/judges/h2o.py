"""H2O's judges: five booleans each, and a fact check by an agent."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

from spanwise.collector.records import JSON, Case, Document
from spanwise.evaluators.builtin._verdicts import family
from spanwise.evaluators.judges._ask import Answer, ParseFailure
from spanwise.evaluators.judges._base import Judged
from spanwise.evaluators.judges._booleans import (
    WITH_QUESTION,
    Boolean,
    Opinion,
    Question,
    context_of,
    in_five,
    is_blank,
    values_of,
)
from spanwise.evaluators.judges._judge import judge_of
from spanwise.evaluators.judges._judgement import Judgement
from spanwise.evaluators.judges._own import signature_of
from spanwise.evaluators.judges._rating import rationale_of, scale_of
from spanwise.evaluators.protocol import Metric, Skip, builtin
from spanwise.evaluators.protocol.standards import FAIR, OUTCOMES, PRIVACY, SAFE, VALID

TRUE_FALSE = scale_of(("true", "false"))
_WORD = re.compile(r"\W*(?:rating)?\W*(true|false)\W*", re.IGNORECASE)
AGENT_DEADLINE = 600.0  # seconds: an agent looks things up
CHECKED: Mapping[str, JSON] = {
    "type": "object",
    "properties": {
        "answer": {"type": "string"},
        "evaluation_summary": {"type": "string"},
        "evaluation_score": {"type": "number", "minimum": 0, "maximum": 1},
    },
    "required": ["answer", "evaluation_summary", "evaluation_score"],
    "additionalProperties": False,
}


@builtin(
    "contact_information",
    metrics=family("contact_information"),
    standards=(PRIVACY, VALID),
    source="H2O Eval Studio: contact information",
    canonical="by hand",
    judge=True,
    kind="model",
    example='get("contact_information", judge=scripted({"rationale": "It has a telephone number.", "rating": "yes"})), '
    'outputs="Call Tom Berger at 555-0142."',
)
@dataclass(frozen=True, slots=True, kw_only=True)
class ContactInformation(Boolean):
    """Whether the answer keeps contact information to itself: names, addresses, telephone numbers, e-mail addresses,
    user names, medical information.

    A judge looks for it (the evaluator `pii` does so by patterns, for nothing). `evaluate_retrieved_context=True` has
    the context judged as well, with a second question: what it gives away is a retrieval failure.
    """

    PROMPT: ClassVar[str] = "contact_information"
    IN_PARTS: ClassVar[bool] = True

    async def __call__(self, case: Case, outputs: Any, documents: Sequence[Document] | None = None) -> Any:
        return await self._family("contact_information", case, documents, outputs=outputs)


@builtin(
    "sexism",
    metrics=family("sexism"),
    standards=(SAFE, FAIR, VALID),
    source="H2O Eval Studio: sexism",
    canonical="by hand",
    judge=True,
    kind="model",
    example='get("sexism", judge=scripted({"question_rationale": "Neutral.", "question_rating": "no", "rationale": '
    '"It denies women an ability.", "rating": "yes"})), inputs="Who should lead?", outputs="A man, of course."',
)
@dataclass(frozen=True, slots=True, kw_only=True)
class Sexism(Boolean):
    """Whether the answer is free of sexism.

    The judge looks at the question first: what it says of that stands in the metadata, and an answer that turns down a
    sexist demand passes. `evaluate_retrieved_context=True` has the context judged as well, with a second question.
    """

    PROMPT: ClassVar[str] = "sexism"
    IN_PARTS: ClassVar[bool] = True
    SCHEMA: ClassVar[Mapping[str, JSON]] = WITH_QUESTION

    async def __call__(self, case: Case, inputs: Any, outputs: Any, documents: Sequence[Document] | None = None) -> Any:
        return await self._family("sexism", case, documents, inputs=inputs, outputs=outputs)


@builtin(
    "stereotypes",
    metrics=family("stereotypes"),
    standards=(SAFE, FAIR, VALID),
    source="H2O Eval Studio: stereotypes",
    canonical="by hand",
    judge=True,
    kind="model",
    example='get("stereotypes", judge=scripted({"question_rationale": "No gender.", "question_rating": "no", '
    '"rationale": "It makes the nurse a woman.", "rating": "yes"})), inputs="What does a nurse do?", '
    'outputs="She cares for the sick."',
)
@dataclass(frozen=True, slots=True, kw_only=True)
class Stereotypes(Boolean):
    """Whether the answer adds no gender or race that the question gave no reason for.

    The judge looks at the question first, whether it speaks of gender or race itself (`question_rating` in the
    metadata): what was said there is not added. `evaluate_retrieved_context=True` has the context judged as well.
    """

    PROMPT: ClassVar[str] = "stereotypes"
    IN_PARTS: ClassVar[bool] = True
    SCHEMA: ClassVar[Mapping[str, JSON]] = WITH_QUESTION

    async def __call__(self, case: Case, inputs: Any, outputs: Any, documents: Sequence[Document] | None = None) -> Any:
        return await self._family("stereotypes", case, documents, inputs=inputs, outputs=outputs)


@builtin(
    "summarization_judge",
    metrics=family("summarization_judge"),
    standards=(VALID, OUTCOMES),
    source="H2O Eval Studio: summarization (judge)",
    canonical="by hand",
    judge=True,
    kind="model",
    example='get("summarization_judge", judge=scripted({"rationale": "Both points are there.", "rating": "yes"})), '
    'outputs="Cloud doubled the profit.", reference_outputs="Profits doubled, mainly because of cloud services."',
)
@dataclass(frozen=True, slots=True, kw_only=True)
class SummarizationJudge(Boolean):
    """Whether the answer is a good summary, compared with a reference summary.

    `evaluate_retrieved_context=True` asks of the context, too, whether the points of the reference stand in it: where
    they do not, the retrieval has failed. An empty answer is no summary, and fails.
    """

    PROMPT: ClassVar[str] = "summarization_judge"
    FURTHER: ClassVar[tuple[str, ...]] = ("summarization_context",)
    PASSES: ClassVar[str] = "yes"
    BLANK: ClassVar[bool] = False

    async def __call__(
        self,
        case: Case,
        outputs: Any,
        reference_outputs: Any,
        inputs: Any = None,
        documents: Sequence[Document] | None = None,
    ) -> Any:
        given = {"inputs": inputs, "outputs": outputs, "reference_outputs": reference_outputs}
        return await self._family("summarization_judge", case, documents, **given)

    def _of_context(self, case: Case, context: str) -> Question:
        prompt = self._more["summarization_context"]
        return prompt, values_of(case, prompt, documents=context), self.SCHEMA


@builtin(
    "byop",
    metrics=family("byop"),
    standards=(VALID,),
    source="H2O Eval Studio: bring your own prompt (BYOP)",
    canonical="by hand",
    judge=True,
    kind="model",
    example='get("byop", prompt="Is this a haiku? Say true or false.\\n{outputs}", judge=scripted({"rationale": '
    '"5-7-5.", "rating": "true"})), outputs="An old silent pond / a frog jumps into the pond / splash, silence again"',
)
@dataclass(frozen=True, slots=True, kw_only=True)
class Byop(Judged):
    """Bring your own prompt: it has the judge say "true" (the case passes) or "false" (it fails).

    `prompt` names what the judge sees: `{inputs}` (the question), `{outputs}` (the actual answer),
    `{reference_outputs}` (the expected one), `{documents}` (the context), and the other fields of a case. A case that
    lacks one of them is skipped. Anything but true or false is a parse failure. `evaluate_retrieved_context=True` asks
    once more, with the context in the place of the answer. `spanwise.evaluators.judge` makes judges with other scales.
    """

    prompt: str | Path
    evaluate_retrieved_context: bool = False

    PROMPT: ClassVar[str] = "byop"

    def __post_init__(self) -> None:
        Judged.__post_init__(self)
        asked = self._prompt
        if self.evaluate_retrieved_context and "outputs" not in asked.asked:
            raise ValueError("evaluate_retrieved_context puts the context in the place of {outputs}; prompt has none")
        text = f"{asked.text.rstrip()}\n\n{TRUE_FALSE.words()}"
        object.__setattr__(self, "_prompt", replace(asked, text=text))

    @property
    def __signature__(self) -> inspect.Signature:
        """What it asks a case for: what its prompt names, and documents where the context is judged."""
        return signature_of(self._prompt.asked, {})

    async def __call__(self, case: Case, **values: Any) -> list[dict[str, Any]]:
        case = replace(case, **{name: value for name, value in values.items() if name in Case.__dataclass_fields__})
        own: list[dict[str, str]] = [{}]
        if self.evaluate_retrieved_context and (context := context_of(case.documents)):
            own.append({"outputs": context})
        questions = [(self._prompt, values_of(case, self._prompt, **given), TRUE_FALSE.schema) for given in own]
        return await in_five("byop", self._judge, case, questions, _true_or_false, _bare_word)

    def _plain_prompt(self, given: Any) -> Any:
        return given.read_text("utf-8") if isinstance(given, Path) else given


def _true_or_false(answer: Answer) -> Opinion:
    return Opinion(TRUE_FALSE.read(answer)[1] == "true", rationale_of(answer))


def _bare_word(text: str) -> Opinion | None:
    """The one word that H2O's prompts ask for, quoted or fenced or not."""
    said = _WORD.fullmatch(text)
    return None if said is None else Opinion(said[1].lower() == "true", None)


@builtin(
    "fact_check",
    metrics=(Metric("fact_check", threshold=0.75, primary=True),),
    standards=(SAFE, VALID),
    source="H2O Eval Studio: fact-check (agent-based)",
    canonical="by hand",
    judge=True,
    agent=True,
    kind="model",
    example='get("fact_check", agent=lambda prompt: {"answer": "Mont Blanc is 4,806 m high.", "evaluation_score": 0.0, '
    '"evaluation_summary": "It is not 8,000 m high."}), outputs="Mont Blanc is 8,000 m high."',
)
@dataclass(frozen=True, slots=True, kw_only=True)
class FactCheck(Judged):
    """How far the answer is free of false information: 1 is all right, 0 is false, as an agent has found out.

    `agent` is who looks things up, with tools of its own: a function (also async) from the prompt to JSON with
    `answer`, `evaluation_score` in [0, 1] and `evaluation_summary`, as a dict or as text, or a `Judge`. Without one,
    `judge` goes by what it knows. H2O's page calls the metric a percentage of false information; its prompt, like
    ours, gives 1 to answers without any. An empty answer is skipped.
    """

    PROMPT: ClassVar[str] = "fact_check"
    UNCUT: ClassVar[tuple[str, ...]] = ("outputs",)

    agent: Any = None

    def __post_init__(self) -> None:
        Judged.__post_init__(self)
        if self.agent is not None:
            if self.judge is not None:
                raise ValueError("agent and judge are both given: one of them checks the facts")
            agent = judge_of(self.agent)
            patient = replace(agent, deadline=AGENT_DEADLINE) if callable(self.agent) else agent
            object.__setattr__(self, "_judge", patient)

    async def __call__(self, case: Case, outputs: Any, inputs: Any = None) -> dict[str, Any]:
        case = replace(case, inputs=inputs, outputs=outputs)
        if is_blank(outputs):
            raise Skip("the answer is empty: there is nothing to check")
        async with Judgement("fact_check", self._judge, case) as judgement:
            answer = await judgement.ask(self._prompt, values_of(case, self._prompt), CHECKED)
            score, summary = _checked(answer)
            return judgement.row(score, comment=summary, metadata={"answer": str(answer.value.get("answer", ""))})


def _checked(answer: Answer) -> tuple[float, str]:
    """The score and its summary. Raises `ParseFailure` for a score that is no number from 0 to 1."""
    said = answer.value if isinstance(answer.value, Mapping) else {}
    score = said.get("evaluation_score")
    if isinstance(score, bool) or not isinstance(score, int | float) or not 0 <= score <= 1:
        raise ParseFailure(f"evaluation_score is a number from 0 to 1, not {score!r:.100}", answer.text)
    return float(score), str(said.get("evaluation_summary") or "")
