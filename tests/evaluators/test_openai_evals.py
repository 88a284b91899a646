"""Import of OpenAI Evals: the export in fixtures/products, the API, what is hostile."""

import json
import os
import subprocess
import sys
import tracemalloc
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from urllib.parse import parse_qs, urlsplit

import pytest

from spanwise.collector.errors import Refused
from spanwise.collector.stores.sqlite import SQLiteStore
from spanwise.evaluators import Experiment, score, scripted
from spanwise.evaluators.interop import (
    digest_source,
    fetch_openai_eval,
    import_openai_evals,
    openai_grader,
    write_eval_file,
)
from spanwise.evaluators.scoring import make_case

EXPORT = Path(__file__).parents[1] / "fixtures" / "products" / "openai_evals"
EVAL = json.loads((EXPORT / "eval.json").read_text())
DIGEST = digest_source(EVAL["testing_criteria"][15])
EVAL_ID = EVAL["id"]


@pytest.fixture
def store(tmp_path):
    with SQLiteStore(tmp_path / "spanwise.db") as opened:
        yield opened


def everything(store):
    """All that an import stores, in a form that can be compared."""
    runs = sorted((run for trace in store.many([t.trace_id for t in store.each()]) for run in trace.runs), key=repr)
    feedback = sorted(map(repr, store.feedbacks(limit=1000)))
    return store.datasets(), store.examples("capitals"), store.experiments(), runs, feedback


def write(tmp_path, **files):
    """A folder with files, by their names without extension. A list is JSON lines, all else one JSON value."""
    folder = tmp_path / "export"
    folder.mkdir(exist_ok=True)
    for name, value in files.items():
        if isinstance(value, list):
            (folder / f"{name}.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in value))
        else:
            (folder / f"{name}.json").write_text(value if isinstance(value, str) else json.dumps(value))
    return folder


def item(number, **fields):
    return {
        "object": "eval.run.output_item",
        "id": f"outputitem_{number}",
        "eval_id": "eval_1",
        "run_id": "evalrun_1",
        "created_at": 1761590110,
        "datasource_item": {"q": f"question {number}"},
        "results": [],
        "sample": {"output": [{"role": "assistant", "content": "a"}], "model": "m"},
        **fields,
    }


@pytest.mark.process
def test_the_fixture_has_the_types_of_the_api():
    from openai.types import EvalRetrieveResponse
    from openai.types.evals import RunRetrieveResponse
    from openai.types.evals.runs import OutputItemListResponse

    without_multi = [each for each in EVAL["testing_criteria"] if each["type"] != "multi"]
    EvalRetrieveResponse.model_validate({**EVAL, "testing_criteria": without_multi}, strict=True)
    for line in (EXPORT / "runs.jsonl").read_text().splitlines():
        RunRetrieveResponse.model_validate_json(line.replace('"error": null', '"error": {"code": "", "message": ""}'))
    for row in json.loads((EXPORT / "output_items.json").read_text())["data"]:
        OutputItemListResponse.model_validate(row, strict=True)


def test_items_become_examples_with_the_compared_field_as_reference(store):
    import_openai_evals(store, EXPORT)
    first = store.examples("capitals")[0]
    assert first.inputs == {"question": "What is the capital of France?", "level": 1}
    assert first.reference_outputs == {"answer": "Paris is the capital of France"}


def test_reference_fields_can_be_named(store):
    import_openai_evals(store, EXPORT, reference_fields=["level"])
    assert store.examples("capitals")[0].reference_outputs == {"level": 1}


def test_runs_become_experiments(store):
    report = import_openai_evals(store, EXPORT).report
    assert (report.imported["experiments"], report.imported["runs"], report.imported["scores"]) == (2, 8, 119)
    experiment = Experiment.load(store, "capitals gpt-5-mini")
    row, *_, failed = experiment.rows()
    assert row.outputs == "Paris is the capital of France"
    assert (failed.error, failed.outputs) == ("rate_limit_exceeded: Rate limit reached", None)
    call = next(run for run in row.trace.runs if run.kind == "llm")
    assert (call.model, call.usage.input_tokens, call.usage.output_tokens) == ("gpt-5-mini-2025-08-07", 52, 8)
    assert experiment.record.status == "finished"
    assert experiment.summary()["helpful"].n == 3


def test_deterministic_graders_reproduce_the_exported_scores(store):
    imported = import_openai_evals(store, EXPORT, confirm_code=[DIGEST])
    graders = {each.key: each for each in imported.evaluators if each.asking is None}
    assert len(graders) == 15
    for id in imported.report.experiments:
        for row in Experiment.load(store, id).rows():
            for key, feedback in row.feedback.items():
                if key in graders:
                    (again,) = score(graders[key], make_case(row.trace, row.known_example))
                    assert again.score == pytest.approx(feedback.score, abs=1e-9), key


def test_the_report_says_which_scores_are_reproduced(store, tmp_path):
    items = json.loads((EXPORT / "output_items.json").read_text())
    items["data"][0]["results"][0]["score"] = 0.0
    folder = write(tmp_path, eval=EVAL, output_items=items)
    notes = import_openai_evals(store, folder).report.notes
    assert notes[:2] == [
        "grader 'exact_match': 6 of 7 scores are reproduced; the largest difference is 1",
        "grader 'differs': 7 of 7 scores are reproduced",
    ]


def test_model_graders_ask_the_judge(store):
    judge = scripted(lambda ask: {"reasoning": "so", "result": "rude" if "polite?" in str(ask.messages) else 4})
    imported = import_openai_evals(store, EXPORT, judge=judge)
    graders = [each for each in imported.evaluators if each.key in ("polite", "helpful")]
    row = next(Experiment.load(store, imported.report.experiments[0]).rows())
    case = make_case(row.trace, row.known_example)
    polite, helpful = (score(each, case)[0] for each in graders)
    assert (polite.score, polite.label, polite.comment) == (0.0, "rude", "so")
    assert helpful.score == row.feedback["helpful"].score == 4.0
    assert judge.asked[0].messages[:2] == (
        {"role": "system", "content": "Is the answer polite?"},
        {"role": "user", "content": "Answer: Paris is the capital of France"},
    )


@pytest.mark.process
def test_stored_experiments_can_be_scored_again(store):
    imported = import_openai_evals(store, EXPORT, judge=scripted({"reasoning": "", "result": 4}))
    experiment = Experiment.load(store, "capitals gpt-5-nano")
    again = experiment.evaluate([each for each in imported.evaluators if each.key == "exact_match"], progress=False)
    assert again.summary()["exact_match"].mean == experiment.summary()["exact_match"].mean == 0.25


def test_importing_twice_changes_nothing(store):
    import_openai_evals(store, EXPORT)
    before = everything(store)
    import_openai_evals(store, EXPORT)
    assert everything(store) == before


def test_what_users_changed_survives_another_import(store):
    id = import_openai_evals(store, EXPORT).report.experiments[0]
    store.change_experiment(id, name="renamed")
    import_openai_evals(store, EXPORT)
    assert store.experiment(id).name == "renamed"


def test_deleted_runs_are_reported(store):
    id = import_openai_evals(store, EXPORT).report.experiments[0]
    store.delete_experiment(id)
    report = import_openai_evals(store, EXPORT).report
    assert report.left_out["runs"] == 4
    assert "4 runs were deleted from this store" in str(report)


@pytest.mark.process
def test_python_code_is_not_compiled_without_confirmation(store, tmp_path, monkeypatch):
    marker = tmp_path / "executed"
    source = f"open({str(marker)!r}, 'w').close()\ndef grade(sample, item):\n    return 1.0\n"
    python = {"type": "python", "name": "p", "source": source}
    inner = {"type": "multi", "name": "m", "graders": {"a": python}, "calculate_output": "a"}
    folder = write(tmp_path, eval={**EVAL, "testing_criteria": [python, inner]}, items=[{"item": {"q": 1}}])
    seen = []
    import builtins

    compile_, exec_ = builtins.compile, builtins.exec
    monkeypatch.setattr(builtins, "exec", lambda *a, **k: (seen.append("exec"), exec_(*a, **k))[1])
    monkeypatch.setattr(
        builtins,
        "compile",
        lambda text, *a, **k: (seen.append(text) if text is source else None, compile_(text, *a, **k))[1],
    )
    imported = import_openai_evals(store, folder, confirm_code=["0" * 16, ""])
    write_eval_file(imported, tmp_path / "made.py")
    subprocess.run([sys.executable, str(tmp_path / "made.py")], check=True)
    assert (imported.evaluators, set(imported.unconfirmed), seen) == ([], {"p", "m"}, [])
    assert not marker.exists()
    digest = imported.unconfirmed["p"]
    changed = {**python, "source": source + "#"}
    with pytest.raises(ValueError, match="runs Python code, which is not confirmed"):
        openai_grader(changed, confirm_code=digest)
    assert not marker.exists()
    openai_grader(python, confirm_code=digest)
    assert marker.exists()


@pytest.mark.parametrize("end", ["\r", "\x0b", "\x0c", "\x1c", "\x85", "\u2028", '"""\n', "\\\n"])
def test_code_cannot_leave_the_comments_of_an_evaluation_file(store, tmp_path, end):
    marker = tmp_path / "executed"
    attack = f"x = 1{end}open({str(marker)!r}, 'w')"
    criteria = [
        {"type": "python", "name": attack, "source": attack},
        {"type": "string_check", "name": attack, "input": attack, "reference": attack, "operation": "eq"},
        {"type": "string_check", "name": attack, "input": attack, "reference": attack, "operation": attack},
    ]
    definition = {**EVAL, "name": attack, "testing_criteria": criteria}
    imported = import_openai_evals(store, write(tmp_path, eval=definition, items=[{"item": {"q": 1}}]))
    made = write_eval_file(imported, tmp_path / "made.py")
    namespace = {}
    exec(compile(made.read_text(), "made.py", "exec"), namespace)
    assert not marker.exists()
    assert len(namespace["evaluators"]) == 1


def test_an_evaluation_file_is_not_overwritten(store, tmp_path):
    imported = import_openai_evals(store, EXPORT)
    write_eval_file(imported, tmp_path / "made.py")
    with pytest.raises(Refused, match="already exists"):
        write_eval_file(imported, tmp_path / "made.py")


@pytest.mark.parametrize(
    ("files", "reason"),
    [
        ({"a": '{"object": "list", "data": [{"item": '}, r"a.json is not JSON or is truncated"),
        ({"a": "[" * 100_000}, r"a.json (is nested too deeply|is not JSON)"),
        ({"a": "\x00\x01"}, r"a.json must be a JSON object or list"),
        ({"a": '{"item": {"q": 1}}\n{"item": {"q": 2}}'}, r"name it .jsonl"),
        ({"a": [{"item": {}}, 5, None, "x"]}, r"nothing of OpenAI Evals"),
        ({"a": [item(1), item(2, eval_id="eval_2")]}, r"belong to 2 evals: eval_1, eval_2"),
    ],
)
def test_files_that_are_no_export_are_refused_in_one_line_before_anything_is_stored(store, tmp_path, files, reason):
    with pytest.raises((ValueError, Refused), match=reason) as raised:
        import_openai_evals(store, write(tmp_path, **files))
    assert "\n" not in str(raised.value)
    assert (store.datasets(), store.experiments()) == ([], [])


def test_a_truncated_last_line_is_counted_and_the_others_are_imported(store, tmp_path):
    folder = write(tmp_path, items=[item(1), item(2)])
    text = (folder / "items.jsonl").read_text()
    (folder / "items.jsonl").write_text(text[:-20])
    report = import_openai_evals(store, folder).report
    assert (report.imported["runs"], report.left_out["lines"]) == (1, 1)
    assert "line 2 of items.jsonl is not JSON or is truncated" in report.reasons[0]


@pytest.mark.parametrize(
    ("changed", "kind"),
    [
        ({"datasource_item": None}, "output items"),
        ({"datasource_item": [1]}, "output items"),
        ({"results": [{"name": "g", "score": None}]}, "scores"),
        ({"results": [{"name": "g", "score": "1.0"}]}, "scores"),
        ({"results": [{"name": "g", "score": float("nan")}]}, "scores"),
        ({"results": [{"name": "g", "score": 1}, {"name": "g", "score": 0}]}, "scores"),
        ({"results": ["g"]}, "scores"),
    ],
)
def test_wrong_types_are_left_out_with_a_reason(store, tmp_path, changed, kind):
    report = import_openai_evals(store, write(tmp_path, items=[item(1), item(2, **changed)])).report
    assert report.left_out == {kind: 1}
    assert "outputitem_2" in report.reasons[0]
    assert report.imported["runs"] == (1 if kind == "output items" else 2)


@pytest.mark.parametrize(
    "changed",
    [
        {"sample": None},
        {"sample": {"output": "x", "usage": "y", "error": 5, "model": 3}},
        {"sample": {"output": [{"role": "assistant", "content": None, "tool_calls": [{"id": "1"}]}]}},
        {"created_at": "yesterday"},
        {"created_at": -(10**18)},
        {"results": {"name": "g"}},
        {"status": ["x"]},
        {"datasource_item": {"q": "\ud800 \u0000 東京", "big": 10**30, "nan": float("nan")}},
        {"id": {"a": 1}, "run_id": None},
    ],
)
def test_odd_values_do_not_stop_an_import(store, tmp_path, changed):
    folder = write(tmp_path, items=[item(1, **changed), item(2)])
    report = import_openai_evals(store, folder).report
    assert (report.imported["runs"], dict(report.left_out)) == (2, {})
    assert import_openai_evals(store, folder).report.dataset == report.dataset


@pytest.mark.parametrize(
    ("grader", "reason"),
    [
        (None, "a grader must be an object"),
        ({"type": ["x"], "name": "g"}, "unknown type"),
        ({"type": "string_check", "name": "g", "input": 1, "reference": "", "operation": "eq"}, "input must be a text"),
        ({"type": "string_check", "name": "g", "input": "", "reference": "", "operation": []}, "unknown operation"),
        ({"type": "text_similarity", "name": "g", "input": "", "reference": "", "evaluation_metric": "x"}, "unknown"),
        ({"type": "string_check", "name": "g", "input": "{{ env.KEY }}", "reference": "", "operation": "eq"}, "unknown variable"),
        ({"type": "label_model", "name": "g", "model": "m", "input": "x", "labels": [1], "passing_labels": []}, "labels"),
        ({"type": "score_model", "name": "g", "model": "m", "input": [{"role": "user", "content": {"type": "input_image"}}]}, "only texts"),
        ({"type": "score_model", "name": "g", "model": "m", "input": "x", "range": [1, 0]}, "range must be"),
        ({"type": "multi", "name": "g", "graders": {}, "calculate_output": "a"}, "which is no grader"),
        ({"type": "multi", "name": "g", "graders": 5, "calculate_output": "a"}, "graders of a multi grader"),
    ],
)  # fmt: skip
def test_a_grader_that_cannot_be_imported_is_left_out_with_a_reason(store, tmp_path, grader, reason):
    folder = write(tmp_path, eval={**EVAL, "testing_criteria": [grader]}, items=[{"item": {"q": 1}}])
    report = import_openai_evals(store, folder).report
    assert (report.left_out["graders"], report.imported["examples"]) == (1, 1)
    assert reason in report.reasons[0]


def test_stored_completions_become_examples_with_outputs(store, tmp_path):
    completion = {
        "object": "chat.completion",
        "id": "chatcmpl-1",
        "messages": [{"role": "user", "content": "Hi"}],
        "choices": [{"message": {"role": "assistant", "content": "Hello"}}],
        "metadata": {"usecase": "chat"},
    }
    import_openai_evals(store, write(tmp_path, log=[completion]), name="log")
    (example,) = store.examples("log")
    assert example.inputs == {"usecase": "chat", "input": [{"role": "user", "content": "Hi"}]}
    assert example.outputs == "Hello"


def test_an_item_that_occurs_again_in_a_run_is_a_repetition(store, tmp_path):
    rows = [item(number, datasource_item={"q": "same"}) for number in range(3)]
    id = import_openai_evals(store, write(tmp_path, items=rows)).report.experiments[0]
    assert [row.repetition for row in Experiment.load(store, id).rows()] == [0, 1, 2]


def test_an_interrupted_import_is_marked(store, tmp_path, monkeypatch):
    def fail(runs, feedback=()):
        raise OSError("disk full")

    monkeypatch.setattr(store, "append", fail)
    with pytest.raises(OSError, match="disk full"):
        import_openai_evals(store, write(tmp_path, items=[item(1)]))
    assert [experiment.status for experiment in store.experiments()] == ["interrupted"]


@pytest.mark.slow
def test_a_large_file_is_imported_in_bounded_memory(store, tmp_path):
    folder = tmp_path / "export"
    folder.mkdir()
    row = json.dumps(item(0, datasource_item={"q": "x" * 10_000}))
    with (folder / "items.json").open("w") as file:
        file.write('{"object": "list", "data": [')
        for number in range(6_000):  # 60 MB
            separator = ", " if number else ""
            file.write(
                separator + row.replace("outputitem_0", f"outputitem_{number}").replace('"q": "', f'"q": "{number} ')
            )
        file.write("]}")
    tracemalloc.start()
    report = import_openai_evals(store, folder).report
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert report.imported["runs"] == report.imported["examples"] == 6_000
    assert peak < 120e6


class Api(BaseHTTPRequestHandler):
    """OpenAI's endpoints of evals, over the files of the export, in pages of two."""

    def do_GET(self):
        address = urlsplit(self.path)
        query = parse_qs(address.query)
        parts = address.path.strip("/").split("/")
        runs = [json.loads(line) for line in (EXPORT / "runs.jsonl").read_text().splitlines()]
        if parts[-1] == EVAL_ID:
            body = EVAL
        elif EVAL_ID not in parts:
            body = None
        elif parts[-1] == "runs":
            body = page(runs, query)
        else:
            items = json.loads((EXPORT / "output_items.json").read_text())["data"]
            body = page([each for each in items if each["run_id"] == parts[-2]], query)
        text = json.dumps(body or {"error": {"message": "No eval found", "code": "not_found"}}).encode()
        self.send_response(200 if body else 404)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *_):
        pass


def page(rows, query):
    ids = [row["id"] for row in rows]
    first = ids.index(query["after"][0]) + 1 if "after" in query else 0
    shown = rows[first : first + 2]
    return {"object": "list", "data": shown, "has_more": first + 2 < len(rows), "first_id": None, "last_id": None}


@pytest.fixture
def api(monkeypatch):
    server = ThreadingHTTPServer(("127.0.0.1", 0), Api)
    thread = Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    monkeypatch.setenv("OPENAI_BASE_URL", f"http://127.0.0.1:{server.server_port}/v1")
    monkeypatch.setenv("OPENAI_API_KEY", "key")
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.mark.process
def test_an_eval_is_downloaded_page_by_page(api, store, tmp_path):
    files = fetch_openai_eval(EVAL_ID, tmp_path / "saved")
    assert sorted(os.listdir(tmp_path / "saved")) == ["eval.jsonl", "output_items.jsonl", "runs.jsonl"]
    report = import_openai_evals(store, *files).report
    assert (report.imported["runs"], report.imported["scores"], report.imported["experiments"]) == (8, 119, 2)
    before = everything(store)
    import_openai_evals(store, EXPORT)
    assert everything(store) == before  # the files have the same objects


@pytest.mark.process
def test_a_refused_download_is_one_line(api, tmp_path):
    with pytest.raises(ValueError, match=r"eval 'eval_x' could not be downloaded: .*No eval found") as raised:
        fetch_openai_eval("eval_x", tmp_path / "saved")
    assert "\n" not in str(raised.value)
    assert os.listdir(tmp_path / "saved") == []
