"""Internal API for the collector and the evaluators.

Users have no need of it; everything else of the tracer that begins with an underscore is its own affair.
"""

from spanwise.tracer.content.serialization import to_json
from spanwise.tracer.otel.live_span import SCOPE, LiveSpan
from spanwise.tracer.process_runtime import get_runtime
from spanwise.tracer.propagation import make_detached_context, mark_monitor_spans

__all__ = ["SCOPE", "LiveSpan", "get_runtime", "make_detached_context", "mark_monitor_spans", "to_json"]
