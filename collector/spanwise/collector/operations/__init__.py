"""Store operations as HTTP requests: one table for the server's routes and the client's methods.

Modules, in the order in which data flows:

- `request_mapping`: Mapping of a function signature to an HTTP request: path, query, body and response.
- `operation_table`: Table of the store operations: method, path and required permission of each.
"""

from spanwise.collector.operations.operation_table import ControlOperations, TraceOperations
from spanwise.collector.operations.request_mapping import (
    MAX_LIST_SIZE,
    MAX_PAGE_SIZE,
    Argument,
    Operation,
    OperationSender,
    RecordChanges,
    RequiredPermission,
    describe_operation,
    get_changed_fields,
    get_union_members,
    list_operations,
    store_operation,
)

__all__ = [  # noqa: RUF022 (in plain order, as everywhere)
    "OperationSender",
    "Operation",
    "RecordChanges",
    "ControlOperations",
    "MAX_LIST_SIZE",
    "RequiredPermission",
    "MAX_PAGE_SIZE",
    "Argument",
    "TraceOperations",
    "describe_operation",
    "list_operations",
    "get_changed_fields",
    "get_union_members",
    "store_operation",
]
