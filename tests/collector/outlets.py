"""An endpoint that takes feedback's log records, and some of it to send."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from typing import Any

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest

from fixtures.dialects.capture import _Server


class Scripted(_Server):
    """Keeps the log records of each request, and answers with what `status` says of them."""

    def __init__(self, status: Callable[[list[Any]], int] = lambda records: 200) -> None:
        super().__init__()
        self.status = status
        self.requests: list[tuple[str, dict[str, str], bytes]] = []
        self.taken: list[Any] = []

    def answer(self, method: str, path: str, headers: dict[str, str], body: bytes) -> tuple[int, str, bytes]:
        body = gzip.decompress(body) if headers.get("content-encoding") == "gzip" else body
        self.requests.append((path, headers, body))
        records = records_of(body)
        status = self.status(records)
        self.taken += records if status == 200 else []
        return status, "application/x-protobuf", b""

    @property
    def keys(self) -> list[str]:
        """Of the feedback that was taken."""
        return [attributes(record)["gen_ai.evaluation.name"] for record in self.taken]


def records_of(body: bytes) -> list[Any]:
    groups = ExportLogsServiceRequest.FromString(body).resource_logs
    return [record for group in groups for scope in group.scope_logs for record in scope.log_records]


def attributes(record: Any) -> dict[str, Any]:
    return {one.key: getattr(one.value, one.value.WhichOneof("value")) for one in record.attributes}
