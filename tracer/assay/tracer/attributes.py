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
INSTANCE: Final = "service.instance.id"  # on the resource: a random UUID per process, a forked child's is its own

# OpenTelemetry GenAI
OPERATION: Final = "gen_ai.operation.name"
REQUEST_MODEL: Final = "gen_ai.request.model"
RESPONSE_MODEL: Final = "gen_ai.response.model"
RESPONSE_ID: Final = "gen_ai.response.id"
INPUT_TOKENS: Final = "gen_ai.usage.input_tokens"
OUTPUT_TOKENS: Final = "gen_ai.usage.output_tokens"

# Assay's own
DOCUMENTS_JSON: Final = "assay.documents"  # [{content, id, score, metadata}] as JSON, when documents ≠ outputs
COST: Final = "assay.cost"  # USD, float
UNPRICED: Final = "assay.cost.unknown"  # bool: no known price applies to this call
LOCAL_ROOT: Final = "assay.local_root"  # span id (16 hex digits) of this process's root of the trace
SPANS_STARTED: Final = "assay.spans.started"  # int, spans started under that local root so far
SPANS_OPEN: Final = "assay.spans.open"  # int, of those, still open
SPANS_DROPPED: Final = "assay.spans.dropped"  # int, of those, dropped by the tracer
CALLS_SENT: Final = "assay.calls.sent"  # int, calls under that local root to destinations that take part in tracing
EXPERIMENT: Final = "assay.experiment.id"  # on the root span of an experiment's run
EXAMPLE: Final = "assay.example.id"
REPETITION: Final = "assay.repetition"
ATTEMPT: Final = "assay.attempt"  # int, from 1: on the root of a run that was tried again, and on each that had failed
FOREIGN_TRACE: Final = "assay.foreign.trace_id"  # the trace of a current span that is not ours
FOREIGN_SPAN: Final = "assay.foreign.span_id"
USAGE_ESTIMATED: Final = "assay.usage.estimated"  # true: token counts were estimated, as the server reported none
CANCELLED: Final = "assay.cancelled"  # true: the run was cancelled, by its caller or by the end of its event loop
STREAM_CLOSED: Final = "assay.stream.closed"  # true: the consumer of a generator stopped before its end

PARTIAL: Final = "assay.partial"  # true, on a local root: not sampled, kept for an error in it; never weighted up
MONITOR: Final = "assay.monitor"  # true, on the resource of a monitor or on a span below it: no rule takes such a trace

# A run that has been open for more than a second: an OTLP log event with its ids and start, to Assay's collectors only
STARTED_EVENT: Final = "assay.span.started"  # beside these: KIND, LOCAL_ROOT
STARTED_NAME: Final = "assay.span.name"
STARTED_PARENT: Final = "assay.span.parent"  # 16 hex digits, left out for roots

# What a process says of all its spans, since its start: an OTLP log event without ids, to Assay's collectors only
REPORT_EVENT: Final = "assay.process.report"
REPORT_STARTED: Final = "assay.process.started"  # int, as are those that follow
REPORT_OPEN: Final = "assay.process.open"
REPORT_DELIVERED: Final = "assay.process.delivered"
REPORT_SPILLED: Final = "assay.process.spilled"
REPORT_PENDING: Final = "assay.process.pending"
REPORT_DROPPED: Final = "assay.process.dropped"  # a JSON object as a string: reason → count
REPORT_PID: Final = "process.pid"

DESTINATIONS_HEADER: Final = "Assay-Traced-Destinations"  # of the answers to process reports: see `destinations`
COLLECTOR_HEADER: Final = "Assay-Collector"  # of the answers of Assay's collectors: "1"

# Feedback: attributes of the OTLP log event; the log record's span context is what it speaks of
EVALUATION_EVENT: Final = "gen_ai.evaluation.result"
EVALUATION_NAME: Final = "gen_ai.evaluation.name"  # the key
EVALUATION_SCORE: Final = "gen_ai.evaluation.score.value"  # float; a bool travels as 0.0 or 1.0 with FEEDBACK_BOOLEAN
EVALUATION_LABEL: Final = "gen_ai.evaluation.score.label"
EVALUATION_EXPLANATION: Final = "gen_ai.evaluation.explanation"  # the comment
ERROR_TYPE: Final = "error.type"  # the evaluation failed
FEEDBACK_BOOLEAN: Final = "assay.feedback.boolean"  # true: the score was a bool
# "trace" or "span" (default) of the log record's context, or "session" or "experiment", which SESSION or EXPERIMENT
# beside it names
FEEDBACK_SCOPE: Final = "assay.feedback.scope"
FEEDBACK_DOCUMENT: Final = "assay.feedback.document"  # int, position in the span's documents
FEEDBACK_OUTCOME: Final = "assay.feedback.outcome"  # "score" (default), "error", "skip"
FEEDBACK_ERROR: Final = "assay.feedback.error"  # the error's text, where error.type is only its class
FEEDBACK_SOURCE: Final = "assay.feedback.source"  # "code" (default), "model", "human"
FEEDBACK_AUTHOR: Final = "assay.feedback.author"
FEEDBACK_EVALUATOR: Final = "assay.feedback.evaluator"
FEEDBACK_VERSION: Final = "assay.feedback.version"
FEEDBACK_RULE: Final = "assay.feedback.rule"
FEEDBACK_METADATA: Final = "assay.feedback.metadata"  # a JSON object as a string
FEEDBACK_ID: Final = "assay.feedback.id"  # left out: derived by the collector
FEEDBACK_VIA: Final = "assay.feedback.via"  # list of strings: the collectors that have sent it on, the first one first

KINDS: Final = ("chain", "llm", "retriever", "tool", "agent", "embedding", "reranker", "guardrail", "evaluator")
