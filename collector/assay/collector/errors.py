"""What can go wrong, as exceptions of ours."""

from __future__ import annotations


class StoreError(Exception):
    """Something that a store could not do."""


class Refused(StoreError):
    """Permanent: what was asked can never work as it stands (bad input, unknown name, a newer file)."""


class NotFound(Refused):
    """What was named is not in the store."""


class Unavailable(StoreError):
    """May work later: the queue or the disk is full, the server is away. `retry_after` is in seconds."""

    def __init__(self, message: str, retry_after: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after = retry_after
