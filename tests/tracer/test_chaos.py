"""A short, seeded run of the benchmark that forks, kills and ends programs in all ways beside a moody collector."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from benchmarks import chaos


@pytest.mark.slow  # 25 programs with all that they start
def test_no_span_is_lost_uncounted_or_doubled_and_nothing_hangs() -> None:
    with ThreadPoolExecutor(4) as pool:  # they wait, mostly
        faults = [fault for round in pool.map(chaos.round_of, range(25)) for fault in round]
    assert faults == []


def test_a_lost_and_a_doubled_span_would_be_found(tmp_path: Path) -> None:
    notes = chaos.Notes({"1-1": 5.0, "1-2": 5.0, "2-1": 5.0, "2-2": 1.0}, {"2": ("SIGKILL", 5.5, 0.25)})
    with chaos._collector(chaos.random.Random(1)) as collector:
        collector.kept["1-1"], collector.late = 2, 0.25
        faults = chaos._faults(notes, collector, False, "up", tmp_path, 1)
    assert [fault.partition(" {")[0] for fault in faults] == [
        "seed 1, up, late 0.2: lost 2 of 4 (0 counted): ['1-2', '2-2']",
        "seed 1, up, late 0.2: doubled 1: ['1-1']",
    ]
