"""Adapter for autoevals scorers."""

from __future__ import annotations

import re
import sys
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
    # arguments that `Scorer.partial(…)` or a prompt has fixed
    given = {**getattr(type(scorer), "_partial_args", dict)(), **(getattr(scorer, "render_args", None) or {})}
    needed = [name for name in ("output", *_list_needed_arguments(scorer)) if name not in given]
    fields = tuple(field for name, field in _FIELD_BY_ARGUMENT.items() if name in needed)
    others = tuple(field for name, field in _FIELD_BY_ARGUMENT.items() if name not in given and field not in fields)

    unconverted = any(kind.__name__ in _UNCONVERTED for kind in type(scorer).__mro__)

    async def ask(values: CaseValues) -> Any:
        arguments = {}
        for name, field in _FIELD_BY_ARGUMENT.items():
            if (value := values.get(field)) is not None:
                converted = value if unconverted else to_text(value)
                arguments[name] = list_contents(value) if name == "context" else converted
        score = await _call_scorer(scorer, arguments)
        if score.error is not None:
            raise score.error
        metadata = dict(score.metadata or {})
        rationale = metadata.get("rationale")
        return {"score": score.score, "comment": None if rationale is None else str(rationale), "metadata": metadata}

    return AdaptedMetric(
        name=scorer._name(),
        ask=ask,
        needs=fields,
        uses=others,
        source="model" if is_derived_from(scorer, "autoevals", "OpenAIScorer") else "code",
        version=get_library_version("autoevals"),
    )


def _list_needed_arguments(scorer: Any) -> tuple[str, ...]:
    for kind in type(scorer).__mro__:
        if kind.__name__ in _NEEDS:
            return _NEEDS[kind.__name__]
    prompts = [message.get("content") for message in getattr(scorer, "messages", None) or ()]
    named = {name for prompt in prompts if isinstance(prompt, str) for name in _VARIABLE.findall(prompt)}
    return tuple(name for name in ("input", "expected", "context") if name in named)


async def _call_scorer(scorer: Any, arguments: dict[str, Any]) -> Any:
    """Call the scorer on a thread, because most scorers are synchronous. Await it instead if its client is
    asynchronous.
    """
    output = arguments.pop("output", None)
    # the scorer's own client, else the one set by `autoevals.init`
    shared = getattr(sys.modules.get("autoevals.oai"), "_client_var", None)
    client = getattr(scorer, "client", None) or (shared.get(None) if shared is not None else None)
    if type(getattr(client, "openai", client)).__name__.startswith("Async"):
        return await scorer.eval_async(output, **arguments)
    return await run_in_thread(lambda: scorer.eval(output, **arguments))
