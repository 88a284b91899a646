"""Runs the conformance suites."""

from collector.conformance_backfills import *  # noqa: F403
from collector.conformance_claims import *  # noqa: F403
from collector.conformance_control import *  # noqa: F403
from collector.conformance_decisions import *  # noqa: F403
from collector.conformance_feed import *  # noqa: F403
from collector.conformance_judgements import *  # noqa: F403
from collector.conformance_money import *  # noqa: F403
from collector.conformance_rules import *  # noqa: F403
from collector.conformance_sorting import *  # noqa: F403
from collector.conformance_traces import *  # noqa: F403
from collector.conformance_why import *  # noqa: F403
