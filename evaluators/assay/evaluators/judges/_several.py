"""Evaluators that ask with several prompts."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, TypeAlias

from assay.collector.records import Case
from assay.evaluators.judges._base import Judged
from assay.evaluators.judges._judge import judge_of
from assay.evaluators.judges._judgement import Judgement
from assay.evaluators.judges._prompts import ARGUMENTS, Prompt
from assay.evaluators.judges._prompts import prompt as load
from assay.evaluators.judges._rag import Asking, Found

Override: TypeAlias = str | Path | Mapping[str, str | Path] | None
OWN = ("statements", "text", "questions")  # placeholders beside the fields of a case
_MAY_LACK = frozenset({"inputs", "questions"})  # of our prompts' placeholders, which an overriding prompt may leave out


@dataclass(frozen=True, slots=True, kw_only=True)
class Several(Judged):
    """`prompt` replaces the evaluator's one prompt by a text or the path of one; of several, by a dict of their ids.
    `max_statements` bounds the sentences and statements of one text that are looked at; a comment says where it did.
    """

    PROMPTS: ClassVar[tuple[str, ...]] = ()

    prompt: Any = None
    max_statements: int = 200
    _prompts: Mapping[str, Prompt] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.max_statements < 1:
            raise ValueError(f"max_statements is 1 or more, not {self.max_statements!r}")
        object.__setattr__(self, "_judge", judge_of(self.judge))
        object.__setattr__(self, "_prompts", loaded(self.PROMPTS, self.prompt))

    @property
    def prompts(self) -> tuple[Prompt, ...]:
        """All that it may ask with."""
        return tuple(self._prompts.values())

    def _asking(self, judgement: Judgement, case: Case) -> Asking:
        return Asking(judgement=judgement, prompts=self._prompts, case=case, most=self.max_statements)

    async def _judged(self, id: str, case: Case, component: Callable[[Asking], Coroutine[Any, Any, Found]]) -> Any:
        async with Judgement(id, self._judge, case) as judgement:
            found = await component(self._asking(judgement, case))
            return judgement.row(found.score, comment=found.comment, metadata=found.metadata)


def counted(prompts: Mapping[str, Prompt], questions: int) -> dict[str, Prompt]:
    """The prompts with the number of questions in its place."""
    if not 1 <= questions <= 20:
        raise ValueError(f"questions is 1 to 20, not {questions!r}")
    prompt = prompts["answer_relevancy"]
    return {**prompts, prompt.id: replace(prompt, text=prompt.text.replace("{questions}", str(questions)))}


def loaded(ids: Sequence[str], override: Override) -> dict[str, Prompt]:
    """The prompts by id. Raises `ValueError` for one that there is not, and one without a place for what is judged."""
    if override is not None and not isinstance(override, Mapping):
        if len(ids) > 1:
            raise ValueError(f"there are {len(ids)} prompts: prompt={{{ids[0]!r}: …}}, of {', '.join(ids)}")
        override = {ids[0]: override}
    given = override or {}
    if unknown := sorted(set(given) - set(ids)):
        raise ValueError(f"there is no prompt {unknown[0]!r}; there are {', '.join(ids)}")
    if odd := [text for text in given.values() if not isinstance(text, str | Path)]:
        raise ValueError(f"a prompt is a text, or the path of one, not {odd[0]!r:.200}")
    return {id: _prompt(id, given.get(id)) for id in ids}


def _prompt(id: str, override: str | Path | None) -> Prompt:
    names = (*ARGUMENTS, *OWN)
    ours = load(id, None, names)
    if override is None:
        return ours
    theirs = load(id, override, tuple(name for name in names if name in (*ARGUMENTS, *ours.asked)))
    if lacking := [f"{{{name}}}" for name in ours.asked if name not in {*theirs.asked, *_MAY_LACK}]:
        raise ValueError(f"the prompt {id!r} has no {' and no '.join(lacking)}: nothing would be judged")
    return theirs
