"""Embeddings by ONNX Runtime: tokenization, batching, pooling and normalization without torch.

This module takes the place of sentence-transformers. It truncates tokens to the model's length, pools and normalizes
as the configuration files next to the weights specify. Without these files it takes the normalized mean over the
tokens.
"""

from __future__ import annotations

import json
import mmap
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spanwise.evaluators.interface.progress_display import track_progress
from spanwise.evaluators.models.disk_cache import folder_digest
from spanwise.evaluators.models.inference_batching import LoadedModel, ModelKey, load_shared
from spanwise.evaluators.models.model_resolution import (
    ModelLocation,
    NoModel,
    explain_loading_errors,
    find_onnx_weights,
    is_offline,
    local_folder,
    locate_model,
    require_modules,
)

if TYPE_CHECKING:
    import numpy

    from spanwise.evaluators.models.disk_cache import Vectors

    Hidden = numpy.ndarray[tuple[int, int, int], numpy.dtype[numpy.float32]]
    Mask = numpy.ndarray[tuple[int, int], numpy.dtype[numpy.int64]]

ONNX_EXTRA = "pip install '.[onnx]' in a checkout of Spanwise"
ONNX_BATCH = {"cpu": 8, "cuda": 32}  # default number of texts per batch, by device
MAX_THREADS = 16
DEFAULT_LENGTH = 512  # maximum tokens of a text, if no configuration file specifies it
_MODEL_INPUTS = ("input_ids", "attention_mask", "token_type_ids")
_DYNAMIC_QUANTIZATION = (b"DynamicQuantizeLinear", b"DynamicQuantizeMatMul", b"QAttention")
_CONFIG_FILES = ("tokenizer.json", "*config.json", "modules.json", "1_Pooling/config.json")
_BATCHES_PER_UPDATE = 64  # batches between two updates of the progress display


class OnnxSource:
    """ONNX weights with their configuration files. They are loaded once per process, for each location and device.

    If weights have 8 bits and activations are quantized dynamically, the vector of a text depends on the other texts
    in its batch. Such a model gets batches of one text, several in parallel.
    """

    portion = None
    paid = False

    def __init__(self, place: ModelLocation, *, device: str | None, batch_size: int | None) -> None:
        self.name, self._place, self._device, self._batch_size = place.name, place, device, batch_size

    @property
    def key(self) -> ModelKey:
        """Return the model's files and the settings it runs with."""
        return "onnx", self._place.key, self.name, self._device, self._batch_size

    @property
    def identity(self) -> Mapping[str, Any]:
        """Return the model's name, and a digest of the weights for a local folder."""
        return {"model": self.name, "function": False, **self._place.identity}

    def digest(self) -> str | None:
        """Return a digest of all files that the model reads, or None if they are not on this machine."""
        where = Path(self._place.where) if self._place.where else None
        like = (
            local_folder(locate_model(self._place.preset.like))
            if self._place.preset and self._place.preset.like
            else ""
        )
        if where is None or not where.exists() or like is None:
            return None
        folders = [where.parent if where.is_file() else where, *([Path(like)] if like else [])]
        return f"onnx {where.name} {self._batch_size} {' '.join(map(folder_digest, folders))}"

    def check(self) -> None:
        """Check that onnxruntime is installed and the file exists. Raises `NoModel`."""
        with explain_loading_errors(self._place, f"embedding with {self.name}", ONNX_EXTRA):
            require_modules("onnxruntime", "tokenizers")
            _find_onnx_file(self._place)

    def load(self) -> None:
        """Load the model now. Raises `NoModel`."""
        load_shared(self.key, self._load)

    def encode(self, texts: list[str]) -> Vectors:
        """Return vectors pooled as the model's files specify. Raises `NoModel`."""
        loaded = load_shared(self.key, self._load)
        with loaded.running:
            loaded.texts += len(texts)
            vectors: Vectors = loaded.model(texts)
            return vectors

    def _load(self) -> LoadedModel:
        with explain_loading_errors(self._place, f"embedding with {self.name}", ONNX_EXTRA):
            import onnxruntime
            import tokenizers

            file = _find_onnx_file(self._place)
            folders = _config_folders(file, self._place)
            device = _choose_onnx_device(self._device, onnxruntime.get_available_providers())
            try:
                options = onnxruntime.SessionOptions()
                # one thread per batch: several batches run in parallel, which share no work
                options.intra_op_num_threads = 1
                providers = ["CUDAExecutionProvider"] if device == "cuda" else []
                session = onnxruntime.InferenceSession(
                    str(file), options, providers=[*providers, "CPUExecutionProvider"]
                )
                tokenizer_file = next(
                    (folder / "tokenizer.json" for folder in folders if (folder / "tokenizer.json").is_file()), None
                )
                if tokenizer_file is None:
                    raise NoModel(
                        f"there is no tokenizer.json next to the ONNX file in {str(folders[0])!r}: copy the model's to it"
                    )
                tokenizer = tokenizers.Tokenizer.from_file(str(tokenizer_file))
                model = _OnnxModel(
                    session,
                    tokenizer,
                    _EncodingConfig.of(folders),
                    device,
                    self._batch_size or _choose_batch_size(file, device),
                )
            except (OSError, ValueError, NoModel):
                raise
            except Exception as error:  # the errors of onnxruntime and tokenizers have no common base class
                raise ValueError(f"{type(error).__name__}: {error}") from error
        return LoadedModel(model, self.name, str(file), device, file.stat().st_size)


@dataclass(frozen=True, slots=True)
class _EncodingConfig:
    """Configuration of the steps before the model (tokenization) and after it (pooling, normalization)."""

    length: int
    pooling: str
    normalized: bool
    lower: bool
    prefix: str

    @classmethod
    def of(cls, folders: Sequence[Path]) -> _EncodingConfig:
        """Read the configuration files of sentence-transformers. Raises `NoModel` for unsupported layers."""
        own, tokens = _read_json(folders, "sentence_bert_config.json"), _read_json(folders, "tokenizer_config.json")
        modules = [str(one.get("type", "")).rpartition(".")[2] for one in _read_json(folders, "modules.json", [])]
        for module in modules:
            if module not in ("Transformer", "Pooling", "Normalize"):
                raise NoModel(
                    f"{folders[0]} has a layer {module!r} after the model, which the ONNX file does not contain"
                )
        length = own.get("max_seq_length") or tokens.get("model_max_length") or DEFAULT_LENGTH
        settings = _read_json(folders, "config_sentence_transformers.json")
        return cls(
            length=int(length) if length < 1e6 else DEFAULT_LENGTH,
            pooling=_pooling_mode(_read_json(folders, "1_Pooling/config.json")),
            normalized=not modules or "Normalize" in modules,
            lower=bool(own.get("do_lower_case")),
            prefix=(settings.get("prompts") or {}).get(settings.get("default_prompt_name") or "") or "",
        )


class _OnnxModel:
    """ONNX model that encodes texts in batches of similar length, in parallel on the available processors."""

    def __init__(self, session: Any, tokenizer: Any, config: _EncodingConfig, device: str, size: int) -> None:
        self._session, self._tokenizer, self._config, self._size = session, tokenizer, config, size
        self._inputs = [one.name for one in session.get_inputs()]
        if unknown := set(self._inputs) - set(_MODEL_INPUTS):
            raise NoModel(f"the ONNX file has unsupported inputs: {', '.join(sorted(unknown))}")
        tokenizer.no_padding()
        tokenizer.enable_truncation(config.length)
        available = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        threads = 1 if device == "cuda" else min(MAX_THREADS, available)
        self._pool = ThreadPoolExecutor(threads, "spanwise-onnx") if threads > 1 else None

    def __call__(self, texts: list[str]) -> Vectors:
        import numpy

        prefix = self._config.prefix
        encodings = self._tokenizer.encode_batch(
            [prefix + (text.lower() if self._config.lower else text) for text in texts]
        )
        order = sorted(range(len(encodings)), key=lambda place: -len(encodings[place].ids))
        batches = [order[start : start + self._size] for start in range(0, len(order), self._size)]
        parts = [batches[start : start + _BATCHES_PER_UPDATE] for start in range(0, len(batches), _BATCHES_PER_UPDATE)]
        made: list[Vectors] = []
        run = self._pool.map if self._pool is not None else map
        for part in track_progress(parts, "batches of texts embedded"):
            made += run(lambda batch: self._pooled([encodings[place] for place in batch]), part)
        vectors: Vectors = numpy.concatenate(made)[numpy.argsort(order)]
        return vectors

    def _pooled(self, encodings: Sequence[Any]) -> Vectors:
        import numpy

        inputs, mask = _pad_tokens(encodings)
        outputs = self._session.run(None, {name: inputs[name] for name in self._inputs})
        # a two-dimensional output holds one vector per text: the model itself pools the tokens
        pooled_output = next((one for one in outputs if one.ndim == 2), None)
        vectors = (
            pooled_output if pooled_output is not None else _POOLING_FUNCTIONS[self._config.pooling](outputs[0], mask)
        )
        if self._config.normalized:
            vectors = vectors / numpy.maximum(numpy.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
        pooled: Vectors = vectors.astype(numpy.float32)
        return pooled


def _pad_tokens(encodings: Sequence[Any]) -> tuple[dict[str, Mask], Mask]:
    """Return token ids, attention mask and type ids as arrays, padded with zeros on the right.

    The second result is the attention mask alone.
    """
    import numpy

    longest = max(len(one.ids) for one in encodings)
    inputs = {name: numpy.zeros((len(encodings), max(1, longest)), dtype=numpy.int64) for name in _MODEL_INPUTS}
    for row, one in enumerate(encodings):
        for name, values in zip(_MODEL_INPUTS, (one.ids, one.attention_mask, one.type_ids), strict=True):
            inputs[name][row, : len(values)] = values
    return inputs, inputs["attention_mask"]


def _mean_pooling(hidden: Hidden, mask: Mask) -> Any:
    import numpy

    weights = mask[..., None].astype(numpy.float32)
    return (hidden * weights).sum(axis=1) / numpy.maximum(weights.sum(axis=1), 1e-9)


def _max_pooling(hidden: Hidden, mask: Mask) -> Any:
    import numpy

    return numpy.where(mask[..., None] > 0, hidden, -1e9).max(axis=1)


def _last_token_pooling(hidden: Hidden, mask: Mask) -> Any:
    import numpy

    return hidden[numpy.arange(len(hidden)), numpy.maximum(mask.sum(axis=1) - 1, 0)]


_POOLING_FUNCTIONS: Mapping[str, Callable[[Hidden, Mask], Any]] = {
    "mean": _mean_pooling,
    "cls": lambda hidden, mask: hidden[:, 0],
    "max": _max_pooling,
    "lasttoken": _last_token_pooling,
}


def _pooling_mode(config: Mapping[str, Any]) -> str:
    """Return the pooling mode that `1_Pooling/config.json` specifies, in its old or new format. Raises `NoModel` for
    unsupported modes.
    """
    old = {"cls_token": "cls", "mean_tokens": "mean", "max_tokens": "max"}
    flags = [
        name.removeprefix("pooling_mode_") for name, on in config.items() if name.startswith("pooling_mode_") and on
    ]
    mode = config.get("pooling_mode") or [old.get(flag, flag) for flag in flags] or "mean"
    mode = mode[0] if isinstance(mode, list) and len(mode) == 1 else mode
    if mode not in _POOLING_FUNCTIONS:
        raise NoModel(f"unsupported pooling {mode!r}; expected one of: {', '.join(_POOLING_FUNCTIONS)}")
    return str(mode)


def _find_onnx_file(place: ModelLocation) -> Path:
    where = Path(place.where)
    file = where if where.is_file() else find_onnx_weights(where) if place.where else None
    if file is None:
        raise FileNotFoundError(f"there is no model.onnx in {place.where!r}")
    return file


def _config_folders(file: Path, place: ModelLocation) -> list[Path]:
    """Return the folders that may hold the configuration files, in the order in which they are searched."""
    folders = [file.parent, *([file.parent.parent] if file.parent.name == "onnx" else [])]
    if place.preset is None or place.preset.like is None:
        return folders
    like = locate_model(place.preset.like)
    if like.local:
        return [*folders, Path(like.where)]
    with explain_loading_errors(
        like, f"embedding with {place.name}, whose tokenizer is that of {like.name},", ONNX_EXTRA
    ):
        from huggingface_hub import snapshot_download

        fetched = snapshot_download(like.where, allow_patterns=list(_CONFIG_FILES), local_files_only=is_offline())
    return [*folders, Path(fetched)]


def _read_json(folders: Sequence[Path], name: str, empty: Any = None) -> Any:
    """Return the content of the first file of that name in the folders, or `empty`."""
    file = next((folder / name for folder in folders if (folder / name).is_file()), None)
    return json.loads(file.read_text("utf-8")) if file is not None else {} if empty is None else empty


def _choose_onnx_device(given: str | None, providers: Sequence[str]) -> str:
    """Return "cuda" or "cpu". Raises `NoModel` if "cuda" is requested and onnxruntime does not support it."""
    named = (given or os.environ.get("SPANWISE_DEVICE") or "").partition(":")[0]
    has = "CUDAExecutionProvider" in providers
    if named == "cuda" and not has:
        raise NoModel(
            "the installed onnxruntime does not support GPUs: install onnxruntime-gpu instead, or set device='cpu'"
        )
    return "cuda" if has and named in ("", "cuda") else "cpu"


def _choose_batch_size(file: Path, device: str) -> int:
    """Return the number of texts per batch. It is one if the texts of a batch would change each other's vectors."""
    with file.open("rb") as opened, mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as content:
        return 1 if any(content.find(name) >= 0 for name in _DYNAMIC_QUANTIZATION) else ONNX_BATCH[device]
