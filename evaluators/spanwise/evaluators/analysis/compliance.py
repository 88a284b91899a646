"""Compliance: the nine standards of NIST AI RMF and SR 11-7, and the evaluators that address each."""

from __future__ import annotations

from dataclasses import dataclass

from spanwise.evaluators.analysis.model_results import ModelResults
from spanwise.evaluators.interface import STANDARDS

MAPPING_NOTE = "Which evaluator addresses which standard is Spanwise's reading; the standards name no evaluators."


@dataclass(frozen=True, slots=True, kw_only=True)
class StandardCoverage:
    """One standard with its summary, and the keys of the evaluators of a run that address it."""

    standard: str
    summary: str
    evaluators: tuple[str, ...]

    @property
    def is_covered(self) -> bool:
        """Return whether any evaluator addresses the standard."""
        return bool(self.evaluators)


def list_compliance(results: ModelResults) -> list[StandardCoverage]:
    """Return the coverage of all standards by the evaluators of the experiments."""
    return [
        StandardCoverage(
            standard=standard,
            summary=summary,
            evaluators=tuple(each.key for each in results.evaluators if standard in each.standards),
        )
        for standard, summary in STANDARDS.items()
    ]
