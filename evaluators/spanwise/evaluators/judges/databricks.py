"""Databricks judges: correctness, groundedness, relevance, guidelines, safety, context sufficiency, chunks.

The judge gets the request if there is one. Only `relevance_to_query` and `chunk_relevance` require it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, Literal

from spanwise.collector.records import Case
from spanwise.evaluators.interface import DATABRICKS_COLUMNS, Metric, Skip, explain_missing_fields, get_case_field
from spanwise.evaluators.interface.evaluator_spec import OUTCOMES, SAFE, SOUNDNESS, TRANSPARENT, VALID
from spanwise.evaluators.judges.judge_evaluator import JudgeEvaluator, register_judge
from spanwise.evaluators.judges.prompt_templates import PLACEHOLDERS, Prompt, render_value, render_values
from spanwise.evaluators.judges.ratings import (
    CHUNK_PLACEHOLDERS,
    ask_yes_no,
    ask_yes_no_in_parts,
    catch_outcome,
    check_chunk_prompt,
    check_chunks,
    rate_chunks,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class DatabricksJudge(JudgeEvaluator):
    """Base class of judges with one yes/no question, in which the request may be missing."""

    OPTIONAL: ClassVar[Mapping[str, str]] = {"inputs": "(not given)"}
    IN_PARTS: ClassVar[bool] = False  # True if each part of a long answer must pass

    async def _ask(self, key: str, case: Case, own: Mapping[str, str] = MappingProxyType({})) -> dict[str, Any]:
        """Ask the question and return the feedback. `own` are the texts of placeholders that the case does not fill."""
        ask = ask_yes_no_in_parts if self.IN_PARTS else ask_yes_no
        return await ask(key, self._judge, self._prompt, case, self._values(case, own))

    async def _ask_per_chunk(self, key: str, case: Case) -> dict[str, Any]:
        """Ask the question about each chunk, and return the share of yes."""
        values = self._values(case, dict.fromkeys(CHUNK_PLACEHOLDERS, ""))
        if case.documents is None:
            raise Skip(explain_missing_fields(["documents"], case))
        return await rate_chunks(key, self._judge, self._prompt, case, case.documents, values)

    def _values(
        self, case: Case, own: Mapping[str, str] = MappingProxyType({}), prompt: Prompt | None = None
    ) -> dict[str, str]:
        names = (prompt or self._prompt).asked
        fields = {name: DATABRICKS_COLUMNS.get(name, name) for name in names if name not in own}
        texts = render_values(case, dict.fromkeys(fields.values()), optional=self.OPTIONAL)
        if "guidelines" in texts:
            texts["guidelines"] = require_guidelines(case, get_case_field(case, "guidelines"))
        return {**{name: texts[field] for name, field in fields.items()}, **own}


def require_guidelines(case: Case, guidelines: Any) -> str:
    """Return the guidelines as text for a judge. Raises `Skip` if there are none."""
    if (text := number_guidelines(guidelines)) is None:
        raise Skip(explain_missing_fields(["guidelines"], case))
    return text


@register_judge(
    "correctness",
    standards=(VALID, OUTCOMES),
    source="Databricks: correctness",
    example='get_evaluator("correctness", judge=scripted({"rationale": "It says 4.", "rating": "yes"})), '
    'inputs="What is 2 + 2?", outputs="It is 4, as always.", reference_outputs="4"',
)
class Correctness(DatabricksJudge):
    """Correctness: the answer supports the facts of the expected answer.

    The reference (`reference_outputs`) should hold the facts that an answer must contain, and no others. Additional
    statements of the answer are allowed, and so are small omissions and inaccuracies that keep the meaning. The judge
    gets the request if there is one.
    """

    PROMPT: ClassVar[str] = "correctness"

    async def __call__(self, case: Case, outputs: Any, reference_outputs: Any, inputs: Any = None) -> dict[str, Any]:
        return await self._ask(self.PROMPT, case)


@register_judge(
    "relevance_to_query",
    source="Databricks: relevance_to_query",
    example='get_evaluator("relevance_to_query", judge=scripted({"rationale": "It is about tea.", "rating": "no"})), '
    'inputs="How is coffee made?", outputs="Tea comes from Asia."',
)
class RelevanceToQuery(DatabricksJudge):
    """Relevance of the answer to the request, regardless of its correctness."""

    PROMPT: ClassVar[str] = "relevance_to_query"

    async def __call__(self, case: Case, inputs: Any, outputs: Any) -> dict[str, Any]:
        return await self._ask(self.PROMPT, case)


@register_judge(
    "groundedness_judge",
    standards=(VALID, TRANSPARENT),
    source="Databricks: groundedness",
    llm=False,
    example='get_evaluator("groundedness_judge", judge=scripted({"rationale": "1912 is not there.", "rating": "no"})), '
    'inputs="When was it built?", outputs="It was built in 1912.", documents=["The tower is 40 m high."]',
)
class GroundednessJudge(DatabricksJudge):
    """Groundedness: the retrieved context supports all or almost all of the answer, so there are no hallucinations.

    H2O's `groundedness` compares embeddings; this evaluator calls a judge. A case whose retrieval found nothing is
    also judged: an answer without claims needs no support. The case is skipped if the documents have no text, or if
    they are longer than the limit of a question. A long answer is judged in parts, all of which must be supported.
    """

    PROMPT: ClassVar[str] = "groundedness_judge"
    IN_PARTS: ClassVar[bool] = True
    UNCUT: ClassVar[tuple[str, ...]] = ("documents",)

    async def __call__(self, case: Case, outputs: Any, documents: Any, inputs: Any = None) -> dict[str, Any]:
        if documents:
            check_chunks(documents)
        return await self._ask(self.PROMPT, case)


@dataclass(frozen=True, slots=True, kw_only=True)
class _GuidelineJudge(DatabricksJudge):
    """Base class of guideline judges. `global_guidelines` apply to all cases."""

    PROMPT: ClassVar[str] = "guideline_adherence"
    UNCUT: ClassVar[tuple[str, ...]] = ("outputs", "guidelines")

    global_guidelines: str | Sequence[str] | None = None

    async def _adheres(self, key: str, case: Case, guidelines: Any) -> dict[str, Any]:
        """Ask whether the answer adheres to the guidelines, and return the feedback under `key`. Raises `Skip` if there
        are no guidelines.
        """
        return {"key": key, **await self._ask(key, case, {"guidelines": require_guidelines(case, guidelines)})}

    def _settings_identity(self) -> list[Any]:
        return [number_guidelines(self.global_guidelines)]


@register_judge(
    "guideline_adherence",
    source="Databricks: guideline_adherence",
    example='get_evaluator("guideline_adherence", judge=scripted({"rationale": "It is English, but long.", "rating": "no"})), '
    'outputs="Well, as it were, …", guidelines=["Answer in English", "Be brief"]',
)
class GuidelineAdherence(_GuidelineJudge):
    """Adherence of the answer to all guidelines of its case: a list, one text, or a dict of named guidelines.

    With `global_guidelines` there is a second key, `global_guideline_adherence`, for guidelines that apply to all
    cases. It also exists for a case without guidelines. An error under one key does not affect the other key. A case
    is skipped if its answer is longer than the limit of a question.
    """

    @property
    def metrics(self) -> tuple[Metric, ...]:
        """Return the metrics: two if there are global guidelines, else one."""
        per_case = Metric("guideline_adherence", threshold=0.5, primary=True)
        if number_guidelines(self.global_guidelines) is None:
            return (per_case,)
        return per_case, Metric("global_guideline_adherence", threshold=0.5)

    async def __call__(self, case: Case, outputs: Any, guidelines: Any = None, inputs: Any = None) -> Any:
        guidelines_by_key = dict(
            zip([metric.key for metric in self.metrics], (guidelines, self.global_guidelines), strict=False)
        )
        if len(guidelines_by_key) == 1:
            return await self._adheres("guideline_adherence", case, guidelines)
        return await asyncio.gather(
            *(catch_outcome(key, self._adheres(key, case, text)) for key, text in guidelines_by_key.items())
        )


@register_judge(
    "global_guideline_adherence",
    source="Databricks: global_guideline_adherence",
    example='get_evaluator("global_guideline_adherence", global_guidelines="Be kind", '
    'judge=scripted({"rationale": "It is rude.", "rating": "no"})), outputs="Go away."',
)
class GlobalGuidelineAdherence(_GuidelineJudge):
    """Adherence of the answer to all `global_guidelines`, which apply to all cases in addition to those of a case.

    `get_evaluator("guideline_adherence", global_guidelines=[…])` gives this key in addition to its own.
    """

    global_guidelines: str | Sequence[str]

    def __post_init__(self) -> None:
        JudgeEvaluator.__post_init__(self)
        if number_guidelines(self.global_guidelines) is None:
            raise ValueError(f"global_guidelines must be a text or a list of texts, got {self.global_guidelines!r}")

    async def __call__(self, case: Case, outputs: Any, inputs: Any = None) -> dict[str, Any]:
        return await self._adheres("global_guideline_adherence", case, self.global_guidelines)


@register_judge(
    "safety",
    standards=(SAFE, VALID),
    source="Databricks: safety",
    example='get_evaluator("safety", judge=scripted({"rationale": "A kind word.", "rating": "yes"})), outputs="Well done!"',
)
class Safety(DatabricksJudge):
    """Safety: the answer is free of harmful and toxic content. Yes, and True, means harmless.

    An answer that is longer than the limit of a question (`max_characters`) is judged in parts, all of which must be
    harmless.
    """

    PROMPT: ClassVar[str] = "safety"
    IN_PARTS: ClassVar[bool] = True

    async def __call__(self, case: Case, outputs: Any, inputs: Any = None) -> dict[str, Any]:
        return await self._ask(self.PROMPT, case)


@register_judge(
    "context_sufficiency",
    standards=(VALID, TRANSPARENT, SOUNDNESS, OUTCOMES),
    source="Databricks: context_sufficiency",
    llm=False,
    example='get_evaluator("context_sufficiency", judge=scripted({"rationale": "The year is missing.", "rating": "no"})), '
    'inputs="When was it built?", reference_outputs="In 1912.", documents=["The tower is 40 m high."]',
)
class ContextSufficiency(DatabricksJudge):
    """Sufficiency of the retrieved documents for the expected answer. The rationale names the missing facts.

    If a retrieval found nothing, the result is no, without a call of the judge.
    """

    PROMPT: ClassVar[str] = "context_sufficiency"

    async def __call__(self, case: Case, documents: Any, reference_outputs: Any, inputs: Any = None) -> dict[str, Any]:
        if not documents:
            return {"score": False, "comment": "nothing was retrieved: all of the expected answer is missing"}
        check_chunks(documents)
        return await self._ask(self.PROMPT, case)


@register_judge(
    "chunk_relevance",
    standards=(VALID, TRANSPARENT),
    source="Databricks: chunk_relevance (chunk-relevance-precision)",
    llm=False,
    example='get_evaluator("chunk_relevance", judge=scripted({"rationale": "It says when.", "rating": "yes"}, '
    '{"rationale": "It is about food.", "rating": "no"})), '
    'inputs="When was it built?", documents=["Built in 1912.", "The kitchen opens at noon."]',
)
class ChunkRelevance(DatabricksJudge):
    """Share of the retrieved chunks that are relevant to the request (3 of 4 are 0.75), with one question per chunk.

    The metadata `ratings`, `rationales` and `error_messages` have one entry per chunk. A chunk whose judgement failed
    is excluded from the denominator. If all fail, the result is an error. A case without chunks is skipped.
    """

    PROMPT: ClassVar[str] = "chunk_relevance"

    def __post_init__(self) -> None:
        JudgeEvaluator.__post_init__(self)
        check_chunk_prompt(self._prompt)

    async def __call__(self, case: Case, inputs: Any, documents: Any) -> dict[str, Any]:
        return await self._ask_per_chunk(self.PROMPT, case)


@register_judge(
    "custom_judge",
    source="Databricks: custom judges (ANSWER, RETRIEVAL)",
    example='get_evaluator("custom_judge", assessment_name="polite", prompt="Is this polite? {response}", '
    'judge=scripted({"rationale": "It thanks.", "rating": "yes"})), outputs="Thank you!"',
)
class CustomJudge(DatabricksJudge):
    """User-defined judge that says yes or no, under the key `assessment_name`.

    "ANSWER" judges the answer. "RETRIEVAL" asks the same question about every retrieved chunk, and returns the
    share of yes as `chunk_relevance` does. The prompt names fields of a case, also under Databricks' names:
    `{request}`, `{response}`, `{expected_response}`, `{retrieved_context}`, `{expected_retrieved_context}`. For
    "RETRIEVAL", `{retrieved_context}` is one chunk.
    """

    PROMPT: ClassVar[str] = "custom_judge"
    NAMES: ClassVar[tuple[str, ...]] = (*PLACEHOLDERS, *DATABRICKS_COLUMNS)

    assessment_name: str
    prompt: str | Path
    assessment_type: Literal["ANSWER", "RETRIEVAL"] = "ANSWER"

    def __post_init__(self) -> None:
        JudgeEvaluator.__post_init__(self)
        if not self.assessment_name.strip():
            raise ValueError("assessment_name must not be empty")
        if self.assessment_type == "RETRIEVAL":
            check_chunk_prompt(self._prompt)

    @property
    def named(self) -> str:
        """Return the feedback key: `assessment_name`."""
        return self.assessment_name

    @property
    def metrics(self) -> tuple[Metric, ...]:
        """Return the single metric, named after the assessment."""
        return (Metric(self.assessment_name, threshold=0.5, primary=True),)

    async def __call__(self, case: Case) -> dict[str, Any]:
        if self.assessment_type == "ANSWER":
            return await self._ask(self.named, case)
        return await self._ask_per_chunk(self.named, case)


def number_guidelines(guidelines: Any) -> str | None:
    """Format guidelines as text: a text unchanged, a list or a dict as numbered lines. In a dict, the name precedes each
    guideline.

    Returns None if there are no guidelines.
    """
    if isinstance(guidelines, str):
        return guidelines.strip() or None
    return "\n".join(f"{number}. {text}" for number, text in enumerate(_iterate_guidelines(guidelines), 1)) or None


def _iterate_guidelines(guidelines: Any, name: str = "") -> Iterator[str]:
    if isinstance(guidelines, Mapping):
        for inner, members in guidelines.items():
            yield from _iterate_guidelines(members, f"{inner}: ")
    elif isinstance(guidelines, list | tuple):
        for member in guidelines:
            yield from _iterate_guidelines(member, name)
    elif guidelines is not None and (text := render_value(guidelines).strip()):
        yield f"{name}{text}"
