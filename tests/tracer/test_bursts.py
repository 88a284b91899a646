"""A short form of the benchmark of bursts: what comes faster than it is delivered arrives, or waits on disk."""

from __future__ import annotations

import pytest
from benchmarks import bursts


@pytest.mark.slow  # tens of thousands of spans
@pytest.mark.parametrize("kind", ["loop", "children"])
def test_every_span_of_a_burst_arrives_or_waits_on_disk(kind: str) -> None:
    found = bursts.run(bursts.OURS + bursts.BURST, kind, 60_000)
    assert found["arrived"] + found["waiting"] == 60_000 + (kind == "children")
