"""Weighted means over what the monitor decided recover the mean of all traffic: the benchmark's scenarios, smaller."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "monitor_estimates.py"


def benchmark() -> Any:
    spec = importlib.util.spec_from_file_location("monitor_estimates", BENCHMARK)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look for it there
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow  # thousands of traces are decided on and scored
@pytest.mark.parametrize("name", ["rate", "votes", "head", "paced", "all", "sessions"])
def test_the_known_mean_is_recovered(name: str) -> None:
    made = benchmark()
    scenario = next(one for one in made.SCENARIOS if one.name == name)
    row = made.simulate(scenario, blocks=12)
    assert row.held >= 0.9
    assert abs(row.bias) < 0.02
