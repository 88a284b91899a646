"""Adapter for autoevals scorers."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from typing import Any

from spanwise.evaluators.interface.adapters.adapted_metric import (
    AdaptedMetric,
    CaseValues,
    get_library_version,
    is_derived_from,
    list_contents,
    to_text,
)
from spanwise.evaluators.interface.sync_bridge import run_in_thread

_FIELD_BY_ARGUMENT = {"output": "outputs", "expected": "reference_outputs", "input": "inputs", "context": "documents"}
_NEEDS = {  # required arguments besides the output, by scorer; only the scorers' code reveals them
    "AnswerCorrectness": ("input", "expected"),
    "AnswerRelevancy": ("input", "context"),
    "AnswerSimilarity": ("expected",),
    "ContextEntityRecall": ("expected", "context"),
    "ContextPrecision": ("input", "expected", "context"),
    "ContextRecall": ("input", "expected", "context"),
    "ContextRelevancy": ("input", "context"),
    "EmbeddingSimilarity": ("expected",),
    "ExactMatch": ("expected",),
    "Faithfulness": ("input", "context"),
    "JSONDiff": ("expected",),
    "Levenshtein": ("expected",),
    "ListContains": ("expected",),
    "NumericDiff": ("expected",),
}
_VARIABLE = re.compile(r"\{\{[{&#^]?\s*(\w+)")
# scorers that accept any value, so that values are not converted to text
_UNCONVERTED = frozenset({"ExactMatch", "JSONDiff", "ListContains", "NumericDiff", "ValidJSON"})


def adapt_autoevals_scorer(scorer: Any) -> AdaptedMetric | None:
    """Return the adapter of a scorer, or None for other objects.

    A score of None becomes a skip, and the rationale becomes the comment.
    """
    if not is_derived_from(scorer, "autoevals", "Scorer"):
        return None
    given = _read_fixed_arguments(scorer)
    needed = [name for name in ("output", *_list_needed_arguments(scorer)) if name not in given]
    fields = tuple(field for name, field in _FIELD_BY_ARGUMENT.items() if name in needed)
    others = tuple(field for name, field in _FIELD_BY_ARGUMENT.items() if name not in given and field not in fields)

    async def ask(values: CaseValues) -> Any:
        return _read_score(await _call_scorer(scorer, _arguments(scorer, values)))

    return AdaptedMetric(
        name=scorer._name(),
        ask=ask,
        needs=fields,
        uses=others,
        source="model" if is_derived_from(scorer, "autoevals", "OpenAIScorer") else "code",
        version=get_library_version("autoevals"),
    )


def _read_fixed_arguments(scorer: Any) -> Mapping[str, Any]:
    """Return the arguments that `Scorer.partial(…)` or a prompt has fixed."""
    partial = getattr(type(scorer), "_partial_args", dict)
    return {**partial(), **(getattr(scorer, "render_args", None) or {})}


def _list_needed_arguments(scorer: Any) -> tuple[str, ...]:
    for kind in type(scorer).__mro__:
        if kind.__name__ in _NEEDS:
            return _NEEDS[kind.__name__]
    prompts = [message.get("content") for message in getattr(scorer, "messages", None) or ()]
    named = {name for prompt in prompts if isinstance(prompt, str) for name in _VARIABLE.findall(prompt)}
    return tuple(name for name in ("input", "expected", "context") if name in named)


def _arguments(scorer: Any, values: CaseValues) -> dict[str, Any]:
    whole = any(kind.__name__ in _UNCONVERTED for kind in type(scorer).__mro__)
    given = {}
    for name, field in _FIELD_BY_ARGUMENT.items():
        if (value := values.get(field)) is not None:
            given[name] = list_contents(value) if name == "context" else value if whole else to_text(value)
    return given


async def _call_scorer(scorer: Any, arguments: dict[str, Any]) -> Any:
    """Call the scorer on a thread, because most scorers are synchronous. Await it instead if its client is
    asynchronous.
    """
    output = arguments.pop("output", None)
    if _get_client_class(scorer).startswith("Async"):
        return await scorer.eval_async(output, **arguments)
    return await run_in_thread(lambda: scorer.eval(output, **arguments))


def _get_client_class(scorer: Any) -> str:
    """Return the class name of the client that the scorer uses: its own client, or the one set by `autoevals.init`."""
    of_all = getattr(sys.modules.get("autoevals.oai"), "_client_var", None)
    client = getattr(scorer, "client", None) or (of_all.get(None) if of_all is not None else None)
    return type(getattr(client, "openai", client)).__name__


def _read_score(score: Any) -> dict[str, Any]:
    if score.error is not None:
        raise score.error
    metadata = dict(score.metadata or {})
    why = metadata.get("rationale")
    return {"score": score.score, "comment": None if why is None else str(why), "metadata": metadata}
