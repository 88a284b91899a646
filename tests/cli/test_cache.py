"""`spanwise cache`, run as people run it, on a real file."""

import json
import re
import sqlite3
from contextlib import closing

import pytest
from typer.testing import CliRunner

from spanwise.cli.app import app, report_errors
from spanwise.evaluators.judges import Completion
from spanwise.evaluators.judges.llm_client.answer_cache import AnswerCache
from spanwise.evaluators.models import Embedder


def spanwise(*arguments, **options):
    return CliRunner().invoke(app, ["cache", *map(str, arguments)], **options)


def refusal(*arguments):
    with pytest.raises(SystemExit) as told, report_errors():
        app(["cache", *map(str, arguments)])
    return str(told.value)


@pytest.fixture
def path(tmp_path):
    """Three answers of two models, one of them a week old."""
    path = tmp_path / "judges.db"
    with closing(AnswerCache(path)) as cache:
        for number, model in enumerate(("small", "small", "large")):
            cache.put(bytes([number]), Completion(text="yes", model=model))
    with closing(sqlite3.connect(path)) as file, file:
        file.execute("UPDATE answers SET made = made - 7 * 86400 WHERE key = ?", (bytes([0]),))
    return path


def test_stats_show_answers_by_model(path):
    told = spanwise("stats", "--cache", path).stdout
    rows = [re.findall(r"[\w.()]+", line) for line in told.splitlines()]
    assert [row for row in rows if row][1:3] == [["small", "2"], ["large", "1"]]
    assert "together" in told


def test_stats_as_json(path):
    told = json.loads(spanwise("stats", "--cache", path, "--json").stdout)
    assert (told["answers"], told["models"], told["cache"]) == (3, {"small": 2, "large": 1}, str(path))
    assert told["bytes"] > 0


def test_the_environment_says_where(path, monkeypatch):
    monkeypatch.setenv("SPANWISE_CACHE", str(path))
    assert json.loads(spanwise("stats", "--json").stdout)["answers"] == 3


def test_a_cache_that_is_not_there_yet_is_empty_and_stays_away(tmp_path):
    absent = tmp_path / "absent.db"
    assert json.loads(spanwise("stats", "--cache", absent, "--json").stdout)["answers"] == 0
    assert json.loads(spanwise("clear", "--cache", absent, "--yes", "--json").stdout) == {"cleared": 0}
    assert not absent.exists()


@pytest.mark.parametrize(
    ("options", "left"), [([], 0), (["--model", "large"], 2), (["--older-than", "1d"], 2), (["--model", "none"], 3)]
)
def test_clear_forgets_what_is_named(path, options, left):
    assert spanwise("clear", "--cache", path, "--yes", *options).exit_code == 0
    with closing(AnswerCache(path)) as cache:
        assert cache.stats().answers == left


def test_clear_asks_first(path):
    assert spanwise("clear", "--cache", path, input="n\n").exit_code == 1
    with closing(AnswerCache(path)) as cache:
        assert cache.stats().answers == 3


def test_a_file_that_is_something_else_is_left_alone(tmp_path):
    other = tmp_path / "spanwise.db"
    with closing(sqlite3.connect(other)) as file, file:
        file.execute("CREATE TABLE spans (id)")
    assert "no cache of judges, but another database" in refusal("clear", "--cache", other, "--yes")
    with closing(sqlite3.connect(other)) as file:
        assert file.execute("SELECT count(*) FROM sqlite_master").fetchone() == (1,)


def test_a_damaged_file_is_told_in_one_line(tmp_path):
    broken = tmp_path / "judges.db"
    broken.write_bytes(b"not a database at all" * 100)
    assert "move it away" in refusal("stats", "--cache", broken)


def test_where_no_answers_are_kept_it_says_so(monkeypatch):
    monkeypatch.setenv("SPANWISE_CACHE", "off")
    assert "SPANWISE_CACHE is off" in refusal("stats")


def test_a_duration_that_is_none_is_refused(path):
    assert "invalid duration" in refusal("clear", "--cache", path, "--older-than", "yesterday", "--yes")


@pytest.fixture
def vectors(tmp_path):
    """Two vectors of one model."""
    path = tmp_path / "vectors.db"
    kept = Embedder(lambda texts: [[len(text), 1] for text in texts], name="lengths", cache=path)
    kept.embed(["a", "bb"])
    return path


def test_vectors_are_shown_and_forgotten_beside_answers(path, vectors, monkeypatch):
    monkeypatch.setenv("SPANWISE_CACHE", str(path))
    monkeypatch.setenv("SPANWISE_VECTORS", str(vectors))
    answers, made = map(json.loads, spanwise("stats", "--json").stdout.splitlines())
    assert (answers["answers"], made["vectors"], made["models"]) == (3, 2, {"lengths": 2})
    assert spanwise("clear", "--yes").stdout == "3 answers, 2 vectors removed\n"
    assert json.loads(spanwise("stats", "--cache", vectors, "--json").stdout)["vectors"] == 0


def test_a_file_of_vectors_is_known_by_its_mark(vectors):
    assert spanwise("clear", "--cache", vectors, "--model", "lengths", "--yes").stdout == "2 vectors removed\n"
