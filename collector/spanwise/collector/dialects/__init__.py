"""Dialects: translation of spans and log records of any tracing convention to runs and feedback.

Modules, in the order in which data flows:

- `translation`: Translation of raw spans to runs, and of log records to feedback, amendments and process reports.
- `sdk_spans`: Finished spans of the OpenTelemetry SDK, translated to runs in the process that made them.
- `draft`: Interface of dialects: raw spans and log records, the draft that dialects fill, and parsing of attributes.
- `field_extraction`: Extraction of run fields from attributes, and labels of a run under the names of all
  conventions.
- `token_costs`: Token counts and cost of a model call: normalization, reported costs, and prices by genai-prices.
- `evaluation_events`: Feedback as `gen_ai.evaluation.result` events: reading and writing.
- `genai`: OpenTelemetry GenAI conventions: model calls, and messages in attributes, span events and log records.
- `openinference`: OpenInference conventions: spans, messages, documents, annotations and evaluations.
- `langfuse`: Langfuse: attributes of its SDKs, and scores sent to its API.
- `langsmith`: LangSmith's OpenTelemetry export, with the messages of LangChain.
- `mlflow`: MLflow's spans.
- `traceloop`: Traceloop's SDK, OpenLLMetry, and Laminar's SDK, whose instrumentations come from it.
- `vercel`: Vercel's AI SDK, versions 3.4 to 6.
- `pydantic`: Products of Pydantic: pydantic-ai, Logfire and its instrumentations, pydantic-evals.
- `haystack`: Haystack's tracing: pipelines, components, agents.
"""

from typing import TYPE_CHECKING

from spanwise.collector.records import Amendment
from spanwise.tracer.module_loading import lazy

if TYPE_CHECKING:
    from spanwise.collector.dialects.draft import (
        Dialect,
        Draft,
        RawLog,
        RawSpan,
        RunFields,
        SideRecord,
        SideResult,
        make_side_record,
    )
    from spanwise.collector.dialects.evaluation_events import read_feedback, read_via, write_feedback_attributes
    from spanwise.collector.dialects.field_extraction import CONTENT_REFERENCES
    from spanwise.collector.dialects.langfuse import read_langfuse_score
    from spanwise.collector.dialects.sdk_spans import read_sdk_span
    from spanwise.collector.dialects.token_costs import (
        compute_cost,
        export_prices,
        find_provider,
        has_price,
        import_prices,
    )
    from spanwise.collector.dialects.translation import (
        FaultHandler,
        LogDialect,
        LogItem,
        TranslatedSpan,
        log_dialect_error,
        log_once,
        read_log,
        read_run,
        read_span,
    )
else:
    __getattr__, __dir__ = lazy(
        __name__,
        draft="Dialect Draft RawLog RawSpan RunFields SideRecord SideResult make_side_record",
        translation="FaultHandler TranslatedSpan log_dialect_error log_once read_run read_span LogDialect LogItem read_log",
        evaluation_events="read_feedback read_via write_feedback_attributes",
        langfuse="read_langfuse_score",
        token_costs="compute_cost export_prices find_provider has_price import_prices",
        field_extraction="CONTENT_REFERENCES",
        sdk_spans="read_sdk_span",
    )

__all__ = [
    "CONTENT_REFERENCES",
    "Amendment",
    "Dialect",
    "Draft",
    "FaultHandler",
    "LogDialect",
    "LogItem",
    "RawLog",
    "RawSpan",
    "RunFields",
    "SideRecord",
    "SideResult",
    "TranslatedSpan",
    "compute_cost",
    "export_prices",
    "find_provider",
    "has_price",
    "import_prices",
    "log_dialect_error",
    "log_once",
    "make_side_record",
    "read_feedback",
    "read_langfuse_score",
    "read_log",
    "read_run",
    "read_sdk_span",
    "read_span",
    "read_via",
    "write_feedback_attributes",
]

# Modules that other packages may import; the others are internal
SHARED_MODULES = [
    "translation",
]
