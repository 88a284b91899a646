"""Short, seeded runs of the benchmarks that fork, kill and end programs in all ways, and of what these would find."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from struct import pack

import pytest
from benchmarks import chaos, shutdown


@pytest.mark.slow  # 25 programs with all that they start
def test_no_span_is_lost_uncounted_or_doubled_and_nothing_hangs() -> None:
    with ThreadPoolExecutor(4) as pool:  # they wait, mostly
        faults = [fault for round in pool.map(chaos.round_of, range(25)) for fault in round]
    assert faults == []


@pytest.mark.parametrize(("mood", "late", "found"), [("up", 0.6, 1), ("up", 0.1, 2), ("changes", 0.6, 0)])
def test_where_the_machine_is_late_what_is_sent_last_may_come_twice(
    mood: str, late: float, found: int, tmp_path: Path
) -> None:
    notes = chaos.Notes({"1-1": 5.0, "1-2": 9.8}, {"1": ("falls off", 10.0, 0.0)})
    with chaos._collector(chaos.random.Random(1)) as collector:
        collector.kept.update({"1-1": 2, "1-2": 2})
        collector.late = late
        faults = chaos._faults(notes, collector, False, mood, tmp_path, 1)
    assert [f"doubled {found}:" in fault for fault in faults] == [True] * bool(found)


def test_a_lost_and_a_doubled_span_would_be_found(tmp_path: Path) -> None:
    notes = chaos.Notes({"1-1": 5.0, "1-2": 5.0, "2-1": 5.0, "2-2": 1.0}, {"2": ("SIGKILL", 5.5, 0.25)})
    with chaos._collector(chaos.random.Random(1)) as collector:
        collector.kept["1-1"], collector.late = 2, 0.25
        faults = chaos._faults(notes, collector, False, "up", tmp_path, 1)
    assert [fault.partition(" {")[0] for fault in faults] == [
        "seed 1, up, late 0.2: lost 2 of 4 (0 counted): ['1-2', '2-2']",
        "seed 1, up, late 0.2: doubled 1: ['1-1']",
    ]


@pytest.mark.slow  # 20 programs
@pytest.mark.parametrize("way", shutdown.WAYS)
def test_a_program_that_ends_while_it_traces_ends_in_time_and_accounts_for_each_span(way: str) -> None:
    with ThreadPoolExecutor(2) as pool:
        outcomes = list(pool.map(lambda n: shutdown.start(way, n), range(4)))
    assert [fault for outcome in outcomes for fault in outcome.faults] == []
    assert sum(outcome.ended for outcome in outcomes) > 100


@pytest.mark.parametrize(
    ("late", "other", "sent", "found"),
    [
        (60, 0, 40, []),
        (50, 0, 40, ["60 of 100 missing, 50 counted"]),
        (0, 60, 40, ["60 dropped in spite of the spool"]),
        (90, 0, 40, ["60 of 100 missing, but 90 counted"]),
    ],
)
def test_a_span_that_is_not_accounted_for_would_be_found(
    late: int, other: int, sent: int, found: list[str], tmp_path: Path
) -> None:
    counts = [0] * shutdown.SLOTS
    counts[0], counts[32], counts[48] = 100, late, other
    (tmp_path / "7").write_bytes(pack(f"{shutdown.SLOTS}q", *counts))
    outcome = shutdown.Outcome("shutdown", "answers", has_spool=True)
    shutdown._account(outcome, tmp_path, {f"7-0-{n}" for n in range(1, sent + 1)}, set(), threads=1)
    assert outcome.faults == found
