"""What tests and the programs that they start record never comes into the user's home."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from integration.serving import environment
from spanwise.tracer import configure, flush, process_runtime, trace

AWAY = "http://127.0.0.1:9"  # where no collector is
RECORD = "from spanwise.tracer import trace\n@trace\ndef work(): pass\nwork()"
SPAWN = f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {RECORD!r}], check=True)"


def spool() -> set[Path]:
    return set(Path(os.environ["SPANWISE_SPILL_DIR"]).glob("*/*.spool"))


def of_others(segments: set[Path]) -> set[Path]:
    """Those of other processes: deliveries of earlier tests may go on writing in this one."""
    return {segment for segment in segments if f"-{os.getpid()}-" not in segment.name}


@pytest.mark.process
@pytest.mark.parametrize("code", [RECORD, SPAWN], ids=["child", "grandchild"])
@pytest.mark.parametrize("environ", [lambda: dict(os.environ), environment], ids=["inherited", "cleaned"])
def test_a_traced_program_without_a_collector_leaves_the_home_as_it_was(code, environ, tmp_path):
    (tmp_path / "theirs").touch()
    before = spool()
    env = environ() | {"HOME": str(tmp_path), "SPANWISE_URL": AWAY}
    env.pop("XDG_CACHE_HOME", None)
    subprocess.run([sys.executable, "-c", code], env=env, check=True)
    assert [file.name for file in tmp_path.rglob("*")] == ["theirs"]
    assert len(of_others(spool() - before)) == 1


def test_what_this_process_cannot_deliver_stays_out_of_the_home_too(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    before, previous = spool(), process_runtime.replace_runtime(None)
    try:
        configure(url=AWAY)
        trace(lambda: None)()
        assert flush(60).spilled >= 1
    finally:
        process_runtime.replace_runtime(previous)
    assert spool() - before
    assert list(tmp_path.iterdir()) == []
