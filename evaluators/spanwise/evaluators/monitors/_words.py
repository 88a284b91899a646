"""What is in a file of rules, as plain values for whoever started the monitor."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from spanwise.evaluators.monitors._rule import Monitored


def told_of(rules: Iterable[Monitored]) -> list[dict[str, Any]]:
    """Of each rule what runs, on what, how often, at what cost at most, and to whom text goes."""
    return [_told(rule) for rule in rules]


def _told(rule: Monitored) -> dict[str, Any]:
    record, settings = rule.record, rule.record.settings
    asked = [judges for evaluator in rule.evaluators if (judges := evaluator.asking)]
    return {
        "project": record.project,
        "name": record.name,
        "version": record.version,
        "target": record.target,
        "rate": settings.sample_rate,
        "strata": [stratum.rate for stratum in settings.strata],
        "budget": dict(settings.budget),
        "evaluators": [evaluator.key for evaluator in rule.evaluators],
        "where": list(dict.fromkeys(where for judges in asked for where in judges.where)),
    }
