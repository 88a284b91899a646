"""Coordinator of pytest-xdist workers: shared experiments in a store served by the controller.

Only one process can write a SQLite file. The controller opens the file on the first worker's request, and serves it
to all workers. The controller also assigns tests to experiments, and finishes the experiments when the workers are
gone. Workers connect through a socket that requires a key. Until a worker connects, only the standard library is
imported.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client, Listener
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from spanwise.collector.stores import Store
    from spanwise.evaluators import Evaluator, Experiment


@dataclass(frozen=True)
class SharedExperiment:
    """Experiment that all workers add runs to."""

    id: str
    name: str
    url: str
    started_ns: int
    min_pass: float | None
    whole: tuple[Mapping[str, Any], ...]  # set-level evaluators in the format of `to_dict`
    lost: tuple[str, ...]  # keys of set-level evaluators that cannot be passed to another process


@dataclass
class XdistCoordinator:
    """Controller's side: opens stores, assigns experiments, finishes them."""

    experiments: dict[str, SharedExperiment] = field(default_factory=dict)  # node id of a test → its experiment
    crashed: bool = False  # True if a worker crashed during a run
    _stores: dict[str | None, Store] = field(default_factory=dict)
    _urls: dict[str | None, str] = field(default_factory=dict)
    _open: ExitStack = field(default_factory=ExitStack)

    def __post_init__(self) -> None:
        self._key = secrets.token_bytes(32)
        self._listener = Listener(authkey=self._key)
        self._thread = threading.Thread(target=self._listen, name="spanwise-xdist-coordinator", daemon=True)
        self._thread.start()

    @property
    def address(self) -> tuple[Any, bytes]:
        """Return the socket's address and its key."""
        return self._listener.address, self._key

    def finished(self, status: Literal["finished", "interrupted"]) -> list[tuple[SharedExperiment, Experiment]]:
        """Finish the experiments that were started. It is called when no worker is left."""
        from spanwise.evaluators.experiments import finish_stored_experiment

        finished = []
        for shared in self.experiments.values():
            store = next(store for where, store in self._stores.items() if self._urls[where] == shared.url)
            shared, evaluators = _load_set_evaluators(shared)
            finished.append((shared, finish_stored_experiment(store, shared.id, evaluators, status)))
        return finished

    def close(self) -> None:
        """Close socket, servers and stores."""
        with suppress(OSError, EOFError, AuthenticationError):
            ask_coordinator(self.address, "stop")
        self._thread.join()
        self._listener.close()
        self._open.close()

    def _listen(self) -> None:
        while True:
            try:
                with self._listener.accept() as connection:
                    request, arguments = connection.recv()
                    connection.send(self._answer(request, arguments))
                    if request == "stop":
                        return
            # the worker died during its request, or the client has no key
            except (OSError, EOFError, AuthenticationError):
                continue

    def _answer(self, request: str, arguments: tuple[Any, ...]) -> tuple[bool, Any]:
        """Return (True, result), or (False, error message)."""
        try:
            if request == "stop":
                return True, None
            return True, self._serve(*arguments) if request == "store" else self._begin(*arguments)
        except Exception as error:  # the worker's test reports the error
            return False, f"{error}"

    def _serve(self, where: str | None) -> str:
        """Return the address under which workers reach a store."""
        if where not in self._urls:
            from spanwise.collector import connect
            from spanwise.collector.client import HTTPStore
            from spanwise.collector.server import Server

            store = self._stores[where] = connect(where)
            self._open.callback(store.close)
            is_served = isinstance(store, HTTPStore)
            self._urls[where] = store.where if is_served else self._open.enter_context(Server(store)).url
        return self._urls[where]

    def _begin(self, test: str, name: str, where: str | None, options: Mapping[str, Any]) -> SharedExperiment:
        """Return the experiment of a test. The first worker's request creates it."""
        if test not in self.experiments:
            url, id = self._serve(where), secrets.token_hex(16)
            self.experiments[test] = SharedExperiment(id, name, url, time.time_ns(), **options)
        return self.experiments[test]


def _load_set_evaluators(shared: SharedExperiment) -> tuple[SharedExperiment, list[Evaluator]]:
    """Import the set-level evaluators of an experiment. The keys of those that cannot be imported are added to
    `lost`.
    """
    from spanwise.evaluators import from_dict

    evaluators, lost = [], []
    for definition in shared.whole:
        try:
            evaluators.append(from_dict(definition))
        except Exception:  # the import may raise anything
            lost.append(str(definition.get("type")))
    return replace(shared, lost=(*shared.lost, *lost)), evaluators


def ask_coordinator(address: tuple[Any, bytes], request: str, *arguments: Any) -> Any:
    """Send a request to the controller. Raises `Refused` if it fails, and `OSError` if the controller is gone."""
    where, key = address
    with Client(where, authkey=key) as connection:
        connection.send((request, arguments))
        is_done, answer = connection.recv()
    if not is_done:
        from spanwise.collector.errors import Refused

        raise Refused(answer)
    return answer
