"""Short forms of benchmarks/monitor_kills.py and backfill.py: collector, monitor and workers are killed."""

import subprocess
import sys

import pytest

from integration.serving import ROOT, environment


@pytest.mark.slow  # processes end and begin
def test_every_trace_is_judged_once_whatever_is_killed():
    run("monitor_kills.py", "--kills", "3", "--workers", "2", "--refusing", "2", "--pause", "1")


@pytest.mark.slow
@pytest.mark.parametrize("kills", ["0", "3"])
def test_a_backfill_doubles_and_loses_nothing_when_it_is_killed_paused_and_cancelled(kills):
    run("backfill.py", "kills", "--traces", "600", "--kills", kills)


def run(benchmark, *options):
    command = [sys.executable, str(ROOT / "benchmarks" / benchmark), *options]
    said = subprocess.run(command, env=environment(), capture_output=True, text=True, check=False)
    assert said.returncode == 0, said.stdout + said.stderr
