"""`spanwise serve --monitor` and `spanwise monitor`, as processes: what they say, what they survive, how they end."""

import json
import signal
import subprocess
import time
from contextlib import contextmanager, suppress

import psutil
import pytest
from typer.testing import CliRunner

from evaluators.watched import trace_id, whole
from integration.serving import COMMAND, environment, free_port
from spanwise.cli.app import app
from spanwise.collector import connect
from spanwise.collector.errors import Unavailable
from spanwise.collector.records import Booking, Rule, RuleSettings, Spender

RULES = """
from spanwise.evaluators import evaluator, get_evaluator, judge, Judge, monitor

@evaluator
def fine(outputs):
    return True

monitor("all", evaluators=[fine], sample_rate=1, budget={"usd_per_day": 5})
"""
DEADLINE = 120


def until(what):
    deadline = time.monotonic() + DEADLINE
    while True:
        with suppress(Unavailable):
            if found := what():
                return found
        assert time.monotonic() < deadline
        time.sleep(0.05)


@contextmanager
def command(*arguments, **env):
    """A `spanwise` command as a process, whose words come on stderr."""
    process = subprocess.Popen(
        [*COMMAND, *map(str, arguments)], env={**environment(), **env}, stderr=subprocess.PIPE, text=True
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


@contextmanager
def served(folder, *more, **env):
    """A collector with a monitor, its store over HTTP."""
    (folder / "rules.py").write_text(RULES)
    port = free_port()
    place = ("--port", port, "--store", folder / "a.db", "--monitor", folder / "rules.py")
    with command("serve", *place, *more, **env) as process, connect(f"http://127.0.0.1:{port}") as store:
        until(lambda: len(list(store.rules())) == 1)
        yield process, store


def worker_of(process):
    return until(lambda: psutil.Process(process.pid).children())[0]


def keys(store, number):
    return {one.key for one in store.feedbacks() if one.target.trace_id == trace_id(number)}


@pytest.mark.process
@pytest.mark.parametrize("kills", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_serve_with_a_monitor_scores_what_comes_in_and_survives_its_worker(tmp_path, kills):
    with served(tmp_path) as (process, store):
        store.append([whole(1)])
        until(lambda: keys(store, 1) == {"fine"})
        for _ in range(kills):
            worker_of(process).kill()
            store.append([whole(2)])
            until(lambda: keys(store, 2) == {"fine"})
        worker = worker_of(process)
        process.send_signal(signal.SIGTERM)
        told = process.communicate(timeout=DEADLINE)[1]
    assert process.returncode == 0
    assert not worker.is_running()
    assert "monitor: rule 'all' of project 'default', version " in told
    assert "fine on 100 % of traces, at most $5 a day" in told
    assert ("monitor: worker 1 ended: killed by SIGKILL" in told) == (kills > 0)


@pytest.mark.slow  # rules are looked for every few seconds
def test_rules_of_the_api_are_taken_up_and_go_and_one_that_cannot_be_idles_with_its_reason(tmp_path):
    with served(tmp_path) as (_, store):
        store.save_rule(rule_of_data("data", "regex", pattern="a"), rule_of_data("wrong", "os.system"))
        until(lambda: "'os.system' is not a registered evaluator" in str(workers(store)))
        until(lambda: "data" in workers(store)[0].rules)
        store.append([whole(1)])
        until(lambda: keys(store, 1) == {"fine", "regex"})
        store.delete_rule("data")
        until(lambda: "data" not in workers(store)[0].rules)
        store.append([whole(2)])
        until(lambda: keys(store, 2) == {"fine"})


def rule_of_data(name, evaluator, **parameters):
    return Rule(name=name, version="1", evaluators=({"type": evaluator, "init_parameters": parameters},))


def workers(store):
    """What they say of themselves, newest first."""
    return sorted(store.status()[0].workers, key=lambda worker: -worker.seen_ns)


@pytest.mark.slow  # two processes begin
def test_a_monitor_beside_a_collector_ends_with_ctrl_c(tmp_path):
    (tmp_path / "rules.py").write_text(RULES)
    port = free_port()
    with command("serve", "--port", port, "--store", tmp_path / "a.db"), connect(f"http://127.0.0.1:{port}") as store:
        until(lambda: store.rules() == [])
        with command("monitor", tmp_path / "rules.py", "--store", store.where) as process:
            until(lambda: len(store.rules()) == 1)
            process.send_signal(signal.SIGINT)
            told = process.communicate(timeout=DEADLINE)[1]
    assert process.returncode == 0
    assert told.endswith("monitor: stopped; unfinished evaluations were released\n")
    assert f"store: http://127.0.0.1:{port}" in told


def test_a_monitor_without_a_collector_says_what_to_do(tmp_path):
    (tmp_path / "rules.py").write_text(RULES)
    with connect(tmp_path / "a.db") as store:
        store.save_rule()
    result = CliRunner().invoke(app, ["monitor", str(tmp_path / "rules.py"), "--store", str(tmp_path / "a.db")])
    assert "start `spanwise serve --store" in str(result.exception)


def test_a_file_that_is_not_there_is_refused():
    result = CliRunner().invoke(app, ["monitor", "rules.py", "--store", "http://127.0.0.1:9"])
    assert "there is no rules file 'rules.py'" in str(result.exception)


def test_spend_is_shown_by_evaluator_and_day_with_budgets(tmp_path):
    at = str(tmp_path / "a.db")
    with connect(at) as store:
        settings = RuleSettings(budget={"usd_per_month": 9.0})
        store.save_rule(Rule(name="r", version="1", evaluators=({"id": "pii"},), settings=settings))
        spender = Spender(project="default", rule="r", evaluator="polite", model="m", priced=False)
        budget = "default/r/usd_per_month"
        store.book(Booking(id="a", budget=budget, amount=2.0, limit=9.0, period="month", spender=spender))
        store.settle({"a": 1.25})
    run = CliRunner().invoke
    result = run(app, ["monitor", "spend", "--store", at, "--by", "rule,evaluator", "--per", "day"])
    assert result.exit_code == 0, result.output
    for words in ("day (UTC)", "polite", "$1.25", "1 calls asked models of unknown price", "$1.25 of $9.00 per month"):
        assert words in result.output
    (line,) = run(app, ["monitor", "spend", "--store", at, "--by", "model", "--json"]).stdout.splitlines()
    assert (json.loads(line)["model"], json.loads(line)["settled"]) == ("m", 1.25)
    assert "no rule has spent" in run(app, ["monitor", "spend", "--store", at, "--rule", "none"]).output
    assert run(app, ["monitor", "spend", "--store", at, "--per", "year"]).exit_code != 0
    assert run(app, ["monitor", "spend", "--store", at, "--by", "planet"]).exit_code != 0
