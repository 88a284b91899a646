"""Notebooks of the docs: every code cell runs, in an empty directory, and the page of the tables is complete."""

import json
from pathlib import Path

import pytest

from spanwise.collector.stores.flat_tables import TABLES

DOCS = Path(__file__).parent.parent / "docs"
NOTEBOOKS = sorted((DOCS / "notebooks").glob("*.ipynb"))


@pytest.mark.process
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
def test_the_cells_of_a_notebook_run(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SPANWISE_URL", "")
    namespace = {"__name__": "__notebook__"}
    for number, cell in enumerate(json.loads(path.read_text("utf-8"))["cells"]):
        if cell["cell_type"] == "code":
            exec(compile("".join(cell["source"]), f"{path.name}, cell {number}", "exec"), namespace)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
def test_a_notebook_is_one_without_outputs(path):
    notebook = json.loads(path.read_text("utf-8"))
    assert (notebook["nbformat"], notebook["metadata"]["kernelspec"]["name"]) == (4, "python3")
    ids = [cell["id"] for cell in notebook["cells"]]
    assert len(set(ids)) == len(ids) > 5
    for cell in notebook["cells"]:
        assert cell["cell_type"] in ("markdown", "code")
        assert cell.get("outputs", []) == []
        assert cell.get("execution_count") is None


def test_the_page_of_the_tables_describes_every_column():
    page = (DOCS / "tables.md").read_text("utf-8")
    for table in TABLES.values():
        rows = [f"| `{column.name}` | {column.type} | {column.description} |" for column in table.columns]
        section = page.partition(f"### `{table.name}`\n\n{table.description}")[2].partition("\n### ")[0]
        assert [line for line in section.splitlines() if line.startswith("| `")] == rows
