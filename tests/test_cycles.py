"""No module imports itself on a way round, imports within functions counted, those for type checkers alone not."""

import ast
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FOLDERS = ("tracer", "collector", "evaluators", "cli")
Graph = dict[str, set[str]]
BLOCKS = ("body", "orelse", "handlers", "finalbody", "cases")  # where a statement has others


def named(path: Path, folder: Path) -> str:
    parts = path.relative_to(folder).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def statements(node: ast.AST) -> Iterator[ast.Import | ast.ImportFrom]:
    """Imports at any depth, but for those below `if TYPE_CHECKING:`."""
    if isinstance(node, ast.Import | ast.ImportFrom):
        yield node
    typing_only = isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
    for block in ("orelse",) if typing_only else BLOCKS:
        for child in getattr(node, block, ()):
            yield from statements(child)


def imported(statement: ast.Import | ast.ImportFrom, modules: set[str]) -> set[str]:
    """The modules that a statement names; `from package import module` names the module, not the package."""
    if isinstance(statement, ast.Import):
        return {alias.name for alias in statement.names} & modules
    assert statement.module is not None, "a relative import: in this house they are absolute"
    within = {f"{statement.module}.{alias.name}" for alias in statement.names}
    return {name if name in modules else statement.module for name in within} & modules


def graph_of(sources: dict[str, str]) -> Graph:
    modules = set(sources)
    imports = {module: statements(ast.parse(source)) for module, source in sources.items()}
    return {module: set().union(*(imported(one, modules) for one in found)) for module, found in imports.items()}


def circle(graph: Graph) -> list[str]:
    """One way round, from a module back to itself; empty if there is none."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(reversed(error.args[1]))
    return []


@pytest.fixture(scope="module")
def house() -> Graph:
    paths = [(path, ROOT / folder) for folder in FOLDERS for path in (ROOT / folder / "spanwise").rglob("*.py")]
    return graph_of({named(path, folder): path.read_text("utf-8") for path, folder in paths})


@pytest.mark.process
def test_the_house_has_no_circle(house: Graph) -> None:
    assert " → ".join(circle(house)) == ""


@pytest.mark.process
def test_the_whole_house_is_looked_at(house: Graph) -> None:
    assert {
        "spanwise.tracer",
        "spanwise.collector.records",
        "spanwise.evaluators.interface.evaluator_registry",
        "spanwise.cli",
    } <= set(house)
    assert "spanwise.tracer.suggestions" in house["spanwise.evaluators.interface.evaluator_registry"]


@pytest.mark.parametrize(
    ("second", "way"),
    [
        ("import a", ["a", "b", "a"]),
        ("def later():\n    from a import x", ["a", "b", "a"]),
        ("from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import a", []),
        ("from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import c\nelse:\n    import a", ["a", "b", "a"]),
        ("import c", []),
    ],
)
def test_what_counts_as_a_circle(second: str, way: list[str]) -> None:
    found = circle(graph_of({"a": "import b", "b": second, "c": ""}))
    assert sorted(set(found)) == sorted(set(way))
    assert found[:1] == found[-1:]


def test_a_module_of_a_package_is_not_its_face() -> None:
    sources = {"p": "from p import q", "p.q": "from p import r", "p.r": ""}
    assert graph_of(sources) == {"p": {"p.q"}, "p.q": {"p.r"}, "p.r": set()}
