"""Forwarding: received OTLP requests and stored feedback, sent on to other OTLP endpoints.

Modules, in the order in which data flows:

- `forwarder`: Forwarder: ingest sink that puts each received request into the queue of every target.
- `envelope`: Forwarded request in its on-disk format: header line and body, with splitting, joining and conversion to
  protobuf.
- `sender_thread`: Sender thread of one target: retries with backoff, and reports of failures and recovery.
- `forward_queue`: Durable forward queue of one target: spool on disk, and delivery of the spooled requests.
- `feedback_forwarder`: Feedback forwarder: stored feedback sent to every target as OTLP log records, from a durable
  cursor.
- `grpc_transport`: gRPC transport to a forward target: `grpc://host:4317` without TLS, `grpcs://host:4317` with TLS.
- `forward_transport`: HTTP transport to a forward target, and the parsing of targets of both transports and their
  headers.
"""

from spanwise.collector.forward.feedback_forwarder import FeedbackForwarder
from spanwise.collector.forward.forward_transport import ForwardTarget, parse_targets
from spanwise.collector.forward.forwarder import Forwarder

__all__ = ["FeedbackForwarder", "ForwardTarget", "Forwarder", "parse_targets"]
