"""H2O's judges: one verdict on the answer, one on the context if that is wanted, five booleans of both."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, TypeAlias

from spanwise.collector.records import JSON, Case, Document
from spanwise.evaluators.builtin._texts import text_of
from spanwise.evaluators.builtin._verdicts import unparsed, verdict
from spanwise.evaluators.judges._ask import Answer, ParseFailure
from spanwise.evaluators.judges._base import Judged
from spanwise.evaluators.judges._judge import Judge
from spanwise.evaluators.judges._judgement import Judgement
from spanwise.evaluators.judges._prompts import Prompt
from spanwise.evaluators.judges._rating import YES_NO, rationale_of, scale_of
from spanwise.evaluators.judges._together import together
from spanwise.evaluators.judges._values import texts_of

SCALE = scale_of(("yes", "no"))
WITH_QUESTION: Mapping[str, JSON] = {  # what is said of the question comes first, and decides nothing
    "type": "object",
    "properties": {
        "question_rationale": {"type": "string"},
        "question_rating": {"type": "string", "enum": ["yes", "no"]},
        "rationale": {"type": "string"},
        "rating": {"type": "string", "enum": ["yes", "no"]},
    },
    "required": ["question_rationale", "question_rating", "rationale", "rating"],
    "additionalProperties": False,
}


@dataclass(frozen=True, slots=True)
class Opinion:
    """Whether a text passes, and why; `more` is what else was said, kept in the metadata."""

    passes: bool
    why: str | None
    more: Mapping[str, Any] = field(default_factory=dict)


Question: TypeAlias = tuple[Prompt, Mapping[str, str], Mapping[str, JSON]]  # prompt, values, schema


async def in_five(
    id: str,
    judge: Judge,
    case: Case,
    questions: Sequence[Question],
    read: Callable[[Answer], Opinion],
    bare: Callable[[str], Opinion | None] = lambda text: None,
    *,
    in_parts: bool = False,
) -> list[dict[str, Any]]:
    """The family's values by questions about the answer and, if there are two, the context. `bare` reads what is no
    object, and gives None for what it cannot read either. With `in_parts` a long answer or context is judged in parts,
    and the first that fails decides.

    A reply to either that could not be read makes the case one that could not be judged: neither a pass nor a failure.
    Raises what asking raises, but for `ParseFailure`.
    """

    async def opinion(prompt: Prompt, values: Mapping[str, str], schema: Mapping[str, JSON]) -> Opinion:
        parts = prompt.in_parts(values, "outputs") if in_parts else [values]
        opinions = await together(of_part(prompt, part, schema) for part in parts)
        worst = next((place for place, one in enumerate(opinions) if not one.passes), 0)
        if len(parts) == 1:
            return opinions[0]
        why = f"{len(parts)} parts were judged; part {worst + 1}: {opinions[worst].why}"
        return replace(opinions[worst], why=why)

    async def of_part(prompt: Prompt, values: Mapping[str, str], schema: Mapping[str, JSON]) -> Opinion:
        try:
            return read(await judgement.ask(prompt, values, schema))
        except ParseFailure as failure:
            if (read_bare := bare(failure.text)) is None:
                raise
            return read_bare

    try:
        async with Judgement(id, judge, case) as judgement:
            rows = _rows(id, *await together(opinion(*question) for question in questions))
            rows[0] = judgement.row(**rows[0])
        trace = judgement.trace_id
    except ParseFailure as failure:
        rows, trace = _unparsed(id, failure), failure.judge_trace_id
    return [{**row, "judge_trace_id": trace} for row in rows]


def settled(id: str, passes: bool, why: str) -> list[dict[str, Any]]:
    """The family's values where no judge has to be asked."""
    return verdict(id, passes, comment=why)


def rated(passing: str) -> Callable[[Answer], Opinion]:
    """Reads a rating of yes or no, of which one passes."""

    def read(answer: Answer) -> Opinion:
        label = SCALE.read(answer)[1]
        more = {name: said for name, said in answer.value.items() if name.startswith("question_")}
        return Opinion(label == passing, rationale_of(answer), more)

    return read


@dataclass(frozen=True, slots=True, kw_only=True)
class Boolean(Judged):
    """What H2O's judges have in common. `evaluate_retrieved_context=True` has the context judged as well, with a
    second question.
    """

    PASSES: ClassVar[str] = "no"
    SCHEMA: ClassVar[Mapping[str, JSON]] = YES_NO
    BLANK: ClassVar[bool] = True  # whether an empty answer passes
    IN_PARTS: ClassVar[bool] = False  # whether a long text passes only if each of its parts does

    evaluate_retrieved_context: bool = False

    async def _family(
        self, id: str, case: Case, documents: Sequence[Document] | None, **given: Any
    ) -> list[dict[str, Any]]:
        case = replace(case, documents=None if documents is None else tuple(documents), **given)
        if is_blank(case.outputs):
            return settled(id, self.BLANK, "the answer is empty")
        questions = [self._question(case)]
        if self.evaluate_retrieved_context and (context := context_of(case.documents)):
            questions.append(self._of_context(case, context))
        return await in_five(id, self._judge, case, questions, rated(self.PASSES), in_parts=self.IN_PARTS)

    def _question(self, case: Case, **own: str) -> Question:
        return self._prompt, values_of(case, self._prompt, **own), self.SCHEMA

    def _of_context(self, case: Case, context: str) -> Question:
        """The same question, with the context in the place of the answer."""
        return self._question(case, outputs=context)


def values_of(case: Case, prompt: Prompt, **own: str) -> dict[str, str]:
    """What a prompt asks for; what is asked need not be known. Raises `Skip` where anything else is missing."""
    names = [name for name in prompt.asked if name not in own]
    return {**texts_of(case, names, optional={"inputs": "(not known)"}), **own}


def context_of(documents: Sequence[Document] | None) -> str:
    """The retrieved chunks as one text, "" without any."""
    return "\n\n".join(document.content for document in documents or () if document.content.strip())


def is_blank(outputs: Any) -> bool:
    """Whether there is nothing in the outputs that could be judged."""
    try:
        return not text_of(outputs).strip()
    except ValueError:  # several texts
        return False


def _rows(id: str, answer: Opinion, context: Opinion | None = None) -> list[dict[str, Any]]:
    metadata = {"rationale": answer.why, **answer.more}
    comment = answer.why
    if context is not None:
        metadata |= {"context_rationale": context.why}
        comment = comment if context.passes else f"the context fails: {context.why}; the answer: {answer.why}"
    holds = None if context is None else context.passes
    return verdict(id, answer.passes, holds, comment=comment, metadata=metadata)


def _unparsed(id: str, failure: ParseFailure) -> list[dict[str, Any]]:
    why = str(failure).removeprefix("parse failure: ")
    rows = unparsed(id, why, metadata={"reply": failure.metadata.get("reply", failure.text)})
    rows[0]["metadata"] = dict(failure.metadata)
    return rows
