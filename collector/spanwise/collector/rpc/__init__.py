"""OTLP over gRPC: the same intake as HTTP's, with the same door before it and the same bounds."""

from spanwise.collector.rpc._listener import DEFAULT_PORT, Listener

__all__ = ["DEFAULT_PORT", "Listener"]
