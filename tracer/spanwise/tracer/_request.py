"""HTTP requests in a thread of their own, so that waiting for an answer has a deadline."""

from __future__ import annotations

import queue
import threading
import time
from dataclasses import dataclass, field

from spanwise.tracer import _errors
from spanwise.tracer._post import Answer, Post


@dataclass(slots=True, eq=False)
class Request:
    """A request that was sent, or is about to be."""

    path: str
    body: bytes
    timeout: float  # seconds
    began: float = field(default_factory=time.monotonic)
    is_done: bool = False
    _answers: queue.SimpleQueue[Answer] = field(default_factory=queue.SimpleQueue)

    @property
    def age(self) -> float:
        """Seconds since it was sent."""
        return time.monotonic() - self.began

    def wait(self, seconds: float) -> Answer | None:
        """Return the answer; None if there is none within so many seconds."""
        try:
            return self._answers.get(timeout=seconds)
        except queue.Empty:
            return None

    def send(self, post: Post) -> None:
        """Send the request and keep the answer. An error that nobody expected means to try later."""
        answer = Answer("later", "failed")
        try:
            answer = post.send(self.path, self.body, self.timeout)
        except BaseException as error:
            answer = Answer("later", type(error).__name__)
            _errors.note("delivery", error)
        finally:
            self.is_done = True
            self._answers.put(answer)


class RequestThread:
    """Sends one request at a time. A request that nobody waits for any more keeps the thread busy until it ends."""

    def __init__(self, post: Post) -> None:
        self._post = post
        self._requests: queue.SimpleQueue[Request | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._last: Request | None = None

    def send(self, path: str, body: bytes, timeout: float) -> Request | None:
        """Begin a request; None while an earlier one is under way. Called by one thread at a time."""
        if self._last is not None and not self._last.is_done:
            return None
        request = self._last = Request(path, body, timeout)
        if self._starts():
            self._requests.put(request)
        else:
            request.send(self._post)
        return request

    def end(self) -> None:
        """End the thread, after the request under way."""
        self._requests.put(None)

    def _starts(self) -> bool:
        """Whether there is a thread; False where the system has none left."""
        if self._thread is None or not self._thread.is_alive():
            thread = threading.Thread(target=self._run, name="spanwise-request", daemon=True)
            try:
                thread.start()
            except RuntimeError:
                return False
            self._thread = thread
        return True

    def _run(self) -> None:
        while (request := self._requests.get()) is not None:
            request.send(self._post)
