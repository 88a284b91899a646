"""What other tracing SDKs call it: LangSmith, Langfuse, MLflow, Phoenix, Opik, Laminar. For errors alone."""

from __future__ import annotations

from collections.abc import Mapping

from spanwise.tracer.attributes import KINDS

_KIND = "kind=…, such as kind='retriever'"
_REDACTION = "configure(redact=…), for all of a process, or capture_inputs=False"
# Names of options → how ours are written
OPTIONS: Mapping[str, str] = {
    "run_type": _KIND,
    "as_type": _KIND,
    "span_type": _KIND,
    "type": _KIND,
    "observation_type": _KIND,
    "openinference_span_kind": _KIND,
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
    "process_inputs": _REDACTION,
    "process_outputs": _REDACTION,
    "postprocess_inputs": _REDACTION,
    "postprocess_output": _REDACTION,
    "project_name": "configure(project=…)",
    "model": "current_run().set_model(…)",
    "session_id": "with session(…)",
    "user_id": "with user(…)",
    "sampling_ratio_override": "configure(sample_rate=…)",
    "tracing_sample_rate": "configure(sample_rate=…)",
    "enabled": "configure(capture='none'), or SPANWISE_CAPTURE=none",
}
# Kinds of runs → ours
_KINDS: Mapping[str, str] = {
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


def kind_hint(kind: object) -> str:
    """`"; here it is 'llm'"` for a kind that others have, "" for any other."""
    lower = str(kind).lower()
    ours = lower if lower in KINDS else _KINDS.get(lower)
    return f"; here it is {ours!r}" if ours else ""
