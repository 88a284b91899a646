"""Bytes in: OTLP over HTTP to the stores, acknowledged only when durable."""
