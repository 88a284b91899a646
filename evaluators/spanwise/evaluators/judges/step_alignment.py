"""Step alignment: steps of a procedure in the answer compared with those in the retrieved context."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from spanwise.collector.records import Case, Document
from spanwise.evaluators.builtin.case_text import Splitter, extract_steps, extract_text, split_text
from spanwise.evaluators.interface import Metric, register_builtin, run_in_thread
from spanwise.evaluators.interface.evaluator_spec import SOUNDNESS, TRANSPARENT, VALID
from spanwise.evaluators.judges.judge_evaluator import JudgeEvaluator, Judgement, gather_or_cancel
from spanwise.evaluators.judges.llm_client.chat_completions import make_object_schema
from spanwise.evaluators.judges.rag_metrics import read_text_list
from spanwise.evaluators.models.batched_evaluator import EmbeddingEvaluator, EmbeddingSteps
from spanwise.evaluators.models.embedding_model import Embedder, embedder
from spanwise.evaluators.models.model_resolution import DEFAULT
from spanwise.evaluators.models.similarity import align_steps, alignment_rows

EVALUATOR_ID = "step_alignment"
DEFAULT_SIMILARITY = 0.6  # for all-MiniLM-L6-v2: paraphrases of a step had 0.63 to 0.94, other steps 0.53 at most
_COUNT_RANGE = (0.0, float("inf"))
_EDIT_METRICS = ("edits", "insertions", "deletions", "mismatches")
_STEPS_SCHEMA = make_object_schema({"steps": {"type": "array", "items": {"type": "string"}}})


@dataclass(frozen=True, slots=True, kw_only=True)
class StepsByRules(EmbeddingEvaluator):
    """Step alignment with steps found by rules, or by a function."""

    similarity: float
    splitter: Splitter | None = None
    sentence_level_metrics: bool = True

    def __call__(self, outputs: Any, documents: Sequence[Document]) -> Any:
        return self._one(outputs=outputs, documents=tuple(documents))

    def _steps(self, case: Case) -> EmbeddingSteps:
        splitter = self.splitter or extract_steps
        context = _join_steps(split_text(document.content or "", splitter) for document in case.documents or ())
        answer = split_text(extract_text(case.outputs), splitter)
        vectors = yield [*context, *answer]
        operations = align_steps(context, answer, vectors, self.similarity)
        return alignment_rows(EVALUATOR_ID, context, answer, operations, self.sentence_level_metrics)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepsByJudge(JudgeEvaluator):
    """Step alignment with steps listed by a judge: one question about the answer, and one about each chunk."""

    PROMPT: ClassVar[str] = "steps"
    NAMES: ClassVar[tuple[str, ...]] = ("text",)

    similarity: float
    model: Any = None
    sentence_level_metrics: bool = True
    _embedder: Embedder = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        JudgeEvaluator.__post_init__(self)
        object.__setattr__(self, "_embedder", embedder(self.model))
        if "text" not in self._prompt.asked:
            raise ValueError("the prompt 'steps' has no {text}: nothing would be listed")

    async def __call__(self, case: Case, outputs: Any, documents: Sequence[Document]) -> Any:
        texts = [extract_text(outputs), *(document.content or "" for document in documents)]
        async with Judgement(EVALUATOR_ID, self._judge, case) as judgement:

            async def list_steps(text: str) -> list[str]:
                if not text.strip():
                    return []
                return read_text_list(await judgement.ask(self._prompt, {"text": text}, _STEPS_SCHEMA), "steps")

            answer, *chunks = await gather_or_cancel(map(list_steps, texts))
            context = _join_steps(chunks)
            vectors = await run_in_thread(partial(self._embedder.by_text, [*context, *answer]))
            operations = align_steps(context, answer, vectors, self.similarity)
            rows = alignment_rows(EVALUATOR_ID, context, answer, operations, self.sentence_level_metrics)
            return [judgement.row(**row) for row in rows]

    def _settings_identity(self) -> list[Any]:
        return [dict(self._embedder.identity), self.similarity]


@register_builtin(
    EVALUATOR_ID,
    metrics=(
        *(
            Metric(f"{EVALUATOR_ID}_{name}", _COUNT_RANGE, higher_is_better=False, primary=name == "edits")
            for name in _EDIT_METRICS
        ),
        *(Metric(f"{EVALUATOR_ID}_{name}", _COUNT_RANGE) for name in ("context_steps", "answer_steps")),
    ),
    standards=(TRANSPARENT, SOUNDNESS, VALID),
    source="H2O Eval Studio: step alignment and completeness",
    canonical="Levenshtein (rapidfuzz)",
    llm=False,
    model=True,
    gpu=True,
    kind="model",
    example='get_evaluator("step_alignment", model=lambda texts: [[len(text), 1] for text in texts], similarity=0.999), '
    'outputs="1. Switch it off.\\n2. Wait a minute.", '
    'documents=["1. Switch it off.\\n2. Pull the plug.\\n3. Wait a minute."]',
)
@dataclass(frozen=True, slots=True, kw_only=True)
class StepAlignment:
    """Number of steps to insert, delete or replace in the answer to obtain the steps of the retrieved context.

    The two step sequences are aligned with the fewest edits. Two steps are the same if their cosine is at least
    `similarity`. An insertion is a step of the context that the answer lacks. A deletion is a step of the
    answer that the context lacks. A mismatch is one step in the place of another. Edits is the sum of all
    three. Among alignments with the fewest edits, the one with the most equal steps is used. The numbers of
    steps found on either side indicate how reliable the result is. If neither side has steps, the case is
    skipped.

    Steps are numbered lines, else bullets, else numbers or words of sequence ("First, …") in running text.
    `splitter` replaces these rules by a function from a text to its steps. With `judge=…`, a judge lists the
    steps, with one question about the answer and one about each chunk; `prompt` replaces its prompt. Steps that
    overlapping chunks share count once.

    `similarity` is 0.6 for all-MiniLM-L6-v2, which considers "Attach the wheel" and "Remove the wheel" (0.78)
    the same step. H2O's documentation specifies no number. Another `model` requires an explicit value. The thresholds of
    0.75 in H2O's documentation are below any count but 0, so nothing passes or fails until a threshold is set.
    `sentence_level_metrics=False` omits the alignment, step by step, from the metadata.
    """

    model: Any = None
    similarity: float | None = None
    splitter: Splitter | None = None
    sentence_level_metrics: bool = True
    judge: Any = None
    prompt: str | Path | Mapping[str, Any] | None = None
    chosen: Any = field(init=False, repr=False, compare=False)  # implementation that `__call__` uses

    def __post_init__(self) -> None:
        if self.judge is not None and self.splitter is not None:
            raise ValueError("pass splitter or judge, not both")
        if self.judge is None and self.prompt is not None:
            raise ValueError("prompt= needs judge=…")
        model = embedder(self.model)
        known: dict[str, Any] = {
            "model": model,
            "similarity": self._same(model.name),
            "sentence_level_metrics": self.sentence_level_metrics,
        }
        chosen: StepsByRules | StepsByJudge
        if self.judge is None:
            chosen = StepsByRules(**known, splitter=self.splitter)
        else:
            chosen = StepsByJudge(**known, judge=self.judge, prompt=self.prompt)
        object.__setattr__(self, "chosen", chosen)

    def __call__(self, outputs: Any, documents: Sequence[Document], **case: Case) -> Any:
        return self.chosen(outputs=outputs, documents=documents, **case)

    def _same(self, name: str) -> float:
        if self.similarity is None and name != DEFAULT["embedding"]:
            raise ValueError(
                f"the default similarity, {DEFAULT_SIMILARITY}, is only valid for {DEFAULT['embedding']}; pass the minimum cosine "
                f"of two equal steps for {name!r}, such as similarity={DEFAULT_SIMILARITY}"
            )
        same = DEFAULT_SIMILARITY if self.similarity is None else self.similarity
        if not -1 <= same <= 1:
            raise ValueError(f"similarity must be from -1 to 1, got {same!r}")
        return same


def _join_steps(chunks: Iterable[list[str]]) -> list[str]:
    """Return the steps of all chunks, in order. Steps shared with the end of the preceding chunk occur once."""
    steps: list[str] = []
    known: set[tuple[str, ...]] = set()
    for chunk in chunks:
        if tuple(chunk) not in known:
            common = max(n for n in range(min(len(steps), len(chunk)) + 1) if steps[len(steps) - n :] == chunk[:n])
            steps += chunk[common:]
            known.add(tuple(chunk))
    return steps
