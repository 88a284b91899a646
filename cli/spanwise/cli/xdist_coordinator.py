"""Coordinator of pytest-xdist workers: shared experiments in a store served by the controller.

A SQLite file has one writer, so the controller opens it once the first worker asks, and serves it to all of them; it
also says which experiment a test belongs to, and finishes that when the workers are gone. They speak over a socket that
only who has its key can use. Nothing heavier than the standard library is imported until a worker asks.
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
    """An experiment that all workers add to."""

    id: str
    name: str
    url: str
    started_ns: int
    min_pass: float | None
    whole: tuple[Mapping[str, Any], ...]  # set-level evaluators, as `to_dict` gives them
    lost: tuple[str, ...]  # keys of those that cannot be told to another process


@dataclass
class XdistCoordinator:
    """The controller's side: opens stores, hands out experiments, finishes them."""

    experiments: dict[str, SharedExperiment] = field(default_factory=dict)  # by the test's node id
    crashed: bool = False  # a worker was lost, and with it the run that it was at
    _stores: dict[str | None, Store] = field(default_factory=dict)
    _urls: dict[str | None, str] = field(default_factory=dict)
    _open: ExitStack = field(default_factory=ExitStack)

    def __post_init__(self) -> None:
        self._key = secrets.token_bytes(32)
        self._listener = Listener(authkey=self._key)
        self._thread = threading.Thread(target=self._listen, name="spanwise-office", daemon=True)
        self._thread.start()

    @property
    def address(self) -> tuple[Any, bytes]:
        """Where workers ask, and the key with which they do."""
        return self._listener.address, self._key

    def finished(self, status: Literal["finished", "interrupted"]) -> list[tuple[SharedExperiment, Experiment]]:
        """Finish what has begun, when no worker is left."""
        from spanwise.evaluators.experiments import finish_stored_experiment

        done = []
        for begun in self.experiments.values():
            store = next(store for where, store in self._stores.items() if self._urls[where] == begun.url)
            begun, whole = _load_set_evaluators(begun)
            done.append((begun, finish_stored_experiment(store, begun.id, whole, status)))
        return done

    def close(self) -> None:
        """Let go of socket, servers and stores."""
        with suppress(OSError, EOFError, AuthenticationError):
            ask_coordinator(self.address, "stop")
        self._thread.join()
        self._listener.close()
        self._open.close()

    def _listen(self) -> None:
        while True:
            try:
                with self._listener.accept() as connection:
                    verb, arguments = connection.recv()
                    connection.send(self._answer(verb, arguments))
                    if verb == "stop":
                        return
            except (OSError, EOFError, AuthenticationError):  # a worker that died while it asked, or somebody else
                continue

    def _answer(self, verb: str, arguments: tuple[Any, ...]) -> tuple[bool, Any]:
        """Whether it could be done, and what came of it, or why not."""
        try:
            if verb == "stop":
                return True, None
            return True, self._serve(*arguments) if verb == "store" else self._begin(*arguments)
        except Exception as error:  # the worker's test says it
            return False, f"{error}"

    def _serve(self, where: str | None) -> str:
        """The address under which workers reach a store."""
        if where not in self._urls:
            from spanwise.collector import connect
            from spanwise.collector.client import HTTPStore
            from spanwise.collector.server import Server

            store = self._stores[where] = connect(where)
            self._open.callback(store.close)
            served = isinstance(store, HTTPStore)
            self._urls[where] = store.where if served else self._open.enter_context(Server(store)).url
        return self._urls[where]

    def _begin(self, test: str, name: str, where: str | None, how: Mapping[str, Any]) -> SharedExperiment:
        """The experiment of a test: a new one for the worker that asks first."""
        if test not in self.experiments:
            url, id = self._serve(where), secrets.token_hex(16)
            self.experiments[test] = SharedExperiment(id, name, url, time.time_ns(), **how)
        return self.experiments[test]


def _load_set_evaluators(begun: SharedExperiment) -> tuple[SharedExperiment, list[Evaluator]]:
    """The set-level evaluators of an experiment; those that cannot be imported here are lost, too."""
    from spanwise.evaluators import from_dict

    whole, lost = [], []
    for plain in begun.whole:
        try:
            whole.append(from_dict(plain))
        except Exception:  # whatever importing it raises
            lost.append(str(plain.get("type")))
    return replace(begun, lost=(*begun.lost, *lost)), whole


def ask_coordinator(address: tuple[Any, bytes], verb: str, *arguments: Any) -> Any:
    """Ask the controller. Raises `Refused` for what it could not do, `OSError` when it is gone."""
    where, key = address
    with Client(where, authkey=key) as connection:
        connection.send((verb, arguments))
        done, answer = connection.recv()
    if not done:
        from spanwise.collector.errors import Refused

        raise Refused(answer)
    return answer
