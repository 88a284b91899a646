"""Where a model is: a folder, a package that carries it, or the hub and its cache."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from spanwise.evaluators.models._kept import samples
from spanwise.evaluators.models._presets import Preset, preset_of, similar_preset
from spanwise.evaluators.protocol import Unjudged
from spanwise.evaluators.protocol._telling import telling

EXTRA = "pip install 'spanwise[models]'"
_TELLING = (".safetensors", ".bin", ".onnx", ".gguf", "config.json")
_TORCH = ("*.safetensors", "pytorch_model*.bin")


class NoModel(Unjudged, ValueError):
    """A model, or what runs it, is not on this machine, or is not what it is asked to be."""


@dataclass(frozen=True, slots=True)
class Place:
    """What loaders take as the name of a model, and what people call it."""

    name: str
    where: str  # a folder, or its name on the hub
    preset: Preset | None = None

    @property
    def local(self) -> bool:
        """Whether it is a folder of this machine."""
        return Path(self.where).is_dir()

    @property
    def key(self) -> tuple[str, tuple[tuple[str, int, int], ...]]:
        """What is there now: weights that are written over others are another model. Of the hub only its name."""
        return self.where, tuple(sorted(_written(self.where)))

    @property
    def identity(self) -> Mapping[str, str]:
        """What tells weights in a folder from others, of a folder that is called the same; a name tells all else."""
        _, files = self.key
        return {} if self.preset is not None or not files else {"weights": _contents(files)}

    @property
    def runs_on_onnx(self) -> bool:
        """Whether its weights are those of onnxruntime: nothing else is there, or the file itself was named."""
        if self.where.endswith(".onnx") or (self.preset is not None and self.preset.like is not None):
            return True
        folder = Path(self.where)
        return weights_in(folder) is not None and not any(any(folder.glob(pattern)) for pattern in _TORCH)


def _written(where: str) -> Iterator[tuple[str, int, int]]:
    """Of each file that says what a model is: its path, its bytes, and when it was written."""
    paths = (os.path.join(folder, name) for folder, _, names in _folders(where) for name in names)
    for path in (where, *paths):
        if path.endswith(_TELLING) and os.path.isfile(path):
            status = os.stat(path)
            yield path, status.st_size, status.st_mtime_ns


@lru_cache(maxsize=100)
def _contents(files: tuple[tuple[str, int, int], ...]) -> str:
    said = hashlib.sha256()
    for path, size, _ in files:
        said.update(f"{os.path.basename(path)}\0{size}\0".encode(errors="surrogateescape"))
        with suppress(OSError):  # who loads it says so
            said.update(b"".join(samples(Path(path))))
    return said.hexdigest()[:16]


def _folders(where: str) -> Iterator[tuple[str, list[str], list[str]]]:
    """A folder and those in it, not what lies below these: parts of models do not."""
    for folder, below, names in os.walk(where):
        if folder != where:
            below.clear()
        yield folder, below, names


def weights_in(folder: Path) -> Path | None:
    """The ONNX file of a folder, as optimum and the hub lay it."""
    return next((path for name in ("model.onnx", "onnx/model.onnx") if (path := folder / name).is_file()), None)


def find(name: str | os.PathLike[str]) -> Place:
    """A folder that is there, else a preset by name or by its name on the hub, else a name on the hub.

    The package that carries a preset's weights, if it is installed, comes before the hub.
    """
    given = os.fspath(name)
    if Path(given).expanduser().is_dir():
        folder = Path(given).expanduser().absolute()  # what is loaded is known by it, wherever the process goes
        return Place(folder.name, str(folder))
    if given.endswith(".onnx") and Path(given).expanduser().is_file():
        file = Path(given).expanduser().absolute()
        return Place(f"{_folder_of(file).name}/{file.stem}", str(file))
    if given.startswith((".", "/", "~")) or given.endswith(".onnx"):
        what = "file" if given.endswith(".onnx") else "folder"
        raise NoModel(f"there is no {what} {given!r}; name one that holds a model, or a model of the hub")
    preset = preset_of(given)
    if preset is None:
        return Place(given, given)
    return Place(preset.name, _packaged(preset) or preset.hub, preset)


def _folder_of(file: Path) -> Path:
    """The model's: exports lie in a folder `onnx` of it."""
    return file.parent.parent if file.parent.name == "onnx" else file.parent


def snapshot(place: Place) -> str | None:
    """The folder of a model: its own, or what a download of the hub has left; None where it is not here."""
    if place.local:
        return place.where
    if not place.where or importlib.util.find_spec("huggingface_hub") is None:
        return None
    from huggingface_hub import try_to_load_from_cache

    file = try_to_load_from_cache(place.where, "config.json")
    return str(Path(file).parent) if isinstance(file, str) else None


def is_offline() -> bool:
    """Whether the hub is not to be asked: HF_HUB_OFFLINE, also where it was set after the hub's client was imported."""
    return os.environ.get("HF_HUB_OFFLINE", "").lower() in ("1", "true", "yes", "on")


def _packaged(preset: Preset) -> str | None:
    if preset.package is None or importlib.util.find_spec(preset.package) is None:
        return None
    module = importlib.import_module(preset.package)
    if hasattr(module, "get_model_path"):
        return str(module.get_model_path())
    return str(Path(module.model_path()).parent)


def installed(*modules: str) -> None:
    """Raises `ModuleNotFoundError` for the first that is not; imports none."""
    for module in modules:
        if sys.modules.get(module, module) is None or importlib.util.find_spec(module) is None:
            raise ModuleNotFoundError(f"no module named {module!r}", name=module)


def check_whole(told: Mapping[str, Any], name: str, what: str) -> None:
    """Of what transformers tells of loading. Raises `NoModel` where weights are missing, which it makes at random."""
    if missing := sorted(told["missing_keys"]):
        raise NoModel(f"{name!r} is no {what}: it has no weights {missing[0]!r}")


@contextmanager
def loading(place: Place, what: str, extra: str = EXTRA) -> Iterator[None]:
    """Say in one line what is missing: a package of the extra, or the model itself. Raises `NoModel`."""
    try:
        with telling(f"loading {place.name}"):
            yield
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] == "spanwise":
            raise
        raise NoModel(f"{what} needs {error.name!r}, which is not installed: {extra}") from None
    except NoModel:
        raise
    except (OSError, ValueError) as error:
        raise NoModel(_told(place, error)) from error


def _told(place: Place, error: Exception) -> str:
    said = " ".join(str(error).split())[:200]
    if place.local:
        return f"the folder {place.where!r} holds no model that can be loaded: {said}"
    if place.preset is not None and not place.where:
        return f"model {place.name!r} is not on this machine: pip install {_dist(place.preset.package)}"
    offline = " (HF_HUB_OFFLINE is set)" if is_offline() else ""
    similar = "" if place.preset else similar_preset(place.name)
    way = f"hf download {place.where} --local-dir DIR"
    package = f", or: pip install {_dist(place.preset.package)}" if place.preset and place.preset.package else ""
    return (
        f"model {place.where!r}{similar} is not on this machine and could not be fetched{offline}: where there is a "
        f"network run `{way}` and name the folder DIR instead{package}; {said}"
    )


def _dist(module: str | None) -> str:
    return (module or "").replace("_", "-")
