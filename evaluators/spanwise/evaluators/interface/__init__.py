"""Evaluator interface: turning any callable into an evaluator, its registry, arguments and outcomes.

Modules, in the order in which data flows:

- `evaluator_factory`: Construction of evaluators: the `@evaluator` decorator, its options, shown parameters and
  metric keys.
- `evaluator_registry`: Registry of evaluators by id: built-in modules, plugins, library metrics, and their serialized
  form.
- `evaluator_spec`: Declared facts of an evaluator: metrics with thresholds, required and optional arguments, sources
  and compliance standards.
- `document_metrics`: Metrics of H2O Eval Studio's documentation: display names, ranges and default thresholds, by metric
  key.
- `argument_binding`: Argument binding: which fields of a case a callable receives, and type checks of parameters.
- `native_outputs`: Native outputs: the objects that a task returned, for evaluators that ask for them by annotation.
- `case_views`: Copy-on-access views of cases, traces and runs, so that evaluators cannot change shared data.
- `value_conversion`: Conversion of values to the form that evaluators see: plain JSON, documents, chat messages,
  infinite numbers.
- `tool_calls`: Tool calls of a trace, read from tool spans and from the messages of model runs.
- `evaluator_execution`: Evaluator: execution on a case, a batch or a set, with timeout, retries and bisection of
  failed batches.
- `sync_bridge`: Bridge between synchronous and asynchronous code: threads, event loops, Ctrl-C and captured results.
- `retry_policy`: Retry policy: which errors are transient, and how long to wait before the next attempt.
- `judge_context`: Context of a judgement: target, evaluator, repetition, and the buffer for the judge's traces.
- `outcomes`: Outcomes of an evaluator as feedback: return values in all accepted forms become a score, a skip or an
  error.
- `fingerprint`: Fingerprints of code: digests of the code that a function reaches, and evaluator versions derived from
  them.
- `progress_display`: Progress display: bar of an experiment in terminal and notebook, status of slow steps, and
  messages on stderr.
- `store_location`: Store arguments: an open store, or the path or URL of one.
"""

from spanwise.evaluators.interface.argument_binding import CASE_SCORES, SYNONYMS, Binding, BindingError, get_case_field
from spanwise.evaluators.interface.evaluator_execution import Batch, Evaluator, JudgeBackedFunction
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
from spanwise.evaluators.interface.judge_context import (
    DiscardedJudgements,
    JudgementBuffer,
    get_judge_context,
    make_untraced_target,
    use_judge_context,
)
from spanwise.evaluators.interface.outcomes import (
    FeedbackFactory,
    InvalidResult,
    Skip,
    Unjudged,
    explain_missing_fields,
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
from spanwise.evaluators.interface.retry_policy import (
    RetryOn,
    compile_retry_on,
    compute_retry_delay,
    get_http_status,
    get_response_headers,
    get_retry_after,
    is_transient,
)
from spanwise.evaluators.interface.store_location import StoreLocation, open_store_location, resolve_store
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
from spanwise.evaluators.interface.value_conversion import (
    encode_infinities,
    to_documents,
    to_messages,
    to_plain,
    to_stored_value,
    unwrap_single_value,
)

__all__ = [
    "CASE_SCORES",
    "DATABRICKS_COLUMNS",
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
    "capture_awaitable",
    "capture_call",
    "check_keys",
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
    "evaluator_registry",
    "evaluator_spec",
    "progress_display",
    "tool_calls",
]
