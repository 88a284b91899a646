"""The judge: who is asked, and all that surrounds the asking."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from assay.collector.records import JSON
from assay.evaluators.judges._ask import Answer, Ask, Backend, NoJudge
from assay.evaluators.judges._asking import answered


@dataclass(frozen=True, slots=True, kw_only=True)
class Judge:
    """A model behind an OpenAI-compatible endpoint, or any `backend`.

    `price` is US dollars per million tokens, of input and of output; None: what genai-prices knows. `temperature` and
    `seed` are left out where a model refuses them. `deadline` is in seconds, for one question with all its attempts;
    `concurrency` bounds the questions at once, of all judges of this process with the same model and endpoint together.
    `cache` None keeps answers of endpoints, not of functions and scripts; a path says where; `max_age` is in seconds.
    `max_usd` and `max_calls` bound what this judge may spend: what a call can cost at most is reserved before it.
    """

    model: str = ""
    base_url: str | None = None
    api_key: str | None = field(default=None, repr=False)
    price: tuple[float, float] | None = None
    backend: Backend | None = None
    temperature: float | None = 0.0
    seed: int | None = 0
    max_tokens: int = 2048
    concurrency: int = 16
    deadline: float = 120.0
    cache: bool | str | Path | None = None
    max_age: float = 30 * 86_400.0
    max_usd: float | None = None
    max_calls: int | None = None

    async def ask(self, ask: Ask) -> Answer:
        """What the judge answers. Raises `ParseFailure`, `Unjudged`, `Skip` when the budget is used up."""
        return await answered(self, ask)

    def check(self) -> None:
        """Raises `NoJudge` if nobody can be asked."""
        if self.backend is None and not self.model:
            raise NoJudge('no judge is named: give judge="…" the name of a model, or set ASSAY_JUDGE')

    @property
    def where(self) -> str:
        """To whom text goes, for people."""
        return self.backend.where if self.backend else f"{self.model} at {self.base_url}"

    @property
    def identity(self) -> Mapping[str, JSON]:
        """What makes its judgements others than another judge's: model, endpoint, parameters; never the key."""
        return {"model": self.model, "endpoint": self.base_url}


def judge_of(given: Any = None) -> Judge:
    """The judge that is meant: a `Judge`, a model's name, a dict of what `Judge` takes, a function, or what the
    environment says.
    """
    if isinstance(given, Judge):
        return given
    if isinstance(given, str):
        return Judge(model=given)
    if isinstance(given, Mapping):
        return Judge(**given)
    if isinstance(given, Callable):  # type: ignore[arg-type]
        raise NotImplementedError
    return Judge(model=os.environ.get("ASSAY_JUDGE", ""))
