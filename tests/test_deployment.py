"""What the page on deployment has people copy: the unit, the container file, the proxies; and the folder `deploy`."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import yaml

from collector.clickhouse_server import ClickHouseServer
from collector.conftest import clickhouse_server  # noqa: F401
from spanwise.evaluators.monitors import load

DEPLOY = Path(__file__).parent.parent / "deploy"
COMPOSE: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
SERVICES: dict[str, Any] = COMPOSE["services"]
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


# The folder `deploy`


def commands(*names: str) -> list[list[str]]:
    return [SERVICES[name]["command"] for name in names]


def test_the_compose_file_follows_the_specification() -> None:
    pytest.importorskip("check_jsonschema", reason="the schema comes with check-jsonschema")
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec"]
    checked = subprocess.run([*command, DEPLOY / "compose.yaml"], capture_output=True, text=True, timeout=60)
    assert checked.returncode == 0, checked.stdout


@pytest.mark.parametrize("name", SERVICES)
def test_every_service_has_a_health_check_and_a_memory_limit(name: str) -> None:
    service = SERVICES[name]
    assert service["healthcheck"]["test"][0] == "CMD"
    assert re.fullmatch(r"\d+[mg]", service["deploy"]["resources"]["limits"]["memory"])


def test_there_are_two_collectors_and_two_monitors_on_both_databases() -> None:
    assert sorted(SERVICES) == sorted(
        ["clickhouse", "postgres", "balancer", "collector-1", "collector-2", "monitor-1", "monitor-2"]
    )
    for command in commands("collector-1", "collector-2"):
        assert command[0] == "serve"
        assert any(option.startswith("--store=clickhouse://") for option in command)
        assert any(option.startswith("--control=postgresql://") for option in command)


def test_every_dependency_is_a_service_with_a_health_check() -> None:
    for service in SERVICES.values():
        for name, condition in service.get("depends_on", {}).items():
            assert condition == {"condition": "service_healthy"}
            assert "healthcheck" in SERVICES[name]


def test_no_command_line_contains_a_password() -> None:
    text = " ".join(option for command in commands("collector-1", "monitor-1") for option in command)
    # the doubled dollar sign leaves the variable to the collector
    assert re.findall(r"spanwise:([^@]*)@", text) == ["$${CLICKHOUSE_PASSWORD}", "$${POSTGRES_PASSWORD}"]


def test_every_secret_is_in_the_example_of_the_environment() -> None:
    needed = set(re.findall(r"\$\{(\w+):\?", (DEPLOY / "compose.yaml").read_text()))
    listed = set(re.findall(r"^(\w+)=$", (DEPLOY / ".env.example").read_text(), re.MULTILINE))
    assert needed == listed


@pytest.mark.process
@pytest.mark.parametrize(("name", "command"), [("collector-1", "serve"), ("monitor-1", "monitor run")])
def test_the_options_of_the_commands_exist(name: str, command: str) -> None:
    help_ = subprocess.run(
        [sys.executable, "-m", "spanwise", *command.split(), "--help"], capture_output=True, text=True, check=True
    ).stdout
    for option in SERVICES[name]["command"]:
        if option.startswith("--"):
            assert option.partition("=")[0] in help_


def test_the_balancer_knows_all_collectors() -> None:
    text = (DEPLOY / "Caddyfile").read_text()
    for port in ("4318", "4317"):
        upstreams = set(re.findall(rf"(?<![:\w-])(?:h2c://)?(collector-\d):{port}", text))
        assert upstreams == {name for name in SERVICES if name.startswith("collector")}


def test_files_that_are_mounted_exist() -> None:
    for service in SERVICES.values():
        for volume in service.get("volumes", ()):
            source = volume.partition(":")[0]
            assert (DEPLOY / source).exists() if source.startswith(".") else source in COMPOSE["volumes"]


def test_the_example_of_rules_can_be_loaded() -> None:
    assert [rule.record.name for rule in load(DEPLOY / "rules" / "rules.py")] == ["answered"]


LOGS = "query_log trace_log metric_log asynchronous_metric_log text_log part_log".split()


@pytest.mark.process
def test_the_servers_own_logs_expire(clickhouse_server: ClickHouseServer) -> None:  # noqa: F811
    settings = ElementTree.parse(DEPLOY / "clickhouse" / "server.xml").getroot()
    for name in LOGS:
        lifetime = settings.findtext(f"{name}/ttl")
        assert lifetime is not None
        create = f"CREATE TABLE t (event_date Date) ENGINE = MergeTree ORDER BY event_date TTL {lifetime}"
        assert "event_date + toIntervalDay(" in clickhouse_server.execute(f"SELECT formatQuery('{create}')")


def test_the_image_has_the_drivers_and_runs_as_nobody() -> None:
    text = (DEPLOY / "Dockerfile").read_text()
    assert "/src[server,clickhouse,postgres]" in text
    assert re.search("^USER 1\\d{4}$", text, re.MULTILINE)
