"""What the evaluators of the RAGAS family have in common: several prompts, and texts that may be long."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

from spanwise.collector.records import Case
from spanwise.evaluators.judges._base import Judged
from spanwise.evaluators.judges._judgement import Judgement
from spanwise.evaluators.judges._prompts import ARGUMENTS, Prompt
from spanwise.evaluators.judges._rag import Asking, Found

_MUST: Mapping[str, str] = {  # what a prompt has to name, else nothing would be judged
    "statements": "outputs",
    "faithfulness": "statements",
    "answer_correctness": "statements",
    "context_recall": "statements",
    "context_precision": "documents",
    "context_relevancy": "documents",
    "answer_relevancy": "outputs",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Several(Judged):
    """`max_statements` bounds the sentences and statements of one text that are looked at; a comment says where it did.

    Prompts may name, beside the fields of a case, `{statements}` (numbered, one a line), `{text}` (of the other answer)
    and `{questions}` (how many are wanted).
    """

    NAMES: ClassVar[tuple[str, ...]] = (*ARGUMENTS, "statements", "text", "questions")

    max_statements: int = 200

    def __post_init__(self) -> None:
        if self.FURTHER and isinstance(self.prompt, str | Path):
            ids = ", ".join((self.PROMPT, *self.FURTHER))
            raise ValueError(f"it asks with several prompts, {ids}: prompt={{{self.PROMPT!r}: …}} replaces one")
        Judged.__post_init__(self)
        if self.max_statements < 1:
            raise ValueError(f"max_statements is 1 or more, not {self.max_statements!r}")
        for prompt in self.prompts:
            if (must := _MUST[prompt.id]) not in prompt.asked:
                raise ValueError(f"the prompt {prompt.id!r} has no {{{must}}}: nothing would be judged")

    def _identity(self) -> list[Any]:
        return [*Judged._identity(self), self.max_statements]

    def _asking(self, judgement: Judgement, case: Case) -> Asking:
        prompts = {prompt.id: prompt for prompt in self.prompts}
        return Asking(judgement=judgement, prompts=prompts, case=case, most=self.max_statements)

    async def _judged(self, id: str, case: Case, component: Callable[[Asking], Coroutine[Any, Any, Found]]) -> Any:
        async with Judgement(id, self._judge, case) as judgement:
            found = await component(self._asking(judgement, case))
            return judgement.row(found.score, comment=found.comment, metadata=found.metadata)


def counted(prompt: Prompt, questions: int) -> Prompt:
    """A prompt with the number of questions in its place. Raises `ValueError`."""
    if not 1 <= questions <= 20:
        raise ValueError(f"questions is 1 to 20, not {questions!r}")
    return replace(prompt, text=prompt.text.replace("{questions}", str(questions)))
