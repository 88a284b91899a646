"""Files that an earlier version has written are read completely; see tests/fixtures/golden/make.py."""

from __future__ import annotations

import importlib
import json
import platform
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

import fixtures.golden
from fixtures.golden.reading import everything_in, plain
from spanwise.collector.import_export import import_file
from spanwise.collector.records import Feedback, Target
from spanwise.collector.server import Server
from spanwise.collector.stores.sqlite import SQLiteStore
from spanwise.evaluators import evaluate, monitor, score
from spanwise.evaluators.experiments import deliver_spool
from spanwise.evaluators.models import Embedder
from spanwise.evaluators.monitors import Monitor, load
from spanwise.tracer.export import disk_spool

GOLDEN = Path(next(iter(fixtures.golden.__path__)))
EXPECTED: dict[str, Any] = json.loads((GOLDEN / "expected.json").read_bytes())
PRODUCT = monitor.__module__.partition(".")[0]
ATTRIBUTE = re.compile(
    r"assay\.(?=(attempt|awaits|calls\.sent|cancelled|cost\.unknown|derived|example|foreign\.(trace|span)_id|local_root"
    r"|monitor|partial|sample_rate|sent\.\w+|spans\.(dropped|open|started)|stream\.closed|usage\.estimated|via)$)"
)
QUESTION = {"inputs": {"question": "When is the delivery?"}, "reference_outputs": "Parcels arrive within 3 days."}
TEXTS = ["Parcels arrive within 3 days.", "I do not know."]
same_python = pytest.mark.skipif(
    EXPECTED["python"] != ".".join(platform.python_version_tuple()[:2]),
    reason="experiments are resumed with the version of Python that began them, as bytecode differs",
)


def renamed(value: Any, field: str = "") -> Any:
    """Return expected records with the present names of the attributes that the product itself writes."""
    if isinstance(value, list):
        return [renamed(one, field) for one in value]
    if not isinstance(value, dict):
        return value
    if field in ("attributes", "resource", "metadata"):
        return {ATTRIBUTE.sub(f"{PRODUCT}.", name): one for name, one in value.items()}
    return {name: renamed(one, name) for name, one in value.items()}


# fields of records, by kind, that later versions have added
LATER_FIELDS = {
    "runs": {"prompt_name", "prompt_version", "agent_name", "finish_reasons", "time_to_first_token_ms", "tools"},
    # previews show the main text of a value instead of its JSON; the values themselves are those of "runs"
    "summaries": {"prompts", "agents", "finish_reasons", "time_to_first_token_ms", "inputs", "outputs"},
    "datasets": {"evaluators"},
    "rules": {"metrics", "paused_by", "paused_ns"},
    "decisions": {"backfill"},
    "scores": {"duration_ns", "input_tokens", "output_tokens", "cost", "tags", "models"},
}


def without_target_projects(value: Any) -> Any:
    """Return records whose targets lack the project of a session, which the version of the files lacked."""
    if isinstance(value, list):
        return [without_target_projects(each) for each in value]
    if not isinstance(value, dict):
        return value
    fields = {name: without_target_projects(each) for name, each in value.items()}
    if isinstance(target := fields.get("target"), dict):
        fields["target"] = {name: each for name, each in target.items() if name != "project"}
    return fields


def without_later_fields(value: Any, kind: str) -> Any:
    """Return records of a kind without the fields that the version of the files lacked or that changed on purpose."""
    if kind == "totals":  # feedback on documents has been counted apart since
        later = ("target", "binary", "p99_ms", "effective", "low", "high", "shares")
        of_stats = [[{n: v for n, v in stats.items() if n not in later} for stats in one["feedback"]] for one in value]
        return [
            {n: v for n, v in bucket.items() if n not in later} | {"feedback": stats}
            for bucket, stats in zip(value, of_stats, strict=True)
        ]
    if kind == "values":  # menus have left out since what only judges have
        return value | {"model": [name for name in value["model"] if name != "gpt-4o-mini-2024-07-18"]}
    later = LATER_FIELDS.get(kind)
    value = without_target_projects(value)
    if later is None:
        return value
    if isinstance(value, list):
        return [{name: one for name, one in record.items() if name not in later} for record in value]
    return {
        key: [{name: one for name, one in record.items() if name not in later} for record in records]
        for key, records in value.items()
    }


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A copy of all files, with import lines of the present product, as the working directory."""
    shutil.copytree(
        GOLDEN, tmp_path / "golden", ignore=shutil.ignore_patterns("__pycache__"), copy_function=shutil.copyfile
    )
    for name in ("application.py", "rules.py"):
        file = tmp_path / "golden" / name
        text = re.sub(r"^(\s*from) assay\.", rf"\1 {PRODUCT}.", file.read_text(), flags=re.MULTILINE)
        file.write_text(text.replace("evaluator, get, judge", "evaluator, get_evaluator as get, judge"))
    monkeypatch.chdir(tmp_path / "golden")
    monkeypatch.syspath_prepend(tmp_path / "golden")
    yield tmp_path / "golden"
    for name in ("application", "rules"):
        sys.modules.pop(name, None)


@pytest.fixture
def store(folder: Path) -> Iterator[SQLiteStore]:
    with SQLiteStore(folder / "database.db") as opened:
        yield opened


@pytest.mark.parametrize("kind", EXPECTED["database"])
def test_a_database_has_the_same_records(store, kind):
    expected = without_later_fields(renamed(EXPECTED["database"][kind]), kind)
    assert without_later_fields(everything_in(store)[kind], kind) == expected


def test_a_database_is_sound(store):
    assert store.check(deep=True) == []


def test_a_database_takes_new_records(store):
    run = store.run("e" * 32, "e" * 16)
    store.append([run], [Feedback(target=Target(trace_id="e" * 32), key="new", score=1.0)])
    assert len(store.trace("e" * 32).runs) == 1
    assert store.trace("e" * 32).root == run


def test_a_secret_that_was_handed_out_still_opens_the_server(store):
    with Server(store, require_key=True) as server:
        sent = httpx.post(f"{server.url}/v1/traces", json={}, headers={"authorization": "Bearer assay_golden"})
    assert sent.status_code == 200


def test_what_a_tracer_kept_on_disk_is_delivered(folder, tmp_path):
    with SQLiteStore(tmp_path / "new.db") as store, Server(store) as server:
        [waiting] = disk_spool.list_spool_folders(folder / "spool")
        assert waiting.url == EXPECTED["spool"]["url"]
        sent = disk_spool.send_spool_folder(waiting, to=server.url)
        assert (sent.lost, sent.left) == ({}, 0)
        [summary] = store.each()
        trace = store.trace(summary.trace_id)
    assert [run.name for run in trace.runs] == EXPECTED["spool"]["runs"]
    assert sorted(one.key for one in trace.feedback) == EXPECTED["spool"]["feedback"]
    assert trace.complete


def test_a_delivered_span_bears_no_name_of_a_foreign_library(folder, tmp_path):
    with SQLiteStore(tmp_path / "new.db") as store, Server(store) as server:
        disk_spool.send_spool_folder(disk_spool.list_spool_folders(folder / "spool")[0], to=server.url)
        [summary] = store.each()
        root = store.trace(summary.trace_id).root
    assert "otel.scope.name" not in root.attributes
    assert root.attributes[f"{PRODUCT}.spans.started"] == 4


@same_python
def test_an_experiment_is_resumed_from_its_spool_without_running_anything(folder, store):
    application = importlib.import_module("application")
    spooled, left = EXPECTED["spooled"], list(folder.glob("*-spool-*.jsonl"))
    resumed = evaluate(
        "parcels@1",
        application.answer,
        ["exact"],
        resume=spooled["experiment"],
        store=store,
        progress=False,
        concurrency=1,
    )
    assert [file.name for file in left] == [spooled["file"]]
    assert resumed.summary()["exact"].n == spooled["runs"]
    began = {run.start_ns for run in (store.trace(row.trace.trace_id).root for row in resumed.rows())}
    assert max(began) < 1_700_001_000 * 10**9  # all of them long ago
    assert list(folder.glob("*-spool-*.jsonl")) == []


def test_a_result_spool_is_delivered_by_hand(folder, store):
    count = deliver_spool(folder / EXPECTED["spooled"]["file"], store)
    assert count == 3 * EXPECTED["spooled"]["runs"]
    assert len(list(store.each(experiment=EXPECTED["spooled"]["experiment"]))) == EXPECTED["spooled"]["runs"]


@same_python
def test_a_finished_experiment_is_resumed_without_running_anything(folder, store):
    application = importlib.import_module("application")
    before = store.count()["spans"]
    evaluate("parcels@1", application.answer, ["exact"], name="baseline", resume=True, store=store, progress=False)
    assert store.count()["spans"] == before


def test_answers_of_judges_come_from_the_cache(folder):
    judged = next(one for one in load("rules.py") if one.record.name == "judged")
    asked = {"inputs": QUESTION["inputs"], "outputs": TEXTS[0], "reference_outputs": QUESTION["reference_outputs"]}
    said = [one for evaluator in judged.evaluators for one in score(evaluator, **asked)]
    names = ("key", "score", "label", "evaluator", "version", "comment")
    assert [{name: getattr(one, name) for name in names} for one in said] == EXPECTED["judge_cache"]


def test_vectors_come_from_the_cache(folder):
    def never(texts: list[str]) -> list[list[float]]:
        raise AssertionError(texts)

    of_endpoint = Embedder(
        "small", base_url="http://127.0.0.1:18099/v1", api_key="local", cache="vectors.db", deadline=1.0
    )
    of_function = Embedder(never, name="length", cache="vectors.db")
    assert [*of_endpoint.embed(TEXTS).tolist(), *of_function.embed(TEXTS).tolist()] == EXPECTED["vectors"]


@pytest.mark.parametrize(("form", "file"), [("jsonl", "export.jsonl"), ("otlp", "export.otlp.jsonl")])
def test_an_export_is_imported_completely(folder, tmp_path, form, file):
    with SQLiteStore(tmp_path / "new.db") as store, (folder / file).open("rb") as lines:
        taken = import_file(store, lines)
    assert (taken.bad, taken.reasons) == (0, [])
    assert taken.kept + taken.left_out == EXPECTED["exported"][form]
    assert set(taken.left_out) <= {"decision"}


@pytest.mark.parametrize("file", ["export.jsonl", "export.otlp.jsonl"])
def test_imported_runs_equal_those_that_were_exported(folder, tmp_path, file):
    with SQLiteStore(tmp_path / "new.db") as store, (folder / file).open("rb") as lines:
        import_file(store, lines)
        summaries = [*store.each(), *store.each(kind="evaluator")]
        traces = sorted(store.many([one.trace_id for one in summaries]), key=lambda trace: trace.trace_id)
    runs = plain([run for trace in traces for run in trace.runs])
    assert without_later_fields(runs, "runs") == renamed(EXPECTED["database"]["runs"])


@pytest.mark.parametrize("rule", EXPECTED["rules"])
def test_a_rule_has_the_same_version(folder, rule):
    loaded = {one.record.name: one.record.version for one in load("rules.py")}
    assert loaded[rule] == EXPECTED["rules"][rule]["version"]


@pytest.mark.parametrize("rule", EXPECTED["rules"])
def test_the_evaluators_of_a_rule_have_the_same_versions(folder, rule):
    loaded = {one.record.name: one.evaluators for one in load("rules.py")}
    versions = {one.key: [one.version, one.revision] for one in loaded[rule]}
    assert versions == EXPECTED["rules"][rule]["evaluators"]


def test_rules_score_nothing_again(folder, store):
    before = everything_in(store)
    run_monitor(store)
    after = everything_in(store)
    for kind in ("rules", "decisions"):
        assert without_later_fields(after[kind], kind) == without_later_fields(before[kind], kind)
    assert after["feedback"] == before["feedback"]


def test_a_trace_that_has_changed_by_a_vote_alone_is_not_scored_again(folder, store):
    scored = {one.target.trace_id for one in store.decisions(rule="judged", limit=100)}
    before = scores_of_rules(store)
    store.add_feedback(
        [Feedback(target=Target(trace_id=id or ""), key="seen", score=True, source="human") for id in scored]
    )
    run_monitor(store)
    assert scores_of_rules(store) == before


def run_monitor(store: SQLiteStore) -> None:
    monitor = Monitor(store, load("rules.py"), holder="later")
    try:
        while monitor.step():
            pass
    finally:
        monitor.close()


def scores_of_rules(store: SQLiteStore) -> list[tuple[str, int, int | None]]:
    found = store.feedbacks(limit=1000)
    return sorted((one.id, one.created_ns, one.claim) for one in found if one.rule is not None)
