"""Whether the answer is in the language of the question: told by its letters, or by a judge."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from spanwise.collector.records import Case, Document
from spanwise.evaluators.builtin._verdicts import family
from spanwise.evaluators.builtin.language import ByLetters, Detector
from spanwise.evaluators.judges._booleans import Boolean, is_blank
from spanwise.evaluators.protocol import Skip, builtin
from spanwise.evaluators.protocol.standards import VALID


@dataclass(frozen=True, slots=True, kw_only=True)
class ByJudge(Boolean):
    """A judge compares the languages."""

    PROMPT: ClassVar[str] = "language_mismatch"
    PASSES: ClassVar[str] = "yes"
    said_by: ClassVar[str] = "model"

    async def __call__(self, case: Case, inputs: Any, outputs: Any, documents: Sequence[Document] | None = None) -> Any:
        if is_blank(inputs) or is_blank(outputs):
            raise Skip("the question or the answer is empty: it is in no language")
        return await self._family("language_mismatch", case, documents, inputs=inputs, outputs=outputs)


@builtin(
    "language_mismatch",
    metrics=family("language_mismatch"),
    standards=(VALID,),
    source="H2O Eval Studio: language mismatch",
    canonical="py3langid",
    example='get("language_mismatch"), inputs="Wie wird das Wetter morgen in Berlin?", '
    'outputs="It will be sunny, with a light wind."',
)
@dataclass(frozen=True, slots=True)
class LanguageMismatch:
    """Whether question and answer are in the same language, told by py3langid (97 languages, no model to download).

    The two are looked at together: a short answer is taken for the language of the question where its letters allow
    that. Code, addresses and numbers are left out. Where it cannot be told (fewer than 12 letters, a name alone, two
    languages that are close kin), the case is skipped; a script that one language writes tells it from fewer letters.
    `evaluate_retrieved_context=True` compares the context with the question, too. `detect` puts another detector in
    place: a function from a text to a language code, or None.

    `judge=…` has a judge compare the languages instead, as H2O does, who also knows short texts, kin languages, and
    questions that ask for a translation; `prompt` replaces its prompt. What it says and cannot be read is a parse
    failure.
    """

    evaluate_retrieved_context: bool = False
    detect: Detector | None = None
    judge: Any = None
    prompt: str | Path | Mapping[str, Any] | None = None
    chosen: Any = field(init=False, repr=False, compare=False)  # who tells them: this is what is called

    def __post_init__(self) -> None:
        if self.judge is not None and self.detect is not None:
            raise ValueError("detect and judge are both given: one of them tells the languages")
        if self.judge is None and self.prompt is not None:
            raise ValueError("prompt is a judge's: give judge=…, too")
        context = self.evaluate_retrieved_context
        chosen: ByLetters | ByJudge = ByLetters(context, self.detect)
        if self.judge is not None:
            chosen = ByJudge(judge=self.judge, prompt=self.prompt, evaluate_retrieved_context=context)
        object.__setattr__(self, "chosen", chosen)

    def __call__(self, inputs: Any, outputs: Any, documents: Sequence[Document] | None = None, **case: Case) -> Any:
        return self.chosen(inputs=inputs, outputs=outputs, documents=documents, **case)
