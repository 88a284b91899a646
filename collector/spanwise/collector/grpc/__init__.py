"""OTLP over gRPC: listener and export services in front of the ingest pipeline.

Modules, in the order in which data flows:

- `listener`: gRPC listener: server options, port and life cycle.
- `export_services`: OTLP export services over gRPC: authentication, bounded reading of messages, and responses.
"""

from spanwise.collector.grpc.listener import DEFAULT_PORT, GrpcListener

__all__ = ["DEFAULT_PORT", "GrpcListener"]
