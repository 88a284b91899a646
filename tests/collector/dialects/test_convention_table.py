"""The page of conventions is made from the code's tables, and what it lists is read."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

from collector.dialects.vendors import strict
from spanwise.collector import dialects
from spanwise.collector.dialects import RawSpan, read_run
from spanwise.collector.records import Run

ROOT = Path(__file__).parents[3]
PROGRAM = runpy.run_path(str(ROOT / "docs" / "conventions.py"))
FIELDS: dict[str, tuple[str, ...]] = PROGRAM["FIELDS"]


def test_the_page_is_up_to_date() -> None:
    written = PROGRAM["PAGE"].read_text(encoding="utf-8")
    assert written == PROGRAM["render"](), "run: python docs/conventions.py"


def test_the_fields_are_fields_of_a_run() -> None:
    assert FIELDS.keys() <= set(Run.__dataclass_fields__)


def test_each_name_is_in_the_code_of_the_dialects() -> None:
    folder = Path(dialects.__file__).parent
    tables = [file.read_text() for file in folder.glob("*.py")]
    code = "\n".join([*tables, (ROOT / "tracer/spanwise/tracer/attribute_names.py").read_text()])
    listed = {part for found in FIELDS.values() for name in found for part in re.findall(r"[A-Za-z_.]{4,}", name)}
    unknown = [
        name for name in listed if name.strip(".").removesuffix(".N") not in code and not _is_composed(name, code)
    ]
    assert unknown == []


def _is_composed(name: str, code: str) -> bool:
    """Return whether the code has the prefix of a name, and its last word, apart from each other."""
    head, _, last = name.strip(".").rpartition(".")
    return head.partition(".")[0] in code and (last in code or last == "N")


@pytest.mark.parametrize(
    ("field", "name"),
    [
        (field, name)
        for field in ("model", "session_id", "user_id", "prompt_name", "prompt_version", "agent_name")
        for name in FIELDS[field]
    ],
)
def test_a_listed_name_fills_its_field(field: str, name: str) -> None:
    value = '[{"name": "x", "version": "x"}]' if "linkedPrompts" in name else "x"
    scope = "pydantic-ai" if name == "agent_name" else ""
    attributes = {name: value, **({"ai.operationId": "ai.generateText.doGenerate"} if name.startswith("ai.") else {})}
    assert getattr(read_run(RawSpan("1" * 32, "2" * 16, "s", attributes=attributes, scope=scope), strict), field) == "x"
