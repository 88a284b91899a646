"""Records out of JSON, in many threads at once."""

from __future__ import annotations

import subprocess
import sys

import pytest

from integration.serving import ROOT, environment

RACE = """
import sys, threading
from spanwise.collector import record_encoding
from spanwise.collector.records import Run

sys.setswitchinterval(1e-6)
BODY = b'[{"trace_id":"a","span_id":"b","name":"n","usage":{"input_tokens":7},"documents":[{"content":"x"}]}]'
gate, decoded = threading.Barrier(8), []

def first():
    gate.wait()
    decoded.append(record_encoding.decode(Run | list[Run], BODY))

threads = [threading.Thread(target=first) for _ in range(8)]
[thread.start() for thread in threads], [thread.join() for thread in threads]
assert len(decoded) == 8 and all(runs == decoded[0] for runs in decoded)
"""


@pytest.mark.process
def test_threads_that_are_the_first_to_decode_a_record_do_not_end_the_process():
    """Of eight such processes two to four ended by SIGSEGV."""
    done = [subprocess.Popen([sys.executable, "-c", RACE], env=environment(), cwd=ROOT) for _ in range(4)]
    assert [process.wait(120) for process in done] == [0] * 4
