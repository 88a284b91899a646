"""Who keeps a monitor's workers running: begins them, replaces those that die or stand still, ends them with itself.

No code of users is loaded here: whatever rules and evaluators do, they do to a worker's process.
"""

from __future__ import annotations

import selectors
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from spanwise.evaluators.monitors._process import Loaded, Plan, Worker
from spanwise.evaluators.monitors._reload import Watch
from spanwise.evaluators.monitors._rest import Rest
from spanwise.tracer.backoff import pause

TICK = 0.2  # seconds
LOOK = 1.0  # seconds between two looks at the files
LONGEST = 30.0  # seconds between a death and the next beginning
STEADY = 600.0  # seconds of work after which a full worker counts as the first of its kind
DEAD = 20  # dead workers whose names are passed on
LIVED = 10.0  # seconds of work after which a death is not one more of a row
AGAIN = 30.0  # seconds until a file that could not be loaded is tried once more, if nothing runs

Tell: TypeAlias = Callable[[str], Any]


class Supervisor:
    """Runs the workers of a plan until it is told to stop; `tell` takes what is to be known, a line at a time.

    `shown` is called with what was found in the file, at first and after each change.
    """

    def __init__(self, plan: Plan, tell: Tell, shown: Callable[[Loaded], Any] = lambda loaded: None) -> None:
        self._plan, self._tell, self._shown = plan, tell, shown
        self._workers: list[Worker] = []
        self._selector = selectors.DefaultSelector()
        self._watch = Watch(plan.file)
        self._rest = Rest(tell)
        self._accepted: Loaded | None = None
        self._former: Loaded | None = None  # what was accepted before that
        self._ever = False  # whether rules were in force
        self._shown_content: str | None = None
        self._broken: str | None = None  # the content that could not be loaded
        self._said: set[str] = set()  # of this content
        self._deaths = 0  # in a row
        self._begun = 0
        self._dead: list[str] = []  # names of dead workers, whose leases others release
        self._full = 0  # workers replaced in a row because they were full
        self._not_before = 0.0
        self._looked = 0.0

    def run(self, stop: threading.Event, *, patient: bool = False) -> bool:
        """Until `stop` is set. False, at once, where the file cannot be loaded at first, unless `patient`.

        To be called in the thread that ends last: on Linux workers end with the thread that began them.
        """
        last = time.monotonic()
        try:
            while not stop.is_set():
                self._fill()
                self._listen(TICK)
                now = time.monotonic()
                self._pass(min(now - last, 5 * TICK))  # more than that this process has slept, and workers with it
                last = now
                if self._broken and not self._ever and not patient:
                    return False
                self._look()
            return True
        finally:
            self._end()

    @property
    def _sure(self) -> bool:
        """Whether what the files hold now has been loaded before."""
        return self._accepted is not None and self._accepted.content == self._watch.known

    def _fill(self) -> None:
        """As many workers as planned; only one while it is unknown whether the file can be loaded."""
        here = [worker for worker in self._workers if worker.phase != "ending"]
        wanted = self._plan.workers if self._sure else 1
        if len(here) < wanted and time.monotonic() >= self._not_before:
            self._begin()

    def _begin(self) -> None:
        self._begun += 1
        worker = Worker(self._plan, self._begun)
        self._workers.append(worker)
        self._selector.register(worker.listener.descriptor, selectors.EVENT_READ, worker)

    def _listen(self, seconds: float) -> None:
        self._selector.select(seconds)
        for worker in list(self._workers):
            ended = worker.process.poll() is not None  # asked first: what it said before its end is there then
            for message in worker.told():
                self._hear(worker, message)
            if ended:
                self._ended(worker)
        time.sleep(0.005)  # a pipe whose other end is closed is always ready

    def _hear(self, worker: Worker, message: Mapping[str, Any]) -> None:
        match message["kind"]:
            case "loaded" if worker.phase == "loading":
                worker.loaded = Loaded(**{name: value for name, value in message.items() if name != "kind"})
                worker.enter("loaded")
                self._accept(worker, worker.loaded)
            case "broken":
                worker.end(0.0)
                self._refuse(message["error"], message["files"])
            case "refused":  # by the store
                worker.end(0.0)
                self._accepted = self._former
                self._refuse(f"{str(self._plan.file)!r}: {message['error']}", [])
            case "saved":
                self._ever = True
                self._show(worker)
                self._retire(worker)
            case "say":
                self._say(message["text"])

    def _accept(self, worker: Worker, loaded: Loaded) -> None:
        """It may run. What is new in it takes the place of what ran."""
        before, self._broken = self._accepted, None
        new = before is None or before.content != loaded.content
        self._watch.follow(loaded.files, loaded.content)
        if new:
            self._said.clear()
            self._former, self._accepted = before, loaded
        elif sum(other.phase == "running" for other in self._workers) >= self._plan.workers:
            worker.end(0.0)  # the file is again what it was
            return
        worker.enter("running")
        activate = self._plan.activate or (new and before is not None)
        worker.tell(resting=self._rest.names(), activate=activate, dead=self._dead)

    def _show(self, worker: Worker) -> None:
        """Show the rules once they are in force; one that another file owns never is."""
        if worker.loaded and worker.loaded.content != self._shown_content:
            self._shown_content = worker.loaded.content
            self._shown(worker.loaded)

    def _retire(self, worker: Worker) -> None:
        """Its rules are in force: workers with those from before finish what they have begun."""
        for other in self._workers:
            if other.loaded and worker.loaded and other.loaded.content != worker.loaded.content:
                other.end(self._plan.draining)

    def _refuse(self, error: str, files: list[str]) -> None:
        """The file cannot be loaded: what ran before goes on."""
        self._watch.follow(files, self._watch.known)
        self._watch.follow_folder()
        self._not_before = time.monotonic() + AGAIN
        goes_on = "; the rules from before stay" if self._ever else "; nothing runs"
        if self._broken != self._watch.known:
            self._tell(f"{error}{goes_on}")
        self._broken = self._watch.known

    def _say(self, text: str) -> None:
        """What several workers find is told once."""
        if text not in self._said:
            self._said.add(text)
            self._tell(text)

    def _ended(self, worker: Worker) -> None:
        self._selector.unregister(worker.listener.descriptor)
        self._workers.remove(worker)
        if worker.phase != "ending" or worker.overdue:
            self._died(worker)
        worker.bury()

    def _died(self, worker: Worker) -> None:
        loading = worker.phase in ("loading", "loaded")
        if loading and not self._sure:
            told = f"{str(self._plan.file)!r} ended the process that loaded it: {worker.obituary()}"
            self._refuse(told, [])
            return
        self._deaths = 0 if worker.spent > LIVED and not loading else self._deaths + 1
        wait = pause(self._deaths, longest=LONGEST)
        self._not_before = time.monotonic() + wait
        self._tell(f"worker {worker.number} ended: {worker.obituary()}")
        self._rest.blame(worker.claims)
        self._dead = [*self._dead, *worker.holders][-DEAD:]
        self._send_rest()

    def _pass(self, seconds: float) -> None:
        for worker in self._workers:
            worker.passed(seconds)
            if worker.is_full(min(self._plan.full * 2.0**self._full, STEADY)):
                self._replace_full(worker)
        if self._rest.passed(seconds):
            self._send_rest()

    def _replace_full(self, worker: Worker) -> None:
        """Let another worker take the place of one whose memory stays full."""
        self._full = 0 if worker.spent > STEADY else self._full + 1
        if "full" not in self._said:
            self._said.add("full")
            used, limit = (f"{(size or 0) / 2**30:.2f}" for size in (worker.used, self._plan.memory))
            self._tell(
                f"worker {worker.number} is replaced: it fills {used} of {limit} GiB; an evaluator keeps memory, or "
                "its rules need more (--memory). Later replacements are not logged"
            )
        worker.end(self._plan.draining)

    def _send_rest(self) -> None:
        for worker in self._workers:
            if worker.phase == "running":
                worker.tell(resting=self._rest.names(), dead=self._dead)

    def _look(self) -> None:
        """Look at the files, and try what has changed beside what runs."""
        if time.monotonic() < self._looked + LOOK:
            return
        self._looked = time.monotonic()
        if self._watch.away:
            self._say(f"{str(self._plan.file)!r} is away; its rules stay as they are")
        if self._watch.changed():
            for worker in self._workers:
                if worker.phase == "loading":
                    worker.end(0.0)
                    worker.kill()
            self._not_before = 0.0
            self._begin()

    def _end(self) -> None:
        """Ask all to end, and end them."""
        for worker in self._workers:
            worker.end(self._plan.ending)
        last = time.monotonic()
        while self._workers:
            self._listen(TICK)
            now = time.monotonic()
            for worker in self._workers:
                worker.passed(min(now - last, 5 * TICK))
            last = now
        self._selector.close()
