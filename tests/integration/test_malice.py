"""Half a minute of mixed malice beside senders: what is right must be right on a machine of any speed."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

from integration.serving import ROOT


@pytest.mark.slow
def test_nothing_acknowledged_is_lost_and_nothing_is_answered_wrong(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    outcome = importlib.import_module("malice").run(tmp_path / "a.db", 30, seed=1)
    assert not outcome.bad
    assert outcome.alive
    assert outcome.lost == 0
    assert outcome.sent.acknowledged
    assert outcome.harm.steps
    assert outcome.peak < 600  # MB: several times that without bounds, whatever the machine
