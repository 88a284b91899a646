"""Store operations as HTTP requests: one table for routes, client methods, permissions and project scopes.

Modules, in the order in which data flows:

- `operation_table`: Table of the store operations: method, path, permission and project scope, mapped to HTTP
  requests.
- `project_scope`: Project-scoped store: the operations that an API key of one project may use.
"""

from spanwise.collector.operations.operation_table import (
    MAX_BATCH_ITEMS,
    MAX_LIST_SIZE,
    MAX_PAGE_SIZE,
    PATH_PLACEHOLDER,
    PROJECT_SCOPES,
    REQUIRED,
    Argument,
    ControlOperations,
    Operation,
    OperationSender,
    RecordChanges,
    RequiredPermission,
    TraceOperations,
    describe_operation,
    get_changed_fields,
    get_union_members,
    list_operations,
    store_operation,
)
from spanwise.collector.operations.project_scope import ProjectScopedStore

__all__ = [
    "MAX_BATCH_ITEMS",
    "MAX_LIST_SIZE",
    "MAX_PAGE_SIZE",
    "PATH_PLACEHOLDER",
    "PROJECT_SCOPES",
    "REQUIRED",
    "Argument",
    "ControlOperations",
    "Operation",
    "OperationSender",
    "ProjectScopedStore",
    "RecordChanges",
    "RequiredPermission",
    "TraceOperations",
    "describe_operation",
    "get_changed_fields",
    "get_union_members",
    "list_operations",
    "store_operation",
]
