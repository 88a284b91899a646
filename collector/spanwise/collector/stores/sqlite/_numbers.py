"""Numbers that stand for ids of others, in a third of their bytes."""

from __future__ import annotations

import hashlib


def number_of(text: str) -> int:
    """48 bits of its hash. Who finds something by it looks whether it is that text, as others may be made alike."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=6).digest())
