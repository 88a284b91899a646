"""Notifications of alerts: delivery to webhooks, Slack-compatible webhooks, e-mail and the log.

The transaction that changes an alert's state stores the notification (`enqueue_notifications` in
`stores/control/notifications.py`). The store holds the state of each delivery. A new kind of target is a frozen
dataclass with `send(notification, base_url) -> AttemptResult`, and keys in `target_config`; it connects only through
`GuardedConnection`.

Modules, in the order in which data flows:

- `target_config`: Configuration of notification targets: one TOML file, with secrets from environment variables.
- `notifier`: Notifier: finds due deliveries, and distributes them to one worker per target, under a lease.
- `target_worker`: Worker thread of one target: attempts due deliveries, and records each attempt with the time of the
  next one.
- `message_rendering`: Rendering of a notification as plain text, HTML, a Slack message and JSON.
- `http_target`: HTTP targets: signed JSON webhooks, and Slack-compatible webhooks.
- `email_target`: E-mail targets: SMTP with TLS, plain text and HTML.
- `guarded_connection`: Guarded connections to targets: refused private addresses, one resolution of the name, limits
  of time and size.
"""

from spanwise.collector.notifications.email_target import EmailTarget
from spanwise.collector.notifications.guarded_connection import AllowedAddresses, parse_allowed
from spanwise.collector.notifications.http_target import AttemptResult, HTTPTarget, sign_body
from spanwise.collector.notifications.notifier import Notifier
from spanwise.collector.notifications.target_config import (
    LOG_TARGET,
    TARGETS_VARIABLE,
    NotificationConfig,
    load_targets,
)
from spanwise.collector.notifications.target_worker import RetrySettings

__all__ = [
    "LOG_TARGET",
    "TARGETS_VARIABLE",
    "AllowedAddresses",
    "AttemptResult",
    "EmailTarget",
    "HTTPTarget",
    "NotificationConfig",
    "Notifier",
    "RetrySettings",
    "load_targets",
    "parse_allowed",
    "sign_body",
]
