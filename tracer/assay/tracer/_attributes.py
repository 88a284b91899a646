"""The one table of attribute names that Assay writes; the collector's dialects read the same names.

OpenInference names carry inputs, outputs and documents, OpenTelemetry GenAI names carry model calls, and `assay.*`
names carry what neither convention has.

Sources: OpenInference `spec/semantic_conventions.md`; OpenTelemetry GenAI semantic conventions v1.41.1.
"""

from typing import Final

# OpenInference
KIND: Final = "openinference.span.kind"  # upper case: CHAIN, LLM, RETRIEVER, TOOL, AGENT, EMBEDDING, RERANKER, …
INPUT_VALUE: Final = "input.value"
INPUT_MIME: Final = "input.mime_type"
OUTPUT_VALUE: Final = "output.value"
OUTPUT_MIME: Final = "output.mime_type"
DOCUMENTS: Final = "retrieval.documents"  # .{i}.document.{id,content,score,metadata}, derived by the delivery thread
SESSION: Final = "session.id"
USER: Final = "user.id"
METADATA: Final = "metadata"  # a JSON object as a string
TAGS: Final = "tag.tags"  # list of strings
PROJECT: Final = "openinference.project.name"  # on the resource
ENVIRONMENT: Final = "deployment.environment.name"  # on the resource

# OpenTelemetry GenAI
OPERATION: Final = "gen_ai.operation.name"
REQUEST_MODEL: Final = "gen_ai.request.model"
RESPONSE_MODEL: Final = "gen_ai.response.model"
INPUT_TOKENS: Final = "gen_ai.usage.input_tokens"
OUTPUT_TOKENS: Final = "gen_ai.usage.output_tokens"

# Assay's own
DOCUMENTS_JSON: Final = "assay.documents"  # [{content, id, score, metadata}] as JSON, when documents ≠ outputs
COST: Final = "assay.cost"  # USD, float
LOCAL_ROOT: Final = "assay.local_root"  # span id (16 hex digits) of this process's root of the trace
SPANS_STARTED: Final = "assay.spans.started"  # int, spans started under that local root so far
SPANS_OPEN: Final = "assay.spans.open"  # int, of those, still open
SPANS_DROPPED: Final = "assay.spans.dropped"  # int, of those, dropped by the tracer
EXPERIMENT: Final = "assay.experiment.id"  # on the root span of an experiment's run
EXAMPLE: Final = "assay.example.id"
REPETITION: Final = "assay.repetition"
FOREIGN_TRACE: Final = "assay.foreign.trace_id"  # the trace of a current span that is not ours
FOREIGN_SPAN: Final = "assay.foreign.span_id"

KINDS: Final = ("chain", "llm", "retriever", "tool", "agent", "embedding", "reranker", "guardrail", "evaluator")
