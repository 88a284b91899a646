"""What collector and evaluators build on: our span's class and scope, the live set-up, a value as JSON text.

Users have no need of it; everything else of the tracer that begins with an underscore is its own affair.
"""

from assay.tracer._ambient import apart, marked
from assay.tracer._json import to_json
from assay.tracer._runtime import current
from assay.tracer._span import SCOPE, LiveSpan

__all__ = ["SCOPE", "LiveSpan", "apart", "current", "marked", "to_json"]
