"""What the page on deployment has people copy: the unit, the container file, the proxies."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

PAGE = (Path(__file__).parent.parent / "docs" / "deployment.md").read_text()


def block(kind: str) -> str:
    [found] = re.findall(rf"^```{kind}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    return str(found)


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not here")
def test_systemd_understands_the_unit(tmp_path: Path) -> None:
    unit = tmp_path / "spanwise.service"
    unit.write_text(block("ini").replace("/opt/spanwise/bin/spanwise", "/bin/true"))
    checked = subprocess.run(["systemd-analyze", "verify", unit], capture_output=True, text=True, timeout=60)
    assert (checked.returncode, checked.stderr) == (0, "")


def test_the_unit_gives_the_server_what_it_needs_and_no_more() -> None:
    unit = block("ini")
    for line in (
        "User=spanwise",
        "ProtectSystem=strict",
        "StateDirectory=spanwise",
        "UMask=0077",
        "CapabilityBoundingSet=",
    ):
        assert f"\n{line}\n" in unit
    assert int(re.findall("TimeoutStopSec=(\\d+)", unit)[0]) > 30  # what the server takes for requests under way


def test_the_container_runs_as_nobody_and_writes_its_volume_alone() -> None:
    last = block("dockerfile").rpartition("FROM ")[2]
    assert re.search("^USER 1\\d{4}$", last, re.MULTILINE)
    assert '"--store", "/data/spanwise.db"' in last
    assert "--read-only" in PAGE


def test_the_proxies_pass_on_the_name_that_they_were_called_by() -> None:
    assert "proxy_set_header Host $http_host;" in block("nginx")
    assert "header_up Host" not in PAGE  # Caddy does so by itself
