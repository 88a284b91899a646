"""What collector and evaluators build on: our span's class and scope, the live set-up, a value as JSON text.

Users have no need of it; everything else of the tracer that begins with an underscore is its own affair.
"""

from spanwise.tracer._ambient import apart, marked
from spanwise.tracer._json import to_json
from spanwise.tracer._runtime import current
from spanwise.tracer._span import SCOPE, LiveSpan

__all__ = ["SCOPE", "LiveSpan", "apart", "current", "marked", "to_json"]
