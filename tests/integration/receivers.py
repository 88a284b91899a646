"""Other products that receive OTLP, each in a process of its own, and what they have read of a trace.

The products are in an environment of their own:

    python -m venv env && env/bin/pip install arize-phoenix==20.26.1 mlflow==3.17.2
    SPANWISE_RECEIVERS=env .venv-test/bin/python -m pytest -m slow tests/integration/test_receivers.py
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from polling import until

PYTHON = Path(os.environ.get("SPANWISE_RECEIVERS", "missing")) / "bin" / "python"
MISSING = "set SPANWISE_RECEIVERS to an environment with arize-phoenix and mlflow (see tests/integration/receivers.py)"
READ_MLFLOW = """
import json, sys, mlflow
mlflow.set_tracking_uri(sys.argv[1])
traces = mlflow.search_traces(locations=["0"], return_type="list")
fields = lambda s: {"type": s.span_type, "inputs": s.inputs, "outputs": s.outputs, "attributes": s.attributes}
spans = {s.name: fields(s) for t in traces for s in t.data.spans}
print(json.dumps({"spans": spans, "info": [t.info.trace_metadata for t in traces]}, default=str))
"""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def phoenix(folder: Path) -> Iterator[str]:
    """Run Phoenix, and yield its address."""
    port = free_port()
    settings = {"PHOENIX_WORKING_DIR": str(folder), "PHOENIX_PORT": str(port), "PHOENIX_GRPC_PORT": str(free_port())}
    more = {"PHOENIX_TELEMETRY_ENABLED": "false", "PHOENIX_HOST": "127.0.0.1"}
    with _serving(
        ["-m", "phoenix.server.main", "serve"], settings | more, f"http://127.0.0.1:{port}", "/healthz"
    ) as url:
        yield url


@contextmanager
def mlflow(folder: Path) -> Iterator[str]:
    """Run MLflow's server, and yield its address."""
    port = free_port()
    command = ["-m", "mlflow", "server", "--port", str(port), "--workers", "1"]
    command += ["--backend-store-uri", f"sqlite:///{folder}/mlflow.db", "--default-artifact-root", str(folder)]
    with _serving(
        command, {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}, f"http://127.0.0.1:{port}", "/health"
    ) as url:
        yield url


@contextmanager
def _serving(command: list[str], settings: dict[str, str], url: str, health: str) -> Iterator[str]:
    clean = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    quiet = subprocess.DEVNULL
    server = subprocess.Popen([PYTHON, *command], env={**clean, **settings}, stdout=quiet, stderr=quiet)
    try:
        until(lambda: _answers(url + health), 240)
        yield url
    finally:
        server.terminate()
        server.wait(30)


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=2) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def read_phoenix(url: str, count: int) -> dict[str, dict[str, Any]]:
    """Return the spans that Phoenix has read, by name."""

    def found() -> list[dict[str, Any]]:
        with urllib.request.urlopen(f"{url}/v1/projects/receivers/spans?limit=100", timeout=10) as answer:
            return list(json.load(answer)["data"])

    def complete() -> bool:
        try:
            return len(found()) >= count
        except OSError:  # the project does not exist before its first span
            return False

    until(complete, 60)
    return {span["name"]: span for span in found()}


def read_mlflow(url: str) -> dict[str, Any]:
    """Return the spans that MLflow has read, by name, and the metadata of their traces."""
    clean = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    read = subprocess.run([PYTHON, "-c", READ_MLFLOW, url], capture_output=True, text=True, env=clean, timeout=120)
    assert read.returncode == 0, read.stderr
    return dict(json.loads(read.stdout.splitlines()[-1]))
