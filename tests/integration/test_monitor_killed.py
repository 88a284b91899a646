"""A short form of benchmarks/monitor_kills.py: collector, monitor and workers are killed while traces come in."""

import subprocess
import sys

import pytest

from integration.serving import ROOT, environment


@pytest.mark.slow  # processes end and begin
def test_every_trace_is_judged_once_whatever_is_killed():
    options = ("--kills", "3", "--workers", "2", "--refusing", "2", "--pause", "1")
    command = [sys.executable, str(ROOT / "benchmarks" / "monitor_kills.py"), *options]
    said = subprocess.run(command, env=environment(), capture_output=True, text=True, check=False)
    assert said.returncode == 0, said.stdout + said.stderr
