"""Runs the conformance suites."""

from collector.conformance_control import *  # noqa: F403
from collector.conformance_judgements import *  # noqa: F403
from collector.conformance_traces import *  # noqa: F403
