"""Parameters of a query: values are bound by the server and never become part of the SQL."""

from __future__ import annotations

from typing import Any


class QueryParameters(dict[str, Any]):
    """Values of a query by name. `bind` adds one and returns the SQL that refers to it."""

    def bind(self, value: Any, type: str) -> str:
        """Add a value of a ClickHouse type. Text that UTF-8 cannot encode is replaced, so that it matches nothing."""
        name = f"p{len(self)}"
        self[name] = _encodable(value)
        return f"{{{name}:{type}}}"

    def text(self, value: str) -> str:
        """Add a text."""
        return self.bind(value, "String")

    def texts(self, values: Any) -> str:
        """Add a list of texts."""
        return self.bind(list(values), "Array(String)")

    def integer(self, value: int) -> str:
        """Add an integer of 64 bits."""
        return self.bind(value, "Int64")

    def number(self, value: float) -> str:
        """Add a float; all 64 bits arrive."""
        return self.bind(float(value), "Float64")


def _encodable(value: Any) -> Any:
    if isinstance(value, str):
        return value if value.isascii() else value.encode("utf-8", "replace").decode()
    return [_encodable(each) for each in value] if isinstance(value, list) else value
