"""The benchmarks of the collector's budgets, in short forms: they run, lose nothing, and tell held from missed."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest

from integration.serving import ROOT

BENCHMARKS = ROOT / "benchmarks"


def ran(script: str, *arguments: str) -> str:
    """What a script prints."""
    command = [sys.executable, str(BENCHMARKS / script), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow  # two servers
def test_this_checkout_beside_itself_keeps_all_and_every_budget_has_a_verdict():
    said = ran("budgets.py", sys.executable, "--pairs", "1", "--spans", "2000", "--only", "whole")
    lines = said.partition("budgets\n")[2].splitlines()
    assert [line.split()[-1] in ("held", "MISSED", "1.5") for line in lines] == [True] * 5
    assert lines[-1].endswith("≤ 0       held")


@pytest.mark.slow  # two servers
def test_a_bare_receiver_and_the_collector_take_the_same_requests():
    said = ran("small.py", "raw", "--pairs", "1", "--requests", "40", "--connections", "8")
    assert [line.split()[0] for line in said.splitlines()[1:]] == ["8"]


@pytest.mark.slow  # traces that grow in turn
def test_traffic_of_agents_is_timed():
    said = ran("agents.py", "traffic", "--spans", "20")
    assert "20 spans each" in said


@pytest.fixture
def budgets(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import budgets

    return budgets


@pytest.mark.parametrize(
    ("fields", "ours", "theirs", "verdict"),
    [
        ({"bound": 1.3, "ratio": True, "least": True}, [13.0], [10.0], "held"),
        ({"bound": 1.3, "ratio": True, "least": True, "goal": 1.5}, [16.0], [10.0], "held, and the next goal 1.5"),
        ({"bound": 1.3, "ratio": True, "least": True}, [12.0], [10.0], "MISSED"),
        ({"bound": 0.85, "ratio": True}, [8.0, 99.0, 8.0], [10.0, 10.0, 10.0], "held"),
        ({"bound": 150}, [151.0], [1000.0], "MISSED"),
    ],
)
def test_a_verdict_is_on_the_median_of_ratios_or_on_ours_alone(budgets, fields, ours, theirs, verdict):
    assert budgets.Budget("figure", **fields).verdict(ours, theirs).endswith(verdict)


PARENT = "import subprocess, sys; [subprocess.run([sys.executable, '-c', sys.argv[1]]) for _ in range(2)]; input()"
BUSY = "import time\nwhile time.process_time() < 0.3: pass"


@pytest.mark.process
def test_cpu_of_children_that_have_ended_counts(budgets):
    asked = [sys.executable, "-c", PARENT, BUSY]
    with subprocess.Popen(asked, stdin=subprocess.PIPE) as process:
        server = budgets.Collector.__new__(budgets.Collector)
        server.process, end = process, time.monotonic() + 60
        while server.cpu_s() < 0.55 and time.monotonic() < end:
            time.sleep(0.02)
        used, alive = server.cpu_s(), server.tree()
        assert used >= 0.55, f"{used} s by {alive}"
        process.communicate(b"\n")


def test_children_of_any_thread_belong_to_the_tree(budgets):
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(1) as pool:  # which starts it, and goes on
        child = pool.submit(subprocess.Popen, [sys.executable, "-c", "input()"], stdin=subprocess.PIPE).result()
        with child:
            assert child.pid in budgets.Collector.tree(_here())
            child.communicate(b"\n")


def _here():
    import types

    return types.SimpleNamespace(process=types.SimpleNamespace(pid=os.getpid()))


def test_scripts_that_are_called_are_there(budgets):
    assert [name for command in budgets.OTHERS if not (BENCHMARKS / (name := command.split()[0])).exists()] == []


def test_what_a_script_says_of_its_own_budgets_is_read(budgets):
    said = [
        "  1,000 spans:     42.0 us for one more, 1.20 x the cost at 5",
        " 20,000 spans:  99 us for one more, 1.6 x the cost at 5",
    ]
    assert [budgets._is_slower(line) for line in said] == [False, True]
    assert budgets.MISSED.search("the log at most 80 MB MISSES (budget 64)")


def test_a_part_that_needs_a_file_says_so(budgets):
    [line] = budgets.onto(budgets.argparse.Namespace(store=None))
    assert "not run" in line
