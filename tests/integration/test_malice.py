"""Twelve seconds of mixed malice beside senders: what is right must be right on a machine of any speed."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

from integration.serving import ROOT


@pytest.mark.slow
@pytest.mark.long
def test_nothing_acknowledged_is_lost_and_nothing_is_answered_wrong(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    malice = importlib.import_module("malice")
    outcome = malice.run(tmp_path / "a.db", 12, seed=1, often=malice.OFTEN)
    assert not outcome.bad
    assert outcome.alive
    assert outcome.lost == 0
    assert outcome.sent.acknowledged
    assert set(outcome.harm.steps) == {attack.name for attack in malice.ATTACKS}
    assert outcome.peak < 600  # MB: several times that without bounds, whatever the machine
