"""Sender thread of one target: retries with backoff, and reports of failures and recovery."""

from __future__ import annotations

import logging
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence

from spanwise.collector.dialects import log_once
from spanwise.collector.forward.forward_transport import DeliveryResult, ForwardTarget, ForwardTransport
from spanwise.collector.forward.grpc_transport import GrpcTransport
from spanwise.collector.prometheus_metrics import Metrics
from spanwise.tracer.backoff import compute_backoff

MAX_RETRY_PAUSE = 30.0  # maximum of the retry backoff in seconds
SHUTDOWN_TIMEOUT = 5.0  # seconds to wait at shutdown for requests in progress
# reasons of failures that the request itself may cause
SERVER_ERRORS = frozenset(("http_500", "grpc_internal", "grpc_unknown"))
# consecutive failures of this kind after which a sender checks whether the request, and not the target, causes them
MAX_SERVER_ERRORS = 10
logger = logging.getLogger("spanwise.collector")


class SenderThread(ABC):
    """Thread that sends items to one target, until it is stopped. Items stay in a durable queue until they are sent."""

    activity = "forwarding"  # for log lines
    failure_metric = "spanwise_forward_failures_total"

    def __init__(self, target: ForwardTarget, metrics: Metrics, max_pause: float, thread_name: str) -> None:
        self.target, self.metrics = target, metrics
        self.transport = GrpcTransport(target) if target.uses_grpc else ForwardTransport(target)
        self.stopping = threading.Event()
        self.failures = self.server_errors = 0  # consecutive failures, and consecutive `SERVER_ERRORS`
        self.failure = ""  # reason of the last failure, until the next success
        self._max_pause = max_pause
        self._thread = threading.Thread(target=self._run, name=thread_name, daemon=True)

    @abstractmethod
    def send_waiting(self) -> DeliveryResult | None:
        """Send until nothing is left or the thread is stopped. If the target asks to retry later, return its result."""

    @abstractmethod
    def wait_for_items(self) -> None:
        """Wait until there may be items to send, or the thread is stopped."""

    @abstractmethod
    def describe_retry(self) -> str:
        """Return where the items are that could not be sent, for the log."""

    def start(self) -> None:
        """Start the thread. It first sends the items that are left from an earlier run."""
        self._thread.start()

    def stop(self) -> None:
        """Tell the thread to start no further request."""
        self.stopping.set()

    def join(self, seconds: float) -> None:
        """Wait up to `seconds` for the request in progress."""
        if self._thread.is_alive():
            self._thread.join(seconds)

    def count_server_error(self, result: DeliveryResult) -> bool:
        """Count consecutive `SERVER_ERRORS`. At `MAX_SERVER_ERRORS`, reset the count and return True."""
        self.server_errors = self.server_errors + 1 if result.reason in SERVER_ERRORS else 0
        if self.server_errors < MAX_SERVER_ERRORS:
            return False
        self.server_errors = 0
        return True

    def report_failure(self, result: DeliveryResult) -> bool:
        """Count a failure, and log it if the last one had another reason. Return whether it was logged."""
        self.metrics.add(self.failure_metric, 1, target=self.target.name, reason=result.reason)
        if result.reason == self.failure:
            return False
        self.failure = result.reason
        message = "%s to %r (%s) fails: %s; %s"
        logger.warning(message, self.activity, self.target.name, self.target.url, result.reason, self.describe_retry())
        return True

    def report_success(self) -> None:
        """Log that the target accepts requests again, if the last one failed."""
        if self.failure:
            self.failure = ""
            logger.warning("%s to %r works again", self.activity, self.target.name)

    def _run(self) -> None:
        while not self.stopping.is_set():
            try:
                result = self.send_waiting()
                if result is not None:
                    self.report_failure(result)
            except Exception as error:  # an error of the disk or the store, or a bug, must not end the thread
                log_once(f"{self.activity} to {self.target.name!r} failed; it is retried", error)
                result = DeliveryResult("later", type(error).__name__)
            if result is None:
                self.wait_for_items()
            else:
                self.stopping.wait(max(result.after, compute_backoff(self.failures, longest=self._max_pause)))
                self.failures += 1
        self.transport.close()


def stop_senders(senders: Sequence[SenderThread]) -> None:
    """Stop the threads, and wait for requests in progress."""
    for sender in senders:
        sender.stop()
    deadline = time.monotonic() + SHUTDOWN_TIMEOUT
    for sender in senders:
        sender.join(max(0.0, deadline - time.monotonic()))
