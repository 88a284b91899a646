"""The user's cache folder gets the product's present name."""

from __future__ import annotations

from pathlib import Path

import pytest

from spanwise.tracer.configuration import cache_folder


@pytest.fixture
def base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path


def test_a_folder_of_the_former_name_is_renamed(base: Path) -> None:
    (base / "assay" / "spill" / "0123").mkdir(parents=True)
    assert cache_folder() == base / "spanwise"
    assert (base / "spanwise" / "spill" / "0123").is_dir()
    assert not (base / "assay").exists()


def test_a_folder_of_another_program_stays(base: Path) -> None:
    (base / "assay" / "samples").mkdir(parents=True)
    assert cache_folder() == base / "spanwise"
    assert [path.name for path in base.iterdir()] == ["assay"]


def test_a_folder_that_is_there_stays(base: Path) -> None:
    (base / "assay" / "spill").mkdir(parents=True)
    (base / "spanwise").mkdir()
    cache_folder()
    assert list((base / "spanwise").iterdir()) == []
