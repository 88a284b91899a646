"""Base class and registration of evaluators that call a judge: prompt overrides, judge, values and version."""

from __future__ import annotations

import functools
import hashlib
import inspect
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, TypeVar, dataclass_transform

import orjson

from spanwise.collector.records import Case
from spanwise.evaluators.interface import Metric, compute_fingerprint, register_builtin, to_documents
from spanwise.evaluators.interface.evaluator_spec import VALID
from spanwise.evaluators.judges.llm_client.judge_call import Judge, make_judge
from spanwise.evaluators.judges.prompt_templates import MAX_CHARACTERS, PLACEHOLDERS, Prompt
from spanwise.evaluators.judges.prompt_templates import prompt as load
from spanwise.evaluators.judges.prompt_values import render_values
from spanwise.tracer.suggestions import did_you_mean

C = TypeVar("C", bound=type)

# Parameters that `_changed_parameters` leaves out, because `_settings_identity` of their class contains them or because
# they are only names.
_IDENTITY_PARAMETERS = frozenset(
    "agent assessment_name embed examples global_guidelines higher_is_better judge key logprobs map max_characters "
    "max_statements maximum minimum model prompt questions scale similarity tools weights".split()
)


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeEvaluator:
    """Base class of evaluators that call a judge. Subclasses are frozen dataclasses.

    - `judge` is a `Judge`, a model's name, a dict, a function, or None for the judge of the environment.
    - `prompt` replaces the prompt `PROMPT`. It is a text, the path of a text file, or a dict of these by prompt id. A
      dict is for evaluators with several prompts (`FURTHER`).
    - `max_characters` limits the characters of a case in one question.

    A subclass with its own `__post_init__` must call `JudgeEvaluator.__post_init__(self)` first.
    """

    PROMPT: ClassVar[str] = ""
    FURTHER: ClassVar[tuple[str, ...]] = ()  # ids of additional prompts, which `self._more` holds by id
    NAMES: ClassVar[tuple[str, ...]] = PLACEHOLDERS
    UNCUT: ClassVar[tuple[str, ...]] = ()  # values that must be complete: a case with a longer one is skipped
    OPTIONAL: ClassVar[Mapping[str, str]] = {}  # fields that a case may lack, and the texts that replace them

    judge: Any = None
    prompt: str | Path | Mapping[str, Any] | None = None
    max_characters: int = MAX_CHARACTERS
    _judge: Judge = field(init=False, repr=False, compare=False)
    _prompt: Prompt = field(init=False, repr=False, compare=False)
    _more: Mapping[str, Prompt] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.max_characters < 1:
            raise ValueError(f"max_characters must be an integer >= 1, got {self.max_characters!r}")
        overrides = self._own_prompts()
        object.__setattr__(self, "_judge", make_judge(self.judge))
        object.__setattr__(
            self, "_prompt", load(self.PROMPT, overrides, self.NAMES, bound=self.max_characters, uncut=self.UNCUT)
        )
        more = {id: load(id, overrides, self.NAMES, bound=self.max_characters) for id in self.FURTHER}
        object.__setattr__(self, "_more", more)

    @property
    def prompts(self) -> tuple[Prompt, ...]:
        """Return all prompts that the evaluator may use, for `spanwise evaluators show` and the version."""
        return (self._prompt, *self._more.values())

    @property
    def judges(self) -> tuple[Judge, ...]:
        """Return all judges that the evaluator may call."""
        return (self._judge,)

    @property
    def where(self) -> tuple[str, ...]:
        """Return descriptions of the endpoints or functions that receive the prompts."""
        return tuple(dict.fromkeys(judge.where for judge in self.judges))

    def ready(self) -> None:
        """Raise `NoJudge` if one of the judges cannot be called."""
        for judge in self.judges:
            judge.check()

    @property
    def version(self) -> str:
        """Return 8 hex digits of the hash of prompts, judge and parameters. They are the version of the feedback."""
        prompts = [[prompt.id, prompt.hash] for prompt in self.prompts]
        identity = [prompts, self.max_characters, dict(self._judge.identity), *self._settings_identity()]
        if changed := self._changed_parameters():
            identity.append(changed)
        return hashlib.sha256(orjson.dumps(identity)).hexdigest()[:8]

    def exported(self, parameters: Mapping[str, Any]) -> dict[str, Any]:
        """Return the parameters as they are stored and shown: prompts as texts, the judge without its key."""
        exported = dict(parameters)
        if exported.get("prompt") is not None:
            exported["prompt"] = self._plain_prompt(exported["prompt"])
        if exported.get("judge") is not None:
            exported["judge"] = export_judge(self._judge, exported["judge"])
        return exported

    def _values(
        self, case: Case, own: Mapping[str, str] = MappingProxyType({}), prompt: Prompt | None = None
    ) -> dict[str, str]:
        """Return the text for each placeholder of a prompt: one of `own`, else the field of the case. Raises `Skip` for a
        missing field.
        """
        names = [name for name in (prompt or self._prompt).asked if name not in own]
        return {**render_values(case, names, optional=self.OPTIONAL), **own}

    def _changed_parameters(self) -> dict[str, str]:
        """Return fingerprints of the parameters that differ from their defaults and are not in
        `_IDENTITY_PARAMETERS`.
        """
        values = {
            parameter.name: getattr(self, parameter.name)
            for parameter in fields(self)
            if parameter.init and parameter.name not in _IDENTITY_PARAMETERS
        }
        defaults = {parameter.name: parameter.default for parameter in fields(self)}
        return {name: compute_fingerprint(value) for name, value in values.items() if value != defaults[name]}

    def _settings_identity(self) -> list[Any]:
        """Return the settings of a subclass that determine the version, in addition to prompts, length and judge."""
        return []

    def _own_prompts(self) -> Mapping[str, Any]:
        """Return the prompt overrides by id. Raises `ValueError` for an unknown id."""
        if not isinstance(self.prompt, Mapping):
            return {} if self.prompt is None else {self.PROMPT: self.prompt}
        known = (self.PROMPT, *self.FURTHER)
        for id in self.prompt:
            if id not in known:
                raise ValueError(f"unknown prompt {id!r}; expected one of: {', '.join(known)}{did_you_mean(id, known)}")
        return self.prompt

    def _plain_prompt(self, given: Any) -> Any:
        """Return the parameter `prompt` with texts in place of paths. Subclasses may override it."""
        if isinstance(given, Mapping):
            return {prompt.id: prompt.text for prompt in self.prompts if prompt.id in given}
        return self._prompt.text if isinstance(given, Path) else given


def export_judge(judge: Judge, given: Any) -> Any:
    """Return a judge as plain values without its key. A judge that cannot be serialized (a function, a script) is
    returned unchanged.
    """
    return given if isinstance(given, str) or judge.backend is not None else judge.to_dict()


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(field,))
def register_judge(
    id: str,
    *,
    metrics: tuple[Metric, ...] | None = None,
    standards: tuple[str, ...] = (VALID,),
    canonical: str = "by hand",
    **facts: Any,
) -> Callable[[C], C]:
    """Make a subclass of `JudgeEvaluator` a frozen dataclass and register it as an evaluator.

    `facts` are fields of `EvaluatorSpec`. By default there is one metric, from 0 to 1 with the threshold 0.5. The
    parameters of `__call__` are the fields that a case must have or may have, see `use_arguments`.
    """
    metrics = metrics or (Metric(id, threshold=0.5, primary=True),)
    register = register_builtin(
        id, metrics=metrics, standards=standards, canonical=canonical, judge=True, kind="model", **facts
    )

    def decorate(cls: C) -> C:
        cls.__call__ = use_arguments(cls.__call__)  # type: ignore[method-assign]
        judge_class: Any = dataclass(frozen=True, slots=True, kw_only=True)(cls)
        registered: C = register(judge_class)
        return registered

    return decorate


def use_arguments(call: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    """Decorate `__call__` so that the fields of its case are the arguments, which `map` and `prepare_data` determine.

    `__call__` then needs its parameters only to declare the fields, and works on the case. A declared field without an
    argument has the default of its parameter, so that the judge does not see a value that `map` replaces.
    """
    parameters = dict(list(inspect.signature(call).parameters.items())[1:])  # without self
    defaults = {
        name: parameter.default
        for name, parameter in parameters.items()
        if parameter.default is not inspect.Parameter.empty
    }

    @functools.wraps(call)
    async def wrapper(self: JudgeEvaluator, *positional: Any, **named: Any) -> Any:
        arguments = {**dict(zip(parameters, positional, strict=False)), **named}
        values = {**defaults, **arguments}
        fields = {name: value for name, value in values.items() if name in Case.__dataclass_fields__}
        if fields.get("documents") is not None:
            fields["documents"] = to_documents(fields["documents"])
        return await call(self, **{**arguments, "case": replace(arguments["case"], **fields)})

    return wrapper
