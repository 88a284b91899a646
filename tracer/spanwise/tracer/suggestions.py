"""Suggestions in error messages: similar names, and equivalents of other tracing SDKs' options."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from spanwise.tracer.attribute_names import KINDS

__all__ = ["did_you_mean", "find_nearest", "make_unknown_option_error"]


def make_unknown_option_error(caller: str, name: str, known: Iterable[str], elsewhere: Mapping[str, str]) -> TypeError:
    """Return the error for an unknown option, with Spanwise's equivalent or the most similar option.

    `elsewhere` maps option names of other products to Spanwise's options: `{"run_type": "kind=…"}`.
    """
    known = list(known)
    ours = elsewhere.get(name)
    hint = f" (here it is {ours})" if ours else did_you_mean(name, known, form=" ({})")
    return TypeError(f"{caller} has no option {name!r}{hint}; it takes {', '.join(known)}")


def did_you_mean(name: str, known: Iterable[str], most: int = 1, form: str = "; {}") -> str:
    """Return `"; did you mean 'answer' or 'answers'?"` with at most `most` similar names, or "" if no name is similar.

    `form` is the format that joins the question to the preceding sentence, such as `" ({})"`.
    """
    close = find_nearest(name, known, most)
    return form.format(f"did you mean {' or '.join(map(repr, close))}?") if close else ""


def find_nearest(name: str, known: Iterable[str], most: int = 1) -> list[str]:
    """Return at most `most` known names that are similar to `name`, the most similar first."""
    from difflib import get_close_matches  # takes 6 ms, needed after a mistake only

    return get_close_matches(name, list(known), n=most)


_KIND_OPTION = "kind=…, such as kind='retriever'"
_REDACTION_OPTION = "configure(redact=…), for all of a process, or capture_inputs=False"
# Option names of other products → Spanwise's options
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
# Kinds of runs in other products → Spanwise's kinds
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
    """Return `"; here it is 'llm'"` for a kind of another product, and "" for any other kind."""
    lower = str(kind).lower()
    ours = lower if lower in KINDS else _KIND_EQUIVALENTS.get(lower)
    return f"; here it is {ours!r}" if ours else ""
