"""Attribute names of spans, resources and events: OpenInference, OpenTelemetry GenAI and `spanwise.*`.

OpenInference names carry inputs, outputs and documents, OpenTelemetry GenAI names carry model calls, and `spanwise.*`
names carry what neither convention has. `export/span_encoding.py` derives further GenAI names for other receivers.

Sources: OpenInference `spec/semantic_conventions.md`; OpenTelemetry GenAI semantic conventions, schema 1.42.0.
"""

from typing import Final

# OpenInference
KIND: Final = "openinference.span.kind"  # upper case: CHAIN, LLM, RETRIEVER, TOOL, AGENT, EMBEDDING, RERANKER, …
INPUT_VALUE: Final = "input.value"
INPUT_MIME: Final = "input.mime_type"
OUTPUT_VALUE: Final = "output.value"
OUTPUT_MIME: Final = "output.mime_type"
DOCUMENTS: Final = "retrieval.documents"  # .{i}.document.{id,content,score,metadata}, set by the delivery thread
SESSION: Final = "session.id"
USER: Final = "user.id"
METADATA: Final = "metadata"  # a JSON object as a string
TAGS: Final = "tag.tags"  # list of strings
PROMPT_TEMPLATE: Final = "llm.prompt_template.template"
PROMPT_VARIABLES: Final = "llm.prompt_template.variables"  # a JSON object as a string
PROMPT_TEMPLATE_VERSION: Final = "llm.prompt_template.version"
PROJECT: Final = "openinference.project.name"  # on the resource
ENVIRONMENT: Final = "deployment.environment.name"  # on the resource
INSTANCE: Final = "service.instance.id"  # on the resource: a random UUID per process; a forked child has its own

# OpenTelemetry GenAI
OPERATION: Final = "gen_ai.operation.name"
REQUEST_MODEL: Final = "gen_ai.request.model"
RESPONSE_MODEL: Final = "gen_ai.response.model"
RESPONSE_ID: Final = "gen_ai.response.id"
INPUT_TOKENS: Final = "gen_ai.usage.input_tokens"
OUTPUT_TOKENS: Final = "gen_ai.usage.output_tokens"
PROMPT_NAME: Final = "gen_ai.prompt.name"
PROMPT_VERSION: Final = "gen_ai.prompt.version"
TIME_TO_FIRST_CHUNK: Final = "gen_ai.response.time_to_first_chunk"  # seconds, float
PROVIDER: Final = "gen_ai.provider.name"
FINISH_REASONS: Final = "gen_ai.response.finish_reasons"  # list of strings: one per answer
INPUT_MESSAGES: Final = "gen_ai.input.messages"  # this and the following values are JSON texts
OUTPUT_MESSAGES: Final = "gen_ai.output.messages"
TOOL_DEFINITIONS: Final = "gen_ai.tool.definitions"
TOOL_NAME: Final = "gen_ai.tool.name"
TOOL_CALL_ID: Final = "gen_ai.tool.call.id"
TOOL_ARGUMENTS: Final = "gen_ai.tool.call.arguments"
TOOL_RESULT: Final = "gen_ai.tool.call.result"
QUERY_TEXT: Final = "gen_ai.retrieval.query.text"
RETRIEVED_DOCUMENTS: Final = "gen_ai.retrieval.documents"
AGENT_NAME: Final = "gen_ai.agent.name"
CONVERSATION: Final = "gen_ai.conversation.id"
TOTAL_COST: Final = "llm.cost.total"  # OpenInference's name; the GenAI conventions have none
GENAI_SCHEMA_URL: Final = "https://opentelemetry.io/schemas/gen-ai/1.42.0"

# Spanwise's own
DOCUMENTS_JSON: Final = "spanwise.documents"  # [{content, id, score, metadata}] as JSON, when documents ≠ outputs
COST: Final = "spanwise.cost"  # USD, float
UNPRICED: Final = "spanwise.cost.unknown"  # bool: no known price applies to this call
LOCAL_ROOT: Final = "spanwise.local_root"  # span id (16 hex digits) of this process's root of the trace
SPANS_STARTED: Final = "spanwise.spans.started"  # int, spans started under that local root so far
SPANS_OPEN: Final = "spanwise.spans.open"  # int, started spans that are still open
SPANS_DROPPED: Final = "spanwise.spans.dropped"  # int, started spans that the tracer dropped
CALLS_SENT: Final = "spanwise.calls.sent"  # int, calls to destinations that take part in tracing, under that local root
EXPERIMENT: Final = "spanwise.experiment.id"  # on the root span of an experiment's run
EXAMPLE: Final = "spanwise.example.id"
REPETITION: Final = "spanwise.repetition"
ATTEMPT: Final = "spanwise.attempt"  # int, from 1: on the root of a retried run, and on each failed attempt
# list of {error, traceback}, on the root of a run: errors of the tear-down of its fixture
TEARDOWN_ERRORS: Final = "spanwise.teardown.errors"
FOREIGN_TRACE: Final = "spanwise.foreign.trace_id"  # trace id of the current span of another OpenTelemetry provider
FOREIGN_SPAN: Final = "spanwise.foreign.span_id"
# true: token counts are estimates, because the server reported none
USAGE_ESTIMATED: Final = "spanwise.usage.estimated"
CANCELLED: Final = "spanwise.cancelled"  # true: the run was cancelled, by its caller or by the end of its event loop
# list, on a run, set by the collector: fields of the run whose content arrives in other messages
AWAITS: Final = "spanwise.awaits"
# true: the consumer of a generator stopped before the end of the generator
STREAM_CLOSED: Final = "spanwise.stream.closed"

# true, on a local root: the trace was not sampled, but kept because of an error. Statistics must not weight it up
PARTIAL: Final = "spanwise.partial"
# true, on the resource of a monitor or on a span that it caused: rules skip the trace
MONITOR: Final = "spanwise.monitor"

# A run that has been open for more than a second: an OTLP log event with the ids and start time of the run, sent to
# Spanwise's collectors only
STARTED_EVENT: Final = "spanwise.span.started"  # event name; the event also has the attributes KIND and LOCAL_ROOT
STARTED_NAME: Final = "spanwise.span.name"
STARTED_PARENT: Final = "spanwise.span.parent"  # 16 hex digits; absent for roots

# Counts of all spans of a process since its start: an OTLP log event without ids, sent to Spanwise's collectors only
REPORT_EVENT: Final = "spanwise.process.report"
REPORT_STARTED: Final = "spanwise.process.started"  # int, like the following counts
REPORT_OPEN: Final = "spanwise.process.open"
REPORT_DELIVERED: Final = "spanwise.process.delivered"
REPORT_SPILLED: Final = "spanwise.process.spilled"
REPORT_PENDING: Final = "spanwise.process.pending"
REPORT_DROPPED: Final = "spanwise.process.dropped"  # a JSON object as a string: reason → count
REPORT_PID: Final = "process.pid"

# in responses to process reports: see `http_connections`
DESTINATIONS_HEADER: Final = "Spanwise-Traced-Destinations"
COLLECTOR_HEADER: Final = "Spanwise-Collector"  # "1" in responses of Spanwise's collectors

# Feedback: attributes of the OTLP log event. The span context of the log record identifies the run.
EVALUATION_EVENT: Final = "gen_ai.evaluation.result"
EVALUATION_NAME: Final = "gen_ai.evaluation.name"  # key of the feedback
EVALUATION_SCORE: Final = "gen_ai.evaluation.score.value"  # float; a bool travels as 0.0 or 1.0 with FEEDBACK_BOOLEAN
EVALUATION_LABEL: Final = "gen_ai.evaluation.score.label"
EVALUATION_EXPLANATION: Final = "gen_ai.evaluation.explanation"  # comment of the feedback
ERROR_TYPE: Final = "error.type"  # set if the evaluation failed
FEEDBACK_BOOLEAN: Final = "spanwise.feedback.boolean"  # true: the score was a bool
# "trace" or "span" (default): the trace or span of the log record's context. "session" or "experiment": the one that
# the attribute SESSION or EXPERIMENT names
FEEDBACK_SCOPE: Final = "spanwise.feedback.scope"
FEEDBACK_PROJECT: Final = "spanwise.feedback.project"  # of the session that the feedback is about
FEEDBACK_DOCUMENT: Final = "spanwise.feedback.document"  # int, position in the span's documents
FEEDBACK_OUTCOME: Final = "spanwise.feedback.outcome"  # "score" (default), "error", "skip"
FEEDBACK_ERROR: Final = "spanwise.feedback.error"  # the error's message; error.type is only its class
FEEDBACK_SOURCE: Final = "spanwise.feedback.source"  # "code" (default), "model", "human"
FEEDBACK_AUTHOR: Final = "spanwise.feedback.author"
FEEDBACK_EVALUATOR: Final = "spanwise.feedback.evaluator"
FEEDBACK_VERSION: Final = "spanwise.feedback.version"
FEEDBACK_RULE: Final = "spanwise.feedback.rule"
FEEDBACK_METADATA: Final = "spanwise.feedback.metadata"  # a JSON object as a string
FEEDBACK_ID: Final = "spanwise.feedback.id"  # optional; the collector derives a missing id
FEEDBACK_VIA: Final = (
    "spanwise.feedback.via"  # list of strings: the collectors that have forwarded the feedback, in order
)

KINDS: Final = ("chain", "llm", "retriever", "tool", "agent", "embedding", "reranker", "guardrail", "evaluator")
