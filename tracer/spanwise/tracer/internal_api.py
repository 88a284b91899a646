"""Internal API for the collector and the evaluators.

Applications do not need these names.
"""

from spanwise.tracer.content.serialization import to_json
from spanwise.tracer.otel.live_span import SCOPE, LiveSpan
from spanwise.tracer.process_runtime import get_runtime
from spanwise.tracer.propagation import make_detached_context, mark_monitor_spans

__all__ = ["SCOPE", "LiveSpan", "get_runtime", "make_detached_context", "mark_monitor_spans", "to_json"]
