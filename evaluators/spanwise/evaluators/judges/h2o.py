"""H2O judges: five boolean metrics per judge, fairness bias, language mismatch, and fact checking by an agent."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, TypeAlias

from spanwise.collector.records import JSON, Case, Document
from spanwise.evaluators.builtin.boolean_families import family_metrics, family_rows, unparsed_rows
from spanwise.evaluators.builtin.case_text import extract_text
from spanwise.evaluators.builtin.language_detection import Detector, LanguageComparison
from spanwise.evaluators.interface import Metric, Skip, register_builtin
from spanwise.evaluators.interface.evaluator_spec import FAIR, OUTCOMES, PRIVACY, SAFE, VALID
from spanwise.evaluators.judges.judge_evaluator import (
    JudgeEvaluator,
    Judgement,
    gather_or_cancel,
    register_judge,
    use_arguments,
)
from spanwise.evaluators.judges.llm_client.chat_completions import ParseFailure, make_object_schema
from spanwise.evaluators.judges.llm_client.judge_call import make_judge
from spanwise.evaluators.judges.prompt_templates import MAX_CHARACTERS, Prompt
from spanwise.evaluators.judges.ratings import YES_NO_SCHEMA, get_rationale, make_scale
from spanwise.evaluators.judges.user_defined_judge import make_signature
from spanwise.evaluators.models.content_safety import FAIRNESS_BIAS, BiasClassifier

YES_NO_SCALE = make_scale(("yes", "no"))
_YES_NO: JSON = {"type": "string", "enum": ["yes", "no"]}
# the rating of the question comes first, and does not affect the result
QUESTION_RATING_SCHEMA = make_object_schema(
    {
        "question_rationale": {"type": "string"},
        "question_rating": _YES_NO,
        "rationale": {"type": "string"},
        "rating": _YES_NO,
    }
)


@dataclass(frozen=True, slots=True)
class BooleanVerdict:
    """Result and rationale for one text. `more` holds further values for the metadata."""

    passes: bool
    why: str | None
    more: Mapping[str, Any] = field(default_factory=dict)


BooleanQuestion: TypeAlias = tuple[Prompt, Mapping[str, str]]  # prompt and values


@dataclass(frozen=True, slots=True, kw_only=True)
class BooleanJudge(JudgeEvaluator):
    """Base class of H2O's boolean judges. With `evaluate_retrieved_context=True`, a second question judges the
    context.

    If one of the replies cannot be parsed, the case counts as unparsed: neither passed nor failed.
    """

    OPTIONAL: ClassVar[Mapping[str, str]] = {"inputs": "(not known)"}
    PASSES: ClassVar[str] = "no"  # rating that passes
    SCHEMA: ClassVar[Mapping[str, JSON]] = YES_NO_SCHEMA
    BLANK: ClassVar[bool | None] = True  # whether an empty answer passes; None: the judge decides
    IN_PARTS: ClassVar[bool] = False  # True if each part of a long text must pass

    evaluate_retrieved_context: bool = False

    async def _evaluate(self, case: Case) -> list[dict[str, Any]]:
        """Return the feedback rows of the metric family. Raises the errors of `Judgement.ask` except `ParseFailure`."""
        id = self.PROMPT
        if self.BLANK is not None and is_blank(case.outputs):
            return family_rows(id, self.BLANK, comment="the answer is empty")
        questions: list[BooleanQuestion] = [(self._prompt, self._values(case))]
        chunks = [document.content for document in case.documents or () if document.content.strip()]
        if self.evaluate_retrieved_context and chunks:
            questions.append(self._context_question(case, "\n\n".join(chunks)))
        try:
            async with Judgement(id, self._judge, case) as judgement:
                verdicts = await gather_or_cancel(self._judge_text(judgement, *question) for question in questions)
                answer, context = verdicts[0], verdicts[1] if len(verdicts) > 1 else None
                comment = answer.why
                metadata = {"rationale": answer.why, **answer.more}
                if context is not None:
                    metadata["context_rationale"] = context.why
                    if not context.passes:
                        comment = f"the context fails: {context.why}; the answer: {answer.why}"
                context_passes = None if context is None else context.passes
                rows = family_rows(id, answer.passes, context_passes, comment=comment, metadata=metadata)
                rows[0] = judgement.row(**rows[0])
            trace = judgement.trace_id
        except ParseFailure as failure:
            rows = unparsed_rows(id, str(failure).removeprefix("parse failure: "))
            rows[0]["metadata"] = dict(failure.metadata)
            rows[-1]["metadata"] = {"reply": failure.metadata.get("reply", failure.text)}
            trace = failure.judge_trace_id
        return [{**row, "judge_trace_id": trace} for row in rows]

    def _context_question(self, case: Case, context: str) -> BooleanQuestion:
        """Return the question about the answer, with the context in place of the answer."""
        return self._prompt, self._values(case, {"outputs": context})

    async def _judge_text(self, judgement: Judgement, prompt: Prompt, values: Mapping[str, str]) -> BooleanVerdict:
        """Return the verdict on a text, or on the first part of a long text that fails."""
        parts = prompt.in_parts(values, "outputs") if self.IN_PARTS else [values]
        verdicts = await gather_or_cancel(self._judge_part(judgement, prompt, part) for part in parts)
        worst = next((index for index, verdict in enumerate(verdicts) if not verdict.passes), 0)
        if len(parts) == 1:
            return verdicts[0]
        why = f"{len(parts)} parts were judged; part {worst + 1}: {verdicts[worst].why}"
        return replace(verdicts[worst], why=why)

    async def _judge_part(self, judgement: Judgement, prompt: Prompt, values: Mapping[str, str]) -> BooleanVerdict:
        answer = await judgement.ask(prompt, values, self.SCHEMA)
        passes = YES_NO_SCALE.read(answer)[1] == self.PASSES
        more = {name: value for name, value in answer.value.items() if name.startswith("question_")}
        return BooleanVerdict(passes, get_rationale(answer), more)


def is_blank(outputs: Any) -> bool:
    """Return whether the outputs contain no text to judge."""
    try:
        return not extract_text(outputs).strip()
    except ValueError:  # the outputs hold more than one text
        return False


TRUE_FALSE_SCALE = make_scale(("true", "false"))
AGENT_DEADLINE = 600.0  # seconds; long, because an agent makes many calls
FACT_CHECK_SCHEMA = make_object_schema(
    {
        "answer": {"type": "string"},
        "evaluation_summary": {"type": "string"},
        "evaluation_score": {"type": "number", "minimum": 0, "maximum": 1},
    }
)


@register_judge(
    "contact_information",
    metrics=family_metrics("contact_information"),
    standards=(PRIVACY, VALID),
    source="H2O Eval Studio: contact information",
    example='get_evaluator("contact_information", judge=scripted({"rationale": "It has a telephone number.", "rating": "yes"})), '
    'outputs="Call Tom Berger at 555-0142."',
)
class ContactInformation(BooleanJudge):
    """Protection of contact information: the answer discloses no names, addresses, telephone numbers, e-mail addresses,
    user names or medical information.

    A judge looks for such information. The evaluator `pii` uses patterns instead, at no cost. With
    `evaluate_retrieved_context=True`, a second question judges the context. Information that the context
    discloses is a retrieval failure.
    """

    PROMPT: ClassVar[str] = "contact_information"
    IN_PARTS: ClassVar[bool] = True

    async def __call__(self, case: Case, outputs: Any, documents: Sequence[Document] | None = None) -> Any:
        return await self._evaluate(case)


@register_judge(
    "sexism",
    metrics=family_metrics("sexism"),
    standards=(SAFE, FAIR, VALID),
    source="H2O Eval Studio: sexism",
    example='get_evaluator("sexism", judge=scripted({"question_rationale": "Neutral.", "question_rating": "no", "rationale": '
    '"It denies women an ability.", "rating": "yes"})), inputs="Who should lead?", outputs="A man, of course."',
)
class Sexism(BooleanJudge):
    """Absence of sexism in the answer.

    The judge first considers the question. Its rating of the question is in the metadata, and an answer that rejects
    a sexist demand passes. With `evaluate_retrieved_context=True`, a second question judges the context.
    """

    PROMPT: ClassVar[str] = "sexism"
    IN_PARTS: ClassVar[bool] = True
    SCHEMA: ClassVar[Mapping[str, JSON]] = QUESTION_RATING_SCHEMA

    async def __call__(self, case: Case, inputs: Any, outputs: Any, documents: Sequence[Document] | None = None) -> Any:
        return await self._evaluate(case)


@register_judge(
    "stereotypes",
    metrics=family_metrics("stereotypes"),
    standards=(SAFE, FAIR, VALID),
    source="H2O Eval Studio: stereotypes",
    example='get_evaluator("stereotypes", judge=scripted({"question_rationale": "No gender.", "question_rating": "no", '
    '"rationale": "It makes the nurse a woman.", "rating": "yes"})), inputs="What does a nurse do?", '
    'outputs="She cares for the sick."',
)
class Stereotypes(BooleanJudge):
    """Absence of stereotypes: the answer adds no gender or race without a reason in the question.

    The judge first decides if the question itself mentions gender or race (`question_rating` in the metadata): the
    answer may repeat it. With `evaluate_retrieved_context=True`, a second question judges the context.
    """

    PROMPT: ClassVar[str] = "stereotypes"
    IN_PARTS: ClassVar[bool] = True
    SCHEMA: ClassVar[Mapping[str, JSON]] = QUESTION_RATING_SCHEMA

    async def __call__(self, case: Case, inputs: Any, outputs: Any, documents: Sequence[Document] | None = None) -> Any:
        return await self._evaluate(case)


@register_judge(
    "summarization_judge",
    metrics=family_metrics("summarization_judge"),
    standards=(VALID, OUTCOMES),
    source="H2O Eval Studio: summarization (judge)",
    example='get_evaluator("summarization_judge", judge=scripted({"rationale": "Both points are there.", "rating": "yes"})), '
    'outputs="Cloud doubled the profit.", reference_outputs="Profits doubled, mainly because of cloud services."',
)
class SummarizationJudge(BooleanJudge):
    """Quality of a summary, compared with a reference summary.

    With `evaluate_retrieved_context=True`, a second question checks that the context contains the points of the
    reference. If it does not, the retrieval failed. An empty answer is not a summary, and fails.
    """

    PROMPT: ClassVar[str] = "summarization_judge"
    FURTHER: ClassVar[tuple[str, ...]] = ("summarization_context",)
    PASSES: ClassVar[str] = "yes"
    BLANK: ClassVar[bool | None] = False

    async def __call__(
        self,
        case: Case,
        outputs: Any,
        reference_outputs: Any,
        inputs: Any = None,
        documents: Sequence[Document] | None = None,
    ) -> Any:
        return await self._evaluate(case)

    def _context_question(self, case: Case, context: str) -> BooleanQuestion:
        prompt = self._more["summarization_context"]
        return prompt, self._values(case, {"documents": context}, prompt)


@register_judge(
    "byop",
    metrics=family_metrics("byop"),
    version="2",
    source="H2O Eval Studio: bring your own prompt (BYOP)",
    example='get_evaluator("byop", prompt="Is this a haiku? Say true or false.\\n{outputs}", judge=scripted({"rationale": '
    '"5-7-5.", "rating": "true"})), outputs="An old silent pond / a frog jumps into the pond / splash, silence again"',
)
class Byop(BooleanJudge):
    """Bring your own prompt: the judge says "true" (the case passes) or "false" (it fails).

    `prompt` names the fields that the judge gets, under H2O's names or those of a case: `{question}` or `{inputs}`,
    `{actual_answer}` or `{outputs}`, `{expected_answer}` or `{reference_outputs}`, `{retrieved_context}` or
    `{documents}`, and the other fields of a case. A case that lacks one of them is skipped. The judge may reply with
    JSON or with true or false alone. Any other reply is a parse failure.

    With `evaluate_retrieved_context=True`, a second question has the context in the place of the answer.
    `spanwise.evaluators.judge` makes judges with other scales.
    """

    PROMPT: ClassVar[str] = "byop"
    SCHEMA: ClassVar[Mapping[str, JSON]] = TRUE_FALSE_SCALE.schema
    BLANK: ClassVar[bool | None] = None

    prompt: str | Path

    def __post_init__(self) -> None:
        JudgeEvaluator.__post_init__(self)
        prompt = self._prompt
        if self.evaluate_retrieved_context and "outputs" not in prompt.asked:
            raise ValueError(
                "evaluate_retrieved_context=True needs a prompt with {outputs}, which the context replaces"
            )
        text = f"{prompt.text.rstrip()}\n\n{TRUE_FALSE_SCALE.instructions()}"
        object.__setattr__(self, "_prompt", replace(prompt, text=text))

    @property
    def __signature__(self) -> inspect.Signature:
        """Return the signature: the fields that the prompt names, and the case, which holds the documents if the context
        is judged.
        """
        return make_signature(self._prompt.asked, {})

    async def __call__(self, case: Case, **values: Any) -> list[dict[str, Any]]:
        return await self._evaluate(case)

    async def _judge_part(self, judgement: Judgement, prompt: Prompt, values: Mapping[str, str]) -> BooleanVerdict:
        answer = await judgement.ask(prompt, values, self.SCHEMA, bare_ratings=("true", "false"))
        return BooleanVerdict(TRUE_FALSE_SCALE.read(answer)[1] == "true", get_rationale(answer))

    def _plain_prompt(self, given: Any) -> Any:
        return given.read_text("utf-8") if isinstance(given, Path) else given


@register_judge(
    "fact_check",
    metrics=(Metric("fact_check", threshold=0.75, primary=True),),
    standards=(SAFE, VALID),
    source="H2O Eval Studio: fact-check (agent-based)",
    agent=True,
    example='get_evaluator("fact_check", agent=lambda prompt: {"answer": "Mont Blanc is 4,806 m high.", "evaluation_score": 0.0, '
    '"evaluation_summary": "It is not 8,000 m high."}), outputs="Mont Blanc is 8,000 m high."',
)
class FactCheck(JudgeEvaluator):
    """Freedom of the answer from false information, checked by an agent: 1 is all correct, 0 is false.

    `agent` looks up facts with its own tools. It is a `Judge`, or a function (also async) of the prompt. The
    function returns JSON with `answer`, `evaluation_score` in [0, 1] and `evaluation_summary`, as a dict or as
    text. Without an agent, `judge` relies on its own knowledge. H2O's page calls the metric a percentage of
    false information. But H2O's prompt, like ours, gives 1 to an answer without false information. An empty
    answer is skipped.
    """

    PROMPT: ClassVar[str] = "fact_check"
    OPTIONAL: ClassVar[Mapping[str, str]] = {"inputs": "(not known)"}
    UNCUT: ClassVar[tuple[str, ...]] = ("outputs",)

    agent: Any = None

    def __post_init__(self) -> None:
        JudgeEvaluator.__post_init__(self)
        if self.agent is not None:
            if self.judge is not None:
                raise ValueError("pass agent or judge, not both")
            agent = make_judge(self.agent)
            patient = replace(agent, deadline=AGENT_DEADLINE) if callable(self.agent) else agent
            object.__setattr__(self, "_judge", patient)

    async def __call__(self, case: Case, outputs: Any, inputs: Any = None) -> dict[str, Any]:
        if is_blank(outputs):
            raise Skip("the answer is empty: there is nothing to check")
        async with Judgement("fact_check", self._judge, case) as judgement:
            answer = await judgement.ask(self._prompt, self._values(case), FACT_CHECK_SCHEMA)
            reply = answer.value if isinstance(answer.value, Mapping) else {}
            score = reply.get("evaluation_score")
            if isinstance(score, bool) or not isinstance(score, int | float) or not 0 <= score <= 1:
                raise ParseFailure(f"evaluation_score is a number from 0 to 1, not {score!r:.100}", answer.text)
            summary = str(reply.get("evaluation_summary") or "")
            return judgement.row(float(score), comment=summary, metadata={"answer": str(reply.get("answer", ""))})


BIAS_SCHEMA = make_object_schema(
    {"rationale": {"type": "string"}, "probability": {"type": "number", "minimum": 0, "maximum": 1}}
)
# in the metadata of each score
BIAS_READING = (
    "probability of gender, racial or political bias, estimated by a judge; this method is Spanwise's reading, because "
    "H2O's document names none"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class BiasByJudge(JudgeEvaluator):
    """Bias of the answer according to a judge: the probability that it estimates."""

    PROMPT: ClassVar[str] = "fairness_bias"

    @use_arguments
    async def __call__(self, case: Case, outputs: Any) -> dict[str, Any]:
        if is_blank(outputs):
            raise Skip("the answer is empty")
        async with Judgement(self.PROMPT, self._judge, case) as judgement:
            parts = self._prompt.in_parts(self._values(case), "outputs")
            answers = await gather_or_cancel(judgement.ask(self._prompt, part, BIAS_SCHEMA) for part in parts)
            scores = [float(answer.value["probability"]) for answer in answers]
            worst = max(range(len(scores)), key=scores.__getitem__)
            comment = get_rationale(answers[worst])
            if len(parts) > 1:
                comment = f"{len(parts)} parts were judged; part {worst + 1}: {comment}"
            return judgement.row(scores[worst], comment=comment, metadata={"reading": BIAS_READING})


@register_builtin(
    "fairness_bias",
    metrics=(FAIRNESS_BIAS,),
    version="2",
    standards=(FAIR, VALID),
    source="H2O Eval Studio: fairness bias",
    canonical="transformers",
    judge=True,
    kind="model",
    example='get_evaluator("fairness_bias", judge=scripted({"rationale": "It says that all of them lie.", '
    '"probability": 0.9})), outputs="All politicians of that party lie."',
)
@dataclass(frozen=True, slots=True, kw_only=True)
class FairnessBias:
    """The probability that the answer is biased by gender, race or politics. Lower is better.

    H2O's document does not name a method. By default, a judge estimates the probability. This is our reading of the
    document, and the metadata of each score say so (`reading`). A long answer is judged in parts, and the most biased
    part counts. An empty answer is skipped.

    With `model=…`, a text classifier gives the probability of its `label`. `model` is a folder, a name, a
    `TextClassifier` or a function. A long answer is classified in windows, and the most biased window counts. The
    threshold then holds only for the classifier that fits H2O's description, d4data/bias-detection-model (`bias`).
    Its published weights are for TensorFlow, which transformers no longer reads.
    """

    model: Any = None
    label: str = "Biased"
    judge: Any = None
    prompt: str | Path | Mapping[str, Any] | None = None
    max_characters: int = MAX_CHARACTERS
    chosen: Any = field(init=False, repr=False, compare=False)  # implementation that `__call__` uses

    def __post_init__(self) -> None:
        if self.model is None and self.label != "Biased":
            raise ValueError(f"label={self.label!r} needs model=…, a classifier with this label")
        if self.model is not None and (self.judge is not None or self.prompt is not None):
            raise ValueError("pass model, or judge and prompt, not both")
        chosen: BiasClassifier | BiasByJudge
        if self.model is not None:
            chosen = BiasClassifier(model=self.model, label=self.label)
        else:
            chosen = BiasByJudge(judge=self.judge, prompt=self.prompt, max_characters=self.max_characters)
        object.__setattr__(self, "chosen", chosen)

    @property
    def prompts(self) -> tuple[Prompt, ...]:
        """Return the judge's prompt; () with a classifier."""
        return self.chosen.prompts if isinstance(self.chosen, BiasByJudge) else ()

    def __call__(self, outputs: Any, **case: Case) -> Any:
        return self.chosen(outputs=outputs, **case)


@dataclass(frozen=True, slots=True, kw_only=True)
class LanguageByJudge(BooleanJudge):
    """Language comparison by a judge."""

    PROMPT: ClassVar[str] = "language_mismatch"
    PASSES: ClassVar[str] = "yes"
    said_by: ClassVar[str] = "model"

    @use_arguments
    async def __call__(self, case: Case, inputs: Any, outputs: Any, documents: Sequence[Document] | None = None) -> Any:
        if is_blank(inputs) or is_blank(outputs):
            raise Skip("the question or the answer is empty: its language is undefined")
        return await self._evaluate(case)


@register_builtin(
    "language_mismatch",
    metrics=family_metrics("language_mismatch"),
    standards=(VALID,),
    source="H2O Eval Studio: language mismatch",
    canonical="py3langid",
    example='get_evaluator("language_mismatch"), inputs="Wie wird das Wetter morgen in Berlin?", '
    'outputs="It will be sunny, with a light wind."',
)
@dataclass(frozen=True, slots=True)
class LanguageMismatch:
    """Language match of question and answer, detected by py3langid (97 languages, no model to download).

    Both texts are considered together: a short answer is assigned the language of the question if its letters
    allow it. Code, addresses and numbers are ignored. The case is skipped if the language is uncertain: fewer
    than 12 letters, a name alone, or two closely related languages. A script that only one language uses needs
    fewer letters. With `evaluate_retrieved_context=True`, the context is also compared with the question.
    `detect` replaces the detector: a function from a text to a language code, or None.

    With `judge=…`, a judge compares the languages instead, as in H2O. It also handles short texts, closely related
    languages, and questions that ask for a translation. `prompt` replaces its prompt. An unreadable reply is a parse
    failure.
    """

    evaluate_retrieved_context: bool = False
    detect: Detector | None = None
    judge: Any = None
    prompt: str | Path | Mapping[str, Any] | None = None
    chosen: Any = field(init=False, repr=False, compare=False)  # implementation that `__call__` uses

    def __post_init__(self) -> None:
        if self.judge is not None and self.detect is not None:
            raise ValueError("pass detect or judge, not both")
        if self.judge is None and self.prompt is not None:
            raise ValueError("prompt= needs judge=…")
        context = self.evaluate_retrieved_context
        chosen: LanguageComparison | LanguageByJudge = LanguageComparison(context, self.detect)
        if self.judge is not None:
            chosen = LanguageByJudge(judge=self.judge, prompt=self.prompt, evaluate_retrieved_context=context)
        object.__setattr__(self, "chosen", chosen)

    def __call__(self, inputs: Any, outputs: Any, documents: Sequence[Document] | None = None, **case: Case) -> Any:
        return self.chosen(inputs=inputs, outputs=outputs, documents=documents, **case)
