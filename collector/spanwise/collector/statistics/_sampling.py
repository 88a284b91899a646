"""Where a target lies in [0, 1): rules take it if that is below their rate."""

from __future__ import annotations

import hashlib

# Fixed, and no rule's own: a rule of a lower rate takes a part of what one of a higher rate takes. Head sampling reads
# the last 56 bits of the trace id as they are; through the hash, what it kept is spread over [0, 1) like any other.
# It has the product's former name: other bytes would sample other traces than those that are sampled already.
SALT = b"assay.monitor.1:"
BITS = 53  # of a float's mantissa, so that each is equally likely and none rounds up to 1


def u(target: str) -> float:
    """A fixed number in [0, 1), evenly spread, of a trace's id; of a session it is that of "project/session"."""
    digest = hashlib.sha256(SALT + target.encode("utf-8", "surrogatepass")).digest()
    return (int.from_bytes(digest[:8], "big") >> (64 - BITS)) / (1 << BITS)
