"""Suggestions in error messages: similar names, and equivalents of other tracing SDKs' options."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from spanwise.tracer.attribute_names import KINDS

__all__ = ["did_you_mean", "find_nearest", "make_unknown_option_error"]


def make_unknown_option_error(caller: str, name: str, known: Iterable[str], elsewhere: Mapping[str, str]) -> TypeError:
    """What to raise for an option that there is not, in one line: what it is here, or which one was meant.

    `elsewhere` has, by the names that other products give to options, how ours are written: `{"run_type": "kind=…"}`.
    """
    known = list(known)
    ours = elsewhere.get(name)
    hint = f" (here it is {ours})" if ours else did_you_mean(name, known, form=" ({})")
    return TypeError(f"{caller} has no option {name!r}{hint}; it takes {', '.join(known)}")


def did_you_mean(name: str, known: Iterable[str], most: int = 1, form: str = "; {}") -> str:
    """`"; did you mean 'answer' or 'answers'?"` with the nearest known names, `most` at most; "" if none is near.

    `form` says how it is joined to the sentence before it: `" ({})"`.
    """
    close = find_nearest(name, known, most)
    return form.format(f"did you mean {' or '.join(map(repr, close))}?") if close else ""


def find_nearest(name: str, known: Iterable[str], most: int = 1) -> list[str]:
    """The known names that look like `name`, the nearest first, `most` at most."""
    from difflib import get_close_matches  # 6 ms that only a mistake should cost

    return get_close_matches(name, list(known), n=most)


_KIND_OPTION = "kind=…, such as kind='retriever'"
_REDACTION_OPTION = "configure(redact=…), for all of a process, or capture_inputs=False"
# Names of options → how ours are written
OPTION_EQUIVALENTS: Mapping[str, str] = {
    "run_type": _KIND_OPTION,
    "as_type": _KIND_OPTION,
    "span_type": _KIND_OPTION,
    "type": _KIND_OPTION,
    "observation_type": _KIND_OPTION,
    "openinference_span_kind": _KIND_OPTION,
    "span_name": "name=…",
    "func_name": "name=…",
    "capture_input": "capture_inputs=…",
    "capture_output": "capture_outputs=…",
    "ignore_input": "capture_inputs=False",
    "ignore_output": "capture_outputs=False",
    "input": "inputs=… of span(), set_inputs(…) of its run",
    "output": "set_outputs(…) of its run",
    "outputs": "set_outputs(…) of its run",
    "reduce_fn": "reduce=…",
    "output_reducer": "reduce=…",
    "accumulator": "reduce=…",
    "generations_aggregator": "reduce=…",
    "transform_to_string": "reduce=…",
    "process_inputs": _REDACTION_OPTION,
    "process_outputs": _REDACTION_OPTION,
    "postprocess_inputs": _REDACTION_OPTION,
    "postprocess_output": _REDACTION_OPTION,
    "project_name": "configure(project=…)",
    "model": "current_run().set_model(…)",
    "session_id": "with session(…)",
    "user_id": "with user(…)",
    "sampling_ratio_override": "configure(sample_rate=…)",
    "tracing_sample_rate": "configure(sample_rate=…)",
    "enabled": "configure(capture='none'), or SPANWISE_CAPTURE=none",
}
# Kinds of runs → ours
_KIND_EQUIVALENTS: Mapping[str, str] = {
    "chat_model": "llm",
    "completion": "llm",
    "event": "chain",
    "function": "tool",
    "generation": "llm",
    "general": "chain",
    "model": "llm",
    "parser": "chain",
    "prompt": "chain",
    "search": "retriever",
    "span": "chain",
    "task": "chain",
    "workflow": "chain",
}


def suggest_kind(kind: object) -> str:
    """`"; here it is 'llm'"` for a kind that others have, "" for any other."""
    lower = str(kind).lower()
    ours = lower if lower in KINDS else _KIND_EQUIVALENTS.get(lower)
    return f"; here it is {ours!r}" if ours else ""
