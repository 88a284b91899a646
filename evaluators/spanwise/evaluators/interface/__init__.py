"""Evaluator interface: turning any callable into an evaluator, its registry, arguments and outcomes.

Modules, in the order in which data flows:

- `evaluator_factory`: Construction of evaluators: the `@evaluator` decorator, its options, shown parameters and
  metric keys.
- `evaluator_registry`: Registry of evaluators by id: built-in modules, plugins, library metrics, and their serialized
  form.
- `evaluator_spec`: Declared facts of an evaluator: metrics with thresholds, arguments, sources, compliance standards.
- `argument_binding`: Argument binding: which fields of a case a callable receives, type checks, and native outputs of
  a task.
- `case_views`: Copy-on-access views of cases, traces and runs, and the tool calls of a trace.
- `outcomes`: Outcomes of an evaluator as feedback: a score, a skip or an error; conversion of values to JSON.
- `evaluator_execution`: Evaluator: execution on a case, a batch or a set, with timeout, retries, context of
  judgements.
- `sync_bridge`: Bridge between synchronous and asynchronous code: threads, event loops, Ctrl-C and captured results.
- `fingerprint`: Fingerprints of code: digests of the code that a function reaches, and evaluator versions derived from
  them.
- `progress_display`: Progress display: bar of an experiment in terminal and notebook, status of slow steps, and
  messages on stderr.
- `adapters`: Adapters for metric objects of autoevals, deepeval, pydantic-evals and ragas.
"""

from spanwise.collector.store_connection import StoreLocation, open_store_location, resolve_store
from spanwise.evaluators.interface.argument_binding import (
    CASE_SCORES,
    FIELDS,
    MAX_CASE_SCORES,
    SYNONYMS,
    Binding,
    BindingError,
    bind,
    check_parameter_types,
    get_case_field,
    is_of_type,
    read_call_fields,
)
from spanwise.evaluators.interface.evaluator_execution import (
    Batch,
    DiscardedJudgements,
    Evaluator,
    JudgeBackedFunction,
    JudgementBuffer,
    RetryOn,
    compile_retry_on,
    compute_retry_delay,
    get_http_status,
    get_judge_context,
    get_response_headers,
    get_retry_after,
    is_transient,
    make_untraced_target,
    use_judge_context,
)
from spanwise.evaluators.interface.evaluator_factory import (
    PARAMETERS_KEY,
    EvaluatorOptions,
    check_keys,
    claim_keys,
    evaluator,
    find_by_name,
    get_parameters,
    list_declared_keys,
    make_evaluator,
)
from spanwise.evaluators.interface.evaluator_registry import (
    as_evaluator,
    from_dict,
    get_default_metrics,
    get_evaluator,
    get_factory,
    get_registration,
    get_spec,
    list_evaluators,
    list_specs,
    read_definition,
    register_builtin,
)
from spanwise.evaluators.interface.evaluator_spec import DATABRICKS_COLUMNS, STANDARDS, EvaluatorSpec, Metric
from spanwise.evaluators.interface.fingerprint import (
    SourceUnavailable,
    compute_fingerprint,
    compute_version,
    digest_code,
    digest_source,
    list_untracked_state,
)
from spanwise.evaluators.interface.outcomes import (
    FeedbackFactory,
    InvalidResult,
    Skip,
    Unjudged,
    encode_infinities,
    explain_missing_fields,
    to_documents,
    to_messages,
    to_plain,
    to_stored_value,
    unwrap_single_value,
)
from spanwise.evaluators.interface.progress_display import (
    ProgressBar,
    make_progress_bar,
    print_message,
    redirect_status,
    show_status,
    stderr_console,
    track_progress,
)
from spanwise.evaluators.interface.sync_bridge import (
    AwaitFunction,
    CallResult,
    capture_awaitable,
    capture_call,
    is_interruption,
    is_task_cancelled,
    make_loop_waiter,
    run_coroutine,
    run_in_thread,
)

__all__ = [
    "CASE_SCORES",
    "DATABRICKS_COLUMNS",
    "FIELDS",
    "MAX_CASE_SCORES",
    "PARAMETERS_KEY",
    "STANDARDS",
    "SYNONYMS",
    "AwaitFunction",
    "Batch",
    "Binding",
    "BindingError",
    "CallResult",
    "DiscardedJudgements",
    "Evaluator",
    "EvaluatorOptions",
    "EvaluatorSpec",
    "FeedbackFactory",
    "InvalidResult",
    "JudgeBackedFunction",
    "JudgementBuffer",
    "Metric",
    "ProgressBar",
    "RetryOn",
    "Skip",
    "SourceUnavailable",
    "StoreLocation",
    "Unjudged",
    "as_evaluator",
    "bind",
    "capture_awaitable",
    "capture_call",
    "check_keys",
    "check_parameter_types",
    "claim_keys",
    "compile_retry_on",
    "compute_fingerprint",
    "compute_retry_delay",
    "compute_version",
    "digest_code",
    "digest_source",
    "encode_infinities",
    "evaluator",
    "explain_missing_fields",
    "find_by_name",
    "from_dict",
    "get_case_field",
    "get_default_metrics",
    "get_evaluator",
    "get_factory",
    "get_http_status",
    "get_judge_context",
    "get_parameters",
    "get_registration",
    "get_response_headers",
    "get_retry_after",
    "get_spec",
    "is_interruption",
    "is_of_type",
    "is_task_cancelled",
    "is_transient",
    "list_declared_keys",
    "list_evaluators",
    "list_specs",
    "list_untracked_state",
    "make_evaluator",
    "make_loop_waiter",
    "make_progress_bar",
    "make_untraced_target",
    "open_store_location",
    "print_message",
    "read_call_fields",
    "read_definition",
    "redirect_status",
    "register_builtin",
    "resolve_store",
    "run_coroutine",
    "run_in_thread",
    "show_status",
    "stderr_console",
    "to_documents",
    "to_messages",
    "to_plain",
    "to_stored_value",
    "track_progress",
    "unwrap_single_value",
    "use_judge_context",
]

# Modules that other packages may import; the others are internal
SHARED_MODULES = [
    "adapters",
    "case_views",
    "evaluator_registry",
    "evaluator_spec",
    "progress_display",
]
