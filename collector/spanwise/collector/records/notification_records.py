"""Notification records: what an alert reports, and the state of its delivery to each target."""

from __future__ import annotations

import re
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from spanwise.collector.records.json_values import JSON


@dataclass(frozen=True, slots=True, kw_only=True)
class Notification:
    """Report of one change of an alert's state, for people and programs.

    The `id` stays the same for all targets and all attempts: a receiver that stores ids sees each change once. All
    texts may contain anything, because names of alerts and groups do. Raises `ValueError` for an id other than 1 to 200
    visible ASCII characters, which headers need, and for a link that is not a path on this server.
    """

    id: str
    project: str = "default"
    alert: str
    group: str | None = None
    status: str  # one word: firing, resolved, no data, closed, failed, test, …
    headline: str  # one plain sentence
    facts: Mapping[str, JSON] = field(default_factory=dict)  # name → value, shown as a table in this order
    links: Mapping[str, str] = field(default_factory=dict)  # title → path on this server, such as /rules/polite?…
    created_ns: int = field(default_factory=time.time_ns)
    targets: tuple[str, ...] = ()  # names of configured targets

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[!-~]{1,200}", self.id):
            raise ValueError(
                f"the id of a notification must be 1 to 200 visible ASCII characters, got {self.id!r:.220}"
            )
        for title, path in self.links.items():
            if not path.startswith("/") or path.startswith(("//", "/\\")):  # browsers read //host as another server
                raise ValueError(f"link {title!r} of a notification must be a path on this server, got {path!r}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """State of the delivery of one notification to one target.

    Without `delivered_ns` and `gave_up_ns` it is open. `error` is the reason why the last attempt failed; a delivered
    notification keeps it if only some recipients of an e-mail were accepted.
    """

    notification: str
    target: str
    attempts: int = 0
    first_attempt_ns: int | None = None
    next_ns: int | None = None  # time of the next attempt; 0: at once
    delivered_ns: int | None = None
    gave_up_ns: int | None = None
    error: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NotificationStatus:
    """Notification with the states of its deliveries, one per target."""

    notification: Notification
    deliveries: tuple[Delivery, ...] = ()


def make_test_notification(
    alert: str, *, project: str = "default", targets: Sequence[str] = (), path: str = "/alerts"
) -> Notification:
    """Return a notification that says that it is a test. `path` is the page on this server to which it links."""
    return Notification(
        id=uuid.uuid4().hex,
        project=project,
        alert=alert,
        status="test",
        headline=f"This is a test of alert {alert!r}. Nothing has happened.",
        facts={"project": project, "alert": alert},
        links={"Alert": path},
        targets=tuple(targets),
    )
