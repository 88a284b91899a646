"""`spanwise monitor backfill`: dry run, start, list, show, pause, resume and cancel."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from collector.deciding import ruled
from collector.making import run
from collector.ruled import told
from spanwise.cli.app import app
from spanwise.collector.errors import NotFound, Refused
from spanwise.collector.records import Rule
from spanwise.collector.server import Server
from spanwise.collector.stores.sqlite import SQLiteStore
from spanwise.evaluators import monitor as define
from spanwise.evaluators.monitors import load

RULES = """
from spanwise.evaluators import Judge, judge, monitor

polite = judge("polite", "Is it polite?\\n{outputs}", scale=("yes", "no"), judge=Judge(
    model="m", base_url="http://127.0.0.1:9", api_key="k", price=(1.0, 1.0)))
monitor("polite", evaluators=[polite], filter={"name": "answer"})
"""


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SQLiteStore]:
    with SQLiteStore(tmp_path / "spanwise.db") as made:
        yield made


@pytest.fixture
def url(store: SQLiteStore) -> Iterator[str]:
    with Server(store) as server:
        yield server.url


def backfill(*arguments: str, code: int = 0) -> Result:
    result = CliRunner().invoke(app, ["monitor", "backfill", *arguments], catch_exceptions=False)
    assert result.exit_code == code, result.output
    return result


def filled(store: SQLiteStore, count: int = 10) -> None:
    """Traces of the last hour, every second one of another name, and a rule that came later."""
    starts = [time.time_ns() - number * 10**9 for number in range(1, count + 1)]
    names = ["other" if number % 2 else "answer" for number in range(count)]
    store.append(
        [
            run(name=name, start_ns=start, end_ns=start + 1, outputs="yes")
            for name, start in zip(names, starts, strict=True)
        ]
    )


def test_a_dry_run_says_what_it_would_score_and_starts_nothing(store, url):
    filled(store)
    ruled(store, filter={"name": "answer"})
    told(store, "r", evaluators={"concise": {"looked": 4, "failed": 0, "p95_s": 3.0, "mean_s": 1.6}})
    said = backfill("r", "--since", "1h", "--dry-run", "--store", url).stdout
    assert "of 10 traces, 5 match and 5 are sampled; 0 of them have a result" in said
    assert "duration: about 1.00 s at concurrency 8" in said
    assert "judge calls: unknown" in said
    assert store.backfills() == []


def test_the_judge_calls_come_from_the_rules_file(store, url, tmp_path):
    filled(store)
    file = tmp_path / "rules.py"
    file.write_text(RULES)
    [loaded] = load(file)
    store.save_rule(loaded.record, owner=file.as_posix())
    said = backfill("polite", "--since", "1h", "--dry-run", "--store", url).stdout
    assert "judge calls: about 5, about $" in said
    assert "http://127.0.0.1:9" in said
    [line] = backfill("polite", "--since", "1h", "--dry-run", "--json", "--store", url).stdout.splitlines()
    row = json.loads(line)
    assert (row["matched"], row["calls"]) == (5, 5)


def test_a_rule_of_the_api_needs_no_file(store, url):
    filled(store)
    record = define("named", evaluators=["not_empty"]).record
    store.save_rule(
        Rule(name="named", version=record.version, evaluators=({"type": "not_empty", "init_parameters": {}},))
    )
    assert "judge calls: none" in backfill("named", "--since", "1h", "--dry-run", "--store", url).stdout


def test_it_asks_before_it_starts(store, url):
    filled(store)
    ruled(store)
    result = CliRunner().invoke(app, ["monitor", "backfill", "r", "--since", "1h", "--store", url], input="n\n")
    assert result.exit_code == 1
    assert store.backfills() == []


def test_a_backfill_is_started_shown_paused_resumed_and_cancelled(store, url):
    filled(store)
    ruled(store)
    said = backfill("r", "--since", "1h", "--rate", "0.5", "--budget", "usd_per_day=5", "--yes", "--store", url).stdout
    [job] = store.backfills()
    assert f"started backfill {job.id}" in said
    assert (job.sample_rate, job.budget) == (0.5, {"usd_per_day": 5.0})
    assert job.id in backfill("list", "--store", url).stdout
    shown = backfill("show", job.id[:6], "--store", url).stdout
    for words in (f"backfill {job.id} of rule 'r'", "sample rate 50 %", "usd_per_day=5", "no worker runs this rule"):
        assert words in shown
    assert f"backfill {job.id} is paused" in backfill("pause", job.id, "--store", url).stdout
    assert f"backfill {job.id} is running" in backfill("resume", job.id, "--store", url).stdout
    assert f"backfill {job.id} is cancelled" in backfill("cancel", job.id, "--store", url).stdout
    [row] = [json.loads(line) for line in backfill("list", "--json", "--store", url).stdout.splitlines()]
    assert row["state"] == "cancelled"


def test_what_is_wrong_is_said(store, url):
    ruled(store)
    with pytest.raises(NotFound, match="there is no rule 'x'"):
        backfill("x", "--since", "1h", "--store", url)
    with pytest.raises(NotFound, match="there is no backfill 'x'"):
        backfill("show", "x", "--store", url)
    with pytest.raises(ValueError, match="--budget must be LIMIT=AMOUNT"):
        backfill("r", "--since", "1h", "--budget", "usd_per_day", "--store", url)
    with pytest.raises(Refused, match="sample rate of a backfill"):
        backfill("r", "--since", "1h", "--rate", "2", "--store", url)
    assert "there are no backfills" in backfill("list", "--store", url).output
