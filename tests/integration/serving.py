"""`spanwise serve` as a process of its own, for tests that kill it."""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import httpx

ROOT = Path(__file__).parents[2]
COMMAND = [sys.executable, "-c", "from spanwise.cli import main; main()"]


def environment() -> dict[str, str]:
    """This one's, with the repository's folders on the path, and nothing that says where things go but the spool."""
    folders = [str(ROOT / name) for name in ("tracer", "collector", "evaluators", "cli")]
    ours = {key for key in os.environ if key.startswith(("SPANWISE_", "OTEL_"))} - {"SPANWISE_SPILL_DIR"}
    kept = {key: value for key, value in os.environ.items() if key not in ours}
    return kept | {"PYTHONPATH": os.pathsep.join(folders)}


def free_port() -> int:
    """One that no client's end of a connection gets meanwhile: those are above 32,767."""
    while True:
        with socket.socket() as found, suppress(OSError):
            found.bind(("127.0.0.1", port := random.SystemRandom().randrange(20_000, 32_768)))
            return port


class Process:
    """A collector on a file. `kill` ends it as a power cut would, `stop` as an operator does."""

    def __init__(self, store: Path, port: int | None = None, options: Sequence[str] = ()) -> None:
        self.port = port or free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.process = subprocess.Popen(
            [*COMMAND, "serve", "--port", str(self.port), "--store", str(store), *options],
            env=environment(),
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            self._until_ready()
        except BaseException:
            self.__exit__()  # else the warning of what is left behind fails the next test too
            raise

    def _until_ready(self) -> None:
        deadline = time.monotonic() + 240
        while time.monotonic() < deadline:
            assert self.process.poll() is None, self.process.communicate()[1]
            with suppress(httpx.TransportError):
                # a server that requires keys does not tell its process id
                if httpx.get(f"{self.url}/healthz").json().get("pid", self.process.pid) == self.process.pid:
                    return
            time.sleep(0.02)
        raise AssertionError("not ready within four minutes")

    def __enter__(self) -> Process:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.kill()

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.communicate()

    def stop(self) -> str:
        """What it said on stderr."""
        self.process.send_signal(signal.SIGTERM)
        told: str = self.process.communicate(timeout=240)[1]
        assert self.process.returncode == 0, told
        return told
