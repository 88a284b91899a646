"""Forwarding: received OTLP requests and stored feedback, sent on to other OTLP endpoints.

Modules, in the order in which data flows:

- `forwarder`: Forwarders: received requests put into the queue of every target, and stored feedback sent from a
  cursor.
- `envelope`: Forwarded request in its on-disk format: header line and body, with splitting, joining and conversion to
  protobuf.
- `forward_queue`: Durable forward queue of one target: spool on disk, and the thread that sends with retries.
- `forward_transport`: HTTP and gRPC transports to a forward target, and the parsing of targets and their headers.
"""

from spanwise.collector.forward.envelope import Envelope, join_envelopes, unpack_envelope
from spanwise.collector.forward.forward_transport import ForwardTarget, parse_targets
from spanwise.collector.forward.forwarder import FeedbackForwarder, Forwarder

__all__ = [
    "Envelope",
    "FeedbackForwarder",
    "ForwardTarget",
    "Forwarder",
    "join_envelopes",
    "parse_targets",
    "unpack_envelope",
]

# Modules that other packages may import; the others are internal
SHARED_MODULES = ["forwarder"]
