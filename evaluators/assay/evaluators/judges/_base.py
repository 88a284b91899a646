"""What all evaluators with a judge have in common: the judge, the prompt in its place, and the version of both."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import orjson

from assay.evaluators.judges._judge import Judge, judge_of
from assay.evaluators.judges._prompts import ARGUMENTS, Prompt
from assay.evaluators.judges._prompts import prompt as load


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """Base of the frozen dataclasses: `judge` is a `Judge`, a model's name, a dict, a function, None for the
    environment's; `prompt` takes the place of the prompt `PROMPT`: a text, or the path of one.
    """

    PROMPT: ClassVar[str] = ""
    NAMES: ClassVar[tuple[str, ...]] = ARGUMENTS

    judge: Any = None
    prompt: str | Path | None = None
    _judge: Judge = field(init=False, repr=False, compare=False)
    _prompt: Prompt = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_judge", judge_of(self.judge))
        object.__setattr__(self, "_prompt", load(self.PROMPT, self.prompt, self.NAMES))

    @property
    def prompts(self) -> tuple[Prompt, ...]:
        """All prompts that it may ask with, for `assay evaluators show` and the version."""
        return (self._prompt,)

    @property
    def version(self) -> str:
        """8 hex digits over prompts and judge: what either changes, changes the version of the feedback."""
        said = [[prompt.id, prompt.hash] for prompt in self.prompts], dict(self._judge.identity)
        return hashlib.sha256(orjson.dumps(said)).hexdigest()[:8]
