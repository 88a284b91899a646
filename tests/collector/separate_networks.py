"""A network namespace with one link to this machine, which tests cut while a server in it is in use."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import pytest


class Network(NamedTuple):
    """Name of the namespace, which is also that of its end of the link, and the address of that end."""

    name: str
    address: str

    def cut(self) -> None:
        """Let all packets vanish; no side learns of it."""
        self._set_link("down")

    def mend(self) -> None:
        self._set_link("up")

    def _set_link(self, state: str) -> None:
        subprocess.run(["ip", "-n", self.name, "link", "set", self.name, state], check=True)


@contextmanager
def separate_network() -> Iterator[Network]:
    """Yield a network for this block. Skip the test where the machine does not allow it."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        pytest.skip("a network namespace needs root and iproute2")
    name, net = f"sw{os.getpid()}", f"10.{random.randrange(200, 250)}.{random.randrange(250)}"
    commands = [
        f"netns add {name}",
        f"link add {name}h type veth peer name {name} netns {name}",
        f"addr add {net}.1/24 dev {name}h",
        f"link set {name}h up",
        f"-n {name} addr add {net}.2/24 dev {name}",
        f"-n {name} link set {name} up",
        f"-n {name} link set lo up",
    ]
    try:
        for command in commands:
            if subprocess.run(["ip", *command.split()], capture_output=True).returncode:
                pytest.skip(f"this machine does not allow: ip {command}")
        yield Network(name, f"{net}.2")
    finally:
        subprocess.run(["ip", "netns", "del", name], capture_output=True)
        subprocess.run(["ip", "link", "del", f"{name}h"], capture_output=True)
