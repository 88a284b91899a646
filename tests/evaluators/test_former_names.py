"""Hashes of rules and of what they have scored are those from before the product was renamed."""

from __future__ import annotations

import hashlib
import importlib
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest

from collector import making
from spanwise.collector.record_corrections import present_run
from spanwise.collector.records import Case, Trace, canonical_json
from spanwise.evaluators import evaluator, get_evaluator, score
from spanwise.evaluators.interface import digest_code, digest_source, make_evaluator
from spanwise.evaluators.interface.adapters import AdaptedMetric
from spanwise.evaluators.monitors.job_executor import hash_case
from spanwise.evaluators.monitors.monitored_rule import make_evaluator_entry

CODE = '''
def check(trace: object) -> bool:
    """Read the trace."""
    from {product}.collector.records import Trace
    import {product}.tracer
    return isinstance(trace, Trace) and {product}.tracer.current_run() and trace.root.attributes.get("{product}.cost")
'''


@pytest.fixture
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, ModuleType]:
    """The same module with former and with present names, each imported under the same name."""
    found = {}
    for product in ("assay", "spanwise"):
        (tmp_path / product).mkdir()
        (tmp_path / product / "checks_of_user.py").write_text(CODE.format(product=product))
        monkeypatch.syspath_prepend(tmp_path / product)
        sys.modules.pop("checks_of_user", None)
        found[product] = importlib.import_module("checks_of_user")
        digest_source(found[product].check)  # while its source is found
    sys.modules.pop("checks_of_user", None)
    return found


@pytest.mark.parametrize("fingerprint", [digest_source, digest_code])
def test_code_with_renamed_imports_has_the_same_fingerprint(modules, fingerprint) -> None:
    assert fingerprint(modules["spanwise"].check) == fingerprint(modules["assay"].check)


def test_an_evaluator_with_renamed_imports_has_the_same_version(modules) -> None:
    versions = {evaluator(module.check, key="check").version for module in modules.values()}
    assert len(versions) == 1


def test_a_case_with_present_names_has_the_hash_that_it_had() -> None:
    former = making.run(attributes={"assay.cost.unknown": True, "assay.mine": 1}, resource={"assay.monitor": True})
    present = present_run(former)
    assert present != former
    judged = make_evaluator(lambda trace: True, key="judged")
    hashes = {hash_case(Case(trace=Trace(run, (run,))), [judged]) for run in (former, present)}
    fields = {name: getattr(former, name) for name in type(former).__slots__}
    plain = ("inputs", "outputs", "documents", "reference_outputs", "history", "metadata")
    case = Case(trace=Trace(former, (former,)))
    seen = {**{name: getattr(case, name) for name in plain}, "root": (former.status, former.error), "runs": [fields]}
    assert hashes == {hashlib.sha256(canonical_json(seen)).hexdigest()[:32]}


async def ask(values: object) -> float:
    return 1.0


def test_an_adapter_has_the_identity_that_it_had() -> None:
    entry = make_evaluator_entry(
        "rule", make_evaluator(AdaptedMetric(name="m", ask=ask, needs=()), name="m", key="m"), None
    )
    name = "assay.evaluators.protocol.adapters._common:Adapted"
    assert entry["function"] == name
    source = {name.replace(":", "."): "49e433eb1e38"}
    assert entry["source"] == hashlib.sha256(canonical_json(source)).hexdigest()[:12]


def test_a_span_is_found_by_the_former_name_of_an_attribute() -> None:
    run = making.run(attributes={"spanwise.cancelled": True})
    found = get_evaluator("has_span", attributes={"assay.cancelled": True})
    assert found.version == replace(found).version
    [feedback] = score(found, trace=Trace(run, (run,)))
    assert feedback.score is True
