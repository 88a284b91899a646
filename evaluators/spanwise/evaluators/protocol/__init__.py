"""The one protocol: any callable becomes an evaluator, found by name, whose outcomes are values.

`_binding` says what a callable asks for, `_plain` and `_views` what it is handed, `_make` makes an `Evaluator` of it,
`_returned` and `_outcomes` turn what it returns into feedback; `_passing` knows which failures are worth another try;
`_own` and `_table` hold our own evaluators, `_foreign` those of other packages, `_registry` finds them all.
"""

from spanwise.evaluators.protocol._binding import SYNONYMS, Binding, BindingError, value_of
from spanwise.evaluators.protocol._bridge import finish
from spanwise.evaluators.protocol._documents import document_of, documents_of
from spanwise.evaluators.protocol._evaluator import Asking, Batch, Evaluator
from spanwise.evaluators.protocol._infinite import in_json
from spanwise.evaluators.protocol._judging import Judgements, Untraced, judging, no_trace, surroundings
from spanwise.evaluators.protocol._make import Options, evaluator, make
from spanwise.evaluators.protocol._messages import messages, only
from spanwise.evaluators.protocol._metric import Metric
from spanwise.evaluators.protocol._outcomes import Maker, Nonsense, Skip, Unjudged, missing_needs
from spanwise.evaluators.protocol._own import builtin
from spanwise.evaluators.protocol._passing import (
    RetryOn,
    headers_of,
    may_pass,
    retries_on,
    retry_after,
    status_of,
    wait_before,
)
from spanwise.evaluators.protocol._plain import plain
from spanwise.evaluators.protocol._raised import Ended, caught, ends_the_run, is_cancelled
from spanwise.evaluators.protocol._registry import as_evaluator, definition, factory, from_dict, get, names, spec, specs
from spanwise.evaluators.protocol._spec import DATABRICKS, Spec
from spanwise.evaluators.protocol._threads import Wait, ended, in_thread, waiting_on
from spanwise.evaluators.protocol.fingerprint import (
    NoSource,
    code_of,
    fingerprint_of,
    source_of,
    unknown_to,
    version_of,
)
from spanwise.evaluators.protocol.metric_keys import check_keys, claim_keys, declared_keys
from spanwise.evaluators.protocol.shown_parameters import PARAMETERS, parameters_of
from spanwise.evaluators.protocol.store_location import Location, opened_store, store_at

__all__ = [  # noqa: RUF022 (in plain order, as everywhere)
    "Asking",
    "Batch",
    "Binding",
    "BindingError",
    "DATABRICKS",
    "Ended",
    "Evaluator",
    "Judgements",
    "Location",
    "Maker",
    "Metric",
    "NoSource",
    "Nonsense",
    "Options",
    "PARAMETERS",
    "RetryOn",
    "SYNONYMS",
    "Skip",
    "Spec",
    "Unjudged",
    "Untraced",
    "Wait",
    "as_evaluator",
    "builtin",
    "caught",
    "check_keys",
    "claim_keys",
    "code_of",
    "declared_keys",
    "definition",
    "document_of",
    "documents_of",
    "ended",
    "ends_the_run",
    "evaluator",
    "factory",
    "fingerprint_of",
    "finish",
    "from_dict",
    "get",
    "headers_of",
    "in_json",
    "in_thread",
    "is_cancelled",
    "judging",
    "make",
    "may_pass",
    "messages",
    "missing_needs",
    "names",
    "no_trace",
    "only",
    "opened_store",
    "parameters_of",
    "plain",
    "retries_on",
    "retry_after",
    "source_of",
    "spec",
    "specs",
    "status_of",
    "store_at",
    "surroundings",
    "unknown_to",
    "value_of",
    "version_of",
    "wait_before",
    "waiting_on",
]
