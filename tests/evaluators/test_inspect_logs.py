"""Import and export of Inspect logs. Those in fixtures/products/inspect were written by inspect-ai itself."""

import json
import os
import resource
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import zstandard

from spanwise.collector.errors import Refused
from spanwise.collector.stores.sqlite import SQLiteStore
from spanwise.evaluators import Experiment, evaluate
from spanwise.evaluators.interop import ImportReport, export_inspect_log, import_inspect_log, inspect_import
from spanwise.evaluators.interop.inspect_import import InspectLog

LOGS = Path(__file__).parents[1] / "fixtures" / "products" / "inspect"
EVAL, JSON = LOGS / "capitals.eval", LOGS / "capitals.json"
HEADER = {
    "version": 2,
    "status": "success",
    "eval": {"eval_id": "e1", "task": "t", "model": "m", "dataset": {"name": "d"}},
}


@pytest.fixture
def store(tmp_path):
    with SQLiteStore(tmp_path / "spanwise.db") as opened:
        yield opened


def sample(**fields):
    return {"id": 1, "epoch": 1, "input": "q", "target": "a", "output": {"completion": "a"}, **fields}


def archive(path, *samples, header=HEADER):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as made:
        for number, each in enumerate(samples):
            made.writestr(f"samples/{number}_epoch_1.json", each if isinstance(each, bytes) else json.dumps(each))
        if header is not None:
            made.writestr("header.json", json.dumps(header))
    return path


def everything(store):
    runs = sorted((run for trace in store.many([t.trace_id for t in store.each()]) for run in trace.runs), key=repr)
    datasets = [(dataset, store.examples(dataset.name)) for dataset in store.datasets()]
    return datasets, store.experiments(), runs, sorted(map(repr, store.feedbacks(limit=1000)))


@pytest.mark.parametrize("log", [EVAL, JSON], ids=["eval", "json"])
def test_a_log_becomes_a_dataset_and_an_experiment(store, log):
    report = import_inspect_log(store, log)
    assert report.imported == {"examples": 3, "experiments": 1, "runs": 6, "scores": 16}
    assert not report.left_out
    examples = {example.metadata["inspect"]["sample_id"]: example for example in store.examples("capitals")}
    assert examples["fr"].inputs == {"input": "What is the capital of France?"}
    assert (examples["fr"].reference_outputs, examples["fr"].metadata["level"]) == ("Paris", 1)
    assert examples[2].reference_outputs == ["Tokyo", "東京"]
    experiment = Experiment.load(store, report.experiments[0])
    rows = {(row.example_id, row.repetition): row for row in experiment.rows()}
    assert len(rows) == 6
    row = rows[examples["fr"].id, 1]
    assert dict(row.scores) == {"match": 1.0, "includes": 1.0, "several_length": 5.0, "several_polite": 1.0}
    assert (row.outputs, row.feedback["match"].label, row.feedback["several_length"].comment) == (
        "Paris",
        "correct",
        "two values",
    )
    call = next(run for run in row.trace.runs if run.kind == "llm")
    assert (call.model, call.usage.input_tokens, call.usage.output_tokens) == ("mockllm/model", 16, 3)
    assert call.inputs["messages"][0] == {"content": "Answer briefly.", "role": "system"}
    assert rows[examples["pe"].id, 0].error == "ValueError('boom')"
    assert "Traceback" in next(experiment.errors()).traceback


def test_the_scores_of_the_log_are_reproduced(store):
    results = json.loads(JSON.read_text())["results"]["scores"]
    summary = Experiment.load(store, import_inspect_log(store, JSON).experiments[0]).summary()
    means = {"match": "accuracy", "includes": "accuracy", "length": "mean", "polite": "mean"}
    for exported in results:
        key = exported["name"] if exported["name"] == exported["scorer"] else f"several_{exported['name']}"
        assert summary[key].mean == exported["metrics"][means[exported["name"]]]["value"]


@pytest.mark.parametrize("log", [EVAL, JSON], ids=["eval", "json"])
def test_importing_twice_changes_nothing(store, log):
    import_inspect_log(store, log)
    before = everything(store)
    import_inspect_log(store, log)
    assert everything(store) == before


def test_an_exported_log_is_imported_as_the_same_experiment(store, tmp_path):
    report = import_inspect_log(store, EVAL)
    before = everything(store)
    assert export_inspect_log(store, report.experiments[0], tmp_path / "again.eval") == 6
    again = import_inspect_log(store, tmp_path / "again.eval")
    assert (again.experiments, again.imported) == (report.experiments, report.imported)
    assert everything(store)[0] == before[0]
    rows = [dict(row.scores) for row in Experiment.load(store, report.experiments[0]).rows()]
    assert rows.count({"match": 1.0, "includes": 1.0, "several_length": 5.0, "several_polite": 1.0}) == 2


def test_an_exported_log_has_the_structure_of_a_real_one(store, tmp_path):
    report = import_inspect_log(store, EVAL)
    export_inspect_log(store, report.experiments[0], tmp_path / "again.eval")
    real, ours = InspectLog.open(EVAL), InspectLog.open(tmp_path / "again.eval")
    assert set(ours.header) <= set(real.header)
    assert {"eval_id", "run_id", "created", "task", "task_id", "dataset", "model", "config"} <= set(ours.header["eval"])
    assert ours.header["eval"]["eval_id"] == real.header["eval"]["eval_id"]

    def listed(log):
        samples = {(str(each["id"]), each["epoch"]): each for each in log.samples(ImportReport())}
        return {
            key: (each["input"], each["target"], each["output"]["completion"], each["metadata"], each.get("error", {}).get("message"),
                  {name: score["value"] for name, score in each["scores"].items()})
            for key, each in samples.items()
        }  # fmt: skip

    assert listed(ours) == listed(real)
    names = {name for each in real.samples(ImportReport()) for name in each}
    assert all(set(each) <= names | {"error"} for each in ours.samples(ImportReport()))


@pytest.mark.process
def test_inspects_own_reader_opens_an_exported_log(store, tmp_path):
    log = pytest.importorskip("inspect_ai.log", reason="inspect-ai is not installed")
    report = import_inspect_log(store, EVAL)
    export_inspect_log(store, report.experiments[0], tmp_path / "again.eval")
    read = log.read_eval_log(str(tmp_path / "again.eval"))
    assert (read.status, len(read.samples), read.samples[0].scores["match"].value) == ("success", 6, "I")


def test_an_own_experiment_is_exported_with_its_outcomes(store, tmp_path):
    def task(n):
        if n == 2:
            raise ValueError("two")
        return {"n": n}

    def half(outputs):
        return outputs["n"] / 2

    def tone(outputs):
        return "friendly"

    def broken(outputs):
        raise KeyError("x")

    rows = [{"inputs": {"n": n}, "reference_outputs": {"n": n}} for n in range(3)]
    evaluate(rows, task, [half, tone, broken], name="own", store=store, progress=False)
    assert export_inspect_log(store, "own", tmp_path / "own.eval") == 3
    samples = sorted(InspectLog.open(tmp_path / "own.eval").samples(ImportReport()), key=lambda each: each["input"])
    assert [each["output"]["completion"] for each in samples] == ['{"n": 0}', '{"n": 1}', ""]
    assert samples[1]["scores"] == {"half": {"value": 0.5}, "tone": {"value": "friendly"}}
    assert samples[1]["metadata"]["spanwise_errors"]["broken"].startswith("KeyError")
    assert samples[2]["error"]["message"] == "ValueError: two"
    assert samples[2]["error"]["traceback"].rstrip().endswith("ValueError: two")


def test_an_export_overwrites_nothing_and_leaves_no_part(store, tmp_path):
    id = import_inspect_log(store, EVAL).experiments[0]
    (tmp_path / "taken.eval").write_text("mine")
    with pytest.raises(Refused, match="already exists"):
        export_inspect_log(store, id, tmp_path / "taken.eval")
    with pytest.raises(Refused, match=r"must end with .eval, got 'log.zip'"):
        export_inspect_log(store, id, tmp_path / "log.zip")
    assert not list(tmp_path.glob("*.part"))


@pytest.mark.parametrize(
    ("name", "data", "reason"),
    [
        ("a.eval", b"", "truncated or no ZIP archive"),
        ("a.eval", EVAL.read_bytes()[:9000], "truncated or no ZIP archive"),
        ("a.eval", b"PK\x03\x04" + b"\0" * 100, "truncated or no ZIP archive"),
        ("a.json", JSON.read_bytes()[:20_000], "truncated"),
        ("a.json", b'{"samples": []}', "no log of Inspect"),
        ("a.json", b'{"eval": 5}', "no log of Inspect"),
        ("a.json", b"[1]", "no log of Inspect"),
        ("a.json", b"\xff\xfe{", "not UTF-8"),
    ],
)
def test_files_that_are_no_log_are_refused_in_one_line_before_anything_is_stored(store, tmp_path, name, data, reason):
    (tmp_path / name).write_bytes(data)
    with pytest.raises(ValueError, match=reason) as raised:
        import_inspect_log(store, tmp_path / name)
    assert "\n" not in str(raised.value)
    assert (store.datasets(), store.experiments()) == ([], [])


def test_a_damaged_sample_is_left_out_and_the_others_are_imported(store, tmp_path):
    log = archive(tmp_path / "a.eval", sample(), b"{", sample(id=2), b"[" * 50_000, b"5", b"\xff")
    report = import_inspect_log(store, log)
    assert (report.imported["runs"], report.left_out["samples"]) == (2, 4)
    assert all(reason.startswith("'samples/") for reason in report.reasons)


def test_bytes_that_were_changed_are_found(store, tmp_path):
    data = bytearray(EVAL.read_bytes())
    data[data.index(b"\x28\xb5\x2f\xfd", 3000) + 40] ^= 0xFF  # within a sample's Zstandard frame
    (tmp_path / "a.eval").write_bytes(data)
    report = import_inspect_log(store, tmp_path / "a.eval")
    assert (report.imported["runs"], report.left_out["samples"]) == (5, 1)


@pytest.mark.parametrize("method", ["deflate", "zstandard"])
def test_a_zip_bomb_is_refused_before_it_fills_the_memory(tmp_path, method):
    bomb = tmp_path / "bomb.eval"
    size = 1 << 30
    with zipfile.ZipFile(bomb, "w", zipfile.ZIP_DEFLATED) as made:
        made.writestr("header.json", json.dumps(HEADER))
        if method == "deflate":
            with made.open("samples/1_epoch_1.json", "w") as member:
                for _ in range(size >> 24):
                    member.write(b" " * (1 << 24))
        else:
            made.writestr("samples/1_epoch_1.json", b"")
    if method == "zstandard":
        pack = zstandard.ZstdCompressor().compressobj()
        data = b"".join(pack.compress(b" " * (1 << 24)) for _ in range(size >> 24)) + pack.flush()
        bomb.write_bytes(stored_with_method_93({"header.json": json.dumps(HEADER).encode()}, data, size))
    code = (
        "import resource, sys\nfrom pathlib import Path\n"
        "from spanwise.evaluators.interop import import_inspect_log\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "print(import_inspect_log(sys.argv[2], sys.argv[1]))\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code, bomb, tmp_path / "s.db"], capture_output=True, text=True, check=True
    )
    assert "is larger than 67,108,864 bytes" in ran.stdout
    assert int(ran.stdout.splitlines()[-1]) < 250_000  # KiB


test_a_zip_bomb_is_refused_before_it_fills_the_memory = pytest.mark.process(
    test_a_zip_bomb_is_refused_before_it_fills_the_memory
)


def stored_with_method_93(stored, data, size):
    """A ZIP archive with members as they are, and one compressed by Zstandard, which `zipfile` cannot write."""
    import io
    import struct
    import zlib

    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as made:
        for name, content in stored.items():
            made.writestr(name, content)
        made.writestr("samples/1_epoch_1.json", data)
        info = made.getinfo("samples/1_epoch_1.json")
        at = info.header_offset
        info.compress_type, info.file_size = 93, size
        info.CRC = zlib.crc32(data)
    text = bytearray(file.getvalue())
    text[at + 8 : at + 10] = struct.pack("<H", 93)
    return bytes(text)


def test_names_of_members_are_never_paths(store, tmp_path):
    (tmp_path / "in").mkdir()
    with zipfile.ZipFile(tmp_path / "in" / "a.eval", "w") as made:
        for name in ("samples/../../../evil_epoch_1.json", "/etc/evil", "samples/..\\evil_epoch_1.json"):
            made.writestr(name, json.dumps(sample(id=name)))
        made.writestr("header.json", json.dumps(HEADER))
    report = import_inspect_log(store, tmp_path / "in" / "a.eval")
    assert report.imported["runs"] == 2
    assert {path.name for path in tmp_path.rglob("*")} >= {"in", "a.eval"}
    assert not list(tmp_path.rglob("*evil*"))
    export_inspect_log(store, report.experiments[0], tmp_path / "out.eval")
    with zipfile.ZipFile(tmp_path / "out.eval") as made:
        samples = [name for name in made.namelist() if name.startswith("samples")]
    assert len(samples) == 2
    assert all(name.count("/") == 1 and "\\" not in name for name in samples)


@pytest.mark.parametrize(
    ("changed", "left_out"),
    [
        ({"scores": {"s": {"value": float("nan")}}}, "scores"),
        ({"scores": {"s": {"value": None}, "t": 1}}, "scores"),
        ({"scores": {"s": {"value": {"a": [1]}}}}, "scores"),
        ({"scores": {"s": {"value": {"a": 1}}, "s_a": {"value": 2}}}, "scores"),
        ({"input": None}, "samples"),
        ({"id": 2}, "samples"),
    ],
)
def test_wrong_values_are_left_out_with_a_reason(store, tmp_path, changed, left_out):
    log = archive(tmp_path / "a.eval", sample(id=2), sample(**changed))
    report = import_inspect_log(store, log)
    assert dict(report.left_out) == {left_out: 1}
    assert len(report.reasons) == 1


@pytest.mark.parametrize(
    "changed",
    [
        {"scores": [1], "metadata": [1], "model_usage": 3, "messages": {}, "error": "x"},
        {"output": {"choices": "x", "completion": 5}, "started_at": 5, "completed_at": "tomorrow"},
        {"output": None, "epoch": "first", "id": {"a": 1}},
        {"input": [{"role": "user", "content": [{"type": "image"}]}], "target": {"a": 1}},
        {"input": "\ud800\0", "metadata": {"big": 10**40, "nan": float("inf")}},
        {"model_usage": {"m": {"input_tokens": -1, "output_tokens": True}}, "scores": {"": {"value": 1}, "s": {"value": "N"}}},
    ],
)  # fmt: skip
def test_odd_values_do_not_stop_an_import_or_an_export(store, tmp_path, changed):
    report = import_inspect_log(store, archive(tmp_path / "a.eval", sample(id=2), sample(**changed)))
    assert report.imported["runs"] == 2
    assert export_inspect_log(store, report.experiments[0], tmp_path / "out.eval") == 2
    assert len(list(InspectLog.open(tmp_path / "out.eval").samples(ImportReport()))) == 2


def test_a_log_without_samples_or_end_is_an_interrupted_experiment(store, tmp_path):
    with zipfile.ZipFile(tmp_path / "a.eval", "w") as made:  # the evaluation was killed
        made.writestr("_journal/start.json", json.dumps({key: HEADER[key] for key in ("version", "eval")}))
        made.writestr("samples/1_epoch_1.json", json.dumps(sample()))
    import_inspect_log(store, tmp_path / "a.eval")
    assert [(each.status, each.example_count) for each in store.experiments()] == [("interrupted", 1)]


def test_values_larger_than_the_limit_are_refused(store, tmp_path, monkeypatch):
    monkeypatch.setattr(inspect_import, "MAX_MEMBER_BYTES", 1000)
    report = import_inspect_log(store, archive(tmp_path / "a.eval", sample(), sample(input="x" * 2000)))
    assert (report.imported["runs"], report.left_out["samples"]) == (1, 1)


IMPORT = "import sys; from spanwise.evaluators.interop import import_inspect_log; print(import_inspect_log(sys.argv[2], sys.argv[1]))"


def import_with_limit(log, store):
    """What an import prints in a process that may have half a GiB of data."""
    ran = subprocess.run(
        [sys.executable, "-c", IMPORT, log, store],
        capture_output=True,
        text=True,
        check=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_DATA, (1 << 29, 1 << 29)),
    )
    os.unlink(log)
    return ran.stdout


@pytest.mark.slow
def test_many_large_inputs_are_imported_in_bounded_memory(tmp_path):
    log = tmp_path / "large.eval"
    archive(log, *(sample(id=number, input=f"{number} " + "x" * 1_000_000) for number in range(400)))
    assert "400 examples, 1 experiments, 400 runs" in import_with_limit(log, tmp_path / "s.db")


@pytest.mark.slow
def test_a_json_log_of_1_gb_is_imported_in_bounded_memory(tmp_path):
    log = tmp_path / "large.json"
    padding = "x" * 1_000_000
    with log.open("w") as file:
        file.write(json.dumps(HEADER)[:-1] + ', "samples": [')
        for number in range(1000):
            text = json.dumps(sample(id=number, input=f"q{number}", store={"padding": ""}))
            file.write(("," if number else "") + text.replace('"padding": ""', f'"padding": "{padding}"'))
        file.write("]}")
    assert log.stat().st_size > 1e9
    assert "1000 runs" in import_with_limit(log, tmp_path / "s.db")
